"""Arrivals: as many as expected, where they are expected, and at random."""

from __future__ import annotations

import numpy as np
import pytest

from loadtests.paced.scenario import Phase, Scenario
from loadtests.paced.schedule import arrivals, expected_by


def test_a_steady_rate_has_exponential_distances() -> None:
    """Mean and deviation are both 1 / rate; the same seed gives the same times."""
    steady = Scenario(phases=(Phase(seconds=100, rate=200),))
    at_s = arrivals(steady, seed=3)
    gaps_s = np.diff(at_s)
    assert (gaps_s >= 0).all()
    assert 0 < at_s[0] < at_s[-1] < 100
    assert abs(len(at_s) - 20_000) < 5 * 20_000**0.5
    assert abs(gaps_s.mean() * 200 - 1) < 0.03
    assert abs(gaps_s.std() * 200 - 1) < 0.05
    assert np.array_equal(at_s, arrivals(steady, seed=3))
    assert not np.array_equal(at_s[:9], arrivals(steady, seed=4)[:9])


def test_a_ramp_has_what_the_area_under_it_says() -> None:
    """From 0 to 400 in 100 s: 20,000 in all, a quarter of them in the first half."""
    ramp = Scenario(phases=(Phase(seconds=100, rate=1e-9, to=400),))
    at_s, expected = expected_by(ramp)
    assert expected[-1] == pytest.approx(20_000)
    assert np.interp(50, at_s, expected) == pytest.approx(5_000, rel=1e-6)
    drawn = arrivals(ramp, seed=1)
    assert abs(len(drawn) - 20_000) < 5 * 20_000**0.5
    assert abs((drawn < 50).sum() - 5_000) < 5 * 5_000**0.5


def test_phases_follow_one_another() -> None:
    """100/s, then 1,000/s, then 100/s: counts of each part are its own."""
    spike = Scenario(
        phases=tuple(Phase(seconds=10, rate=one) for one in (100, 1e3, 100))
    )
    counts, _ = np.histogram(arrivals(spike, seed=5), [0, 10, 20, 30])
    for count, expected in zip(counts.tolist(), (1e3, 1e4, 1e3), strict=True):
        assert abs(count - expected) < 5 * expected**0.5
