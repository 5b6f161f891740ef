"""Describe how settings were found, as text for the head of a configuration."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from tollgate.tuning.compare import Comparison
from tollgate.tuning.goals import Measurement
from tollgate.tuning.seen import Limits, RunFigures
from tollgate.tuning.tuning import TuningResult


class Circumstances(msgspec.Struct, frozen=True):
    """
    Conditions under which the figures of a tuning were measured.

    Attributes:
        machine: Date, commit, hardware.
        command: Command line without the names of folders.
        release: Release that the server served.
        rows: Rows in each request.
        limits: Limits that a rate had to meet; None where requests came one after the
            other.
        sender: Name of the sender.
        seconds: Duration of each run of the comparison, s.
    """

    machine: str
    command: str
    release: str
    rows: int
    limits: Limits | None
    sender: str
    seconds: float


def paragraphs(
    tuned: TuningResult, compared: Comparison, around: Circumstances
) -> list[str]:
    """Describe when, where and under which load the winner was found, and its gain."""
    tried = len(tuned.tried) - 1
    return [
        f"Found with `{around.command}`, {around.machine}; server, store and load on "
        f"this machine, release {around.release}.",
        f"Load: synthetic purchases, applied and journalled, {_rows(around.rows)}, "
        f"{_arrivals(around.limits)}; sender {around.sender}.",
        f"Settings: {compared.candidate}; best of {tried} that were tried. As it was: "
        f"{tuned.base}.",
        f"Measured again, {len(compared.turns)} turns each, runs of "
        f"{around.seconds:g} s: {figures(ours for ours, _ in compared.turns)}. As it "
        f"was: {figures(was for _, was in compared.turns)}.",
        f"{_worth(around.limits)}: {ratio_words(compared)}.",
    ]


def ending(tuned: TuningResult, around: Circumstances) -> list[str]:
    """Describe how the best candidate compares, for the end of a tuning."""
    compared = tuned.compared
    if compared is None:
        return ["no settings that were tried meet the SLO: the original settings stay"]
    was = figures(was for _, was in compared.turns)
    ours = figures(ours for ours, _ in compared.turns)
    turns = f"{len(compared.turns)} turns"
    lines = [
        f"as it was   {tuned.base}: {was}",
        f"best found  {compared.candidate}: {ours}",
        f"{_worth(around.limits)}: {ratio_words(compared)}, {turns}",
        compared.verdict + ("" if compared.holds else ": they stay as they are"),
    ]
    runs = [run for turn in compared.turns for side in turn for run in side.runs]
    return [*lines, *filter(None, [noise_words(runs)])]


def figures(found: Iterable[Measurement]) -> str:
    """Format the medians of the turns, with the range."""
    results = list(found)
    seen = [one.best for one in results if one.best is not None]
    if not seen:
        return "no rate meets the SLO"
    parts = []
    if seen[0].rate_per_s:
        rates = [one.merit for one in results]
        parts.append(f"{_spread(rates, digits=0)} requests/s sustained")
    for words, name, digits in (
        ("p50 {} ms", "p50_ms", 1),
        ("p99 {} ms", "p99_ms", 1),
        ("{} s of processor per 1,000 rows", "cpu_s", 2),
    ):
        values = [getattr(one, name) for one in seen]
        parts.append(words.format(_spread(values, digits=digits)))
    return ", ".join([*parts, *_alone(results)])


def _alone(results: Sequence[Measurement]) -> list[str]:
    seen = [one.alone for one in results if one.alone is not None]
    if not seen:
        return []
    p50, p99 = (
        _spread([getattr(one, name) for one in seen], digits=1)
        for name in ("p50_ms", "p99_ms")
    )
    return [f"one after the other p50 {p50} ms, p99 {p99} ms"]


def ratio_words(compared: Comparison) -> str:
    """Describe how the two compare, and how certain that is."""
    if math.isinf(compared.low):
        return "the settings as they were sustained no rate"
    if math.isinf(compared.high):
        return "in some turns no rate was sustained, so there is no comparison"
    interval = f"{compared.low:.2f} to {compared.high:.2f}"
    return f"{compared.ratio:.2f} times as much ({interval} at 95 %)"


def noise_words(seen: Sequence[RunFigures]) -> str:
    """Describe how late the sender itself was; empty when it was in time."""
    late = max((one.late_p99_ms for one in seen), default=0.0)
    if late <= _LATE_MS:
        return ""
    return (
        f"the sender was up to {late:.0f} ms late itself (99th percentile): it and the "
        "server take the cores from each other, so rates are those of both together"
    )


_LATE_MS = 2.0


def _worth(limits: Limits | None) -> str:
    return "Sustained rate" if limits else "Answers in a second, one after the other"


def _rows(rows: int) -> str:
    return "1 row in a request" if rows == 1 else f"{rows} rows in a request"


def _arrivals(limits: Limits | None) -> str:
    if limits is None:
        return "one request after the other"
    return (
        f"at random (Poisson); a rate is sustained with p99 up to {limits.p99_ms:g} ms "
        f"and {limits.percent:g} % decided within {limits.within_ms:g} ms"
    )


def _spread(values: Sequence[float], *, digits: int) -> str:
    ordered = sorted(values)
    middle, low, high = ordered[len(ordered) // 2], ordered[0], ordered[-1]
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"
