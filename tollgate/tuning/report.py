"""Describe the result of a tuning: text, the Pareto front, a picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tollgate.tuning.goals import Limits, Measurement, RunFigures
from tollgate.tuning.search import CandidateResult, Comparison, TuningResult
from tollgate.tuning.space import Candidate

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    found = [
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
    return [*found, *(f"{line}." for line in _form_lines(tuned, around))]


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
    lines += filter(None, [noise_words(runs)])
    return [*lines, *_form_lines(tuned, around)]


def _form_lines(tuned: TuningResult, around: Circumstances) -> list[str]:
    """Compare the forms that were tried, and recommend one."""
    forms = tuned.forms
    if forms is None:
        return []
    served, other = forms.base, forms.candidate
    return [
        f"best served {served}: {figures(was for _, was in forms.turns)}",
        f"other form  {other}: {figures(ours for ours, _ in forms.turns)}",
        f"{_worth(around.limits)}, {other.form} to {served.form}: {ratio_words(forms)}",
        _recommendation(tuned, forms),
    ]


def _recommendation(tuned: TuningResult, forms: Comparison) -> str:
    served, other = forms.base.form, forms.candidate.form
    if tuned.winner is not None and tuned.winner.form == other:
        return (
            f"form: {other} is recommended, the server stays {served}: `tollgate "
            f"up --form {other}`, or `form: {other}` in slo.yaml"
        )
    if forms.high < 1.0:
        return f"form: {served} is recommended, as it is served; {other} is worse"
    return f"form: {served} stays; {other} is not better by more than chance"


def command_words(candidate: Candidate, *, name: str) -> str:
    """Return the command line that serves settings under a configuration's name."""
    return f"tollgate up --form {candidate.form} --model-config-name {name}"


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


# Find the Pareto front of p99, throughput and processor time.


class Point(msgspec.Struct, frozen=True):
    """Settings at a rate that they sustain; on the front, no other is better in all."""

    candidate: Candidate
    seen: RunFigures
    on_front: bool


def points_of(
    tried: Iterable[CandidateResult], *, limits: Limits | None
) -> list[Point]:
    """
    Return the long runs that met the limits, by throughput, the highest first.

    Args:
        tried: Results of candidates; those of the first round are left out, unless
            there was no other round: their runs are short.
        limits: The limits; None takes every run.
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


# Draw the settings that were tried, and how the winner compares.


def draw(
    tuned: TuningResult,
    points: Sequence[Point],
    path: Path,
    *,
    limits: Limits | None,
    unit: str,
) -> None:
    """
    Write a PNG: p99 against throughput, and the turns of the comparison.

    Args:
        limits: Limits that a rate has to meet; None where requests came one by one.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _draw_front(tuned, points, left, limits=limits)
    if tuned.compared is None:
        right.set_axis_off()
        right.text(0.5, 0.5, "nothing better was found", ha="center")
    else:
        _draw_turns(tuned.compared, right, unit=unit)
    figure.savefig(path)


def _draw_front(
    tuned: TuningResult, points: Sequence[Point], axes: Axes, *, limits: Limits | None
) -> None:
    across = np.array([one.seen.answered_per_s for one in points])
    up = np.array([one.seen.p99_ms for one in points])
    shown = axes.scatter(
        across,
        up,
        c=[one.seen.cpu_s for one in points],
        s=[70 if one.on_front else 22 for one in points],
        cmap="viridis",
        zorder=2,
    )
    axes.figure.colorbar(shown, ax=axes, label="processor time, s per 1,000 rows")
    best = tuned.compared.candidate if tuned.compared else None
    for candidate, mark, words in (
        (tuned.base, "s", "as it was"),
        (best, "o", "best found"),
    ):
        ours = [n for n, one in enumerate(points) if one.candidate == candidate]
        label = f"{words}: {candidate}" if candidate else ""
        if ours:
            axes.plot(
                across[ours],
                up[ours],
                mark,
                label=label,
                ls="",
                mfc="none",
                color="tab:red",
                ms=14,
            )
    if limits is not None:
        axes.axhline(limits.p99_ms, color="tab:gray", ls="--", label="p99 to keep")
    axes.scatter([], [], s=70, color="tab:gray", label="large: nothing beats it in all")
    axes.set(xlabel="throughput, requests decided in a second", ylabel="p99, ms")
    axes.set_title("runs that met the SLO" if limits else "one after the other")
    axes.set_ylim(0, None)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize=9)


def _draw_turns(compared: Comparison, axes: Axes, *, unit: str) -> None:
    places = np.arange(1, len(compared.turns) + 1)
    for shift, side, words, color in (
        (-0.2, 1, "as it was", "tab:gray"),
        (0.2, 0, "best found", "tab:blue"),
    ):
        merits = [turn[side].merit for turn in compared.turns]
        axes.bar(places + shift, merits, width=0.38, color=color, label=words)
    axes.set_title(f"{ratio_words(compared)}:\n{compared.verdict}")
    axes.set(xlabel="turn", ylabel=unit, xticks=places)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2)
