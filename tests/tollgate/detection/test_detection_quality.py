"""Recall, false alarms and delay agree with arithmetic by hand."""

import math

import numpy as np
import pytest

from tollgate.detection.detection_quality import (
    LabelledSeries,
    judge_alarms,
    quality_at_recall,
)
from tollgate.errors import InputError

HOUR_US = 3600 * 10**6


def hourly(*windows, sensors=1, readings=100):
    """Label a series with a reading an hour."""
    flags = np.zeros(readings, bool)
    for first, last in windows:
        flags[first : last + 1] = True
    return LabelledSeries(
        machine="m1",
        time_us=np.arange(readings) * HOUR_US,
        values=np.zeros((readings, sensors)),
        in_window=flags,
    )


def test_quality_by_hand():
    """
    One of two windows is found 3 h late; 2 alarms are false, 1 comes too early.

    Of 100 hours, readings 16 to 99 end a judged one each, 20 of them in windows.
    """
    series = hourly((40, 49), (60, 69), sensors=3)
    found = judge_alarms([series], [np.array([5, 20, 43, 45, 90])])
    assert (found.windows, found.detected, found.recall) == (2, 1, 0.5)
    assert found.false_alarms == 2
    assert found.sensor_days == pytest.approx((84 - 20) / 24 * 3)
    assert found.false_alarms_per_sensor_day == pytest.approx(2 / 8)
    assert found.delay_s == 3 * 3600


def test_series_without_windows_count_false_alarms_only():
    """They have no score, no recall and no delay."""
    found = judge_alarms([hourly()], [np.array([50])])
    assert found.false_alarms == 1
    assert math.isnan(found.nab)
    assert math.isnan(found.recall)
    assert math.isnan(found.delay_s)


def above(at, score, threshold):
    """Begin an alarm at every reading above a threshold."""
    return np.flatnonzero(score >= threshold)


def test_quality_at_a_recall_has_the_highest_threshold_that_reaches_it():
    """Two windows have maxima of 0.9 and 0.6; three readings are between."""
    series = hourly((40, 49), (60, 69))
    score = np.zeros(100)
    score[[44, 62, 20, 30, 80, 90]] = 0.9, 0.6, 0.95, 0.7, 0.65, 0.5
    half = quality_at_recall([series], [score], recall=0.5, onsets=above)
    assert (half.detected, half.false_alarms) == (1, 1)
    whole = quality_at_recall([series], [score], recall=1.0, onsets=above)
    assert (whole.detected, whole.false_alarms) == (2, 3)


def test_a_recall_out_of_reach_is_refused():
    """The largest is named."""

    def never(at, score, threshold):
        return np.array([44])

    series = hourly((40, 49), (60, 69))
    with pytest.raises(InputError, match=r"1.000 is not reached; the most is 0.500"):
        quality_at_recall([series], [np.arange(100.0)], recall=1.0, onsets=never)
