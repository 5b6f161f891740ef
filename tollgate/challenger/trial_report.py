"""Report a trial: flips, money, scores, latencies, errors, each with its interval."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tollgate.challenger import intervals
from tollgate.challenger.bins import TIME_EDGES_US
from tollgate.challenger.decision_counts import (
    ALL,
    DEGRADED,
    ERRORS,
    LEVELS,
    Arm,
    Group,
    Pairs,
)
from tollgate.challenger.intervals import Interval
from tollgate.challenger.shares import (
    arm_share,
    decision_difference,
    degraded_difference,
    flips_effect,
    flips_share,
    share_difference,
)
from tollgate.challenger.stored_counts import Trial, TrialState
from tollgate.challenger.trial_gates import GateResult, judge
from tollgate.repository.gate_limits import Gates
from tollgate.schema import Decision

_EDGES_MS = [edge / 1_000 for edge in TIME_EDGES_US]


class GroupComparison(msgspec.Struct, frozen=True):
    """
    Comparison of both releases on rows with a common property.

    Attributes:
        name: Name of the property.
        rows: Number of rows.
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
        release: Name of the release.
        rows: Number of rows.
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
        trial: Identity of the trial.
        rows: Rows that both releases decided.
        other, unfit: Rows left out: of other releases or from before the trial, and
            with other features.
        us_per_row: Time to decide a row again in the worker, µs.
        matrix: Rows by the champion's decision, then by the challenger's.
        cents: Amounts of these rows, in the same order.
        parts: Comparisons: all rows, by segment, by amount.
        psi: Population stability index of the scores.
        ks: Largest distance of the score distributions.
        champion, challenger: Results of each release.
        differences: Challenger's share minus the champion's, by name.
        verdicts: Results of the gates.
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
        champion=_side(state.trial.champion, group.champion),
        challenger=_side(state.trial.challenger, group.challenger),
        differences=_differences(state.trial, group),
        verdicts=tuple(judge(state, gates)),
    )


def _order(state: TrialState) -> list[str]:
    """
    List the groups: all rows first, then segments, then amounts in ascending order.
    """
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


def _side(release: str, arm: Arm) -> ReleaseSummary:
    return ReleaseSummary(
        release=release,
        rows=arm.rows,
        shares={level.name.lower(): arm_share(arm, level) for level in Decision},
        errors=arm_share(arm, ERRORS),
        degraded=arm_share(arm, DEGRADED),
        score=intervals.mean(arm.score_sum, arm.score_squares, arm.scored),
        p50_ms=intervals.quantile(arm.times, _EDGES_MS, at=0.5),
        p99_ms=intervals.quantile(arm.times, _EDGES_MS, at=0.99),
    )


def _differences(trial: Trial, group: Group) -> dict[str, Interval]:
    """Compare shares: a canary's arms have different rows, the other modes pairs."""
    one, other = group.champion, group.challenger
    strangers = trial.mode == "canary"
    found = {
        level.name.lower(): (
            share_difference(other, level, than=one)
            if strangers
            else decision_difference(group.pairs, level)
        )
        for level in Decision
    }
    found["errors"] = share_difference(other, ERRORS, than=one)
    found["degraded"] = (
        share_difference(other, DEGRADED, than=one)
        if strangers
        else degraded_difference(group.pairs)
    )
    return found
