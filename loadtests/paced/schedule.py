"""Draw the times at which the requests of a scenario are due."""

from __future__ import annotations

import numpy as np

from loadtests.paced.scenario import Scenario
from tollgate.load.arrivals import F64

_STEP_S = 0.01  # step of the lookup table; rates hardly change within it


def arrivals(scenario: Scenario, *, seed: int) -> F64:
    """
    Draw the arrivals of independent callers.

    The arrivals of a changing rate are those of one request per second on a clock that
    runs as fast as requests are expected: an inhomogeneous Poisson process.

    Returns:
        s from the beginning, ascending, all within the scenario; float64 [N].
    """
    at_s, expected = expected_by(scenario)
    chance = np.random.default_rng(seed)
    total = float(expected[-1])
    # More than enough: ten deviations above the mean.
    gaps = chance.exponential(1.0, round(total + 10 * np.sqrt(total) + 20))
    within = np.cumsum(gaps)
    return np.interp(within[within < total], expected, at_s)


def expected_by(scenario: Scenario) -> tuple[F64, F64]:
    """
    Return the cumulative number of expected requests over time.

    Returns:
        s from the beginning, and the requests until then; float64 [M] each.
    """
    at_s, expected = [np.zeros(1)], [np.zeros(1)]
    for phase in scenario.phases:
        steps = max(1, round(phase.seconds / _STEP_S))
        since_s = np.linspace(0, phase.seconds, steps + 1)[1:]
        slope = (phase.end_rate - phase.rate) / phase.seconds
        at_s.append(at_s[-1][-1] + since_s)
        inside = phase.rate * since_s + slope * since_s**2 / 2
        expected.append(expected[-1][-1] + inside)
    return np.concatenate(at_s), np.concatenate(expected)
