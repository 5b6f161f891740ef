"""
Goals of a search: the highest rate within the SLO, or the lowest latency.

A goal measures one candidate for a while and gives it a merit, so that candidates can
be compared by one number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from tollgate.repository.slo import Slo


class RunFigures(msgspec.Struct, frozen=True):
    """
    Figures of one run.

    Attributes:
        rate_per_s: Requests sent per second; 0 when each waited for the one before.
        seconds: Duration of the run without warm-up, s.
        requests: Number of requests that counted.
        p50_ms: Median latency from when a request was due, ms.
        p99_ms: 99th percentile of it; infinite when so many were not answered.
        in_time_percent: Requests decided within the SLA, %.
        cpu_s: Processor time of the server and its steps per 1,000 decided rows, s.
        late_p99_ms: 99th percentile of the sender's delay, ms.
    """

    rate_per_s: float
    seconds: float
    requests: int
    p50_ms: float
    p99_ms: float
    in_time_percent: float
    answered_per_s: float
    cpu_s: float
    late_p99_ms: float = 0.0


class Limits(msgspec.Struct, frozen=True):
    """
    Limits that a run has to meet.

    Attributes:
        p99_ms: Limit of the 99th percentile of the latency, ms.
        within_ms: The SLA, ms.
        percent: Share of the answers that have to meet it, %.
    """

    p99_ms: float
    within_ms: float
    percent: float

    def meets(self, seen: RunFigures) -> bool:
        """Return whether a run meets them; a short run may have one late answer."""
        share = seen.requests / 100
        late = share * (100 - seen.in_time_percent)
        forgiven = max(1.0, share * (100 - self.percent)) + 1e-6
        return seen.p99_ms <= self.p99_ms and late <= forgiven

    def hopeless(self, seen: RunFigures) -> bool:
        """Return whether a run misses them by more than chance."""
        return seen.p99_ms > _FAR * self.p99_ms or seen.in_time_percent < _FEW


_FAR = 2.0  # times the p99 limit
_FEW = 90.0  # percent in time


def limits_of(slo: Slo, *, p99_ms: float | None) -> Limits:
    """Derive limits from an SLO; the p99 is its aim unless another is given."""
    return Limits(
        p99_ms=p99_ms or slo.latency_target_ms,
        within_ms=slo.latency_objective_ms,
        percent=slo.objective_percent,
    )


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
