"""
Goals of a search: the highest rate within the SLO, or the lowest latency.

A goal measures one candidate for a while and gives it a merit, so that candidates can
be compared by one number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from tollgate.tuning.seen import Limits, RunFigures

# Takes a rate (0: one after the other) and seconds; runs the load on the candidate.
Drive = Callable[[float, float], RunFigures]

STEP = 1.05  # from one rate to the next
_GALLOP = 14  # steps at once while no rate is known: about twice the rate
_STRIDE = 4  # and near a rate that other candidates sustain
_LOWEST_PER_S = 5.0
_MOST_PER_S = 100_000.0


class Measurement(msgspec.Struct, frozen=True):
    """
    Merit of some settings, and the runs that show it.

    Attributes:
        merit: More is better: the sustained rate, or answers per second one after the
            other; 0 for settings that sustain no rate above the floor.
        best: The run with this merit; None when there is none.
        runs: All of them.
        alone: Runs with requests one after the other, if measured too.
    """

    merit: float
    best: RunFigures | None
    runs: tuple[RunFigures, ...]
    alone: RunFigures | None = None


class Goal(Protocol):
    """Criterion by which settings are compared."""

    @property
    def unit(self) -> str:
        """Return the unit of the merit."""

    def look(
        self, drive: Drive, *, seconds: float, near: float, floor: float
    ) -> Measurement:
        """
        Measure the merit of a candidate.

        Args:
            drive: Runs a load on it.
            seconds: Duration of each run, s.
            near: Merit that it probably has; 0 when nothing is known.
            floor: Merit below which the exact value does not matter.
        """


class HighestRate(msgspec.Struct, frozen=True):
    """
    The highest rate that meets the limits.

    A run that breaks it by little is repeated before it counts: a short run of a good
    server may have one bad moment.

    Attributes:
        limits: The limits.
        start_per_s: Rate to begin with when nothing is known.
    """

    limits: Limits
    start_per_s: float = 100.0
    unit: str = "requests/s"

    def look(
        self, drive: Drive, *, seconds: float, near: float, floor: float
    ) -> Measurement:
        """Go up in steps while the limits are met, or down until they are."""
        runs: list[RunFigures] = []

        def sustains(rate_per_s: float) -> bool:
            for _ in range(2):
                runs.append(drive(rate_per_s, seconds))
                if self.limits.meets(runs[-1]):
                    return True
                if self.limits.hopeless(runs[-1]):
                    break
            return False

        rate = self._climb(sustains, near=near, floor=max(floor, _LOWEST_PER_S))
        passed = [one for one in runs if self.limits.meets(one)]
        best = max(passed, key=lambda one: one.rate_per_s, default=None)
        return Measurement(rate, best, tuple(runs))

    def _climb(
        self, sustains: Callable[[float], bool], *, near: float, floor: float
    ) -> float:
        """Find the last sustained rate of a geometric scale; 0 below the floor."""
        stride = _STRIDE if near else _GALLOP

        def rate_per_s(place: int) -> float:
            return (near or self.start_per_s) * STEP**place

        low, high = -_STRIDE if near else 0, None
        while not sustains(rate_per_s(low)):
            low, high = low - stride, low
            if rate_per_s(low) < floor:
                return 0.0
        while high is None and rate_per_s(low + stride) <= _MOST_PER_S:
            if sustains(rate_per_s(low + stride)):
                low += stride
            else:
                high = low + stride
        while high is not None and high - low > 1:
            middle = (low + high) // 2
            if sustains(rate_per_s(middle)):
                low = middle
            else:
                high = middle
        return rate_per_s(low)


class QuickestAnswer(msgspec.Struct, frozen=True):
    """
    The most answers per second to requests that come one after the other.

    That is the mean latency, in which rare long waits count; a 99th percentile of
    some hundred answers is mostly chance.
    """

    unit: str = "answers/s, one after the other"

    def look(
        self, drive: Drive, *, seconds: float, near: float, floor: float
    ) -> Measurement:
        """Run once; there is no rate to search for."""
        seen = drive(0.0, seconds)
        return Measurement(seen.answered_per_s, seen, (seen,))


class AlsoAlone(msgspec.Struct, frozen=True):
    """
    Another goal, and also the latency of requests that come one after the other.

    These requests pay too for a delay that fills batches under load.
    """

    goal: HighestRate

    @property
    def unit(self) -> str:
        """Return the unit of the other goal."""
        return self.goal.unit

    def look(
        self, drive: Drive, *, seconds: float, near: float, floor: float
    ) -> Measurement:
        """Measure as the other goal does, then run once more."""
        found = self.goal.look(drive, seconds=seconds, near=near, floor=floor)
        return msgspec.structs.replace(found, alone=drive(0.0, seconds))
