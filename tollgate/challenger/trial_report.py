"""
Report a trial: flips, money, scores, latencies, errors, each with its interval.

The report is a value, and a chart for people.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tollgate.challenger import intervals
from tollgate.challenger.decision_counts import (
    ALL,
    DEGRADED,
    ERRORS,
    LEVELS,
    TIME_EDGES_US,
    Arm,
    Group,
    Pairs,
    score_edges,
)
from tollgate.challenger.intervals import Interval
from tollgate.challenger.trial_gates import (
    GateResult,
    arm_share,
    decision_difference,
    degraded_difference,
    flips_effect,
    flips_share,
    judge,
    share_difference,
)
from tollgate.challenger.trials import Trial, TrialState
from tollgate.repository.gate_limits import Gates

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_EDGES_MS = [edge / 1_000 for edge in TIME_EDGES_US]


class GroupComparison(msgspec.Struct, frozen=True):
    """
    Comparison of both releases on rows with a common property.

    Attributes:
        flips: Share of rows with different decisions.
        money: Share of the amount of these rows.
        cents: Amount of these rows, in cents.
        stricter, milder: Rows that the challenger decides more or less strictly.
        stricter_cents, milder_cents: Amounts of these rows, in cents.
        shift: Mean of the challenger's score minus the champion's.
    """

    name: str
    rows: int
    flips: Interval
    money: Interval
    cents: int
    stricter: int
    milder: int
    stricter_cents: int
    milder_cents: int
    shift: Interval


class ReleaseSummary(msgspec.Struct, frozen=True):
    """
    Results of one release on the rows it decided.

    Attributes:
        shares: Shares of the decisions, by name.
        errors: Share of rows without a usable score.
        degraded: Share of rows with any degraded bit.
        score: Mean score.
        p50_ms, p99_ms: Latency quantiles.
    """

    release: str
    rows: int
    shares: dict[str, Interval]
    errors: Interval
    degraded: Interval
    score: Interval
    p50_ms: Interval
    p99_ms: Interval


class TrialReport(msgspec.Struct, frozen=True):
    """
    Report of a trial.

    Attributes:
        rows: Rows that both releases decided.
        other, unfit: Rows left out: of other releases or from before the trial, and
            with other features.
        us_per_row: Time to decide a row again in the worker, µs.
        matrix: Rows by the champion's decision, then by the challenger's.
        cents: Amounts of these rows, in the same order.
        parts: Comparisons: all rows, by segment, by amount.
        psi: Population stability index of the scores.
        ks: Largest distance of the score distributions.
        differences: Challenger's share minus the champion's, by name.
        outcomes: Words for the levels of a decision, in the order of the matrix.
    """

    trial: Trial
    rows: int
    other: int
    unfit: int
    us_per_row: float
    matrix: tuple[tuple[int, ...], ...]
    cents: tuple[tuple[int, ...], ...]
    parts: tuple[GroupComparison, ...]
    psi: Interval
    ks: Interval
    champion: ReleaseSummary
    challenger: ReleaseSummary
    differences: dict[str, Interval]
    verdicts: tuple[GateResult, ...]
    outcomes: tuple[str, str, str]


def make_report(state: TrialState, gates: Gates) -> TrialReport:
    """Compute the report of a trial from its counts."""
    group = state.groups.get(ALL, Group())
    pairs = group.pairs
    return TrialReport(
        trial=state.trial,
        rows=pairs.rows,
        other=state.other,
        unfit=state.unfit,
        us_per_row=state.worked_us / max(1, state.again),
        matrix=_square(pairs.matrix),
        cents=_square(pairs.cents),
        parts=tuple(_part(name, state.groups[name].pairs) for name in _order(state)),
        psi=intervals.stability_index(pairs.one_scores, pairs.other_scores),
        ks=intervals.ks_distance(pairs.one_scores, pairs.other_scores),
        champion=_side(state, state.trial.champion, group.champion),
        challenger=_side(state, state.trial.challenger, group.challenger),
        differences=_differences(state, group),
        verdicts=tuple(judge(state, gates)),
        outcomes=state.outcomes,
    )


def _order(state: TrialState) -> list[str]:
    """List the groups: all rows first, then segments, then amounts, ascending."""
    names = [name for name, group in state.groups.items() if group.pairs.rows]
    kinds = (ALL, "segment", "amount")

    def place(name: str) -> tuple[int, float, str]:
        last = name.split()[-1].replace(",", "")
        size = float(last) if last.isdigit() else 0.0
        return kinds.index(name.split()[0]), size + ("from" in name), name

    return sorted(names, key=place)


def _square(cells: list[int]) -> tuple[tuple[int, ...], ...]:
    rows = range(0, LEVELS * LEVELS, LEVELS)
    return tuple(tuple(cells[at : at + LEVELS]) for at in rows)


def _part(name: str, pairs: Pairs) -> GroupComparison:
    stricter = [
        one * LEVELS + other
        for one in range(LEVELS)
        for other in range(one + 1, LEVELS)
    ]
    milder = [cell % LEVELS * LEVELS + cell // LEVELS for cell in stricter]
    moved = _sum(pairs.cents, stricter) + _sum(pairs.cents, milder)
    return GroupComparison(
        name=name,
        rows=pairs.rows,
        flips=flips_share(pairs),
        money=intervals.worth_share(
            moved,
            sum(pairs.cents),
            hit_squares=pairs.flipped_squares,
            squares=pairs.squares,
            effect=flips_effect(pairs),
        ),
        cents=moved,
        stricter=_sum(pairs.matrix, stricter),
        milder=_sum(pairs.matrix, milder),
        stricter_cents=_sum(pairs.cents, stricter),
        milder_cents=_sum(pairs.cents, milder),
        shift=intervals.mean(pairs.shift_sum, pairs.shift_squares, pairs.scored),
    )


def _sum(cells: list[int], chosen: Iterable[int]) -> int:
    return sum(cells[at] for at in chosen)


def _side(state: TrialState, release: str, arm: Arm) -> ReleaseSummary:
    return ReleaseSummary(
        release=release,
        rows=arm.rows,
        shares={
            word: arm_share(arm, level) for level, word in enumerate(state.outcomes)
        },
        errors=arm_share(arm, ERRORS),
        degraded=arm_share(arm, DEGRADED),
        score=intervals.mean(arm.score_sum, arm.score_squares, arm.scored),
        p50_ms=intervals.quantile(arm.times, _EDGES_MS, at=0.5),
        p99_ms=intervals.quantile(arm.times, _EDGES_MS, at=0.99),
    )


def _differences(state: TrialState, group: Group) -> dict[str, Interval]:
    """Compare shares: a canary's arms have different rows, the other modes pairs."""
    one, other = group.champion, group.challenger
    strangers = state.trial.mode == "canary"
    found = {
        word: (
            share_difference(other, level, than=one)
            if strangers
            else decision_difference(group.pairs, level)
        )
        for level, word in enumerate(state.outcomes)
    }
    found["errors"] = share_difference(other, ERRORS, than=one)
    found["degraded"] = (
        share_difference(other, DEGRADED, than=one)
        if strangers
        else degraded_difference(group.pairs)
    )
    return found


