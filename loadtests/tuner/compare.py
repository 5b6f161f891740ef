"""
Is the winner really better? Both are measured again, in turns.

Figures of two runs on one machine differ by more than most settings do. So the ratio
within each turn counts, and the interval of their mean says whether it could be chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from loadtests.tuner.goals import Found
from loadtests.tuner.search import Look
from loadtests.tuner.space import Candidate

FEWEST, MOST = 3, 10  # turns
_LOST = 0.3  # of what was kept in another turn: something else is going on
LEAST_GAIN = 1.03  # less is not worth a file
# Student's t for 95 %, two-sided, by degrees of freedom from 2 on.
_T = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Compared(msgspec.Struct, frozen=True):
    """
    A candidate against the settings as they were.

    Attributes:
        candidate: The settings.
        turns: What they and those were found to be worth, turn by turn.
        ratio: Mean (geometric) of the turns' ratios; over 1: the candidate is better.
        low: End of the mean's 95 % interval.
        high: The other one.
    """

    candidate: Candidate
    turns: tuple[tuple[Found, Found], ...]
    ratio: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Whether it is better by more than chance, and by enough."""
        return self.low > 1.0 and self.ratio >= LEAST_GAIN

    @property
    def verdict(self) -> str:
        """What that means, in words."""
        if self.holds:
            return "better than the settings as they were"
        if self.high < 1.0:
            return "worse than the settings as they were"
        return "within the noise"


def compare(
    candidate: Candidate, base: Candidate, *, look: Look, seconds: float, turns: int
) -> Compared:
    """
    Measure two candidates in turns; who comes first changes each time.

    Args:
        candidate: The one that may be better.
        base: The settings as they were.
        look: Looks at one.
        seconds: For each run.
        turns: How often, FEWEST to MOST.
    """
    pairs = []
    most = {candidate: 0.0, base: 0.0}
    for turn in range(turns):
        order = (candidate, base) if turn % 2 else (base, candidate)
        found = {}
        for one in order:
            near = most[one] or max(most.values())
            found[one] = look(one, seconds=seconds, near=near, floor=_LOST * near)
            most[one] = max(most[one], found[one].merit)
        pairs.append((found[candidate], found[base]))
    ratio, low, high = ratio_of([(ours.merit, was.merit) for ours, was in pairs])
    return Compared(candidate, tuple(pairs), ratio, low, high)


def ratio_of(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """
    Compare merits pair by pair.

    Args:
        pairs: The candidate's and the other's; FEWEST to MOST of them.

    Returns:
        Geometric mean of the ratios, and its 95 % interval (Student). Where one of the
        two kept no promise at all in a turn, the interval is all there is.
    """
    if any(not ours or not was for ours, was in pairs):
        better = all(ours > was for ours, was in pairs)
        return (math.inf, math.inf, math.inf) if better else (1.0, 0.0, math.inf)
    logs = np.log([ours / was for ours, was in pairs])
    mean = float(logs.mean())
    half = _T[len(logs) - FEWEST] * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
