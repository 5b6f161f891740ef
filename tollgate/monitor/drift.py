"""
Judge a window of decisions against training: how far apart, and how certain.

docs/monitor.md explains the method.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.monitor.tallies import ColumnCounts
from tollgate.monitor.training_baseline import Marks, Reference, ReferenceColumn

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

# Share assumed for an empty bin: PSI takes logarithms.
FLOOR = 1e-4

_NORMAL = NormalDist()


class Distance(msgspec.Struct, frozen=True):
    """Hold two distances of distributions: stability index, Kolmogorov-Smirnov."""

    psi: float
    ks: float

    def or_more(self, other: Distance) -> Distance:
        """Return the larger of both values each."""
        return Distance(max(self.psi, other.psi), max(self.ks, other.ks))


class ComparedDistributions(msgspec.Struct, frozen=True, eq=False):
    """
    Two distribution functions at the same points.

    Attributes:
        seen: Share of rows up to each point; [P].
        trained: The same share in training; [P]. The training record allows a range;
            this is the value of it that is nearest to `seen`, so that imprecision of
            the record raises no alarm.
        cuts: Points between which PSI counts rows; bool [P].
    """

    seen: F64
    trained: F64
    cuts: Bool

    def distance(self) -> Distance:
        """Compute PSI and KS."""
        one, other = (np.maximum(bins, FLOOR) for bins in self.bins())
        psi = float(((one - other) * np.log(one / other)).sum())
        return Distance(psi, float(np.abs(self.seen - self.trained).max()))

    def bins(self) -> tuple[F64, F64]:
        """Return the share of rows in each of PSI's bins, seen and trained."""
        return (
            np.diff(self.seen[self.cuts], prepend=0.0, append=1.0),
            np.diff(self.trained[self.cuts], prepend=0.0, append=1.0),
        )

    def nearer(self, by: float) -> ComparedDistributions:
        """
        Move `seen` towards `trained` by up to `by`, the distance that chance can
        explain.
        """
        moved = self.seen - np.clip(self.seen - self.trained, -by, by)
        return ComparedDistributions(moved, self.trained, self.cuts)

    def shift(self, rows: int) -> float:
        """
        Return the shift in standard deviations, assuming that training is normal.

        For a shifted normal distribution, the normal deviates of both shares differ by
        the shift at every point. Points in the middle, which are known best, have the
        largest weights.
        """
        total = weights = 0.0
        least = 0.5 / max(rows, 1)
        points = zip(
            self.seen[self.cuts].tolist(), self.trained[self.cuts].tolist(), strict=True
        )
        for seen, trained in points:
            if not 0 < trained < 1:
                continue
            before = _NORMAL.inv_cdf(trained)
            now = _NORMAL.inv_cdf(min(1 - least, max(least, seen)))
            weight = _NORMAL.pdf(before)
            total += weight * (before - now)
            weights += weight
        return total / weights if weights else 0.0


def compare(counts: I64, marks: Marks) -> ComparedDistributions:
    """Compare counts by cell ([2M + 1]) with the marks of the training distribution."""
    share = np.cumsum(counts) / counts.sum()
    below, upto = share[0:-1:2], share[1::2]
    near_below = np.clip(below, marks.below[:, 0], marks.below[:, 1])
    near_upto = np.clip(upto, marks.upto[:, 0], marks.upto[:, 1])
    # If a value is listed once, at share p, the record says that at most p of the rows
    # lie below it and at least p up to it. If the seen shares contradict one of the
    # two, both move by the same amount.
    excess = np.maximum(below - marks.below[:, 1], 0)
    lack = np.maximum(marks.upto[:, 0] - upto, 0)
    single = np.clip(upto - excess + lack, marks.upto[:, 0], marks.upto[:, 1])
    cuts = np.ones(2 * len(below), np.bool_)
    cuts[0::2] = marks.tied
    if len(below) > 1:
        # The outermost bins are unbounded: values outside of the training range belong
        # to them.
        cuts[0] = cuts[-1] = False
        cuts[1] = marks.tied[0]
    return ComparedDistributions(
        _woven(below, upto),
        np.maximum.accumulate(
            _woven(near_below, np.where(marks.tied, near_upto, single))
        ),
        cuts,
    )


