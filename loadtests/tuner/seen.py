"""What one run of a load says, and whether that keeps a promise."""

from __future__ import annotations

import msgspec

from tollgate.repository.slo import Slo


class Seen(msgspec.Struct, frozen=True):
    """
    One run.

    Attributes:
        rate_per_s: Requests sent in a second; 0 when each waited for the one before.
        seconds: How long the run took, warm-up left out.
        requests: How many counted.
        p50_ms: What half of them stay under, from when they were due.
        p99_ms: What 99 of 100 do; infinite when so many were not answered.
        in_time_percent: Decided within the promise.
        answered_per_s: Decided in a second.
        cpu_s: Processor time of the server and its steps per 1,000 decided rows, s.
        late_p99_ms: How late the sender was.
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
    What a run has to keep.

    Attributes:
        p99_ms: 99 of 100 answers are there by then.
        within_ms: The promise.
        percent: Of the answers keep it.
    """

    p99_ms: float
    within_ms: float
    percent: float

    def meets(self, seen: Seen) -> bool:
        """Tell whether a run kept them; one late answer in a short run is forgiven."""
        share = seen.requests / 100
        late = share * (100 - seen.in_time_percent)
        forgiven = max(1.0, share * (100 - self.percent)) + 1e-6
        return seen.p99_ms <= self.p99_ms and late <= forgiven

    def hopeless(self, seen: Seen) -> bool:
        """Tell whether a second look can be spared: it is not a matter of chance."""
        return seen.p99_ms > _FAR * self.p99_ms or seen.in_time_percent < _FEW


_FAR = 2.0  # times the limit
_FEW = 90.0  # percent in time


def limits_of(slo: Slo, *, p99_ms: float | None) -> Limits:
    """Take limits from a promise; the aim, unless somebody says another p99."""
    return Limits(
        p99_ms=p99_ms or slo.latency_target_ms,
        within_ms=slo.latency_objective_ms,
        percent=slo.objective_percent,
    )
