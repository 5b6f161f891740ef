"""What a release's model was trained on, as its artifact.json tells it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec import FeatureSpec
from tollgate.schema import ARTIFACT_FILE

log = logging.getLogger(__name__)

F64 = npt.NDArray[np.float64]

# How long it takes until a calendar has come round, in seconds.
_ROUND_S = {"weekend": 7 * 86_400.0, "night": 86_400.0}


class Distribution(msgspec.Struct, frozen=True):
    """How one number was distributed; `converters/artifact.py` writes it."""

    quantiles: tuple[float, ...] = ()
    missing: float = 0.0
    infinite: float = 0.0


class _Training(msgspec.Struct, frozen=True):
    rows: int
    quantiles: tuple[float, ...]
    features: dict[str, Distribution]
    score: Distribution | None = None


class _Artifact(msgspec.Struct, frozen=True):
    training: _Training | None = None


class Marks(msgspec.Struct, frozen=True, eq=False):
    """
    Where a training distribution is known, and how well.

    A record of quantiles says of each listed value v how many rows lay below it and
    how many up to it: exactly where values do not repeat, between two bounds where
    they do (half of all 0 and the other half 1 has no more than two values to list).

    Attributes:
        values: Distinct listed values, ascending; [M].
        below: Least and most share of rows < value; [M, 2].
        upto: Least and most share of rows ≤ value; [M, 2].
        tied: Whether a value was listed more than once; bool [M].
    """

    values: F64
    below: F64
    upto: F64
    tied: npt.NDArray[np.bool_]


class Column(msgspec.Struct, frozen=True, eq=False):
    """
    One number that is compared: a feature, or the model's score.

    Attributes:
        kind: "feature" or "score".
        name: Of the feature; "score" of the score.
        marks: Its training distribution; None when no training row had a value.
        missing: Share of training rows without a finite value.
        round_s: Time after which what it says has come round, of a calendar; 0 of
            all others.
    """

    kind: str
    name: str
    marks: Marks | None
    missing: float
    round_s: float = 0.0


class Reference(msgspec.Struct, frozen=True, eq=False):
    """
    What the decisions of a release are compared with.

    Attributes:
        rows: Of training.
        columns: Features in the order of the spec, then the score.
    """

    rows: int
    columns: tuple[Column, ...]


def reference_of(
    files: Mapping[str, bytes], spec: FeatureSpec | None
) -> Reference | str:
    """
    Read what a release is compared with; or say why there is nothing.

    Args:
        files: Of the release, by name.
        spec: Its features, which say what is a calendar; None when not known.
    """
    if ARTIFACT_FILE not in files:
        return f"its {ARTIFACT_FILE} is neither in the journal nor in the repository"
    try:
        training = msgspec.json.decode(files[ARTIFACT_FILE], type=_Artifact).training
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        return f"its {ARTIFACT_FILE} cannot be read: {exc}"
    if training is None:
        return (
            f"its {ARTIFACT_FILE} has no training distribution: convert with --sample"
        )
    problem = _problem(training)
    if problem:
        return f"its {ARTIFACT_FILE} {problem}"
    calendars = {one.name: one.calendar for one in spec.features} if spec else {}
    columns = [
        _column(
            "feature",
            name,
            one,
            training,
            round_s=_ROUND_S.get(calendars.get(name) or "", 0.0),
        )
        for name, one in training.features.items()
    ]
    if training.score is not None:
        columns.append(_column("score", "score", training.score, training))
    return Reference(training.rows, tuple(columns))


def _problem(training: _Training) -> str:
    """Tell what makes a record useless; empty when nothing does."""
    shares = training.quantiles
    if training.rows < 1 or not training.features:
        return "tells of no training rows"
    if len(shares) < 3 or shares[0] != 0 or shares[-1] != 1 or not _rising(shares):
        return "has quantiles that do not rise from 0 to 1"
    for name, one in training.features.items():
        if one.quantiles and len(one.quantiles) != len(shares):
            return f"has {len(one.quantiles)} quantiles of {name}, not {len(shares)}"
        if not _rising(one.quantiles):
            return f"has quantiles of {name} that fall"
    return ""


def _rising(values: Sequence[float]) -> bool:
    return bool((np.diff(values) >= 0).all())


def _column(
    kind: str,
    name: str,
    one: Distribution,
    training: _Training,
    *,
    round_s: float = 0.0,
) -> Column:
    marks = marks_of(one.quantiles, training.quantiles) if one.quantiles else None
    return Column(kind, name, marks, min(1.0, one.missing + one.infinite), round_s)


def marks_of(quantiles: Sequence[float], shares: Sequence[float]) -> Marks:
    """
    Turn listed quantiles into what they say of the rows below and up to each value.

    Args:
        quantiles: Values, ascending; the first is the smallest, the last the largest.
        shares: Of rows up to each, from 0 to 1.
    """
    listed, p = np.asarray(quantiles, np.float64), np.asarray(shares, np.float64)
    # float32 is what is served; a value that is equal there must be equal here.
    listed = listed.astype(np.float32).astype(np.float64)
    values, first, counts = np.unique(listed, return_index=True, return_counts=True)
    last = first + counts - 1
    before = np.where(first > 0, p[first - 1], 0.0)
    after = np.where(last < len(p) - 1, p[np.minimum(last + 1, len(p) - 1)], 1.0)
    below = np.stack([before, p[first]], axis=1)
    upto = np.stack([p[last], after], axis=1)
    return Marks(values, below, upto, counts > 1)
