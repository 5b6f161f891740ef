"""
Successive halving: short runs discard the hopeless, long runs confirm the good.

Every round measures the candidates that the previous round left, for twice as long.
The current settings stay in every round, so that changes of the machine meanwhile are
visible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

import msgspec
import numpy as np

from tollgate.errors import ServerError
from tollgate.tuning.goals import Goal, Measurement, RunFigures
from tollgate.tuning.override import Override
from tollgate.tuning.space import Candidate

_HOPELESS = 0.8  # of the best merit of a round: not worth a second look


class Measurer(Protocol):
    """Function that measures a candidate on a server."""

    def __call__(
        self, candidate: Candidate, *, seconds: float, near: float, floor: float
    ) -> Measurement:
        """See `Goal.look`."""


class SearchRound(msgspec.Struct, frozen=True):
    """One round: runs of some seconds, and how many candidates go on to the next."""

    seconds: float
    keep: int


class CandidateResult(msgspec.Struct, frozen=True):
    """Result of a candidate in the last round that measured it (`rung`, from 0)."""

    candidate: Candidate
    rung: int
    found: Measurement


def plan_rounds(count: int, *, seconds: float) -> list[SearchRound]:
    """Plan rounds: a third goes on, to runs twice as long; the first take `seconds`."""
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


# Measure the best candidate and the current settings again, in turns.
#
# Figures of two runs on one machine differ by more than most settings do. So the
# comparison uses the ratio within each turn, and the interval of the mean ratio shows
# whether the difference could be chance.


FEWEST, MOST = 3, 10  # turns
_LOST = 0.3  # of the merit in another turn: below that, something else is wrong
LEAST_GAIN = 1.03  # a smaller gain is not worth a file
# Student's t for 95 %, two-sided, by degrees of freedom from 2 on.
_T = (4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Comparison(msgspec.Struct, frozen=True):
    """
    Comparison of a candidate with other settings, mostly the original ones.

    Attributes:
        base: The other settings.
        turns: Merits of the candidate and of the other settings, turn by turn.
        ratio: Mean (geometric) of the turns' ratios; over 1: the candidate is better.
        low: Lower end of the mean's 95 % interval.
        high: Upper end of it.
    """

    candidate: Candidate
    base: Candidate
    turns: tuple[tuple[Measurement, Measurement], ...]
    ratio: float
    low: float
    high: float

    @property
    def holds(self) -> bool:
        """Return whether it is better by more than chance, and by enough."""
        return self.low > 1.0 and self.ratio >= LEAST_GAIN

    @property
    def verdict(self) -> str:
        """Return the meaning of the comparison as text."""
        if self.holds:
            return "better than the settings as they were"
        if self.high < 1.0:
            return "worse than the settings as they were"
        return "within the noise"


def measure_in_turns(
    settings: Sequence[Candidate], *, look: Measurer, seconds: float, turns: int
) -> list[list[Measurement]]:
    """
    Measure candidates in turns; the order is reversed each time.

    Args:
        seconds: Duration of each run, s.
        turns: Number of turns, FEWEST to MOST.

    Returns:
        Measurements of each of `settings`, turn by turn.
    """
    found: list[list[Measurement]] = [[] for _ in settings]
    most = [0.0 for _ in settings]
    for turn in range(turns):
        places = range(len(settings))
        for place in reversed(places) if turn % 2 else places:
            near = most[place] or max(most)
            one = look(settings[place], seconds=seconds, near=near, floor=_LOST * near)
            most[place] = max(most[place], one.merit)
            found[place].append(one)
    return found


def compare(
    candidate: Candidate,
    base: Candidate,
    *,
    ours: Sequence[Measurement],
    was: Sequence[Measurement],
) -> Comparison:
    """Compare two candidates by their measurements in the same turns."""
    pairs = tuple(zip(ours, was, strict=True))
    ratio, low, high = ratio_of([(one.merit, other.merit) for one, other in pairs])
    return Comparison(candidate, base, pairs, ratio, low, high)


def ratio_of(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """
    Compare merits pair by pair.

    Args:
        pairs: Merits of the candidate and of the other; FEWEST to MOST pairs.

    Returns:
        Geometric mean of the ratios, and its 95 % interval (Student). If one of the two
        has no merit in a turn, all three are infinite when the candidate was better in
        every turn, else 1, 0 and infinity.
    """
    if any(not ours or not was for ours, was in pairs):
        better = all(ours > was for ours, was in pairs)
        return (math.inf, math.inf, math.inf) if better else (1.0, 0.0, math.inf)
    logs = np.log([ours / was for ours, was in pairs])
    mean = float(logs.mean())
    half = _T[len(logs) - FEWEST] * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


# Run a complete tuning: search, compare, and report the result.


TURN = 2.0  # a run of the comparison is so many times as long as one of the first round
_LOOKS = 3  # attempts per candidate, when its settings were replaced meanwhile


class TuningResult(msgspec.Struct, frozen=True):
    """
    Results of all candidates, best first.

    Attributes:
        compared: The best against `base`; None if no other settings have a merit.
        forms: The best in the form that is not served, against the best in the form
            that is; None if it was not tried.
    """

    base: Candidate
    tried: tuple[CandidateResult, ...]
    compared: Comparison | None
    forms: Comparison | None = None

    @property
    def winner(self) -> Candidate | None:
        """Return settings that are better by more than chance, or None."""
        return (
            self.compared.candidate if self.compared and self.compared.holds else None
        )


def tune(
    look: Measurer,
    base: Candidate,
    others: Sequence[Candidate],
    *,
    seconds: float,
    turns: int,
    again: Measurer | None = None,
    report: Callable[[str], None] = lambda text: None,
) -> TuningResult:
    """
    Find the best settings of each form, and compare them with the current ones.

    Another form is the best only if it beats the best settings of the served form.

    Args:
        seconds: Duration of each run of the first round, s.
        again: Measures those that are compared; None for `look`.
    """
    report(f"{len(others)} settings to compare with the current ones")

    def report_result(one: CandidateResult) -> None:
        report(f"round {one.rung + 1}: {one.candidate}: {_words(one.found)}")

    tried = search(
        base,
        others,
        look=look,
        rounds=plan_rounds(len(others), seconds=seconds),
        report=report_result,
    )
    here = (one for one in tried if one.candidate.form == base.form)
    best = _first(one for one in here if one.candidate != base and one.found.merit)
    # Measured in any case: the comparison of the forms needs the figures of both.
    rival = _first(one for one in tried if one.candidate.form != base.form)
    finalists = [base, *filter(None, (best, rival))]
    if len(finalists) == 1:
        return TuningResult(base, tuple(tried), None)
    words = "; ".join(map(str, finalists[1:]))
    report(f"{turns} turns against the settings as they are: {words}")
    found = measure_in_turns(
        finalists, look=again or look, seconds=TURN * seconds, turns=turns
    )
    measured = dict(zip(finalists, found, strict=True))

    def against(one: Candidate, other: Candidate) -> Comparison:
        return compare(one, other, ours=measured[one], was=measured[other])

    settings = against(best, base) if best else None
    if rival is None:
        return TuningResult(base, tuple(tried), settings)
    stays = settings.candidate if settings and settings.holds else base
    forms, moved = against(rival, stays), against(rival, base)
    if settings is None or (forms.holds and moved.holds):
        return TuningResult(base, tuple(tried), moved, forms)
    return TuningResult(base, tuple(tried), settings, forms)


def _first(tried: Iterable[CandidateResult]) -> Candidate | None:
    return next((one.candidate for one in tried), None)


def measurer_of(
    override: Override, goal: Goal, drive: Callable[[str, float, float], RunFigures]
) -> Measurer:
    """
    Return a function that loads and runs a candidate, and checks it stayed.

    Args:
        drive: Takes the name of a model, and the rest as `Drive`.
    """

    def look(
        candidate: Candidate, *, seconds: float, near: float, floor: float
    ) -> Measurement:
        for _ in range(_LOOKS):
            override.apply(candidate)
            load = partial(drive, override.model(candidate))
            found = goal.look(load, seconds=seconds, near=near, floor=floor)
            if override.holds(candidate):
                return found
        problem = f"does not stay on the settings that are tried: {candidate}"
        raise ServerError("tritonserver", problem)

    return look


def _words(found: Measurement) -> str:
    if found.best is None:
        return f"sustains no rate that matters ({len(found.runs)} runs)"
    seen = found.best
    rate = f"{seen.rate_per_s:,.0f} requests/s, " if seen.rate_per_s else ""
    return f"{rate}p50 {seen.p50_ms:.1f} ms, p99 {seen.p99_ms:.1f} ms"
