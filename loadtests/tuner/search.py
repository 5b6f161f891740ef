"""
Successive halving: short runs discard the hopeless, long runs confirm the good.

Every rung looks at what the one before left, for twice as long. The settings as they
are stay in every rung, so that what the machine does meanwhile is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from loadtests.tuner.goals import Found
from loadtests.tuner.space import Candidate

_HOPELESS = 0.8  # of the best of a rung: not worth a second look


class Look(Protocol):
    """Looks at a candidate on a server."""

    def __call__(
        self, candidate: Candidate, *, seconds: float, near: float, floor: float
    ) -> Found:
        """As a goal does."""


class Rung(msgspec.Struct, frozen=True):
    """
    One round.

    Attributes:
        seconds: For each run.
        keep: How many candidates go on.
    """

    seconds: float
    keep: int


class Tried(msgspec.Struct, frozen=True):
    """
    What became of a candidate.

    Attributes:
        candidate: The settings.
        rung: The last rung that looked at them, from 0.
        found: What it found.
    """

    candidate: Candidate
    rung: int
    found: Found


def rungs_of(count: int, *, seconds: float) -> list[Rung]:
    """
    Plan rounds: a third of the candidates goes on, to runs twice as long.

    Args:
        count: Candidates.
        seconds: For each run of the first round.
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
    told: Callable[[Tried], None] = lambda tried: None,
) -> list[Tried]:
    """
    Find the best candidates.

    Args:
        base: The settings as they are.
        others: What else there is.
        look: Looks at one.
        rungs: The rounds.
        told: Called with each result.

    Returns:
        All of them: those of later rungs first, the better first among equals; `base`
        is there once, with what its last rung found.
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
            told(tried[candidate])
        left = sorted(left, key=lambda one: _order(tried[one].found))[: rung.keep]
        left = [one for one in left if tried[one].found.merit]
    return sorted(tried.values(), key=lambda one: (-one.rung, _order(one.found)))


def _order(found: Found) -> tuple[float, float]:
    """Better first: by merit, then by the 99th percentile."""
    return -found.merit, found.best.p99_ms if found.best else float("inf")