_MANY = 100  # groups with fewer rows do not scale the axis
_FARTHEST = 10  # multiple of a limit at which the axis ends
_COLORS = {
    "holds": "tab:green",
    "unsure": "tab:orange",
    "broken": "tab:red",
    "waits": "tab:gray",
}


def draw(report: TrialReport, state: TrialState, path: Path) -> None:
    """Write a PNG: flips by group, score distributions, differences, gates."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tall = max(len(report.parts), 6)
    figure = Figure(figsize=(13, 5 + 0.45 * tall), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    (flips, scores), (apart, gates) = figure.subplots(2, 2)
    _draw_flips(report, flips)
    _draw_scores(report, state, scores)
    _draw_differences(report, apart)
    _draw_gates(report, gates)
    trial = report.trial
    figure.suptitle(
        f"{trial.mode}: {trial.challenger} against {trial.champion}, since "
        f"{trial.began}; {report.rows:,} rows decided by both, intervals at 95 %"
    )
    figure.savefig(path)


def _draw_flips(report: TrialReport, axes: Axes) -> None:
    for place, part in enumerate(report.parts):
        for shift, found, color in (
            (-0.15, part.flips, "tab:blue"),
            (0.15, part.money, "tab:purple"),
        ):
            _whisker(axes, found, place + shift, color=color, by=100)
    axes.set_yticks(
        range(len(report.parts)), [f"{one.name} ({one.rows:,})" for one in report.parts]
    )
    axes.invert_yaxis()
    axes.plot([], [], "o", color="tab:blue", label="rows")
    axes.plot([], [], "o", color="tab:purple", label="money")
    axes.set(xlabel="decided differently, %", title="flips")
    # A group of a few rows may have any value: it must not compress the others.
    known = [
        found.high
        for part in report.parts
        for found in (part.flips, part.money)
        if part.rows >= _MANY
    ]
    axes.set_xlim(0, 120 * max(known, default=1.0))
    axes.legend()


def _draw_scores(report: TrialReport, state: TrialState, axes: Axes) -> None:
    pairs = state.groups.get(ALL, Group()).pairs
    edges = np.concatenate(([0.0], score_edges(), [1.0]))
    # The outermost bins are unbounded on this scale.
    odds = np.log(np.clip(edges, 1e-6, 1 - 1e-6) / (1 - np.clip(edges, 1e-6, 1 - 1e-6)))
    for counts, name, color in (
        (pairs.one_scores, report.trial.champion, "tab:gray"),
        (pairs.other_scores, report.trial.challenger, "tab:blue"),
    ):
        shares = np.cumsum(counts) / max(1, sum(counts))
        axes.step(odds[1:], shares, where="post", color=color, label=name)
    ticks = [0.0001, 0.01, 0.5, 0.99, 0.9999]
    axes.set_xticks([math.log(p / (1 - p)) for p in ticks], [f"{p:g}" for p in ticks])
    axes.set(xlabel="score", ylabel="share of rows below")
    axes.set_title(f"scores: PSI {report.psi.value:.3f}, KS {report.ks.value:.3f}")
    axes.legend()


def _draw_differences(report: TrialReport, axes: Axes) -> None:
    names = list(report.differences)
    for place, name in enumerate(names):
        _whisker(axes, report.differences[name], place, color="tab:blue", by=100)
    axes.axvline(0, color="tab:gray", linewidth=0.5)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="percentage points", title="challenger's share less champion's")


def _draw_gates(report: TrialReport, axes: Axes) -> None:
    farthest = 2.0
    for place, one in enumerate(report.verdicts):
        by = 1 / (one.limit or 1)
        _whisker(axes, one.found, place, color=_COLORS[one.state], by=by)
        axes.annotate(one.state, (1.02, place - 0.1), fontsize="small")
        if not math.isnan(one.found.value):
            farthest = max(farthest, min(one.found.value * by * 1.2, _FARTHEST))
    axes.axvline(1, color="tab:red", linewidth=1)
    axes.set_yticks(range(len(report.verdicts)), [one.gate for one in report.verdicts])
    axes.set_ylim(max(1, len(report.verdicts)) - 0.5, -0.5)
    axes.set_xlim(-0.1, farthest)
    axes.set(xlabel="as a multiple of the limit", title="gates")


def _whisker(
    axes: Axes, found: Interval, place: float, *, color: str, by: float
) -> None:
    """Draw a value and its interval; nothing if the value is unknown."""
    if math.isnan(found.value):
        return
    far = 1e9
    low, high = max(found.low, -far) * by, min(found.high, far) * by
    axes.plot([low, high], [place, place], color=color)
    axes.plot([found.value * by], [place], "o", color=color)
