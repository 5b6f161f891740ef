"""Combine a partial reply of the store with values that this process computes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tollgate.errors import StoreError, StorePartial
from tollgate.features import assemble
from tollgate.features.hook_run import Run
from tollgate.features.spec import FeatureSpec
from tollgate.store.events import Call, Purchases
from tollgate.store.reading import Packed
from tollgate.store.redis import NO_ANSWER, Answer

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


def empty_reply(call: Call) -> tuple[Answer, Bool]:
    """Return an empty reply to a call, with all of its keys marked as lost."""
    keys = len(call.keys)
    events = sum(map(len, call.order))
    return ([b""] * keys, bytes(events)), np.ones(keys, np.bool_)


def reply_of_call(
    answers: list[Answer] | StoreError, position: int, *, call: Call
) -> tuple[Answer, Bool | None]:
    """
    Extract the reply to one call from the store's replies to several, or its error.

    Returns:
        The reply, and which keys it lacks, bool [K]; None when it is complete. A call
        without keys is not made, and lacks nothing.
    """
    if not call.keys:
        return NO_ANSWER, None
    if isinstance(answers, StorePartial):
        lost = np.array(answers.lost[position])
        return answers.answers[position], lost if lost.any() else None
    if isinstance(answers, StoreError):
        return empty_reply(call)
    return answers[position], None


def defaults_of(
    spec: FeatureSpec, packed: Packed, *, run: Run
) -> npt.NDArray[np.float64]:
    """Return the vectors of purchases of unknown entities; float64 [N, F]."""
    purchases = packed.purchases
    return assemble.defaults(
        spec,
        cents=purchases.cents,
        time_us=purchases.event_time_us,
        fields=purchases.fields,
        tables=packed.tables,
        run=run,
    )


def keys_of_rows(call: Call) -> I64:
    """
    Return, per entity and row of the batch, the index of its key; int64 [entities, N].
    """
    return np.stack(
        [
            code + first
            for code, first in zip(call.code, call.first_key[:-1], strict=True)
        ]
    )


def merge_replies(call: Call, answer: Answer, own: Answer, *, lost: Bool) -> Answer:
    """
    Replace the lost parts of the store's reply with our own.

    Args:
        call: The call.
        answer: The store's reply.
        own: Our own reply to the same call.
        lost: Keys for which the store did not reply; bool [K].
    """
    values = [
        mine if is_lost else theirs
        for theirs, mine, is_lost in zip(answer[0], own[0], lost.tolist(), strict=True)
    ]
    # Status bytes are in the order of entities, then keys.
    key = np.concatenate(
        [
            code[order] + first
            for code, order, first in zip(
                call.code, call.order, call.first_key[:-1], strict=True
            )
        ]
    )
    theirs, mine = (np.frombuffer(one[1], np.uint8) for one in (answer, own))
    return values, np.where(lost[key], mine, theirs).tobytes()


def select_rows(purchases: Purchases, chosen: Bool) -> Purchases:
    """Select rows of a batch; bool [N]."""
    places = np.flatnonzero(chosen).tolist()
    if len(places) == len(purchases):
        return purchases
    return Purchases(
        transaction_id=[purchases.transaction_id[at] for at in places],
        entity_id=[[column[at] for at in places] for column in purchases.entity_id],
        event_time_us=purchases.event_time_us[chosen],
        cents=purchases.cents[chosen],
        fields={name: column[chosen] for name, column in purchases.fields.items()},
    )
