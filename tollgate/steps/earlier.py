"""Match each row of a batch with its stored decision (idempotency)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tollgate.schema import TRANSACTION_ID, Degraded
from tollgate.steps.batch import Batch, Group
from tollgate.steps.triton import Array
from tollgate.store.decided import verified_fingerprint
from tollgate.store.scored import Scored
from tollgate.validation import conflict

_UNREAD = np.uint32(Degraded.LOOKUPS_UNREAD)


def match_stored_decisions(
    batch: Batch, groups: Sequence[Group], scored: Sequence[Scored], *, context: Array
) -> Counter[str]:
    """
    Note each row's stored decision in its context, or its conflict in the errors.

    Args:
        batch: The batch; conflicts are added to its `errors`.
        groups: Its good rows.
        scored: The results for each group.
        context: Of the batch, with its fingerprints; changed.

    Returns:
        Number of stored decisions by kind: same, conflict, corrupt.
    """
    counts: Counter[str] = Counter()
    ids = batch.ids[TRANSACTION_ID]
    for group, one in zip(groups, scored, strict=True):
        if any(one.lookups.earlier):
            for row, value in zip(
                group.rows.tolist(), one.lookups.earlier, strict=True
            ):
                if value:
                    counts[_match(batch, row, value, context=context)] += 1
        if not group.dry:
            for row in _conflicting_duplicates(group, context["fingerprint"]):
                batch.errors.setdefault(row, conflict(ids[row]))
                counts["conflict"] += 1
    return counts


def _match(batch: Batch, row: int, value: bytes, *, context: Array) -> str:
    fingerprint = verified_fingerprint(value)
    if fingerprint is None:
        context["degraded"][row] |= _UNREAD
        return "corrupt"
    if fingerprint != context["fingerprint"][row]:
        batch.errors.setdefault(row, conflict(batch.ids[TRANSACTION_ID][row]))
        return "conflict"
    context["earlier_length"][row] = len(value)
    context["earlier"][row] = value
    return "same"


def _conflicting_duplicates(group: Group, fingerprints: Array) -> list[int]:
    """List rows that share their id with a row before them but differ in content."""
    ids = group.purchases.transaction_id
    if len(set(ids)) == len(ids):
        return []
    first: dict[bytes, int] = {}
    return [
        row
        for row, one in zip(group.rows.tolist(), ids, strict=True)
        if fingerprints[row] != fingerprints[first.setdefault(one, row)]
    ]
