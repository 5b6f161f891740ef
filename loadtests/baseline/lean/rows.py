"""Convert the rows of a request to journal records, and decisions to answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loadtests.baseline.service import Answers, BadRows
from tollgate.engine.row_batches import fingerprints
from tollgate.features.spec.feature_spec import FeatureSpec
from tollgate.policy.decide import PolicyDecisions
from tollgate.schema import (
    CONTEXT_VERSION,
    DEFAULT_OUTCOMES,
    MAX_ID_BYTES,
    REASON_SEPARATOR,
    TRANSACTION_ID,
    Degraded,
)
from tollgate.store.store_events import Purchases
from tollgate.store.stored_decisions import read_stored_decisions, verified_fingerprint
from tollgate.validation import conflict

Ids = dict[str, list[bytes]]
Array = npt.NDArray[Any]

_WORDS = DEFAULT_OUTCOMES.words


def context_of(
    ids: Ids,
    purchases: Purchases,
    *,
    spec: FeatureSpec,
    dtype: np.dtype[np.void],
    arrival_us: int,
) -> Array:
    """
    Make the records of a request, with the fields known so far; [N].

    Args:
        ids: Id columns by field.
        purchases: The same rows, as the store takes them.
        dtype: Type of a record, from context_dtype, which is slow.
        arrival_us: CLOCK_MONOTONIC at the start of the request.
    """
    context = np.zeros(len(purchases), dtype)
    context["version"] = CONTEXT_VERSION
    context["spec_hash"] = spec.spec_hash
    context["arrival_us"] = arrival_us
    context["event_time_us"] = purchases.event_time_us
    context["cents"] = purchases.cents
    context["fingerprint"] = fingerprints(
        list(ids.values()),
        cents=purchases.cents,
        time_us=purchases.event_time_us,
        fields={},
    )
    names = ["transaction", *spec.entity_names]
    for name, column in zip(names, ids.values(), strict=True):
        context[f"{name}_id_length"] = list(map(len, column))
        packed = np.array(column, dtype=f"S{MAX_ID_BYTES}")
        context[f"{name}_id"] = packed.view(f"V{MAX_ID_BYTES}")
    return context


def note_earlier(context: Array, earlier: Sequence[bytes], *, ids: Ids) -> None:
    """
    Mark the records of rows that have a stored decision.

    Raises:
        BadRows: A row has the id of another purchase.
    """
    wrong = {}
    for row, value in enumerate(earlier):
        if not value:
            continue
        fingerprint = verified_fingerprint(value)
        if fingerprint is None:
            context["degraded"][row] |= np.uint32(Degraded.LOOKUPS_UNREAD)
        elif fingerprint != context["fingerprint"][row]:
            wrong[row] = conflict(ids[TRANSACTION_ID][row])
        else:
            context["earlier_length"][row] = len(value)
            context["earlier"][row] = value
    if wrong:
        raise BadRows(wrong)


def answers_of(decided: PolicyDecisions, context: Array) -> Answers:
    """Convert decisions to answers; stored decisions are returned unchanged."""
    level, score = decided.decision, decided.score
    codes = decided.reason_codes
    made = np.flatnonzero(context["earlier_length"])
    if len(made):
        earlier = read_stored_decisions(context["earlier"][made])
        level[made], score[made] = earlier.decision, earlier.score
        codes[made] = earlier.reason_codes
    return Answers(
        decision=[_WORDS[one] for one in level.tolist()],
        score=score.tolist(),
        reason_codes=[
            text.decode().split(REASON_SEPARATOR) if text else []
            for text in codes.tolist()
        ],
    )
