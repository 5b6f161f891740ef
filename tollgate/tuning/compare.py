"""
Measure the best candidate and the current settings again, in turns.

Figures of two runs on one machine differ by more than most settings do. So the
comparison uses the ratio within each turn, and the interval of the mean ratio shows
whether the difference could be chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from tollgate.tuning.goals import Measurement
from tollgate.tuning.search import Measurer
from tollgate.tuning.space import Candidate

FEWEST, MOST = 3, 10  # turns
_LOST = 0.3  # of the merit in another turn: below that, something else is wrong
LEAST_GAIN = 1.03  # a smaller gain is not worth a file
# Student's t for 95 %, two-sided, by degrees of freedom from 2 on.
_T = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Comparison(msgspec.Struct, frozen=True):
    """
    Comparison of a candidate with the original settings.

    Attributes:
        candidate: The settings.
        turns: Merits of the candidate and of the original settings, turn by turn.
        ratio: Mean (geometric) of the turns' ratios; over 1: the candidate is better.
        low: Lower end of the mean's 95 % interval.
        high: Upper end of it.
    """

    candidate: Candidate
    turns: tuple[tuple[Measurement, Measurement], ...]
    ratio: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Return whether it is better by more than chance, and by enough."""
        return self.low > 1.0 and self.ratio >= LEAST_GAIN

    @property
    def verdict(self) -> str:
        """Return the meaning of the comparison as text."""
        if self.holds:
            return "better than the settings as they were"
        if self.high < 1.0:
            return "worse than the settings as they were"
        return "within the noise"


def compare(
    candidate: Candidate, base: Candidate, *, look: Measurer, seconds: float, turns: int
) -> Comparison:
    """
    Measure two candidates in turns; the order changes each time.

    Args:
        candidate: The one that may be better.
        base: The original settings.
        look: Measures one candidate.
        seconds: Duration of each run, s.
        turns: Number of turns, FEWEST to MOST.
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
    return Comparison(candidate, tuple(pairs), ratio, low, high)


def ratio_of(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """
    Compare merits pair by pair.

    Args:
        pairs: Merits of the candidate and of the other; FEWEST to MOST pairs.

    Returns:
        Geometric mean of the ratios, and its 95 % interval (Student). If one of the two
        has no merit in a turn, all three are infinite when the candidate was better in
        every turn, else 1, 0 and infinity.
    """
    if any(not ours or not was for ours, was in pairs):
        better = all(ours > was for ours, was in pairs)
        return (math.inf, math.inf, math.inf) if better else (1.0, 0.0, math.inf)
    logs = np.log([ours / was for ours, was in pairs])
    mean = float(logs.mean())
    half = _T[len(logs) - FEWEST] * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)
