"""Number of users that a scenario needs, and the wait of each between requests."""

from __future__ import annotations

import random
from collections.abc import Callable

from loadtests.paced.scenario import Scenario


def rate_at(scenario: Scenario, at_s: float) -> float:
    """Return the requests per second at a moment; 0 after the end."""
    for phase in scenario.phases:
        if at_s < phase.seconds:
            return phase.rate + (phase.end_rate - phase.rate) * at_s / phase.seconds
        at_s -= phase.seconds
    return 0.0


def users_at(scenario: Scenario, at_s: float, *, each_per_s: float) -> int:
    """
    Return the number of users at a moment.

    Args:
        scenario: Sets the rate.
        at_s: Time from its beginning, s.
        each_per_s: Requests per second of one user, above 0.
    """
    return max(1, round(rate_at(scenario, at_s) / each_per_s))


class Pace:
    """
    The times at which one user sends requests: random, at a given mean rate.

    A user who still waits for an answer sends late, and never sends the requests
    that he missed meanwhile: that is the closed loop. Many users with low rates come
    near an open one.

    Args:
        each_per_s: Requests per second; 0 sends as soon as there is an answer.
        chance: Source of the random draws.
        clock: Returns the time, s.
    """

    def __init__(
        self, each_per_s: float, *, chance: random.Random, clock: Callable[[], float]
    ) -> None:
        self._each_per_s, self._chance, self._clock = each_per_s, chance, clock
        self._due_s = clock()

    def wait_s(self) -> float:
        """Return the time until the next request, s."""
        if not self._each_per_s:
            return 0.0
        now_s = self._clock()
        self._due_s += self._chance.expovariate(self._each_per_s)
        self._due_s = max(self._due_s, now_s)
        return self._due_s - now_s
