"""Rivals agree with pandas, and none looks ahead."""

import numpy as np
import pandas as pd
import pytest

from tollgate.detection.rivals import isolation_forest, three_sigma, windowed_gaussian


def readings(*, rows=600, sensors=2, gaps=0.0, seed=0):
    """Make sensors of unequal level, with missing values."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(rows, sensors)) * 3 + 1_000
    values[random.random(values.shape) < gaps] = np.nan
    return values


def plain(column, *, readings):
    """Return the distances of one sensor from its earlier readings."""
    table = pd.Series(column)
    earlier = table.shift(1).rolling(readings, min_periods=10)
    return ((table - earlier.mean()).abs() / earlier.std(ddof=0)).fillna(0)


@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_three_sigma_agrees_with_pandas(gaps):
    """The largest distance of the sensors, from all earlier readings."""
    values = readings(gaps=gaps)
    expected = np.max([plain(one, readings=len(values)) for one in values.T], axis=0)
    assert three_sigma(values) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_windowed_gaussian_agrees_with_pandas():
    """Only the newest earlier readings count."""
    values = readings(sensors=1)
    expected = plain(values[:, 0], readings=100)
    assert windowed_gaussian(values, readings=100) == pytest.approx(
        expected, rel=1e-6, abs=1e-9
    )


def test_another_value_after_a_constant_is_far():
    """There is no standard deviation to divide by."""
    values = np.full((50, 1), 7.0)
    values[40] = 7.5
    score = three_sigma(values)
    assert score[:40].max() == 0.0
    assert score[40] == 1e6


@pytest.mark.parametrize("rival", [three_sigma, windowed_gaussian, isolation_forest])
def test_later_readings_change_no_score(rival):
    """Scores of the first half are the same whatever follows."""
    values = readings(gaps=0.1)
    other = values.copy()
    other[300:] += 1e3
    # The forest is trained on the first readings: 15 % of an equal number.
    assert rival(values)[:300].tolist() == rival(other)[:300].tolist()
    assert rival(other)[300:].max() > rival(values)[300:].max()


def test_a_forest_is_not_trained_on_few_readings():
    """A series too short for it has no scores."""
    assert isolation_forest(readings(rows=20)).max() == 0.0
