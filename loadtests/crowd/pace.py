"""How many users a scenario wants, and how long each of them waits."""

from __future__ import annotations

import random
from collections.abc import Callable

from loadtests.paced.scenario import Scenario


def rate_at(scenario: Scenario, at_s: float) -> float:
    """Tell the requests per second of a moment; 0 after the end."""
    for phase in scenario.phases:
        if at_s < phase.seconds:
            return phase.rate + (phase.end_rate - phase.rate) * at_s / phase.seconds
        at_s -= phase.seconds
    return 0.0


def users_at(scenario: Scenario, at_s: float, *, each_per_s: float) -> int:
    """
    Tell how many users there are at a moment.

    Args:
        scenario: What rate it has.
        at_s: From its beginning.
        each_per_s: Requests per second of one user, above 0.
    """
    return max(1, round(rate_at(scenario, at_s) / each_per_s))


class Pace:
    """
    The times at which one user asks: at random, at some rate on average.

    A user who still waits for an answer asks late, and what he then missed is never
    asked: that is the closed loop. Many who seldom ask come near an open one.

    Args:
        each_per_s: Requests per second; 0 asks as soon as there is an answer.
        chance: Draws.
        clock: Tells the time, s.
    """

    def __init__(
        self, each_per_s: float, *, chance: random.Random, clock: Callable[[], float]
    ) -> None:
        self._each_per_s, self._chance, self._clock = each_per_s, chance, clock
        self._due_s = clock()

    def wait_s(self) -> float:
        """Tell how long it is until the next time."""
        if not self._each_per_s:
            return 0.0
        now_s = self._clock()
        self._due_s += self._chance.expovariate(self._each_per_s)
        self._due_s = max(self._due_s, now_s)
        return self._due_s - now_s
