"""
Read the training distribution of a release's model from its artifact.json.

Of a product that ranks, the first window takes its place.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.repository.models.artifact_file import (
    Distribution,
    Training,
    decode_training,
)
from tollgate.schema import ARTIFACT_FILE

log = logging.getLogger(__name__)

F64 = npt.NDArray[np.float64]

# Shares of the rows at which a distribution is listed, those of artifact.json.
_SHARES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
# Period of each calendar feature, in seconds.
_ROUND_S = {"weekend": 7 * 86_400.0, "night": 86_400.0}


class Marks(msgspec.Struct, frozen=True, eq=False):
    """
    Points of a training distribution, and how precisely they are known.

    A record of quantiles says for each listed value v how many rows lay below it and
    how many up to it: exactly if values do not repeat, between two bounds if they do
    (if half of all values are 0 and the other half 1, only two values can be listed).

    Attributes:
        values: Distinct listed values, ascending; [M].
        below: Lower and upper bound of the share of rows < value; [M, 2].
        upto: Lower and upper bound of the share of rows ≤ value; [M, 2].
        tied: True if a value was listed more than once; bool [M].
    """

    values: F64
    below: F64
    upto: F64
    tied: npt.NDArray[np.bool_]


class ReferenceColumn(msgspec.Struct, frozen=True, eq=False):
    """
    One number that is compared: a feature, or the model's score.

    Attributes:
        kind: "feature" or "score"; "user" or "items" of a list.
        name: Name of the feature; "score" for the score.
        marks: Training distribution; None if no training row had a value.
        missing: Share of training rows without a finite value.
        round_s: Period of a calendar feature, s; 0 for all other columns.
    """

    kind: str
    name: str
    marks: Marks | None
    missing: float
    round_s: float = 0.0


class Reference(msgspec.Struct, frozen=True, eq=False):
    """
    Training distribution of a release, by column: features in order, then score.

    Without rows its columns have no distribution yet.
    """

    rows: int
    columns: tuple[ReferenceColumn, ...]


def reference_of(
    files: Mapping[str, bytes], spec: FeatureSpec | None
) -> Reference | str:
    """
    Read the training distribution of a release, or return the reason why there is none.

    Args:
        spec: Its feature spec, which marks calendar features; None if unknown.
    """
    if ARTIFACT_FILE not in files:
        return f"its {ARTIFACT_FILE} is neither in the journal nor in the repository"
    try:
        training = decode_training(files[ARTIFACT_FILE])
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        return f"its {ARTIFACT_FILE} cannot be read: {exc}"
    if training is None:
        problem = "has no training distribution: convert the model with a sample"
        return f"its {ARTIFACT_FILE} {problem}"
    problem = _problem(training)
    if problem:
        return f"its {ARTIFACT_FILE} {problem}"
    periods = calendar_periods(spec)
    columns = [
        _column("feature", name, one, training, round_s=periods.get(name, 0.0))
        for name, one in training.features.items()
    ]
    if training.score is not None:
        columns.append(_column("score", "score", training.score, training))
    return Reference(training.rows, tuple(columns))


def calendar_periods(spec: FeatureSpec | None) -> dict[str, float]:
    """Return the period of each calendar feature of a spec, s."""
    features = spec.features if spec is not None else ()
    return {
        one.name: _ROUND_S[one.calendar] for one in features if one.calendar in _ROUND_S
    }


def learn_reference(reference: Reference, values: npt.NDArray[np.float32]) -> Reference:
    """
    Return a reference with the distribution of some rows.

    Args:
        reference: Its columns.
        values: float32 [N, C], NaN for no value.
    """
    columns = []
    for at, column in enumerate(reference.columns):
        there = values[np.isfinite(values[:, at]), at].astype(np.float64)
        marks = _exact_marks(there) if len(there) else None
        missing = 1 - len(there) / len(values)
        columns.append(msgspec.structs.replace(column, marks=marks, missing=missing))
    return Reference(len(values), tuple(columns))


def _exact_marks(values: F64) -> Marks:
    """Return the marks of rows that are all known; float64 [N], at least one."""
    ordered = np.sort(values)
    listed = np.quantile(ordered, _SHARES, method="nearest")
    points, counts = np.unique(listed, return_counts=True)
    below, upto = (
        np.searchsorted(ordered, points, side=side) / len(ordered)
        for side in ("left", "right")
    )
    return Marks(
        points, np.stack([below] * 2, axis=1), np.stack([upto] * 2, axis=1), counts > 1
    )


def _problem(training: Training) -> str:
    """Return the defect that makes a record unusable; empty if there is none."""
    shares = training.quantiles
    if training.rows < 1 or not training.features:
        return "holds no training rows"
    if len(shares) < 3 or shares[0] != 0 or shares[-1] != 1 or not _rising(shares):
        return "has quantiles that do not rise from 0 to 1"
    scores = {"score": training.score} if training.score else {}
    for name, one in (training.features | scores).items():
        if None in one.quantiles:
            return f"cannot be read: a quantile of {name} is null"
    for name, one in training.features.items():
        if one.quantiles and len(one.quantiles) != len(shares):
            return f"has {len(one.quantiles)} quantiles of {name}, not {len(shares)}"
        if not _rising(_numbers(one)):
            return f"has quantiles of {name} that fall"
    return ""


def _numbers(one: Distribution) -> list[float]:
    return [value for value in one.quantiles if value is not None]


def _rising(values: Sequence[float]) -> bool:
    return bool((np.diff(values) >= 0).all())


def _column(
    kind: str,
    name: str,
    one: Distribution,
    training: Training,
    *,
    round_s: float = 0.0,
) -> ReferenceColumn:
    values = _numbers(one)
    marks = marks_of(values, training.quantiles) if values else None
    return ReferenceColumn(
        kind, name, marks, min(1.0, one.missing + one.infinite), round_s
    )


def marks_of(quantiles: Sequence[float], shares: Sequence[float]) -> Marks:
    """
    Convert listed quantiles into bounds of the rows below and up to each value.

    Args:
        quantiles: Values, ascending, from the smallest to the largest.
        shares: Share of rows up to each value, from 0 to 1.
    """
    listed, p = np.asarray(quantiles, np.float64), np.asarray(shares, np.float64)
    # Served values are float32: values that are equal there must be equal here.
    listed = listed.astype(np.float32).astype(np.float64)
    values, first, counts = np.unique(listed, return_index=True, return_counts=True)
    last = first + counts - 1
    before = np.where(first > 0, p[first - 1], 0.0)
    after = np.where(last < len(p) - 1, p[np.minimum(last + 1, len(p) - 1)], 1.0)
    below = np.stack([before, p[first]], axis=1)
    upto = np.stack([p[last], after], axis=1)
    return Marks(values, below, upto, counts > 1)
