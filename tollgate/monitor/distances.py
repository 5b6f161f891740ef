"""How far two distributions are apart, and how far chance alone can take them."""

from __future__ import annotations

import math
from statistics import NormalDist

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.monitor.training import Marks

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

# Share that an empty bin counts as: PSI takes logarithms.
FLOOR = 1e-4

_NORMAL = NormalDist()


class Distance(msgspec.Struct, frozen=True):
    """How far distributions are apart: population stability index, and KS."""

    psi: float
    ks: float

    def or_more(self, other: Distance) -> Distance:
        """Take the larger of each."""
        return Distance(max(self.psi, other.psi), max(self.ks, other.ks))


class Compared(msgspec.Struct, frozen=True, eq=False):
    """
    Two distribution functions at the same points.

    Attributes:
        seen: Share of rows up to each point; [P].
        trained: The same of training: of all that its record allows, what lies nearest
            to what was seen, so that nobody is accused of what it does not say; [P].
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
        """Tell the share of rows in each of PSI's bins, seen and trained."""
        return (
            np.diff(self.seen[self.cuts], prepend=0.0, append=1.0),
            np.diff(self.trained[self.cuts], prepend=0.0, append=1.0),
        )

    def nearer(self, by: float) -> Compared:
        """Move what was seen towards training, as far as chance can have taken it."""
        moved = self.seen - np.clip(self.seen - self.trained, -by, by)
        return Compared(moved, self.trained, self.cuts)

    def shift(self, rows: int) -> float:
        """
        Tell by how many standard deviations it moved, were training normal.

        At each point the normal deviates of both shares differ by the shift, whatever
        the point; points in the middle, which are known best, count most.
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


def compare(counts: I64, marks: Marks) -> Compared:
    """
    Compare counted values with their training distribution.

    Args:
        counts: By cell, as `Tally.cells`; [2M + 1].
        marks: M of them.
    """
    share = np.cumsum(counts) / counts.sum()
    below, upto = share[0:-1:2], share[1::2]
    near_below = np.clip(below, marks.below[:, 0], marks.below[:, 1])
    near_upto = np.clip(upto, marks.upto[:, 0], marks.upto[:, 1])
    # Of a value that was listed once the record says one thing, not two: this share of
    # the rows lies before its last occurrence and behind its first. So what was seen
    # is too high or too low there as a whole.
    excess = np.maximum(below - marks.below[:, 1], 0)
    lack = np.maximum(marks.upto[:, 0] - upto, 0)
    single = np.clip(upto - excess + lack, marks.upto[:, 0], marks.upto[:, 1])
    cuts = np.ones(2 * len(below), np.bool_)
    cuts[0::2] = marks.tied
    if len(below) > 1:
        # The outermost bins are open: beyond what training saw, there is no end.
        cuts[0] = cuts[-1] = False
        cuts[1] = marks.tied[0]
    return Compared(
        _woven(below, upto),
        np.maximum.accumulate(
            _woven(near_below, np.where(marks.tied, near_upto, single))
        ),
        cuts,
    )


def compare_share(seen: float, trained: float) -> Compared:
    """Compare the shares of rows that have something."""
    return Compared(np.array([seen]), np.array([trained]), np.ones(1, np.bool_))


def _woven(one: F64, other: F64) -> F64:
    woven = np.empty(2 * len(one))
    woven[0::2], woven[1::2] = one, other
    return woven


def chance_of(false_alarms: float, *, look: int, events: int) -> float:
    """
    Tell what chance of a false alarm one statement of one look may have.

    The looks 1, 2, 3, … of a kind get 1/2, 1/6, 1/12, … of half of all there is, which
    adds up to that half however many looks there are; the other half is the days'.

    Args:
        false_alarms: All there is.
        look: Which look it is, from 1 on.
        events: In how many ways this look can go wrong.
    """
    return false_alarms / 2 / (look * (look + 1)) / events


def band(rows: float, chance: float) -> float:
    """
    Tell how far an observed distribution function may be from the true one.

    With no more than this chance it is farther, anywhere; of every sample size and
    distribution.

    Source: Dvoretzky, Kiefer and Wolfowitz (1956), with the constant of Massart
    (1990), "The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality".
    """
    if rows <= 0:
        return 1.0
    return min(1.0, math.sqrt(math.log(2 / chance) / (2 * rows)))


def slack(rows: int, *, trained: float, alike: float, chance: float) -> float:
    """
    Tell how far two samples of one distribution may be apart.

    Args:
        rows: That were seen.
        trained: Rows of training.
        alike: How many rows count as one, in both.
        chance: Of each of the two being farther off.
    """
    own = band(rows / alike, chance)
    # The record of training is exact to a row on either side.
    return own + band(trained / alike, chance) + 1 / max(trained, 1.0)


def alike_rows(upto: I64, rows: I64) -> float:
    """
    Tell how many rows count as one, because those of a customer are alike.

    The variance of shares between heaps, over what independent rows would give, mean
    over the points.

    Args:
        upto: Rows up to each point, by heap; [HEAPS, P].
        rows: By heap; [HEAPS].

    Source: random groups, Wolter (2007), "Introduction to Variance Estimation", 2.4;
    the design effect of Kish (1965), "Survey Sampling", 8.2.
    """
    held = rows > 0
    heaps, total = int(held.sum()), int(rows.sum())
    if heaps < 2:
        return float(max(total, 1))  # a single customer is a single observation
    share = upto.sum(axis=0) / total
    apart = upto[held] - share * rows[held, None]
    between = float((apart**2).sum()) * heaps / (heaps - 1) / total**2
    independent = float((share * (1 - share)).sum()) / total
    return max(1.0, between / independent) if independent > 0 else 1.0
