"""
Successive halving: short runs discard the hopeless, long runs confirm the good.

Every round measures the candidates that the previous round left, for twice as long.
The current settings stay in every round, so that changes of the machine meanwhile are
visible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from tollgate.tuning.goals import Measurement
from tollgate.tuning.space import Candidate

_HOPELESS = 0.8  # of the best merit of a round: not worth a second look


class Measurer(Protocol):
    """Function that measures a candidate on a server."""

    def __call__(
        self, candidate: Candidate, *, seconds: float, near: float, floor: float
    ) -> Measurement:
        """See `Goal.look`."""


class SearchRound(msgspec.Struct, frozen=True):
    """
    One round.

    Attributes:
        seconds: Duration of each run, s.
        keep: Number of candidates that go on to the next round.
    """

    seconds: float
    keep: int


class CandidateResult(msgspec.Struct, frozen=True):
    """
    Result of a candidate.

    Attributes:
        candidate: The settings.
        rung: The last round that measured them, from 0.
        found: The result of that round.
    """

    candidate: Candidate
    rung: int
    found: Measurement


def plan_rounds(count: int, *, seconds: float) -> list[SearchRound]:
    """
    Plan rounds: a third of the candidates goes on, to runs twice as long.

    Args:
        count: Number of candidates.
        seconds: Duration of each run of the first round, s.
    """
    rounds: list[SearchRound] = []
    while True:
        keep = -(-count // 3)
        rounds.append(SearchRound(seconds * 2 ** len(rounds), keep))
        if count <= 3:
            return rounds
        count = keep


def search(
    base: Candidate,
    others: Sequence[Candidate],
    *,
    look: Measurer,
    rounds: Sequence[SearchRound],
    report: Callable[[CandidateResult], None] = lambda tried: None,
) -> list[CandidateResult]:
    """
    Find the best candidates by successive halving.

    Args:
        base: The current settings.
        others: The other candidates.
        look: Measures one candidate.
        rounds: The rounds.
        report: Called with each result.

    Returns:
        Results of all candidates: those of later rounds first, the better first within
        a round; `base` appears once, with the result of its last round.
    """
    tried: dict[Candidate, CandidateResult] = {}
    left = list(others)
    for number, rung in enumerate(rounds):
        best = 0.0
        for candidate in [base, *left]:
            before = tried.get(candidate)
            near = before.found.merit if before else 0.0
            found = look(
                candidate,
                seconds=rung.seconds,
                near=near or best,
                floor=_HOPELESS * best,
            )
            best = max(best, found.merit)
            tried[candidate] = CandidateResult(candidate, number, found)
            report(tried[candidate])
        left = sorted(left, key=lambda one: _order(tried[one].found))[: rung.keep]
        left = [one for one in left if tried[one].found.merit]
    return sorted(tried.values(), key=lambda one: (-one.rung, _order(one.found)))


def _order(found: Measurement) -> tuple[float, float]:
    """Sort key, better first: by merit, then by the 99th percentile."""
    return -found.merit, found.best.p99_ms if found.best else float("inf")
