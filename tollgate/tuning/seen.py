"""Figures of one run of a load, and the limits that it has to meet."""

from __future__ import annotations

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
        answered_per_s: Requests decided per second.
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
        """
        Return whether a run meets them; one late answer in a short run is allowed.
        """
        share = seen.requests / 100
        late = share * (100 - seen.in_time_percent)
        forgiven = max(1.0, share * (100 - self.percent)) + 1e-6
        return seen.p99_ms <= self.p99_ms and late <= forgiven

    def hopeless(self, seen: RunFigures) -> bool:
        """
        Return whether a run misses them by more than chance, so that none is repeated.
        """
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
