"""
Counts of a trial: sums that can be added up, and never a row.

Each row is counted in total, by segment of the answering policy, and by amount band;
scores, latencies and customers are counted by bin.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.schema import Decision

# Bins of the log odds, ln(p / (1 - p)), from -12 to 12 in steps of 0.1: most scores of
# a rare event lie within a hundredth of 0.
_MOST_ODDS, _STEPS = 12.0, 10
SCORE_BINS = int(2 * _MOST_ODDS * _STEPS) + 2
# Times in µs, eight bins per doubling: a quantile is accurate to 9 %.
_PER_DOUBLING = 8
TIME_BINS = 26 * _PER_DOUBLING + 1  # up to 67 s
TIME_EDGES_US = (0.0, *(2.0 ** (at / _PER_DOUBLING) for at in range(TIME_BINS)))
# Number of customer clusters; they show how similar the rows of one customer are.
CLUSTERS = 64

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


def score_bins(score: F64) -> I64:
    """
    Return the bins of scores: 0 and nearly 0 in the first, 1 in the last.

    Numbers below 0 or above 1 are in these bins, too.
    """
    score = np.clip(score, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        odds = np.log(score) - np.log1p(-score)
    place = np.floor((np.clip(odds, -99, 99) + _MOST_ODDS) * _STEPS) + 1
    bins: I64 = np.clip(place, 0, SCORE_BINS - 1).astype(np.int64)
    return bins


def score_edges() -> F64:
    """Return the scores between the bins; one fewer than bins."""
    odds = np.arange(SCORE_BINS - 1) / _STEPS - _MOST_ODDS
    edges: F64 = 1 / (1 + np.exp(-odds))
    return edges


def time_bins(took_us: I64) -> I64:
    """Return the bins of times; their edges are TIME_EDGES_US."""
    place = np.floor(np.log2(np.maximum(took_us, 0.5)) * _PER_DOUBLING) + 1
    bins: I64 = np.clip(place, 0, TIME_BINS - 1).astype(np.int64)
    return bins


def clusters(ids: Sequence[bytes]) -> I64:
    """
    Assign customers to clusters; all rows of one customer are in the same cluster.

    The hash differs from the one that chooses a canary's customers. With the same hash
    an arm would get only a few of the clusters.
    """
    return np.array([zlib.crc32(one) % CLUSTERS for one in ids], np.int64)


ALL = "all"
LEVELS = len(Decision)
# Counted by customer cluster: each decision, then errors and degraded rows.
ERRORS, DEGRADED = LEVELS, LEVELS + 1
_HITS = LEVELS + 2

# Lower ends in cents, and display names.
_BANDS = (
    (0, "below 10"),
    (1_000, "10 to 50"),
    (5_000, "50 to 200"),
    (20_000, "200 to 1,000"),
    (100_000, "from 1,000"),
)
_BAND_ENDS = np.array([low for low, _ in _BANDS[1:]])

Bool = npt.NDArray[np.bool_]
T = TypeVar("T", bound=msgspec.Struct)


class Decisions(msgspec.Struct, frozen=True, eq=False):
    """
    Decisions of N rows.

    Attributes:
        decision: Decision; uint8 [N].
        score: float32 [N]; NaN where there is none.
        failed: True if the model gave no usable output; bool [N].
        degraded: True if any degraded bit is set; bool [N].
        took_us: Latency in µs; int64 [N].
        cluster: Cluster of the customer; int64 [N].
    """

    decision: npt.NDArray[np.uint8]
    score: npt.NDArray[np.float32]
    failed: Bool
    degraded: Bool
    took_us: I64
    cluster: I64


class Arm(msgspec.Struct):
    """
    Counts of rows that one of the two releases decided.

    Attributes:
        errors: Rows without a usable score.
        degraded: Rows with any degraded bit.
        decisions: Rows by decision.
        cents: Sum of their amounts, by decision.
        score_sum, score_squares: Sum of the scores, and of their squares.
        scores: Rows by score bin.
        times: Rows by time bin.
        cluster_hits: Rows by cluster for each decision, for errors, for degraded.
    """

    rows: int = 0
    errors: int = 0
    degraded: int = 0
    decisions: list[int] = msgspec.field(default_factory=lambda: [0] * LEVELS)
    cents: list[int] = msgspec.field(default_factory=lambda: [0] * LEVELS)
    score_sum: float = 0.0
    score_squares: float = 0.0
    scores: list[int] = msgspec.field(default_factory=lambda: [0] * SCORE_BINS)
    times: list[int] = msgspec.field(default_factory=lambda: [0] * TIME_BINS)
    cluster_rows: list[int] = msgspec.field(default_factory=lambda: [0] * CLUSTERS)
    cluster_hits: list[int] = msgspec.field(
        default_factory=lambda: [0] * (CLUSTERS * _HITS)
    )

    @property
    def scored(self) -> int:
        """Return the number of rows with a score."""
        return sum(self.scores)

    def hits(self, what: int) -> list[int]:
        """Return by cluster the rows with a decision, ERRORS or DEGRADED."""
        return self.cluster_hits[what * CLUSTERS : (what + 1) * CLUSTERS]


class Pairs(msgspec.Struct):
    """
    Counts of rows that both releases decided.

    Attributes:
        matrix: Rows by the champion's decision, then by the challenger's.
        cents: Sum of their amounts, in the same order.
        squares: Sum of the squares of their amounts.
        flipped_squares: The same sum over rows with different decisions.
        scored: Rows that both scored.
        shift_sum, shift_squares: Of the challenger's score minus the champion's, over
            these rows: sum and sum of squares.
        one_scores, other_scores: These rows by score bin, of the champion and of the
            challenger.
        degraded_more, degraded_less: Rows degraded only with the challenger, and only
            with the champion.
        cluster_rows, cluster_flips: Rows by cluster, and those with different
            decisions.
    """

    rows: int = 0
    matrix: list[int] = msgspec.field(default_factory=lambda: [0] * LEVELS**2)
    cents: list[int] = msgspec.field(default_factory=lambda: [0] * LEVELS**2)
    squares: float = 0.0
    flipped_squares: float = 0.0
    scored: int = 0
    shift_sum: float = 0.0
    shift_squares: float = 0.0
    one_scores: list[int] = msgspec.field(default_factory=lambda: [0] * SCORE_BINS)
    other_scores: list[int] = msgspec.field(default_factory=lambda: [0] * SCORE_BINS)
    degraded_more: int = 0
    degraded_less: int = 0
    cluster_rows: list[int] = msgspec.field(default_factory=lambda: [0] * CLUSTERS)
    cluster_flips: list[int] = msgspec.field(default_factory=lambda: [0] * CLUSTERS)


class Group(msgspec.Struct):
    """Counts of rows with a common property: decided by both, and by each release."""

    pairs: Pairs = msgspec.field(default_factory=Pairs)
    champion: Arm = msgspec.field(default_factory=Arm)
    challenger: Arm = msgspec.field(default_factory=Arm)


Groups = dict[str, Group]


def add(one: T, other: T) -> T:
    """Add two counts of different rows."""
    summed: list[Any] = []
    for name in one.__struct_fields__:
        a, b = getattr(one, name), getattr(other, name)
        if isinstance(a, msgspec.Struct):
            summed.append(add(a, b))
        elif isinstance(a, list):
            summed.append([x + y for x, y in zip(a, b, strict=True)])
        else:
            summed.append(a + b)
    return type(one)(*summed)


def add_groups(one: Groups, other: Groups) -> Groups:
    """Add two counts of different rows, group by group."""
    names = dict.fromkeys([*one, *other])
    nothing = Group()
    return {
        name: add(one.get(name, nothing), other.get(name, nothing)) for name in names
    }


def group_names(
    segment: npt.NDArray[np.uint8],
    cents: I64,
    *,
    segments: Iterable[str],
    money: bool = True,
) -> dict[str, Bool]:
    """Return the rows of each group; groups without rows are left out."""
    found = {ALL: np.ones(len(cents), np.bool_)}
    for at, name in enumerate(segments):
        found[f"segment {name}"] = segment == at
    band = np.searchsorted(_BAND_ENDS, cents, side="right")
    for at, (_, name) in enumerate(_BANDS if money else ()):
        found[f"amount {name}"] = band == at
    return {name: rows for name, rows in found.items() if rows.any()}


def count_arm(rows: Decisions, cents: I64) -> Arm:
    """Count rows that one release decided."""
    score = rows.score[~np.isnan(rows.score)].astype(np.float64)
    levels = [rows.decision == level for level in range(LEVELS)]
    hits = [
        _sums(rows.cluster[hit], CLUSTERS)
        for hit in (*levels, rows.failed, rows.degraded)
    ]
    return Arm(
        rows=len(cents),
        errors=int(rows.failed.sum()),
        degraded=int(rows.degraded.sum()),
        decisions=_sums(rows.decision, LEVELS),
        cents=_sums(rows.decision, LEVELS, worth=cents),
        score_sum=float(score.sum()),
        score_squares=float((score * score).sum()),
        scores=_sums(score_bins(score), SCORE_BINS),
        times=_sums(time_bins(rows.took_us), TIME_BINS),
        cluster_rows=_sums(rows.cluster, CLUSTERS),
        cluster_hits=[count for each in hits for count in each],
    )


def count_pairs(one: Decisions, other: Decisions, cents: I64) -> Pairs:
    """Count rows that both releases decided; `one` holds the champion's decisions."""
    cell = one.decision.astype(np.int64) * LEVELS + other.decision
    square = cents.astype(np.float64) ** 2
    flipped = one.decision != other.decision
    both = ~np.isnan(one.score) & ~np.isnan(other.score)
    a, b = one.score[both].astype(np.float64), other.score[both].astype(np.float64)
    return Pairs(
        rows=len(cents),
        matrix=_sums(cell, LEVELS**2),
        cents=_sums(cell, LEVELS**2, worth=cents),
        squares=float(square.sum()),
        flipped_squares=float(square[flipped].sum()),
        scored=int(both.sum()),
        shift_sum=float((b - a).sum()),
        shift_squares=float(((b - a) ** 2).sum()),
        one_scores=_sums(score_bins(a), SCORE_BINS),
        other_scores=_sums(score_bins(b), SCORE_BINS),
        degraded_more=int((other.degraded & ~one.degraded).sum()),
        degraded_less=int((one.degraded & ~other.degraded).sum()),
        cluster_rows=_sums(one.cluster, CLUSTERS),
        cluster_flips=_sums(one.cluster[flipped], CLUSTERS),
    )


def only(rows: Decisions, where: Bool) -> Decisions:
    """Return the selected rows."""
    return Decisions(*(getattr(rows, name)[where] for name in rows.__struct_fields__))


def _sums(place: npt.NDArray[Any], bins: int, *, worth: I64 | None = None) -> list[int]:
    if worth is None:
        counted: list[int] = np.bincount(place, minlength=bins).tolist()
        return counted
    sums = np.zeros(bins, np.int64)  # exact cents: bincount sums weights as floats
    np.add.at(sums, place, worth)
    return [int(one) for one in sums]
