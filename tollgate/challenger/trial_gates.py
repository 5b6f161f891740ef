"""
Judge the counts of a trial against its gates.

A gate is broken only if the whole confidence interval lies beyond its limit. So a few
unlucky rows end no trial.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

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
)
from tollgate.challenger.intervals import Interval
from tollgate.challenger.trials import TrialState
from tollgate.repository.gate_limits import Gates


def arm_share(arm: Arm, what: int) -> Interval:
    """Estimate the share of a decision, of ERRORS or of DEGRADED."""
    return intervals.share(*_counted(arm, what))


def share_difference(arm: Arm, what: int, *, than: Arm) -> Interval:
    """Estimate the difference of such a share from that of other customers."""
    return intervals.difference(*_counted(arm, what), than=_counted(than, what))


def flips(pairs: Pairs) -> int:
    """Count the rows with different decisions."""
    side = math.isqrt(len(pairs.matrix))
    return pairs.rows - sum(pairs.matrix[:: side + 1])


def flips_share(pairs: Pairs) -> Interval:
    """Estimate the share of rows with different decisions."""
    effect = flips_effect(pairs)
    return intervals.share(flips(pairs) / effect, pairs.rows / effect)


def flips_effect(pairs: Pairs) -> float:
    """Estimate the design effect of different decisions within customers."""
    return intervals.design_effect(pairs.cluster_rows, pairs.cluster_flips)


def decision_difference(pairs: Pairs, level: int) -> Interval:
    """Estimate how much more often the challenger makes a decision on these rows."""
    matrix = [
        pairs.matrix[at : at + LEVELS] for at in range(0, LEVELS * LEVELS, LEVELS)
    ]
    less = sum(matrix[level]) - matrix[level][level]
    more = sum(line[level] for line in matrix) - matrix[level][level]
    effect = flips_effect(pairs)
    return intervals.paired_difference(
        more / effect, less / effect, rows=pairs.rows / effect
    )


def degraded_difference(pairs: Pairs) -> Interval:
    """Estimate how much more often the challenger is degraded, on the same rows."""
    more, less = pairs.degraded_more, pairs.degraded_less
    return intervals.paired_difference(more, less, rows=pairs.rows)


def _counted(arm: Arm, what: int) -> tuple[float, float]:
    """Return hits and rows, divided by the design effect."""
    hits = arm.hits(what)
    effect = intervals.design_effect(arm.cluster_rows, hits)
    return sum(hits) / effect, arm.rows / effect


GateState = Literal["waits", "holds", "unsure", "broken"]


class GateResult(msgspec.Struct, frozen=True):
    """
    Result of one gate.

    Attributes:
        gate: Key of the gate.
        limit: Highest accepted value.
        found: Estimated value with its interval.
        rows: Number of rows of the estimate.
        state: "waits" for more rows; "holds" if the whole interval is within the limit;
            "unsure" if a part of it is, or if the cause is unknown; "broken" if no part
            is.
    """

    gate: str
    limit: float
    found: Interval
    rows: int
    state: GateState

    def __str__(self) -> str:
        unit = {"p99_ms": " ms", "score_psi": ""}.get(self.gate, " %")
        by = 100 if unit == " %" else 1
        found = " to ".join(
            f"{end * by:.3g}" for end in (self.found.low, self.found.high)
        )
        return (
            f"{self.gate} {self.state}: {self.found.value * by:.3g}{unit} ({found}) in "
            f"{self.rows:,} rows, allowed {self.limit * by:.3g}{unit}"
        )


def judge(state: TrialState, gates: Gates) -> list[GateResult]:
    """Judge a trial by its gates; gates without a limit are left out."""
    group = state.groups.get(ALL, Group())
    found = {
        "flips_share": (
            gates.flips_share,
            flips_share(group.pairs),
            group.pairs.rows,
        ),
        "p99_ms": (gates.p99_ms, *_p99_ms(group.challenger)),
        "errors_share": (
            gates.errors_share,
            arm_share(group.challenger, ERRORS),
            group.challenger.rows,
        ),
        "degraded_share": (gates.degraded_share, *_degraded(state, group)),
        "score_psi": (gates.score_psi, *_psi(group.pairs)),
    }
    return [
        GateResult(
            name,
            limit,
            interval,
            rows,
            _state(
                interval,
                rows,
                limit,
                gates,
                excused=name == "p99_ms" and _all_are_slow(state, interval, gates),
            ),
        )
        for name, (limit, interval, rows) in found.items()
        if limit is not None
    ]


def broken(verdicts: list[GateResult]) -> list[GateResult]:
    """Return the gates that are broken."""
    return [one for one in verdicts if one.state == "broken"]


def passed(verdicts: list[GateResult]) -> bool:
    """Return whether each gate has seen enough rows, and none is broken."""
    return all(one.state in ("holds", "unsure") for one in verdicts)


def _p99_ms(arm: Arm) -> tuple[Interval, int]:
    edges_ms = [edge / 1_000 for edge in TIME_EDGES_US]
    return intervals.quantile(arm.times, edges_ms, at=0.99), arm.rows


def _degraded(state: TrialState, group: Group) -> tuple[Interval, int]:
    """
    Compare degraded rows with the champion's, because an outage of the store affects
    both.

    In a watch both releases share the same bits, so the comparison is with the counts
    from before the promotion. If these are unknown, nothing is judged.
    """
    arm, than = group.challenger, _compared(state)
    if state.trial.mode == "shadow":
        return degraded_difference(group.pairs), group.pairs.rows
    return share_difference(arm, DEGRADED, than=than), min(arm.rows, than.rows)


def _compared(state: TrialState) -> Arm:
    """Return the counts of the champion's own answers; in a watch, from before it."""
    groups = state.baseline if state.trial.mode == "watch" else state.groups
    return groups.get(ALL, Group()).champion


def _all_are_slow(state: TrialState, found: Interval, gates: Gates) -> bool:
    """Return whether the champion is as slow, and the challenger not the cause."""
    than = _compared(state)
    if state.trial.mode == "shadow" or than.rows < gates.min_rows:
        return False
    return _p99_ms(than)[0].high >= found.low


def _psi(pairs: Pairs) -> tuple[Interval, int]:
    found = intervals.stability_index(pairs.one_scores, pairs.other_scores)
    return found, pairs.scored


def _state(
    found: Interval, rows: int, limit: float, gates: Gates, *, excused: bool
) -> GateState:
    if rows < gates.min_rows:
        return "waits"
    if found.low > limit:
        return "unsure" if excused else "broken"
    return "holds" if found.high <= limit else "unsure"
