"""Decide rows again, and count what comes out otherwise."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError
from tollgate.policy import Policy, RowFacts, decide
from tollgate.redecide.rows import PastRows
from tollgate.schema import Decision

_ROWS_AT_ONCE = 65_536
_LEVELS = len(Decision)

I64 = npt.NDArray[np.int64]


class Part(msgspec.Struct, frozen=True):
    """
    Some rows, before and after.

    Attributes:
        name: What they have in common.
        rows: How many.
        before, after: How many of them are approved, reviewed, declined.
        cents_before, cents_after: What these come to.
    """

    name: str
    rows: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    cents_before: tuple[int, ...]
    cents_after: tuple[int, ...]


class RuleUse(msgspec.Struct, frozen=True):
    """
    How often a rule of the new policy held, and what the old one of its name did.

    Attributes:
        name: Of the rule.
        owner: Who answers for it.
        before: Rows that the old policy's rule held for; None when it has none of the
            name, or is not known.
        after: Rows that it holds for.
        otherwise: How many of these are decided otherwise than before.
        cents: What the rows that it holds for come to.
    """

    name: str
    owner: str
    before: int | None
    after: int
    otherwise: int
    cents: int


class Outcome(msgspec.Struct, frozen=True):
    """
    What a policy would have decided.

    Attributes:
        rows: How many were decided again.
        left_out: How many could not be.
        matrix: Rows by decision before and after.
        cents: What they come to.
        segments: Of the new policy, OTHER first.
        rules: Of the new policy.
    """

    rows: int
    left_out: int
    matrix: tuple[tuple[int, ...], ...]
    cents: tuple[tuple[int, ...], ...]
    segments: tuple[Part, ...]
    rules: tuple[RuleUse, ...]

    @property
    def changed(self) -> int:
        """Rows that are decided otherwise."""
        same = sum(self.matrix[level][level] for level in range(_LEVELS))
        return self.rows - same

    def more(self, level: Decision) -> int:
        """How many more rows are decided so; below 0 for fewer."""
        after = sum(line[level] for line in self.matrix)
        return after - sum(self.matrix[level])

    def more_cents(self, level: Decision) -> int:
        """What these come to, in cents."""
        after = sum(line[level] for line in self.cents)
        return after - sum(self.cents[level])


def compare_policies(
    past: PastRows, *, new: Policy, old: Policy | None = None
) -> Outcome:
    """
    Decide rows again.

    Args:
        past: What was known of them.
        new: What decides now.
        old: What to compare with; None for what was decided then.

    Raises:
        InputError: There is nothing to compare with.
    """
    after, segment, held = _decide(past.facts, new)
    if old is not None:
        before, _, held_before = _decide(past.facts, old)
    elif past.decision is not None:
        before, held_before = past.decision, np.zeros(0, np.uint64)
    else:
        problem = "holds no decisions: name the policy to compare with, --against OLD"
        raise InputError("rows", problem, where="column decision")
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
    return Outcome(
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
    """Decide many rows, some at a time: decisions, segments, rules."""
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
) -> Part:
    ones = rows.astype(np.int64)
    return Part(
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
    """Name decisions as answers do."""
    return tuple(one.name.lower() for one in values)
