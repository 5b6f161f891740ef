"""Estimate shares of counted rows, corrected for similar rows of one customer."""

from __future__ import annotations

import math

from tollgate.challenger import intervals
from tollgate.challenger.decision_counts import LEVELS, Arm, Pairs
from tollgate.challenger.intervals import Interval


def arm_share(arm: Arm, what: int) -> Interval:
    """Estimate the share of a decision, of ERRORS or of DEGRADED."""
    return intervals.share(*_counted(arm, what))


def share_difference(arm: Arm, what: int, *, than: Arm) -> Interval:
    """Estimate the difference of such a share from that of other customers."""
    return intervals.difference(*_counted(arm, what), than=_counted(than, what))


def flips(pairs: Pairs) -> int:
    """Count the rows with different decisions."""
    side = math.isqrt(len(pairs.matrix))
    return pairs.rows - sum(pairs.matrix[:: side + 1])


def flips_share(pairs: Pairs) -> Interval:
    """Estimate the share of rows with different decisions."""
    effect = flips_effect(pairs)
    return intervals.share(flips(pairs) / effect, pairs.rows / effect)


def flips_effect(pairs: Pairs) -> float:
    """Estimate the design effect of different decisions within customers."""
    return intervals.design_effect(pairs.cluster_rows, pairs.cluster_flips)


def decision_difference(pairs: Pairs, level: int) -> Interval:
    """
    Estimate how much more often the challenger makes a decision, on the same rows.
    """
    matrix = [
        pairs.matrix[at : at + LEVELS] for at in range(0, LEVELS * LEVELS, LEVELS)
    ]
    less = sum(matrix[level]) - matrix[level][level]
    more = sum(line[level] for line in matrix) - matrix[level][level]
    effect = flips_effect(pairs)
    return intervals.paired_difference(
        more / effect, less / effect, rows=pairs.rows / effect
    )


def degraded_difference(pairs: Pairs) -> Interval:
    """Estimate how much more often the challenger is degraded, on the same rows."""
    more, less = pairs.degraded_more, pairs.degraded_less
    return intervals.paired_difference(more, less, rows=pairs.rows)


def _counted(arm: Arm, what: int) -> tuple[float, float]:
    """Return hits and rows, divided by the design effect."""
    hits = arm.hits(what)
    effect = intervals.design_effect(arm.cluster_rows, hits)
    return sum(hits) / effect, arm.rows / effect
