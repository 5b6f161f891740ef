"""Build a product's features from its table, and write all its files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tollgate.features.offline import build
from tollgate.features.spec.description import decimals_text
from tollgate.features.spec.feature_spec import SPEC_FILE, FeatureSpec, load_spec
from tollgate.features.spec.spec_validation import largest_number
from tollgate.policy import POLICY_FILE
from tollgate.product.config_text import all_texts, step_names
from tollgate.product.plan import Field, Plan
from tollgate.product.policy_text import policy_text, slo_text
from tollgate.product.rows import Rows, rows_of
from tollgate.product.script_text import SCRIPT_FILE, script_text
from tollgate.product.table_reading import as_numbers
from tollgate.product.thresholds import Thresholds
from tollgate.repository.slo import SLO_FILE
from tollgate.templating import WIDTH, render, yaml_list

# Write the first features.yaml of a product.

_WINDOWS = ("1d", "7d", "30d")
_LONGEST_S = 30 * 86_400.0
# A value this many times beyond all that were seen counts as a mistake.
_BEYOND = 10


def spec_text(
    plan: Plan,
    *,
    fields: tuple[Field, ...],
    missing: Mapping[str, float],
    usual_amount: float = 0.0,
) -> str:
    """
    Write features.yaml.

    Args:
        plan: The product.
        fields: Its fields in the order of the vector.
        missing: Substitute for a missing value, by field; NaN leaves it to the model.
        usual_amount: Default of a mean of amounts without history.
    """
    choices = plan.choices
    return render(
        "tollgate/product/templates/features.yaml.j2",
        {
            "product": choices.product,
            "table": choices.table.name,
            "amount": choices.amount,
            "time": choices.time,
            "at_night": plan.at_night,
            "aliases": plan.aliases,
            "entities": plan.entities,
            "fields": [_field(one, default=missing[one.name]) for one in fields],
            "windows": window_features(plan, usual_amount=usual_amount),
        },
    )


def _field(field: Field, *, default: float) -> dict[str, object]:
    """Return the values that the template needs of a field."""
    column = field.column
    values: dict[str, object] = {
        "name": field.name,
        "type": column.kind,
        "missing": column.missing,
    }
    if column.kind == "category":
        line = f"  - {{name: {field.name}, type: category, vocabulary: "
        line += yaml_list(column.words, indent=6) + "}"
        fits = len(line) <= WIDTH and "\n" not in line
        return {
            **values,
            "words": column.words,
            "on_one_line": fits,
            "left_to_model": math.isnan(default),
        }
    decimals = f", decimals: {decimals_text(column.decimals)}"
    low, high = bounds(column.low, column.high, decimals=column.decimals)
    return {
        **values,
        "decimals": decimals if column.decimals != 0 else "",
        "low": low,
        "high": high,
        "seen_low": column.low,
        "seen_high": column.high,
        "default": default,
    }


def bounds(low: float, high: float, *, decimals: int | None) -> tuple[float, float]:
    """
    Return the range of valid numbers: up to ten times those that were seen.

    A number that was never below 0 must not be; a row with a number out of range is
    bad.
    """
    most = largest_number(decimals)
    least = 0.1**decimals if decimals is not None else float(low == high == 0)
    largest = max(abs(low), abs(high), least)
    wide = 10.0 ** math.ceil(math.log10(largest * _BEYOND) - 1e-9)
    wide = min(wide, most)
    return (0.0 if low >= 0 else -wide), (0.0 if high <= 0 else wide)


def window_features(
    plan: Plan, *, usual_amount: float = 0.0
) -> list[tuple[str, str, float]]:
    """
    List the features over windows: name, the keys that define it, and its default.

    The default is the value of an entity without any history: counts and sums are 0,
    and the last event is longer ago than the longest window. The mean of no amounts is
    undefined, and 0 would be unusual, so its default is the usual amount.
    """
    taken = {one.name for one in plan.fields}
    aggregates = {"count": 0.0}
    if plan.choices.amount:
        aggregates |= {"sum": 0.0, "mean": usual_amount}
    found = []
    for entity in plan.entities:
        found += [
            (
                f"{entity.name}_{aggregate}_{window}",
                f"entity: {entity.name}, aggregate: {aggregate}, window: {window}",
                default,
            )
            for aggregate, default in aggregates.items()
            for window in _WINDOWS
        ]
        since = f"time_since_last: {entity.name}, window: {_WINDOWS[-1]}"
        found.append((f"{entity.name}_since_last", since, _LONGEST_S))
    return [
        (name if name not in taken else f"{name}_w", keys, default)
        for name, keys, default in found
    ]


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
