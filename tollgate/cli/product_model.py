"""Train the model of a new product, or open one from a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.cli.product_matching import matched
from tollgate.errors import InputError
from tollgate.product.label import Label
from tollgate.product.plan import Field, Plan

if TYPE_CHECKING:
    from converters.model import Facts, TrainedModel
    from tollgate.features.spec import FeatureSpec

F32 = npt.NDArray[np.float32]
Kind = Literal["auto", "boosting", "deep-boosting", "logistic"]


class Brought(msgspec.Struct, frozen=True, eq=False):
    """
    A model that was trained elsewhere, matched to the table.

    Attributes:
        model: The model, its features under the product's names.
        fields: The product's fields in the order of its features.
        takes_nan: True if it scores a row with missing numbers.
        encoded: Fields that the model's own encoder reads; it knows codes below 0.
    """

    model: TrainedModel
    fields: tuple[Field, ...]
    takes_nan: bool
    encoded: frozenset[str] = frozenset()

    def classes_of(self, label: npt.NDArray[np.int8]) -> tuple[object, ...]:
        """Convert outcomes to the model's classes."""
        classes = self.model.facts.classes
        return tuple(classes[one] for one in label.tolist())


class Given(msgspec.Struct, frozen=True):
    """
    A model's file, with the user's options for it.

    Attributes:
        path: The file.
        trust_pickle: True to load a pickle, which runs the code in it.
        columns: The table's columns in the order of its features; empty where the file
            names them.
        python: Python of the environment that trained it; None for our own.
        words: File with the words of its columns, where the model's file has none.
    """

    path: Path
    trust_pickle: bool = False
    columns: tuple[str, ...] = ()
    python: Path | None = None
    words: Path | None = None


@contextmanager
def brought(given: Given, plan: Plan) -> Iterator[Brought]:
    """
    Open a model's file and match its features to the table's columns.

    Raises:
        InputError: It cannot be read, does not have two classes, a feature is no
            column, or the order of its features or their words are not known.
        ConversionError: It would not convert faithfully.
    """
    from converters.sources.described import DescribedModel
    from converters.sources.opening import open_source

    asked, path = plan.asked, given.path
    if asked.entities or asked.time or asked.amount:
        problem = (
            "takes the table's columns alone; with --entity, --time or --amount make "
            "the product first, then train on `tollgate features build` and publish"
        )
        raise InputError("--model", problem)
    count = len(given.columns or plan.fields)
    with open_source(
        path,
        trust_pickle=given.trust_pickle,
        columns=count,
        python=given.python,
    ) as model:
        _require_outcome(path, model.facts, plan.label)
        facts = model.facts
        found = matched(path, facts, plan, columns=given.columns, words=given.words)
        fields = found.fields
        own = msgspec.structs.replace(
            facts,
            names=tuple(one.name for one in fields),
            categories={**facts.categories, **found.categories},
            unplaced=(),
        )
        empty = np.full((1, len(fields)), np.nan, np.float32)
        encoders = facts.categories if facts.framework == "scikit-learn" else ()
        yield Brought(
            model=DescribedModel(model, own),
            fields=fields,
            takes_nan=bool(np.isfinite(model.predict(empty)).all()),
            encoded=frozenset(fields[at].name for at in encoders),
        )


def _require_outcome(path: Path, facts: Facts, label: Label) -> None:
    """Check that the second of two classes is the outcome; 0 and 1 fit any two."""
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
    time_us: npt.NDArray[np.int64] | None = None,
    tell: Callable[[str, str], None] = lambda title, text: None,
) -> tuple[TrainedModel, Kind]:
    """
    Train the first model; without a named kind, the kind that ranks these rows best.

    In very small tables boosting finds no split and would give every row the same
    score; then a regression is trained.

    Returns:
        The model, and its kind.

    Raises:
        InputError: The rows cannot be trained on, or say nothing of the outcome.
    """
    from converters.baseline import KINDS, train_baseline
    from converters.baseline import Kind as BaselineKind
    from converters.comparison import compare_kinds, comparison_text
    from converters.sources.worker import model_of

    kinds = KINDS[KINDS.index(kind) :] if kind != "auto" else KINDS
    if kind == "auto":
        when = np.zeros(len(label), np.int64) if time_us is None else time_us
        found = compare_kinds(features, label, spec=spec, time_us=when, seed=seed)
        if found:
            tell(
                "kinds compared", f"AUC of {comparison_text(found)}: the first is taken"
            )
            kinds = msgspec.convert(
                [one.name for one in found], tuple[BaselineKind, ...]
            )
    for one in kinds:
        pipeline = train_baseline(features, label, spec=spec, seed=seed, kind=one)
        if np.ptp(pipeline.predict_proba(features)[:, 1]) > 0:
            return model_of(pipeline), one
    problem = "every row gets the same score: the columns say nothing of the outcome"
    raise InputError(spec.product, problem)


def missing_of(plan: Plan, given: Brought | None) -> dict[str, float]:
    """
    Return the substitute for a missing value, by field.

    NaN leaves a missing number to the model; otherwise it is the median. A category
    that is missing or unseen has codes below 0, which our own encoders know; tree
    libraries get NaN instead.
    """
    found = {}
    for one in plan.fields if given is None else given.fields:
        if one.column.kind == "category":
            trees = given is not None and given.takes_nan
            to_model = trees and given is not None and one.name not in given.encoded
            found[one.name] = math.nan if to_model else 0.0
            continue
        middle = one.column.values.median()
        plain = middle if isinstance(middle, float) else 0.0
        if one.column.decimals is not None:
            plain = round(plain, one.column.decimals)
        to_model = given is None or given.takes_nan
        found[one.name] = math.nan if to_model else plain
    return found
