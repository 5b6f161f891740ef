"""Apply a policy to a batch: decisions, reason codes, bits."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate import compiled
from tollgate.policy.decision_tables import F32, U32, RowFacts
from tollgate.policy.policy_definition import (
    DECLINED_AT,
    REVIEWED_AT,
    UNAVAILABLE_AT,
    Policy,
)
from tollgate.schema import REASON_SEPARATOR, Decision, Degraded

Bool = npt.NDArray[np.bool_]
U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

_MODEL_OUTPUT = np.uint32(Degraded.MODEL_OUTPUT)
_MOST_CACHED_TEXTS = 4096  # distinct sets of codes in the cache; a set is 63 bits


class PolicyDecisions(msgspec.Struct, frozen=True):
    """
    Decisions of N rows.

    Attributes:
        decision: Decision; uint8 [N].
        score: float32 [N]; NaN where the model gave no usable one, or a rule decided
            before it.
        reason_codes: Codes joined by `|`, bytes objects; object [N].
        degraded: The bits passed in, and MODEL_OUTPUT where it applies; uint32 [N].
        rules: Bit i is set when the i-th rule of the policy held; uint64 [N].
        segment: 0 for a row of no segment, else 1 + the segment's position; uint8 [N].
    """

    decision: U8
    score: F32
    reason_codes: npt.NDArray[np.object_]
    degraded: U32
    rules: npt.NDArray[np.uint64]
    segment: U8


def decide(facts: RowFacts, *, policy: Policy) -> PolicyDecisions:
    """
    Turn probabilities into decisions.

    Returns:
        Decisions with scores, codes and bits. Invalid probabilities (NaN, outside of
        [0, 1], or of another sum than the policy allows) and numbers (NaN, infinite)
        give the policy's fallback, never a decision from the thresholds; so does the
        bit MODEL_OUTPUT. The meaning of a degraded bit takes precedence over the rules:
        a row that lacks an essential feature is at least reviewed. The probabilities of
        a row that a rule decides before the model are not read.
    """
    if compiled.decisions is not None:
        decided = _decide_compiled(facts, policy)
        if decided is not None:
            return decided
    scored = usable = _usable(facts, policy)
    given = facts.degraded
    if policy.before_model:
        settled = _settled(facts, policy)
        scored = usable & ~settled
        usable = usable | settled  # they get no MODEL_OUTPUT and no fallback
        given = np.where(settled, given & ~_MODEL_OUTPUT, given)
    exact = policy.score.of(np.where(scored[:, None], facts.probabilities, 0))
    exact[~scored] = np.nan
    degraded = given | (~usable * _MODEL_OUTPUT)
    score = exact.astype(np.float32)
    for one in policy.meanings:
        if one.fallback is not None:
            scored = scored & ((degraded & one.bit) == 0)
    exact[~scored] = np.nan
    segment, matched = policy.tables.match(
        facts, score=exact, scored=scored, degraded=degraded
    )
    level = policy.levels
    signed = exact * policy.score.sign  # in float64: no threshold is rounded
    declined = signed >= level.decline[segment]
    reviewed = signed >= level.review[segment]
    decision = reviewed.astype(np.uint8) + declined
    code_bits = declined.astype(np.int64) << DECLINED_AT
    code_bits |= (reviewed & ~declined).astype(np.int64) << REVIEWED_AT
    if not usable.all():
        decision = np.where(usable, decision, level.fallback[segment])
        code_bits |= (~usable).astype(np.int64) << UNAVAILABLE_AT
    for one in policy.meanings:
        if one.fallback is not None:
            there = (degraded & one.bit) != 0
            raised = np.maximum(decision, np.uint8(one.fallback))
            decision = np.where(there, raised, decision)
    decision = _apply_rules(policy, matched, decision, code_bits)
    decision = _apply_meanings(policy, degraded, decision, code_bits)
    return PolicyDecisions(
        decision=decision,
        score=score,
        reason_codes=_code_texts(code_bits, policy.codes),
        degraded=degraded,
        rules=_pack(matched),
        segment=segment,
    )


def without_model(facts: RowFacts, *, policy: Policy) -> Bool:
    """
    Return which rows a rule decides before the model; bool [N].

    Args:
        facts: The probabilities are not read.
    """
    if not policy.before_model:
        return np.zeros(len(facts.cents), np.bool_)
    return policy.unscored(decide(facts, policy=policy).rules)


def needs_model(facts: RowFacts, done: Bool, *, policy: Policy) -> bool:
    """
    Return whether a row is neither done nor decided by a rule before the model.

    Args:
        facts: N rows; the probabilities are not read.
        done: Rows that need no decision; bool [N].
    """
    if compiled.decisions is not None:
        found: bool | None = _program_of(policy).needs_model(facts, done)
        if found is not None:
            return found
    return not (done | _settled(facts, policy)).all()


def _settled(facts: RowFacts, policy: Policy) -> Bool:
    """Evaluate the rules with `before_model`, without anything of the model."""
    rows = len(facts.cents)
    _, matched = policy.tables.match(
        facts,
        score=np.full(rows, np.nan),
        scored=np.zeros(rows, np.bool_),
        degraded=facts.degraded & ~_MODEL_OUTPUT,
    )
    settled: Bool = matched[:, : policy.before_model].any(axis=1)
    return settled


def _usable(facts: RowFacts, policy: Policy) -> Bool:
    """Return which rows have valid probabilities."""
    probabilities = facts.probabilities
    least, most = policy.score.limits
    usable: Bool = ((probabilities >= least) & (probabilities <= most)).all(axis=1)
    usable &= (facts.degraded & _MODEL_OUTPUT) == 0
    if policy.sum_within is not None:
        known = np.where(usable[:, None], probabilities, 0).astype(np.float64)
        total = functools.reduce(np.add, known.T)
        usable &= np.abs(total - 1.0) <= policy.sum_within
    return usable


def _apply_rules(policy: Policy, matched: Bool, decision: U8, code_bits: I64) -> U8:
    """Apply the rules in order; changes `matched` and `code_bits`."""
    open_ = None  # rows that no rule has stopped
    for place in np.flatnonzero(matched.any(axis=0)).tolist():
        rule, met = policy.rules[place], matched[:, place]
        if open_ is not None:
            met &= open_
        if place < policy.before_model:
            moved = np.full_like(decision, rule.at_least)
            reason = met
        elif rule.at_least > Decision.APPROVE:
            moved = np.maximum(decision, np.uint8(rule.at_least))
            reason = met
        else:
            # An upper limit is a reason only where it changed the decision.
            moved = np.minimum(decision, np.uint8(rule.at_most))
            reason = met & (moved != decision)
        decision = np.where(met, moved, decision)
        code_bits |= reason.astype(np.int64) << rule.code
        if rule.stop:
            open_ = ~met if open_ is None else open_ & ~met
    return decision


def _apply_meanings(policy: Policy, degraded: U32, decision: U8, code_bits: I64) -> U8:
    """Raise decisions as their degraded bits require; changes `code_bits`."""
    if not degraded.any():
        return decision
    for one in policy.meanings:
        there = (degraded & one.bit) != 0
        raised = np.maximum(decision, np.uint8(one.at_least))
        decision = np.where(there, raised, decision)
        code_bits |= there.astype(np.int64) << one.code
    return decision


def _pack(matched: Bool) -> npt.NDArray[np.uint64]:
    """Pack the rules that matched into one integer per row, the first in bit 0."""
    packed = np.zeros(len(matched), np.uint64)
    for place in np.flatnonzero(matched.any(axis=0)).tolist():
        packed |= matched[:, place].astype(np.uint64) << np.uint64(place)
    return packed


def _code_texts(code_bits: I64, codes: tuple[str, ...]) -> npt.NDArray[np.object_]:
    """Convert set bits to the text of their codes; equal sets share one text."""
    named = np.empty(len(code_bits), np.object_)
    named[:] = [_text(bits, codes) for bits in code_bits.tolist()]
    return named


@functools.lru_cache(maxsize=_MOST_CACHED_TEXTS)
def _text(bits: int, codes: Sequence[str]) -> bytes:
    named = [code for bit, code in enumerate(codes) if bits >> bit & 1]
    return REASON_SEPARATOR.join(named).encode()


# Apply the policy in the compiled loop, row by row, with the same results.

_PROGRAMS: weakref.WeakKeyDictionary[Policy, Any] = weakref.WeakKeyDictionary()


def _decide_compiled(facts: RowFacts, policy: Policy) -> PolicyDecisions | None:
    rows = len(facts.cents)
    decided = PolicyDecisions(
        decision=np.empty(rows, np.uint8),
        score=np.empty(rows, np.float32),
        reason_codes=np.empty(rows, np.object_),
        degraded=np.empty(rows, np.uint32),
        rules=np.empty(rows, np.uint64),
        segment=np.empty(rows, np.uint8),
    )
    texts = _program_of(policy).decide(facts, decided)
    if texts is None:
        return None
    decided.reason_codes[:] = texts
    return decided


def _program_of(policy: Policy) -> Any:
    program = _PROGRAMS.get(policy)
    if program is None:
        program = _PROGRAMS[policy] = _program(policy)
    return program


def _program(policy: Policy) -> Any:
    """Return a policy as the compiled loop reads it: flat tables of numbers."""
    decimals = policy.score.decimals
    return compiled.decisions.DecisionProgram(
        **policy.tables.flat(),
        review=policy.levels.review,
        decline=policy.levels.decline,
        fallback=policy.levels.fallback,
        rules=_table(
            (one.at_least, one.at_most, one.code, one.stop) for one in policy.rules
        ),
        before_model=policy.before_model,
        meanings=_table(
            (one.bit, one.at_least, one.code, one.fallback or Decision.APPROVE)
            for one in policy.meanings
        ),
        model_output=int(_MODEL_OUTPUT),
        unscored=sum(one.bit for one in policy.meanings if one.fallback is not None),
        weight_columns=np.array([column for column, _ in policy.score.weights]),
        weights=np.array([weight for _, weight in policy.score.weights]),
        plain=policy.score.plain,
        rounding=0.0 if decimals is None else 10.0**decimals,
        sum_within=policy.sum_within,
        limits=policy.score.limits,
        sign=policy.score.sign,
        codes=(UNAVAILABLE_AT, DECLINED_AT, REVIEWED_AT),
        text=functools.partial(_text, codes=policy.codes),
        most_texts=_MOST_CACHED_TEXTS,
    )


def _table(rows: Iterable[tuple[int, int, int, int]]) -> I64:
    return np.array(list(rows), np.int64).reshape(-1, 4)
