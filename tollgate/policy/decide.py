"""Apply a policy to a batch: decisions, reason codes, bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.policy.document import ESSENTIAL_MISSING, SCORE, Policy, Rule
from tollgate.schema import AMOUNT, REASON_SEPARATOR, Decision, Degraded

F32 = npt.NDArray[np.float32]
Bool = npt.NDArray[np.bool_]


class Decided(msgspec.Struct, frozen=True):
    """
    Decisions of N rows.

    Attributes:
        decision: Decision; uint8 [N].
        score: float32 [N]; NaN where the model gave none that is usable.
        reason_codes: Codes joined by `|`, bytes objects; object [N].
        degraded: The bits passed in, and MODEL_OUTPUT where it applies; uint32 [N].
    """

    decision: npt.NDArray[np.uint8]
    score: F32
    reason_codes: npt.NDArray[np.object_]
    degraded: npt.NDArray[np.uint32]


def decide(
    probabilities: F32,
    *,
    policy: Policy,
    features: F32,
    cents: npt.NDArray[np.int64],
    degraded: npt.NDArray[np.uint32],
) -> Decided:
    """
    Turn probabilities into decisions.

    Args:
        probabilities: One column per label of the policy; float32 [N, K].
        policy: Thresholds and rules of one release.
        features: What the rules may look at; float32 [N, F].
        cents: Amounts; int64 [N].
        degraded: Degraded bits of the rows so far; uint32 [N].

    Returns:
        Decisions with scores, codes and bits. A probability that is none (NaN,
        outside of [0, 1]) gives the policy's fallback, never a decision. A row that
        lacks an essential feature is at least reviewed, whatever the rules say.
    """
    usable = ((probabilities >= 0) & (probabilities <= 1)).all(axis=1)
    score = probabilities[:, policy.score_column].copy()
    score[~usable] = np.nan
    degraded = np.where(usable, degraded, degraded | Degraded.MODEL_OUTPUT)
    exact = score.astype(np.float64)  # so that thresholds are not rounded to float32
    declined, reviewed = exact >= policy.decline, exact >= policy.review
    decision = reviewed.astype(np.uint8) + declined
    decision[~usable] = policy.fallback
    hits = (~usable).astype(np.int64)
    hits |= declined.astype(np.int64) << 1
    hits |= (reviewed & ~declined).astype(np.int64) << 2
    fields = {AMOUNT: cents / 100.0, SCORE: exact}
    for rule in policy.rules:
        met = _met(rule, fields, features, degraded)
        moved = np.clip(decision, rule.at_least, rule.at_most)
        # A limit is a reason only where it changed something.
        told = met & ((moved != decision) | (rule.at_least > Decision.APPROVE))
        decision = np.where(met, moved, decision)
        hits |= told.astype(np.int64) << rule.code
    lacking = (degraded & Degraded.ESSENTIAL_MISSING) != 0
    decision = np.where(lacking, np.maximum(decision, Decision.REVIEW), decision)
    hits |= lacking.astype(np.int64) << policy.codes.index(ESSENTIAL_MISSING)
    return Decided(
        decision=decision.astype(np.uint8),
        score=score,
        reason_codes=_join(hits, policy.codes),
        degraded=degraded.astype(np.uint32),
    )


def _met(
    rule: Rule,
    fields: Mapping[str, npt.NDArray[np.float64]],
    features: F32,
    degraded: npt.NDArray[np.uint32],
) -> Bool:
    met = np.ones(len(features), np.bool_)
    for one in rule.conditions:
        if one.column >= 0:
            met &= one.compare(features[:, one.column], one.value)
        elif one.field in fields:
            met &= one.compare(fields[one.field], one.value)
        else:
            met &= one.compare((degraded & Degraded[one.field]) != 0, one.value)
    return met


def _join(hits: npt.NDArray[np.int64], codes: Sequence[str]) -> npt.NDArray[np.object_]:
    """Name the set bits; one text per distinct set, shared by its rows."""
    distinct, which = np.unique(hits, return_inverse=True)
    texts = np.empty(len(distinct), np.object_)
    for position, bits in enumerate(distinct.tolist()):
        named = [code for bit, code in enumerate(codes) if bits >> bit & 1]
        texts[position] = REASON_SEPARATOR.join(named).encode()
    joined: npt.NDArray[np.object_] = texts[which]
    return joined
