"""
Choose thresholds from a budget of false alarms per machine and day.

The largest surprises of blocks of readings say how often there would be alarms: a block
is as long as hysteresis makes an alarm and its cool-down last, so it has about one
alarm or none. The readings that the detector learned from may contain faults that
nobody labelled, and a threshold above all of them would miss others like them. So the
threshold is extrapolated: by a Gumbel distribution, that of largest values, through two
quantiles that few faults hardly move. Held-out readings with more alarms than the
budget raise it, but not far, since these may be faults too.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.detection.alarms import (
    COOL_DOWN_READINGS,
    RULE_READINGS,
    AlarmRule,
    alarm_onsets,
    alarm_rule,
)
from tollgate.detection.detector import Detector, apply_curve, machine_surprise
from tollgate.errors import InputError

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

BLOCK_READINGS = RULE_READINGS + COOL_DOWN_READINGS
USUAL_DAYS, USUAL_READINGS = 30, 10_000  # of a machine, in which one alarm may be false
WATCH_TIMES = 4  # times as many watches as alarms
_QUANTILES = (0.5, 0.85)  # of the blocks, that the distribution goes through
_MOST_RISE = 1.3  # of the distance from the median, by held-out readings
_STEPS = 12  # thresholds that are tried for the held-out readings
_LEAST_SHARE, _MOST_SHARE = 1e-12, 0.5  # of blocks with a false alarm
_FEWEST_BLOCKS = 20
_DAY_US = 86_400 * 10**6


class MachineReadings(msgspec.Struct, frozen=True, eq=False):
    """
    Vectors of readings, and the machine and time of each.

    Attributes:
        features: float32 [N, F].
        machine: Number of the machine; int64 [N].
        time_us: int64 [N].
        trained: True for those that the detector learned from; bool [N].
    """

    features: F32
    machine: I64
    time_us: I64
    trained: Bool

    def rows(self) -> list[I64]:
        """Return the positions of each machine's readings in the order of time."""
        return rows_of_machines(self.machine, self.time_us)


def rows_of_machines(machine: I64, time_us: I64) -> list[I64]:
    """Return the positions of each machine's readings in the order of time."""
    order = np.lexsort((time_us, machine))
    stops = np.flatnonzero(np.diff(machine[order])) + 1
    return np.split(order, stops)


def usual_budget(interval_us: int) -> float:
    """
    Return the default budget: false alarms of a machine in a day.

    It is one in 30 days, or in 10,000 readings if these take less.
    """
    return max(1 / USUAL_DAYS, _DAY_US / interval_us / USUAL_READINGS)


def budget_rule(
    detector: Detector,
    readings: MachineReadings,
    *,
    interval_us: int,
    false_alarms_per_day: float,
) -> AlarmRule:
    """
    Choose thresholds so that about so many alarms are false.

    Four times as many may begin a watch.

    Args:
        detector: The detector.
        readings: Readings that it learned from, and held-out ones.
        interval_us: Time between two readings of a machine.
        false_alarms_per_day: Of one machine.

    Raises:
        InputError: The budget is not positive, the readings are fewer than 720 with
            full windows, or their blocks have too little in common with a Gumbel
            distribution: most have the same largest surprise.
    """
    if not 0 < false_alarms_per_day < np.inf:
        problem = f"{false_alarms_per_day:g} is not above 0"
        raise InputError("false_alarms", problem)
    surprise = machine_surprise(readings.features, detector.sensors)
    known = readings.features[:, detector.readings] >= detector.fewest_readings
    blocks = _block_maxima(readings, surprise, usable=known & readings.trained)
    if len(blocks) < _FEWEST_BLOCKS:
        problem = (
            f"are too few: thresholds need {_FEWEST_BLOCKS * BLOCK_READINGS} that "
            "follow each other"
        )
        raise InputError("readings", problem)
    low, high = np.quantile(blocks, _QUANTILES)
    if not high > low:
        problem = "rarely change: the largest surprises of most blocks are the same"
        raise InputError("readings", problem)
    share = false_alarms_per_day * BLOCK_READINGS * interval_us / _DAY_US
    usual = alarm_rule(interval_us)
    alarm = extrapolated_level(blocks, share)
    middle = float(np.median(blocks))
    surprise = np.where(known, surprise, np.float32(0))
    for rise in np.linspace(1.0, _MOST_RISE, _STEPS):
        level = middle + rise * (alarm - middle)
        rule = msgspec.structs.replace(usual, watch=level, alarm=level)
        found, days = held_out_alarms(readings, surprise, rule=rule)
        if len(found) <= allowed_alarms(false_alarms_per_day, days=days):
            break
    watch = middle + rise * (extrapolated_level(blocks, WATCH_TIMES * share) - middle)
    scores = apply_curve(detector.calibration, np.array([watch, level], np.float32))
    first, second = (score_threshold(detector, float(one)) for one in scores)
    return msgspec.structs.replace(usual, watch=min(first, second), alarm=second)


def score_threshold(detector: Detector, score: float) -> float:
    """
    Return the threshold that a score reaches, and a reading without surprise does not.

    It has nine decimals, which distinguish any two scores below 1, and is rounded down:
    many readings may have just this score.
    """
    least = detector.calibration.value[1]
    return math.floor(max(score, least) * 1e9) / 1e9


def allowed_alarms(false_alarms_per_day: float, *, days: float) -> float:
    """Return how many alarms of held-out readings a budget allows; at least one."""
    return max(false_alarms_per_day * days, 1.0)


def extrapolated_level(blocks: F64, share: float) -> float:
    """
    Return the level that a share of blocks exceeds, by a Gumbel distribution.

    Args:
        blocks: Largest values of blocks; [N].
        share: From 0 to 1; at most a half counts.
    """
    share = min(max(share, _LEAST_SHARE), _MOST_SHARE)
    low, high = np.quantile(blocks, _QUANTILES)
    at, upper = (-np.log(-np.log(one)) for one in _QUANTILES)
    wanted = -np.log(-np.log1p(-share))
    return float(low + (high - low) / (upper - at) * (wanted - at))


def _block_maxima(readings: MachineReadings, surprise: F32, *, usable: Bool) -> F64:
    """Return the largest surprise of each block whose readings are all usable."""
    found = []
    for rows in readings.rows():
        own = rows[usable[rows]]
        blocks = len(own) // BLOCK_READINGS
        whole = own[len(own) - blocks * BLOCK_READINGS :]
        found.append(surprise[whole].reshape(blocks, BLOCK_READINGS).max(axis=1))
    together: F64 = np.concatenate(found).astype(np.float64)
    return together


def held_out_alarms(
    readings: MachineReadings, score: F32, *, rule: AlarmRule
) -> tuple[I64, float]:
    """
    Find the alarms that begin after the time that the detector learned from.

    Args:
        readings: The readings.
        score: Their scores, or other values that the thresholds apply to; [N].
        rule: Thresholds and hysteresis.

    Returns:
        Positions of the readings with which they begin, int64 [A]; the machine-days of
        the held-out readings.
    """
    found, days = [np.empty(0, np.int64)], 0.0
    for rows in readings.rows():
        times = readings.time_us[rows]
        later = ~readings.trained[rows]
        onsets = alarm_onsets(score[rows], times, rule)
        found.append(rows[onsets[later[onsets]]])
        days += float(np.ptp(times[later])) / _DAY_US if later.any() else 0.0
    return np.concatenate(found), days
