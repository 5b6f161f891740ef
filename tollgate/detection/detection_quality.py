"""Judge alarms on series with labelled windows: recall, false alarms, delay."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.detection.nab_score import (
    SeriesScore,
    nab_score,
    probation,
    series_score,
    window_bounds,
)
from tollgate.errors import InputError

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
# Scores of a series' readings, and the onsets of its alarms by number and threshold.
Scores = npt.NDArray[np.float32] | npt.NDArray[np.float64]
Onsets = Callable[[int, Scores, float], I64]

_DAY_US = 86_400 * 10**6
_THRESHOLDS = 400  # that are tried, from the highest score on


class LabelledSeries(msgspec.Struct, frozen=True, eq=False):
    """
    Readings of one machine in the order of time, with labels.

    Attributes:
        machine: Its id.
        time_us: int64 [N], ascending.
        values: NaN where there is no value; float64 [N, S].
        in_window: True in a labelled window; bool [N].
    """

    machine: str
    time_us: I64
    values: F64
    in_window: Bool


class Quality(msgspec.Struct, frozen=True):
    """
    Quality of alarms on some series; the first readings of each are not judged.

    Attributes:
        nab: Score of the benchmark; NaN without a labelled window.
        windows, detected: Number of labelled windows, and of those with an alarm.
        false_alarms: Number of alarms outside of windows.
        sensor_days: Time that was judged, outside of windows, times sensors.
        delay_s: Median time from a window's begin to its first alarm; NaN without one.
    """

    nab: float
    windows: int
    detected: int
    false_alarms: int
    sensor_days: float
    delay_s: float

    @property
    def recall(self) -> float:
        """Return the share of windows with an alarm."""
        return self.detected / self.windows if self.windows else float("nan")

    @property
    def false_alarms_per_sensor_day(self) -> float:
        """Return the rate of false alarms."""
        return self.false_alarms / self.sensor_days if self.sensor_days else 0.0


def judge_alarms(series: Sequence[LabelledSeries], onsets: Sequence[I64]) -> Quality:
    """
    Judge the alarms of some series together.

    Args:
        series: The series.
        onsets: Positions of the readings of each series at which its alarms begin.
    """
    scores: list[SeriesScore] = []
    days, delays = 0.0, []
    for one, at in zip(series, onsets, strict=True):
        scores.append(series_score(one.in_window, at))
        days += _judged_days(one)
        judged = at[at >= probation(len(one.time_us))]
        for first, last in window_bounds(one.in_window):
            inside = judged[(judged >= first) & (judged <= last)]
            if len(inside):
                delays.append((one.time_us[inside[0]] - one.time_us[first]) / 1e6)
    windows = sum(one.windows for one in scores)
    return Quality(
        nab=nab_score(scores) if windows else float("nan"),
        windows=windows,
        detected=sum(one.detected for one in scores),
        false_alarms=sum(one.false_alarms for one in scores),
        sensor_days=days,
        delay_s=float(np.median(delays)) if delays else float("nan"),
    )


def quality_at_recall(
    series: Sequence[LabelledSeries],
    scores: Sequence[Scores],
    *,
    recall: float,
    onsets: Onsets,
) -> Quality:
    """
    Judge a detector at the highest threshold with which it detects enough windows.

    Args:
        series: The series.
        scores: Scores of the readings of each series; [N] each.
        recall: Share of windows that must have an alarm.
        onsets: Returns the onsets of the series of a number, from its scores and a
            threshold.

    Raises:
        InputError: No threshold detects so many windows.
    """
    pooled = np.unique(np.concatenate([np.asarray(one, np.float64) for one in scores]))
    # Most candidates are among the rarest scores.
    share = np.geomspace(1.0 / len(pooled), 1.0, _THRESHOLDS)
    places = np.unique((len(pooled) * (1.0 - share)).astype(np.int64))[::-1]
    best = 0.0
    for threshold in pooled[places]:
        found = judge_alarms(
            series,
            [onsets(at, one, float(threshold)) for at, one in enumerate(scores)],
        )
        if found.recall >= recall:
            return found
        best = max(best, found.recall)
    raise InputError("recall", f"{recall:.3f} is not reached; the most is {best:.3f}")


def _judged_days(one: LabelledSeries) -> float:
    """Sum the time between judged readings outside of windows, times the sensors."""
    first = probation(len(one.time_us))
    gaps = np.diff(one.time_us[first:]) * ~one.in_window[first:][1:]
    return float(gaps.sum()) / _DAY_US * one.values.shape[1]
