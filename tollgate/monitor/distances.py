"""Measure the distance of two distributions, and the part that chance can explain."""

from __future__ import annotations

import math
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.monitor.training_baseline import Marks

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

# Share assumed for an empty bin: PSI takes logarithms.
FLOOR = 1e-4

_NORMAL = NormalDist()


class Distance(msgspec.Struct, frozen=True):
    """
    Distance of two distributions: population stability index, and Kolmogorov-Smirnov.
    """

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
    """
    Compare counted values with their training distribution.

    Args:
        counts: Counts by cell, as in `ColumnCounts.cells`; [2M + 1].
        marks: M marks of the training distribution.
    """
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
        rows: Number of rows seen.
        trained: Number of training rows.
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