def compare_share(seen: float, trained: float) -> ComparedDistributions:
    """Compare the shares of rows with a property."""
    return ComparedDistributions(
        np.array([seen]), np.array([trained]), np.ones(1, np.bool_)
    )


def _woven(one: F64, other: F64) -> F64:
    woven = np.empty(2 * len(one))
    woven[0::2], woven[1::2] = one, other
    return woven


def chance_of(false_alarms: float, *, look: int, events: int) -> float:
    """
    Return the chance of a false alarm that one statement of one look may have.

    The looks 1, 2, 3, … of a kind get 1/2, 1/6, 1/12, … of half of the total. That adds
    up to this half for any number of looks; the other half is for the windows of days.

    Args:
        false_alarms: Total chance of a false alarm.
        look: Number of the look, from 1 on.
        events: Number of ways in which this look can raise a false alarm.
    """
    return false_alarms / 2 / (look * (look + 1)) / events


def band(rows: float, chance: float) -> float:
    """
    Return how far an observed distribution function may lie from the true one.

    The chance that it lies farther away at any point is at most `chance`, for any
    sample size and distribution.

    Source: Dvoretzky, Kiefer and Wolfowitz (1956), with the constant of Massart (1990),
    "The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality".
    """
    if rows <= 0:
        return 1.0
    return min(1.0, math.sqrt(math.log(2 / chance) / (2 * rows)))


def slack(rows: int, *, trained: float, alike: float, chance: float) -> float:
    """
    Return how far two samples of one distribution may be apart.

    Args:
        alike: Number of rows that count as one, in both samples.
        chance: Chance of a larger distance, for each of the two samples.
    """
    own = band(rows / alike, chance)
    # The training record is exact to one row on either side.
    return own + band(trained / alike, chance) + 1 / max(trained, 1.0)


def design_effect(upto: I64, rows: I64) -> float:
    """
    Return how many rows count as one, because rows of one customer are alike.

    The result is the variance of shares between clusters of customers, divided by the
    variance that independent rows would have, as the mean over the points.

    Args:
        upto: Rows up to each point, by cluster; [CLUSTERS, P].
        rows: Rows by cluster; [CLUSTERS].

    Source: random groups, Wolter (2007), "Introduction to Variance Estimation", 2.4;
    the design effect of Kish (1965), "Survey Sampling", 8.2.
    """
    held = rows > 0
    clusters, total = int(held.sum()), int(rows.sum())
    if clusters < 2:
        return float(max(total, 1))  # a single customer is a single observation
    share = upto.sum(axis=0) / total
    apart = upto[held] - share * rows[held, None]
    between = float((apart**2).sum()) * clusters / (clusters - 1) / total**2
    independent = float((share * (1 - share)).sum()) / total
    return max(1.0, between / independent) if independent > 0 else 1.0


ColumnState = Literal["holds", "unsure", "drift", "untold"]


class DriftLimits(msgspec.Struct, frozen=True):
    """
    Limits of the accepted drift, and of false alarms.

    Attributes:
        psi: Population stability index; the customary 0.25 is a shift by half a
            standard deviation.
        ks: Largest distance of the distributions; 0.2 is the same shift.
        false_alarms: Chance that a release that did not change ever raises an alarm,
            over all its windows, days and columns.
    """

    psi: float = 0.25
    ks: float = 0.2
    false_alarms: float = 0.01


class Bins(msgspec.Struct, frozen=True):
    """
    Shares of rows by value.

    Attributes:
        cuts: Values between the bins; a value that occurs twice is a bin itself.
        seen, trained: Share of the rows in each bin; one more than cuts.
    """

    cuts: tuple[float, ...]
    seen: tuple[float, ...]
    trained: tuple[float, ...]


