"""Users and waits that add up to a scenario's rate."""

from __future__ import annotations

import random

import numpy as np
import pytest

from loadtests.crowd.crowd import Pace, rate_at, users_at
from loadtests.paced.scenario import Phase, Scenario, expected_by

PEAK = Scenario(
    phases=(
        Phase(seconds=20, rate=50),
        Phase(seconds=10, rate=50, to=250),
        Phase(seconds=5, rate=250),
    )
)


def test_a_rate_is_that_of_the_open_loop() -> None:
    """Its integral, by hand and by the schedule that the open loop is drawn from."""
    rates = [rate_at(PEAK, at_s) for at_s in (0, 19.9, 20, 25, 30, 34.9, 35, 99)]
    assert rates == pytest.approx([50, 50, 50, 150, 250, 250, 0, 0])
    at_s, expected = expected_by(PEAK)
    middle = (at_s[1:] + at_s[:-1]) / 2
    rates = [rate_at(PEAK, float(one)) for one in middle]
    assert np.sum(rates * np.diff(at_s)) == pytest.approx(expected[-1], rel=1e-9)


def test_users_are_as_many_as_the_rate_takes() -> None:
    """At least one; each asks so often."""
    assert users_at(PEAK, 25.0, each_per_s=2.0) == 75
    assert users_at(PEAK, 0.0, each_per_s=1000.0) == 1


def test_one_user_asks_at_random_and_on_average_so_often() -> None:
    """Answers that come at once: exponential distances, as Poisson has them."""
    now = [0.0]
    pace = Pace(4.0, chance=random.Random(1), clock=lambda: now[0])
    gaps = []
    for _ in range(20_000):
        gaps.append(pace.wait_s())
        now[0] += gaps[-1]
    assert np.mean(gaps) == pytest.approx(0.25, rel=0.03)
    assert np.std(gaps) == pytest.approx(0.25, rel=0.05)


def test_user_sends_nothing_while_it_waits_for_an_answer() -> None:
    """After a late one comes one request, not all that were missed: the closed loop."""
    now = [0.0]
    pace = Pace(10.0, chance=random.Random(2), clock=lambda: now[0])
    now[0] += 100.0
    waits = [pace.wait_s() for _ in range(5)]
    assert waits[0] == 0.0
    assert all(later > 0 for later in waits[1:])


def test_a_user_without_a_pace_asks_at_once() -> None:
    """As soon as there is an answer."""
    pace = Pace(0.0, chance=random.Random(3), clock=lambda: 5.0)
    assert [pace.wait_s(), pace.wait_s()] == [0.0, 0.0]
