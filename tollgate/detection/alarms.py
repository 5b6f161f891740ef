"""
Turn scores into levels and alarms: thresholds, then hysteresis per machine.

A level is reached when `at_least` of the newest `of` readings reach its threshold. A
level that began lasts for `hold_us`, and after its end no new one begins during
`cool_down_us`. Every time is the time of a reading.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError

I64 = npt.NDArray[np.int64]

NORMAL, WATCH, ALARM = 0, 1, 2

# The chosen rule, in intervals between readings where it is a time.
WATCH_SCORE, ALARM_SCORE = 0.99, 0.995
RULE_READINGS = 24  # newest readings, one of which must reach a level
COOL_DOWN_READINGS = 12


class AlarmRule(msgspec.Struct, frozen=True):
    """
    Thresholds of the score, and hysteresis.

    Attributes:
        watch, alarm: Scores from which a reading is of this level; watch <= alarm.
        of: Number of newest readings that count.
        at_least: How many of them must reach a level.
        hold_us: Shortest time from the begin of a level to its end, µs.
        cool_down_us: Shortest time from the end of a level to the next one's begin, µs.
    """

    watch: float
    alarm: float
    of: int = 1
    at_least: int = 1
    hold_us: int = 0
    cool_down_us: int = 0

    def __post_init__(self) -> None:
        """Refuse a rule that contradicts itself."""
        if not self.watch <= self.alarm:
            problem = f"{self.watch:g} is above the threshold of alarms, {self.alarm:g}"
            raise InputError("watch", problem)
        if not 1 <= self.at_least <= self.of:
            raise InputError("at_least", f"{self.at_least} is not within 1 … {self.of}")


def alarm_rule(interval_us: int) -> AlarmRule:
    """
    Return the chosen thresholds and hysteresis for readings at an interval.

    An alarm ends when none of the newest 24 readings reaches its threshold; the next
    begins 12 intervals later at the earliest.
    """
    return AlarmRule(
        watch=WATCH_SCORE,
        alarm=ALARM_SCORE,
        of=RULE_READINGS,
        at_least=1,
        cool_down_us=COOL_DOWN_READINGS * interval_us,
    )


def reached_levels(score: npt.ArrayLike, rule: AlarmRule) -> npt.NDArray[np.int8]:
    """
    Return the level that enough of the newest readings reach, before hysteresis.

    Args:
        score: Scores of one machine in the order of time; [N].

    Returns:
        0, 1 or 2 for each reading; int8 [N].
    """
    score = np.asarray(score, dtype=np.float64)
    stop = np.arange(1, len(score) + 1)
    start = np.maximum(stop - rule.of, 0)
    reached = np.zeros(len(score), np.int8)
    for level, threshold in ((WATCH, rule.watch), (ALARM, rule.alarm)):
        count = np.append(0, np.cumsum(score >= threshold))
        reached[count[stop] - count[start] >= rule.at_least] = level
    return reached


def alarm_onsets(score: npt.ArrayLike, time_us: npt.ArrayLike, rule: AlarmRule) -> I64:
    """
    Find the readings at which alarms of one machine begin.

    Args:
        score: Scores in the order of time; [N].
        time_us: Times of the readings, ascending; int64 [N].

    Returns:
        Positions of the onsets, ascending; int64 [A].
    """
    times = np.asarray(time_us, dtype=np.int64)
    reached = reached_levels(score, rule)
    starts = np.append(0, np.flatnonzero(np.diff(reached)) + 1)
    stops = np.append(starts[1:], len(reached))
    level, begin_us, end_us = NORMAL, 0, None
    onsets = []
    # Within a run of one reached level, the answered level changes at most once.
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if start == stop or (wanted := int(reached[start])) == level:
            continue
        free_us = times[start]
        if wanted < level:
            free_us = begin_us + rule.hold_us
        elif level == NORMAL and end_us is not None:
            free_us = end_us + rule.cool_down_us
        at = max(start, int(np.searchsorted(times, free_us)))
        if at >= stop:
            continue
        if wanted > level:
            begin_us = int(times[at])
            if wanted == ALARM:
                onsets.append(at)
        elif wanted == NORMAL:
            end_us = int(times[at])
        level = wanted
    return np.array(onsets, np.int64)
