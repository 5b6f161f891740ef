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

from tollgate.cli.product_matching import match_features
from tollgate.errors import InputError
from tollgate.product.label import Label
from tollgate.product.plan import Field, Plan

if TYPE_CHECKING:
    from converters.model import Facts, TrainedModel
    from tollgate.features.spec import FeatureSpec

F32 = npt.NDArray[np.float32]
Kind = Literal["auto", "boosting", "deep-boosting", "logistic"]


class ExternalModel(msgspec.Struct, frozen=True, eq=False):
    """
    A model that was trained outside of Tollgate, matched to the table.

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


class ModelFile(msgspec.Struct, frozen=True):
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
def open_external_model(model_file: ModelFile, plan: Plan) -> Iterator[ExternalModel]:
    """
    Open a model's file and match its features to the table's columns.

    Raises:
        InputError: It cannot be read, does not have two classes, a feature is no
            column, or the order of its features or their words are not known.
        ConversionError: It would not convert faithfully.
    """
    from converters.sources.described import DescribedModel
    from converters.sources.opening import open_source

    choices, path = plan.choices, model_file.path
    if choices.entities or choices.time or choices.amount:
        problem = (
            "takes the table's columns alone; with --entity, --time or --amount make "
            "the product first, then train on `tollgate features build` and publish"
        )
        raise InputError("--model", problem)
    count = len(model_file.columns or plan.fields)
    with open_source(
        path,
        trust_pickle=model_file.trust_pickle,
        columns=count,
        python=model_file.python,
    ) as model:
        _require_outcome(path, model.facts, plan.label)
        facts = model.facts
        found = match_features(
            path, facts, plan, columns=model_file.columns, words=model_file.words
        )
        fields = found.fields
        own = msgspec.structs.replace(
            facts,
            names=tuple(one.name for one in fields),
            categories={**facts.categories, **found.categories},
            unplaced=(),
        )
        empty = np.full((1, len(fields)), np.nan, np.float32)
        encoders = facts.categories if facts.framework == "scikit-learn" else ()
        yield ExternalModel(
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
    problem = f"has the classes {classes}, and scores the second one"
    if classes[1] in label.others:
        problem += f": --positive {classes[1]!r}"
    raise InputError(path, problem)


def train_model(
    features: F32,
    label: npt.NDArray[np.int8],
    *,
    spec: FeatureSpec,
    kind: Kind,
    seed: int,
    time_us: npt.NDArray[np.int64] | None = None,
    report: Callable[[str, str], None] = lambda title, text: None,
) -> tuple[TrainedModel, Kind]:
    """
    Train the first model; with `auto`, the kind that ranks these rows best.

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
            report(
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


def missing_of(plan: Plan, external: ExternalModel | None) -> dict[str, float]:
    """
    Return the substitute for a missing value, by field.

    NaN leaves a missing number to the model; otherwise it is the median. A category
    that is missing or unseen has codes below 0, which our own encoders know; tree
    libraries get NaN instead.
    """
    found = {}
    for one in plan.fields if external is None else external.fields:
        if one.column.kind == "category":
            trees = external is not None and external.takes_nan
            to_model = (
                trees and external is not None and one.name not in external.encoded
            )
            found[one.name] = math.nan if to_model else 0.0
            continue
        middle = one.column.values.median()
        plain = middle if isinstance(middle, float) else 0.0
        if one.column.decimals is not None:
            plain = round(plain, one.column.decimals)
        to_model = external is None or external.takes_nan
        found[one.name] = math.nan if to_model else plain
    return found
