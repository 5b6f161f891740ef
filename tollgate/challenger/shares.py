"""Shares of counted rows, as wide as the likeness of a customer's rows makes them."""

from __future__ import annotations

import math

from tollgate.challenger import intervals
from tollgate.challenger.counts import LEVELS, Arm, Pairs
from tollgate.challenger.intervals import Interval


def arm_share(arm: Arm, what: int) -> Interval:
    """Estimate the share of a decision, of ERRORS or of DEGRADED."""
    return intervals.share(*_counted(arm, what))


def apart(arm: Arm, what: int, *, than: Arm) -> Interval:
    """Estimate by how much such a share is larger than that of other customers."""
    return intervals.difference(*_counted(arm, what), than=_counted(than, what))


def flips(pairs: Pairs) -> int:
    """Count the rows that are decided otherwise."""
    side = math.isqrt(len(pairs.matrix))
    return pairs.rows - sum(pairs.matrix[:: side + 1])


def flips_share(pairs: Pairs) -> Interval:
    """Estimate the share of rows that are decided otherwise."""
    effect = flips_effect(pairs)
    return intervals.share(flips(pairs) / effect, pairs.rows / effect)


def flips_effect(pairs: Pairs) -> float:
    """Estimate how alike a customer's rows are in being decided otherwise."""
    return intervals.design_effect(pairs.cluster_rows, pairs.cluster_flips)


def decided_apart(pairs: Pairs, level: int) -> Interval:
    """Estimate by how much more often the challenger decides so, of the same rows."""
    matrix = [
        pairs.matrix[at : at + LEVELS] for at in range(0, LEVELS * LEVELS, LEVELS)
    ]
    less = sum(matrix[level]) - matrix[level][level]
    more = sum(line[level] for line in matrix) - matrix[level][level]
    effect = flips_effect(pairs)
    return intervals.paired_difference(
        more / effect, less / effect, rows=pairs.rows / effect
    )


def degraded_apart(pairs: Pairs) -> Interval:
    """Estimate by how much more often it is degraded, of the same rows."""
    more, less = pairs.degraded_more, pairs.degraded_less
    return intervals.paired_difference(more, less, rows=pairs.rows)


def _counted(arm: Arm, what: int) -> tuple[float, float]:
    """Give hits and rows as so many strangers would have them."""
    hits = arm.hits(what)
    effect = intervals.design_effect(arm.cluster_rows, hits)
    return sum(hits) / effect, arm.rows / effect
