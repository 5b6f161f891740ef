"""Scores of the benchmark agree with cases that were computed by hand."""

import math

import numpy as np
import pytest

from tollgate.detection.nab_score import (
    Profile,
    nab_score,
    position_weight,
    probation,
    series_score,
    window_bounds,
)
from tollgate.errors import InputError


def labels(readings, *windows):
    """Label the readings from a first to a last one of each window."""
    flags = np.zeros(readings, bool)
    for first, last in windows:
        flags[first : last + 1] = True
    return flags


def sigmoid(y):
    """Weigh a position, from the published formula."""
    return 2 / (1 + math.exp(5 * y)) - 1


def test_windows_are_runs_of_labelled_readings():
    """The last reading may end one, and a window may have one reading."""
    flags = labels(10, (2, 4), (6, 6), (8, 9))
    assert window_bounds(flags).tolist() == [[2, 4], [6, 6], [8, 9]]
    assert window_bounds(np.zeros(3, bool)).tolist() == []


def test_alarms_at_the_begin_of_each_window_score_100():
    """A perfect detector has the whole weight of each window."""
    flags = labels(100, (20, 29), (60, 79))
    found = series_score(flags, [20, 60])
    assert (found.raw, found.detected, found.false_alarms) == (2.0, 2, 0)
    assert nab_score([found]) == 100.0


def test_no_alarm_scores_0():
    """Each window that is missed costs the weight of a false negative."""
    found = series_score(labels(100, (20, 29), (60, 79)), [])
    assert (found.raw, found.detected) == (-2.0, 0)
    assert nab_score([found]) == 0.0


def test_an_alarm_before_the_first_window_costs_its_whole_weight():
    """Perfect but for one alarm: 100 * (0.89 + 1) / 2."""
    found = series_score(labels(100, (40, 49)), [16, 40])
    assert found.raw == pytest.approx(1 - 0.11)
    assert nab_score([found]) == pytest.approx(100 * (0.89 + 1) / 2)


def test_an_alarm_after_a_window_costs_by_its_distance():
    """The window has 10 readings; 3 later is 3 / 9 of its length."""
    found = series_score(labels(200, (40, 49)), [40, 52])
    assert found.raw == pytest.approx(1 + 0.11 * sigmoid(3 / 9))
    far = series_score(labels(200, (40, 49)), [40, 100])
    assert far.raw == pytest.approx(1 - 0.11)


def test_a_late_detection_counts_less():
    """Reading 7 of 10 has the position -(49 - 46 + 1) / 10; the first one has -1."""
    found = series_score(labels(100, (40, 49)), [46])
    assert found.raw == pytest.approx(sigmoid(-0.4) / sigmoid(-1))
    last = series_score(labels(100, (40, 49)), [49])
    assert last.raw == pytest.approx(sigmoid(-0.1) / sigmoid(-1))


def test_only_the_earliest_alarm_of_a_window_counts():
    """Further ones neither gain nor cost anything; their order is not important."""
    flags = labels(100, (40, 49))
    found = series_score(flags, [48, 43, 44, 43])
    assert found == series_score(flags, [43])


def test_alarms_of_the_first_readings_are_not_judged():
    """15 % of the readings, and 750 at most."""
    assert [probation(n) for n in (10, 100, 4_032, 20_000)] == [1, 15, 604, 750]
    flags = labels(100, (40, 49))
    assert series_score(flags, [0, 14, 40]).false_alarms == 0
    assert series_score(flags, [15, 40]).false_alarms == 1


def test_series_are_added_before_they_are_normalised():
    """One perfect window, two missed ones, a false alarm in a series without any."""
    scores = [
        series_score(labels(100, (40, 49)), [40]),
        series_score(labels(100, (40, 49), (60, 69)), []),
        series_score(labels(100), [50]),
    ]
    assert nab_score(scores) == pytest.approx(100 * (1 - 2 - 0.11 + 3) / 6)


def test_a_profile_changes_the_weights():
    """Twice the cost of false alarms."""
    flags = labels(100, (40, 49))
    found = series_score(flags, [16, 40], profile=Profile(false_positive=0.22))
    assert found.raw == pytest.approx(1 - 0.22)


def test_positions_are_weighed_by_a_sigmoid_that_ends_at_three_lengths():
    """It is 0 at a window's end."""
    assert position_weight(0.0) == 0.0
    assert position_weight([-1.0, 1.0]) == pytest.approx([sigmoid(-1), sigmoid(1)])
    assert position_weight(3.01) == -1.0


@pytest.mark.parametrize("onsets", [[-1], [100]])
def test_an_onset_that_is_no_reading_is_refused(onsets):
    """Its value and the valid range are named."""
    with pytest.raises(InputError, match=r"onsets.* are not within 0 … 99"):
        series_score(labels(100, (40, 49)), onsets)


def test_series_without_windows_have_no_score():
    """There is nothing to detect."""
    with pytest.raises(InputError, match="no series has a labelled window"):
        nab_score([series_score(labels(100), [])])
