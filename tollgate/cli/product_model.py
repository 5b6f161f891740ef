"""The model of a new product: trained here, or brought along as a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError
from tollgate.product.label import Label
from tollgate.product.plan import Field, Plan

if TYPE_CHECKING:
    from converters.model import Facts, TrainedModel
    from tollgate.features.spec import FeatureSpec

F32 = npt.NDArray[np.float32]
Kind = Literal["boosting", "logistic"]


class Brought(msgspec.Struct, frozen=True, eq=False):
    """
    A model that somebody trained elsewhere, and how it meets the table.

    Attributes:
        model: The model, its features under the product's names.
        fields: The product's fields in the order of its features.
        takes_nan: Whether it answers a row without numbers.
    """

    model: TrainedModel
    fields: tuple[Field, ...]
    takes_nan: bool

    def classes_of(self, label: npt.NDArray[np.int8]) -> tuple[object, ...]:
        """Write outcomes as the model's classes."""
        classes = self.model.facts.classes
        return tuple(classes[one] for one in label.tolist())


class Renamed:
    """A model whose features are called as the product calls them."""

    def __init__(self, model: TrainedModel, names: tuple[str, ...]) -> None:
        self._model = model
        self.facts: Facts = msgspec.structs.replace(model.facts, names=names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


@contextmanager
def brought(path: Path, plan: Plan, *, trust_pickle: bool) -> Iterator[Brought]:
    """
    Open a model's file and find its features among the table's columns.

    Raises:
        InputError: It cannot be read, has not two classes, or a feature is no column.
        ConversionError: It would not convert faithfully.
    """
    from converters.sources.opening import open_source

    asked = plan.asked
    if asked.entities or asked.time or asked.amount:
        problem = (
            "takes the table's columns alone; with --entity, --time or --amount make "
            "the product first, then train on `tollgate features build` and publish"
        )
        raise InputError("--model", problem)
    count = len(plan.fields)
    with open_source(path, trust_pickle=trust_pickle, columns=count) as model:
        _require_outcome(path, model.facts, plan.label)
        fields = _matched(path, model.facts, plan)
        named = Renamed(model, tuple(one.name for one in fields))
        empty = np.full((1, len(fields)), np.nan, np.float32)
        yield Brought(
            model=named,
            fields=fields,
            takes_nan=bool(np.isfinite(model.predict(empty)).all()),
        )


def _matched(path: Path, facts: Facts, plan: Plan) -> tuple[Field, ...]:
    """Order the fields as the model has its features: by name, else by number."""
    if facts.names is None:
        if facts.columns != len(plan.fields):
            shown = ", ".join(one.column.source for one in plan.fields)[:200]
            problem = (
                f"has {facts.columns} features without names, the table has "
                f"{len(plan.fields)} columns for them: {shown}; --drop some"
            )
            raise InputError(path, problem)
        return plan.fields
    known = {one.column.source: one for one in plan.fields}
    known |= {one.name: one for one in plan.fields}
    reasons = {one.source: one.reason for one in plan.left_out}
    for name in facts.names:
        if name not in known:
            why = f" ({reasons[name]})" if name in reasons else ""
            problem = f"was trained with {name!r}, which the product has not{why}"
            raise InputError(path, problem)
    return tuple(known[name] for name in facts.names)


def _require_outcome(path: Path, facts: Facts, label: Label) -> None:
    """Demand that the second of two classes is the outcome; 0 and 1 are any two."""
    classes = [str(one) for one in facts.classes]
    if len(classes) != 2:
        raise InputError(path, f"has {len(classes)} classes, not two: {classes[:8]}")
    if classes[1] == label.positive or classes == ["0", "1"]:
        return
    problem = f"tells the classes {classes} apart, and scores the second one"
    if classes[1] in label.others:
        problem += f": --positive {classes[1]!r}"
    raise InputError(path, problem)


def trained(
    features: F32,
    label: npt.NDArray[np.int8],
    *,
    spec: FeatureSpec,
    kind: Kind,
    seed: int,
) -> tuple[TrainedModel, Kind]:
    """
    Train the first model.

    Boosting finds nothing to split on in very small tables, and would answer every row
    alike; then it is a regression.

    Returns:
        The model, and its kind.

    Raises:
        InputError: The rows cannot be trained on, or say nothing of the outcome.
    """
    from converters.baseline import train_baseline
    from converters.sources.worker import model_of

    kinds: tuple[Kind, ...] = ("boosting", "logistic")
    for one in kinds[kinds.index(kind) :]:
        pipeline = train_baseline(features, label, spec=spec, seed=seed, kind=one)
        if np.ptp(pipeline.predict_proba(features)[:, 1]) > 0:
            return model_of(pipeline), one
    problem = "every row gets the same score: the columns say nothing of the outcome"
    raise InputError(spec.product, problem)


def missing_of(fields: Sequence[Field], *, leave_to_model: bool) -> dict[str, float]:
    """Say what stands for a missing number: NaN, or the middle of those there are."""
    found = {}
    for one in fields:
        middle = one.column.values.median() if one.column.kind == "number" else 0.0
        plain = middle if isinstance(middle, float) else 0.0
        if one.column.decimals is not None:
            plain = round(plain, one.column.decimals)
        found[one.name] = float("nan") if leave_to_model else plain
    return found
