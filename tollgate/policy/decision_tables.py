"""Evaluate the conditions of all segments and rules on all rows at once, as arrays."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.policy.conditions import Condition, Variable
from tollgate.schema import AMOUNT, MISSING, floats_at

Bool = npt.NDArray[np.bool_]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U32 = npt.NDArray[np.uint32]


class RowFacts(msgspec.Struct, frozen=True, eq=False):
    """
    Known values of N rows when they are decided.

    Attributes:
        probabilities: One column per label of the policy; float32 [N, K].
        features: Inputs of the model; float32 [N, F].
        cents: Amounts; int64 [N].
        degraded: Degraded bits of the rows so far; uint32 [N].
        event_time_us: Time of the purchase; int64 [N].
        list_hits: Bit i is set when the i-th list of the policy holds the row's id;
            uint32 [N].
        fields: Declared fields of the request by name, as whole numbers and hashes,
            MISSING where a row has none; int64 [N] each.
    """

    probabilities: F32
    features: F32
    cents: I64
    degraded: U32
    event_time_us: I64
    list_hits: U32
    fields: Mapping[str, I64]


_ALWAYS = Condition(Variable(AMOUNT, "amount", scale=100.0), ())
_LISTS_FROM = 32  # bits of lists follow those of degraded
# Kinds of numbers, by their codes in the compiled loop; "exact" is one of "number".
_NUMBER_KINDS = ("feature", "amount", "score", "label", "number", "exact")


class Criterion(msgspec.Struct, frozen=True):
    """
    Conditions and validity of a segment or a rule.

    Attributes:
        conditions: Conditions, all of which must hold.
        segments: Numbers of the segments that it applies to; None for all.
        from_us, until_us: Event times that it applies to; excludes `until_us`.
    """

    conditions: tuple[Condition, ...]
    segments: tuple[int, ...] | None = None
    from_us: int | None = None
    until_us: int | None = None
    stop: bool = False


class ConditionTable:
    """Segments, which do not overlap, and rules, compiled."""

    def __init__(
        self, segments: Sequence[Criterion], rules: Sequence[Criterion]
    ) -> None:
        self._segments = len(segments)
        criteria = [*segments, *rules]
        # Every variable that a condition names, once.
        self.named = tuple(
            dict.fromkeys(one.variable for part in criteria for one in part.conditions)
        )
        numbers = [
            (at, one)
            for at, part in enumerate(criteria)
            for one in _numbers(part.conditions)
        ]
        self._variables = list(dict.fromkeys(one.variable for _, one in numbers))
        # Features first: one indexing operation then reads them all.
        self._variables.sort(key=lambda one: one.kind != "feature")
        self._features = [
            one.column for one in self._variables if one.kind == "feature"
        ]
        column = {one: at for at, one in enumerate(self._variables)}
        self._columns = np.array([column[one.variable] for _, one in numbers], np.intp)
        self._low = np.array([one.low for _, one in numbers])
        self._high = np.array([one.high for _, one in numbers])
        owners = [at for at, _ in numbers]
        self._starts = np.searchsorted(owners, np.arange(len(criteria)))
        self._unequal = [
            (at, column[one.variable], value)
            for at, one in numbers
            for value in one.unequal
        ]
        self._words = [
            (at, one, np.array(one.hashes, np.int64))
            for at, part in enumerate(criteria)
            for one in part.conditions
            if one.variable.kind == "category" or one.absent
        ]
        bits = [_bits(part.conditions) for part in criteria]
        self._mask = np.array([mask for mask, _ in bits], np.uint64)
        self._want = np.array([want for _, want in bits], np.uint64)
        self._number = np.arange(1, self._segments + 1, dtype=np.uint8)
        self._times = _times(rules)
        self.timed = self._times is not None  # event times matter
        self._allowed = _allowed(rules, self._segments)

    def match(
        self, facts: RowFacts, *, score: F64, scored: Bool, degraded: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.uint8], Bool]:
        """
        Find each row's segment, and the rules that hold for it.

        Args:
            score: Scores; NaN where no score may be used; [N].
            scored: True if the score may be used; [N].
            degraded: Bits, the model's output included; uint32 [N].

        Returns:
            0 for a row in no segment, else 1 + the segment's position, [N]; and bool
            [N, R], regardless of rules that stop others.
        """
        met = self._met(facts, score=score, scored=scored)
        hits = facts.list_hits.astype(np.uint64) << np.uint64(_LISTS_FROM)
        bits = degraded.astype(np.uint64) | hits
        met &= (bits[:, None] & self._mask) == self._want
        cut = self._segments
        if not cut:
            segment = np.zeros(len(met), np.uint8)
        else:
            segment = (met[:, :cut] * self._number).sum(axis=1, dtype=np.uint8)
        rules = met[:, cut:]
        if self._times is not None:
            at = facts.event_time_us[:, None]
            rules &= (at >= self._times[0]) & (at < self._times[1])
        if self._allowed is not None:
            rules &= self._allowed[segment]
        return segment, rules

    def flat(self) -> dict[str, Any]:
        """
        Return the tables as flat arrays, as the compiled loop reads them.

        Parts of criterion i, a segment or a rule after all segments, are those from
        `…_starts[i]` to before `…_starts[i + 1]`.
        """
        edges = np.arange(len(self._mask) + 1)
        unequal = [at for at, _, _ in self._unequal]
        rules = len(self._mask) - self._segments
        fields = [one.name for one in self.named if one.kind in ("number", "category")]
        kinds = ["exact" if one.exact else one.kind for one in self._variables]
        hashes = [one for _, _, one in self._words]
        since, until = self._times or (np.empty(0, np.int64),) * 2
        allowed = self._allowed
        if allowed is None:
            allowed = np.ones((self._segments + 1, rules), np.bool_)
        return {
            "field_names": fields,
            "kinds": _integers(map(_NUMBER_KINDS.index, kinds)),
            "columns": _integers(
                fields.index(one.name) if one.kind == "number" else max(one.column, 0)
                for one in self._variables
            ),
            "scales": np.array([one.scale for one in self._variables]),
            "interval_starts": np.append(self._starts, len(self._columns)),
            "interval_numbers": self._columns,
            "lows": self._low,
            "highs": self._high,
            "unequal_starts": np.searchsorted(unequal, edges),
            "unequal_numbers": _integers(column for _, column, _ in self._unequal),
            "unequal": np.array([value for _, _, value in self._unequal]),
            "word_starts": np.searchsorted([at for at, _, _ in self._words], edges),
            "word_fields": _integers(
                fields.index(one.variable.name) for _, one, _ in self._words
            ),
            "word_inverted": _integers(one.inverted for _, one, _ in self._words),
            "hash_starts": np.cumsum([0, *map(len, hashes)]),
            "hashes": _integers(itertools.chain.from_iterable(hashes)),
            "masks": self._mask,
            "wants": self._want,
            "since": since,
            "until": until,
            "allowed": allowed.view(np.uint8),
        }

    def _met(self, facts: RowFacts, *, score: F64, scored: Bool) -> Bool:
        """Compare numbers and words; [N, segments and rules]."""
        if not len(self._mask):
            return np.ones((len(score), 0), np.bool_)
        values = self._values(facts, score=score, scored=scored)
        chosen = values[:, self._columns]
        single = (chosen >= self._low) & (chosen <= self._high)
        met: Bool = np.logical_and.reduceat(single, self._starts, axis=1)
        for at, column, value in self._unequal:
            met[:, at] &= values[:, column] != value
        for at, one, hashes in self._words:
            words = _field(facts, one.variable, len(score))
            found = (words[:, None] == hashes).any(axis=1)
            met[:, at] &= ~found & (words != MISSING) if one.inverted else found
        return met

    def _values(self, facts: RowFacts, *, score: F64, scored: Bool) -> F64:
        """Collect the numbers that conditions name; NaN where there is none."""
        values = np.empty((len(score), len(self._variables)))
        chosen = len(self._features)
        if chosen:
            values[:, :chosen] = facts.features[:, self._features]
        for at, one in enumerate(self._variables[chosen:], chosen):
            if one.kind == "amount":
                np.divide(facts.cents, one.scale, out=values[:, at])
            elif one.kind == "score":
                values[:, at] = score
            elif one.kind == "label":
                values[:, at] = np.where(
                    scored, facts.probabilities[:, one.column], np.nan
                )
            else:
                whole = _field(facts, one, len(score))
                found = floats_at(whole) if one.exact else whole / one.scale
                values[:, at] = np.where(whole == MISSING, np.nan, found)
        return values


def _field(facts: RowFacts, variable: Variable, rows: int) -> I64:
    """Return a declared field; MISSING for all rows if no request had it."""
    column = facts.fields.get(variable.name)
    return np.full(rows, MISSING) if column is None else column


def _numbers(conditions: Sequence[Condition]) -> list[Condition]:
    """Select the comparisons of numbers, or one that always holds if there is none."""
    kinds = ("category", "bit", "list")
    found = [
        one for one in conditions if one.variable.kind not in kinds and not one.absent
    ]
    return found or [_ALWAYS]


def _integers(values: Iterable[int]) -> I64:
    return np.array(list(values), np.int64)


def _bits(conditions: Sequence[Condition]) -> tuple[int, int]:
    """Return the bits that matter, and their required values."""
    mask = want = 0
    for one in conditions:
        if one.variable.kind in ("bit", "list"):
            above = _LISTS_FROM if one.variable.kind == "list" else 0
            bit = 1 << (one.variable.column + above)
            mask |= bit
            want |= bit * one.wanted
    return mask, want


def _times(rules: Sequence[Criterion]) -> tuple[I64, I64] | None:
    """Return start and end time of each rule; None if no rule is limited in time."""
    if all(one.from_us is None and one.until_us is None for one in rules):
        return None
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    since = [least if one.from_us is None else one.from_us for one in rules]
    until = [most if one.until_us is None else one.until_us for one in rules]
    return np.array(since), np.array(until)


def _allowed(rules: Sequence[Criterion], segments: int) -> Bool | None:
    """Return which rules apply to which segment; None if all apply to all."""
    if all(one.segments is None for one in rules):
        return None
    allowed = np.ones((segments + 1, len(rules)), np.bool_)
    for at, one in enumerate(rules):
        if one.segments is not None:
            allowed[:, at] = np.isin(np.arange(segments + 1), one.segments)
    return allowed
