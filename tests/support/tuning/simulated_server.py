"""A server that is a formula: what a candidate carries can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tollgate.tuning.goals import Goal, HighestRate, Limits, Measurement, RunFigures
from tollgate.tuning.search import Measurer
from tollgate.tuning.space import Candidate

LIMITS = Limits(p99_ms=20.0, within_ms=50.0, percent=99.9)
FIXED_MS, WAIT_MS = 3.0, 9.0


def capacity_per_s(candidate: Candidate) -> float:
    """Return the rate from which the queue grows without end."""
    if candidate.form == "fused":
        return 800.0 if candidate.fused_queue_delay_us else 500.0
    capacity = 400.0 + 0.1 * min(candidate.delay_us, 2500)
    capacity *= {1: 1.0, 2: 1.4}[candidate.model_instances]
    capacity *= {1: 1.0, 2: 0.5}[candidate.features_instances]
    return capacity * (1.1 if candidate.preferred == 8 else 1.0)


def wait_ms(candidate: Candidate) -> float:
    """Return how long a lone request waits for a batch."""
    fused = candidate.form == "fused"
    return (candidate.fused_queue_delay_us if fused else candidate.delay_us) / 1e3


def p99_ms(candidate: Candidate, rate_per_s: float) -> float:
    """Return the 99th percentile: delay, work, and a queue as in M/M/1."""
    busy = rate_per_s / capacity_per_s(candidate)
    if busy >= 1:
        return float("inf")
    return wait_ms(candidate) + FIXED_MS + WAIT_MS * busy / (1 - busy)


def highest_per_s(candidate: Candidate) -> float:
    """Solve p99 = limit for the rate."""
    left_ms = LIMITS.p99_ms - wait_ms(candidate) - FIXED_MS
    return capacity_per_s(candidate) * left_ms / (left_ms + WAIT_MS)


class MadeUpServer:
    """
    The formula as a server, with noise in its 99th percentile if wanted.

    Attributes:
        runs: Candidate and seconds of each run.
    """

    def __init__(self, *, noise: float = 0.0, seed: int = 0) -> None:
        self.runs: list[tuple[Candidate, float]] = []
        self._noise = noise
        self._chance = np.random.default_rng(seed)

    def drive(self, candidate: Candidate) -> Callable[[float, float], RunFigures]:
        """Make what runs a load on a candidate."""

        def run(rate_per_s: float, seconds: float) -> RunFigures:
            self.runs.append((candidate, seconds))
            factor = np.exp(self._noise * self._chance.standard_normal())
            p99 = p99_ms(candidate, rate_per_s) * factor
            return seen(rate_per_s, p99_ms=p99, seconds=seconds)

        return run

    def look(self, goal: Goal | None = None) -> Measurer:
        """Make what looks at candidates on this server."""
        aim = goal or HighestRate(LIMITS)

        def look(
            candidate: Candidate, *, seconds: float, near: float, floor: float
        ) -> Measurement:
            return aim.look(
                self.drive(candidate), seconds=seconds, near=near, floor=floor
            )

        return look


def seen(
    rate_per_s: float, *, p99_ms: float, seconds: float = 1.0, cpu_s: float = 1.0
) -> RunFigures:
    """Make up a run."""
    return RunFigures(
        rate_per_s=rate_per_s,
        seconds=seconds,
        requests=round(rate_per_s * seconds),
        p50_ms=p99_ms / 3,
        p99_ms=p99_ms,
        in_time_percent=100.0 if p99_ms < 50 else 0.0,
        answered_per_s=rate_per_s,
        cpu_s=cpu_s,
    )
