"""Build a product's features from its table, and write all its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tollgate.features.offline import build
from tollgate.features.spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.policy import POLICY_FILE
from tollgate.product.config_text import all_texts, step_names
from tollgate.product.plan import Field, Plan
from tollgate.product.policy_text import policy_text, slo_text
from tollgate.product.rows import Rows, rows_of
from tollgate.product.script_text import SCRIPT_FILE, script_text
from tollgate.product.spec_text import spec_text
from tollgate.product.thresholds import Thresholds
from tollgate.product.values import as_numbers
from tollgate.repository.slo import SLO_FILE

_SHORT = 3  # digits of a default


def build_features(
    plan: Plan,
    folder: Path,
    *,
    fields: tuple[Field, ...],
    missing: Mapping[str, float],
) -> tuple[FeatureSpec, Rows, npt.NDArray[np.float32]]:
    """
    Write features.yaml, and build the vectors of the table's rows.

    Args:
        plan: The product.
        folder: A model repository.
        fields: Fields of the product, in the order of the vector.
        missing: Substitute for a missing value, by field; NaN leaves it to the model.

    Returns:
        The features, the rows, and their vectors; float32 [N, F].

    Raises:
        InputError: A value is invalid.
    """
    spec = _write_spec(plan, folder, fields=fields, missing=missing)
    rows = rows_of(
        plan.frame,
        spec=spec,
        positive=plan.label.positive,
        segments=plan.choices.sensitive,
        source=str(plan.choices.table),
        label_delay_us=plan.choices.label_delay_us,
    )
    return spec, rows, build(spec, rows.history).astype(np.float32)


def write_texts(
    plan: Plan,
    folder: Path,
    *,
    spec: FeatureSpec,
    thresholds: Thresholds,
    kind: str,
    seen: bool,
    wide: bool,
) -> None:
    """
    Write all other files that a person may want to change, and the models' folders.

    Args:
        plan: The product.
        folder: A model repository.
        spec: The product's features.
        thresholds: Its thresholds.
        kind: Kind of model that train.py trains.
        seen: True if the model may have been trained on the rows of the thresholds.
        wide: True if the model takes the features as float64.
    """
    product = plan.choices.product
    _, _, decision = step_names(product)
    texts = {
        **all_texts(spec, wide=wide),
        f"{decision}/1/{POLICY_FILE}": policy_text(plan, thresholds, seen=seen),
        f"{product}/{SLO_FILE}": slo_text(product),
        f"{product}/{SCRIPT_FILE}": script_text(plan, kind=kind),
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def _write_spec(
    plan: Plan,
    folder: Path,
    *,
    fields: tuple[Field, ...],
    missing: Mapping[str, float],
) -> FeatureSpec:
    step, _, _ = step_names(plan.choices.product)
    path = folder / step / "1" / SPEC_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    usual = _usual_amount(plan)
    text = spec_text(plan, fields=fields, missing=missing, usual_amount=usual)
    path.write_text(text, "utf-8")
    return load_spec(path)


def _usual_amount(plan: Plan) -> float:
    """Return the median amount of the rows; 0 for a product without money."""
    if plan.choices.amount is None:
        return 0.0
    amounts = as_numbers(plan.frame[plan.choices.amount]).values.drop_nulls()
    return float(f"{np.median(amounts.to_numpy()):.{_SHORT}g}")
