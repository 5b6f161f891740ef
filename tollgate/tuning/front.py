"""Find the Pareto front of p99, throughput and processor time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tollgate.tuning.search import CandidateResult
from tollgate.tuning.seen import Limits, RunFigures
from tollgate.tuning.space import Candidate


class Point(msgspec.Struct, frozen=True):
    """
    Settings at a rate that they sustain.

    Attributes:
        candidate: The settings.
        seen: The run.
        on_front: True if no other has a lower p99, a higher throughput and less
            processor time.
    """

    candidate: Candidate
    seen: RunFigures
    on_front: bool


def points_of(
    tried: Iterable[CandidateResult], *, limits: Limits | None
) -> list[Point]:
    """
    Return the runs that met the limits, those of long rounds only.

    Args:
        tried: Results of candidates; those of the first round are left out, unless
            there was no other round: their runs are short.
        limits: The limits; None takes every run.

    Returns:
        Points by throughput, the highest first.
    """
    results = list(tried)
    last = max((one.rung for one in results), default=0)
    sustained = [
        (one.candidate, seen)
        for one in results
        if one.rung or not last
        for seen in one.found.runs
        if limits is None or limits.meets(seen)
    ]
    costs = [_cost(seen) for _, seen in sustained]
    points = [
        Point(candidate, seen, not any(_beats(other, cost) for other in costs))
        for (candidate, seen), cost in zip(sustained, costs, strict=True)
    ]
    return sorted(points, key=lambda one: -one.seen.answered_per_s)


def _cost(seen: RunFigures) -> tuple[float, float, float]:
    return seen.p99_ms, -seen.answered_per_s, seen.cpu_s


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether one is as good in everything and better in something."""
    return one != other and all(a <= b for a, b in zip(one, other, strict=True))
