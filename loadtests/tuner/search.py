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

from loadtests.tuner.goals import Found
from loadtests.tuner.space import Candidate

_HOPELESS = 0.8  # of the best merit of a round: not worth a second look


class Look(Protocol):
    """Function that measures a candidate on a server."""

    def __call__(
        self, candidate: Candidate, *, seconds: float, near: float, floor: float
    ) -> Found:
        """See `Goal.look`."""


class Rung(msgspec.Struct, frozen=True):
    """
    One round.

    Attributes:
        seconds: Duration of each run, s.
        keep: Number of candidates that go on to the next round.
    """

    seconds: float
    keep: int


class Tried(msgspec.Struct, frozen=True):
    """
    Result of a candidate.

    Attributes:
        candidate: The settings.
        rung: The last round that measured them, from 0.
        found: The result of that round.
    """

    candidate: Candidate
    rung: int
    found: Found


def rungs_of(count: int, *, seconds: float) -> list[Rung]:
    """
    Plan rounds: a third of the candidates goes on, to runs twice as long.

    Args:
        count: Number of candidates.
        seconds: Duration of each run of the first round, s.
    """
    rungs: list[Rung] = []
    while True:
        keep = -(-count // 3)
        rungs.append(Rung(seconds * 2 ** len(rungs), keep))
        if count <= 3:
            return rungs
        count = keep


def search(
    base: Candidate,
    others: Sequence[Candidate],
    *,
    look: Look,
    rungs: Sequence[Rung],
    report: Callable[[Tried], None] = lambda tried: None,
) -> list[Tried]:
    """
    Find the best candidates by successive halving.

    Args:
        base: The current settings.
        others: The other candidates.
        look: Measures one candidate.
        rungs: The rounds.
        report: Called with each result.

    Returns:
        Results of all candidates: those of later rounds first, the better first within
        a round; `base` appears once, with the result of its last round.
    """
    tried: dict[Candidate, Tried] = {}
    left = list(others)
    for number, rung in enumerate(rungs):
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
            tried[candidate] = Tried(candidate, number, found)
            report(tried[candidate])
        left = sorted(left, key=lambda one: _order(tried[one].found))[: rung.keep]
        left = [one for one in left if tried[one].found.merit]
    return sorted(tried.values(), key=lambda one: (-one.rung, _order(one.found)))


def _order(found: Found) -> tuple[float, float]:
    """Sort key, better first: by merit, then by the 99th percentile."""
    return -found.merit, found.best.p99_ms if found.best else float("inf")
