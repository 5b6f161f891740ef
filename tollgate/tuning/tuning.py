"""Run a complete tuning: search, compare, and report the result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tollgate.errors import ServerError
from tollgate.tuning.compare import Comparison, compare
from tollgate.tuning.goals import Drive, Goal, Measurement
from tollgate.tuning.override import Override
from tollgate.tuning.search import CandidateResult, Measurer, plan_rounds, search
from tollgate.tuning.space import Candidate

TURN = 2.0  # a run of the comparison is so many times as long as one of the first round
_LOOKS = 3  # attempts per candidate, when its settings were replaced meanwhile


class TuningResult(msgspec.Struct, frozen=True):
    """
    Result of a tuning.

    Attributes:
        base: The original settings.
        tried: Results of all candidates, the best first.
        compared: The best against `base`; None when `base` was the best.
    """

    base: Candidate
    tried: tuple[CandidateResult, ...]
    compared: Comparison | None

    @property
    def winner(self) -> Candidate | None:
        """
        Return settings that are better by more than chance; None when there are none.
        """
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
    Find the best settings, and compare them with the current ones.

    Args:
        look: Measures one candidate.
        base: The current settings.
        others: The other candidates.
        seconds: Duration of each run of the first round, s.
        turns: Turns of the comparison.
        again: Measures the two that are compared; None for `look`.
        report: Called with each result as one line of text.
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
    best = next((one for one in tried if one.candidate != base), None)
    compared = None
    if best is not None and best.found.merit:
        report(f"{turns} turns against the settings as they are: {best.candidate}")
        compared = compare(
            best.candidate,
            base,
            look=again or look,
            seconds=TURN * seconds,
            turns=turns,
        )
    return TuningResult(base, tuple(tried), compared)


def measurer_of(override: Override, goal: Goal, drive: Drive) -> Measurer:
    """
    Return a function that loads a candidate, runs it, and checks that it stayed loaded.
    """

    def look(
        candidate: Candidate, *, seconds: float, near: float, floor: float
    ) -> Measurement:
        for _ in range(_LOOKS):
            override.apply(candidate)
            found = goal.look(drive, seconds=seconds, near=near, floor=floor)
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
