"""Decide rows again, and count the decisions that change."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import ArgumentError
from tollgate.policy import Policy, RowFacts, decide
from tollgate.redecide.rows import PastRows
from tollgate.schema import Decision

_ROWS_AT_ONCE = 65_536
_LEVELS = len(Decision)

I64 = npt.NDArray[np.int64]


class SegmentDecisions(msgspec.Struct, frozen=True):
    """
    Decisions of some rows, before and after.

    Attributes:
        name: Name of their common property.
        rows: Number of rows.
        before, after: Number of rows approved, reviewed and declined.
        cents_before, cents_after: Amounts of these rows, in cents.
    """

    name: str
    rows: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    cents_before: tuple[int, ...]
    cents_after: tuple[int, ...]


class RuleUse(msgspec.Struct, frozen=True):
    """
    How often a rule of the new policy matches, and the old rule of the same name did.

    Attributes:
        name: Name of the rule.
        owner: Owner of the rule.
        before: Rows that the old rule matched; None if the old policy has no such rule,
            or is unknown.
        after: Rows that the rule matches.
        otherwise: Number of these whose decision changes.
        cents: Amount of the rows that the rule matches, in cents.
    """

    name: str
    owner: str
    before: int | None
    after: int
    otherwise: int
    cents: int


class PolicyComparison(msgspec.Struct, frozen=True):
    """
    Decisions of past rows by a new policy.

    Attributes:
        rows: Number of rows that were decided again.
        left_out: Number of rows that could not be.
        matrix: Rows by decision before and after.
        cents: Amounts of these rows, in cents.
        segments: Decisions by segment of the new policy, OTHER first.
        rules: Use of each rule of the new policy.
    """

    rows: int
    left_out: int
    matrix: tuple[tuple[int, ...], ...]
    cents: tuple[tuple[int, ...], ...]
    segments: tuple[SegmentDecisions, ...]
    rules: tuple[RuleUse, ...]

    @property
    def changed(self) -> int:
        """Return the number of rows whose decision changes."""
        same = sum(self.matrix[level][level] for level in range(_LEVELS))
        return self.rows - same

    def more(self, level: Decision) -> int:
        """Return how many more rows get a decision; below 0 for fewer."""
        after = sum(line[level] for line in self.matrix)
        return after - sum(self.matrix[level])

    def more_cents(self, level: Decision) -> int:
        """Return the amount of these rows, in cents."""
        after = sum(line[level] for line in self.cents)
        return after - sum(self.cents[level])


def compare_policies(
    past: PastRows, *, new: Policy, old: Policy | None = None
) -> PolicyComparison:
    """
    Decide past rows again.

    Args:
        past: Recorded facts of the rows.
        new: Policy that decides them now.
        old: Policy to compare with; None for the recorded decisions.

    Raises:
        InputError: There are no recorded decisions to compare with.
    """
    after, segment, held = _decide(past.facts, new)
    if old is not None:
        before, _, held_before = _decide(past.facts, old)
    elif past.decision is not None:
        before, held_before = past.decision, np.zeros(0, np.uint64)
    else:
        problem = "name the policy to compare with: the rows hold no decisions"
        raise ArgumentError("against", problem)
    cents = past.facts.cents
    places = {one.name: at for at, one in enumerate(old.rules)} if old else {}
    rules = []
    for at, rule in enumerate(new.rules):
        on = _bit(held, at)
        place = places.get(rule.name)
        rules.append(
            RuleUse(
                name=rule.name,
                owner=rule.owner,
                before=None if place is None else int(_bit(held_before, place).sum()),
                after=int(on.sum()),
                otherwise=int((on & (before != after)).sum()),
                cents=int(cents[on].sum()),
            )
        )
    return PolicyComparison(
        rows=len(cents),
        left_out=past.left_out,
        matrix=_matrix(before, after, np.ones(len(cents), np.int64)),
        cents=_matrix(before, after, cents),
        segments=tuple(
            _part(name, segment == at, before, after, cents)
            for at, name in enumerate(new.segments)
        ),
        rules=tuple(rules),
    )


def _decide(
    facts: RowFacts, policy: Policy
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], npt.NDArray[np.uint64]]:
    """Decide many rows in batches; return decisions, segments and rules."""
    found = [
        decide(_slice(facts, at), policy=policy)
        for at in range(0, max(len(facts.cents), 1), _ROWS_AT_ONCE)
    ]
    return (
        np.concatenate([one.decision for one in found]),
        np.concatenate([one.segment for one in found]),
        np.concatenate([one.rules for one in found]),
    )


def _slice(facts: RowFacts, at: int) -> RowFacts:
    part = slice(at, at + _ROWS_AT_ONCE)
    return RowFacts(
        probabilities=facts.probabilities[part],
        features=facts.features[part],
        cents=facts.cents[part],
        degraded=facts.degraded[part],
        event_time_us=facts.event_time_us[part],
        list_hits=facts.list_hits[part],
        fields={name: column[part] for name, column in facts.fields.items()},
    )


def _bit(held: npt.NDArray[np.uint64], at: int) -> npt.NDArray[np.bool_]:
    on: npt.NDArray[np.bool_] = (held >> np.uint64(at)) & np.uint64(1) != 0
    return on


def _matrix(
    before: npt.NDArray[np.uint8], after: npt.NDArray[np.uint8], worth: I64
) -> tuple[tuple[int, ...], ...]:
    sums = np.zeros(_LEVELS * _LEVELS, np.int64)
    np.add.at(sums, before.astype(np.intp) * _LEVELS + after, worth)
    return tuple(map(tuple, sums.reshape(_LEVELS, _LEVELS).tolist()))


def _part(
    name: str,
    rows: npt.NDArray[np.bool_],
    before: npt.NDArray[np.uint8],
    after: npt.NDArray[np.uint8],
    cents: I64,
) -> SegmentDecisions:
    ones = rows.astype(np.int64)
    return SegmentDecisions(
        name=name,
        rows=int(ones.sum()),
        before=_sums(before, ones),
        after=_sums(after, ones),
        cents_before=_sums(before, cents * ones),
        cents_after=_sums(after, cents * ones),
    )


def _sums(decision: npt.NDArray[np.uint8], worth: I64) -> tuple[int, ...]:
    return tuple(int(worth[decision == level].sum()) for level in range(_LEVELS))


def names(values: Sequence[Decision]) -> tuple[str, ...]:
    """Return the names of decisions, as in answers."""
    return tuple(one.name.lower() for one in values)