class ColumnResult(msgspec.Struct, frozen=True, kw_only=True):
    """
    Result of one column in one window.

    Attributes:
        state: "drift" if even the least distance exceeds a limit; "unsure" if only the
            estimate does; "untold" if it cannot be judged here.
        found: Estimated distance from training.
        least: Lower bound of the distance, apart from the allowed chance.
        sigmas: Shift in standard deviations, signed, assuming that training is normal.
        missing, missing_trained: Share of rows without a value, now and in training.
        alike: Number of rows that count as one, because customers are alike (at least
            1).
        bins: Bins of PSI; None if no value was seen.
    """

    kind: str
    name: str
    state: ColumnState
    found: Distance
    least: Distance
    sigmas: float
    missing: float
    missing_trained: float
    alike: float
    bins: Bins | None


def judge(
    tally: ColumnCounts, reference: Reference, *, limits: DriftLimits, look: int
) -> list[ColumnResult]:
    """Judge every column of a window; `look` numbers the windows of a kind from 1."""
    # Per column: values and missing values, each compared in served and training rows.
    events = 4 * len(reference.columns)
    chance = chance_of(limits.false_alarms, look=look, events=events)
    return [
        _ColumnJudge(tally, at, column, reference.rows, limits, chance).verdict()
        for at, column in enumerate(reference.columns)
    ]


class _ColumnJudge(msgspec.Struct, frozen=True, eq=False):
    """One column of one window, with the values needed to judge it."""

    tally: ColumnCounts
    at: int
    column: ReferenceColumn
    trained: int
    limits: DriftLimits
    chance: float

    def verdict(self) -> ColumnResult:
        """Compare missing, then present values; the larger distance counts."""
        rows, column = self.tally.rows, self.column
        missing = self.tally.missing[self.at]
        gone = float(missing.sum() / max(rows.sum(), 1))
        compared = compare_share(gone, column.missing)
        found, least, alike = self._judged(
            compared, upto=missing[:, None], rows=rows, trained=self.trained
        )
        present, sigmas = self._bins(), 0.0
        cells = self.tally.cells[self.at]
        if present is not None:
            more, more_least, more_alike = self._judged(
                present,
                upto=np.cumsum(cells, axis=1)[:, :-1],
                rows=cells.sum(axis=1),
                trained=self.trained * (1 - column.missing),
            )
            found, least = found.or_more(more), least.or_more(more_least)
            alike = max(alike, more_alike)
            sigmas = present.shift(int(cells.sum()))
        return ColumnResult(
            kind=column.kind,
            name=column.name,
            state=self._state(found, least),
            found=found,
            least=least,
            sigmas=sigmas,
            missing=gone,
            missing_trained=column.missing,
            alike=alike,
            bins=self._drawn(present),
        )

    def _bins(self) -> ComparedDistributions | None:
        cells = self.tally.cells[self.at]
        if self.column.marks is None or not cells.sum():
            return None
        return compare(cells.sum(axis=0), self.column.marks)

    def _judged(
        self, compared: ComparedDistributions, *, upto: I64, rows: I64, trained: float
    ) -> tuple[Distance, Distance, float]:
        alike = design_effect(upto, rows)
        by = slack(int(rows.sum()), trained=trained, alike=alike, chance=self.chance)
        return compared.distance(), compared.nearer(by).distance(), alike

    def _state(self, found: Distance, least: Distance) -> ColumnState:
        # A calendar feature is judged once the window covers its whole period.
        if not len(self.tally) or self.tally.event_span_s < self.column.round_s:
            return "untold"
        limits = self.limits
        if least.psi > limits.psi or least.ks > limits.ks:
            return "drift"
        beyond = found.psi > limits.psi or found.ks > limits.ks
        return "unsure" if beyond else "holds"

    def _drawn(self, compared: ComparedDistributions | None) -> Bins | None:
        if compared is None or self.column.marks is None:
            return None
        seen, trained = compared.bins()
        values = np.repeat(self.column.marks.values, 2)[compared.cuts]
        return Bins(
            cuts=tuple(values.tolist()),
            seen=tuple(seen.tolist()),
            trained=tuple(trained.tolist()),
        )
