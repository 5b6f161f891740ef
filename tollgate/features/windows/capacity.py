"""
Find the events that the store's cap drops, and refuse histories that need them.

The store retains the newest `cap` events of an id (tollgate/store/apply.lua): the event
at one position in the order of (time, id) drops the one `cap` positions before it. A
history drops nothing, so a window that reaches back to a dropped event differs between
offline and online.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tollgate.errors import InputError
from tollgate.features.spec.description import duration_text
from tollgate.features.spec.spec_definition import Entity
from tollgate.features.spec.spec_document import MAX_ENTRIES

I64 = npt.NDArray[np.int64]

NEVER_US = np.iinfo(np.int64).min


def dropped_us(code: I64, time_us: I64, cap: int) -> I64:
    """
    Find the newest event that the store drops when each event arrives.

    Args:
        code: Index of each event's id; events of one id follow each other.
        time_us: Time of each event; ascending for an id.
        cap: Number of events of an id that the store retains.

    Returns:
        Time of the dropped event; NEVER_US where no event is dropped; int64 [N].
    """
    found = np.full(len(code), NEVER_US)
    if len(code) > cap:
        same = code[cap:] == code[:-cap]
        found[cap:][same] = time_us[:-cap][same]
    return found


def require_within_cap(
    entity: Entity,
    code: I64,
    time_us: I64,
    *,
    ids: Sequence[bytes],
    transaction_id: Sequence[bytes],
    rows: I64,
    source: str,
) -> None:
    """
    Refuse a history with a window that needs more events than the store retains.

    Args:
        entity: The entity with its windows.
        code: Index of each event's id; events of one id follow each other.
        time_us: Time of each event; ascending for an id, events of one instant in the
            order of their ids.
        ids: The history's ids of the entity.
        transaction_id: The history's transaction ids.
        rows: Position of each event in the history; [N].
        source: File of the history, for the message.

    Raises:
        InputError: At some event, the store no longer retains a purchase that the
            widest window counts; the message names the first such event in time.
    """
    passed = overflowing(entity, code, time_us)
    if not len(passed):
        return
    first = passed[np.argmin(time_us[passed])]
    reach_us = entity.windows_us[-1] + entity.delay_us
    start, stop = code.searchsorted([code[first], code[first] + 1])
    own = time_us[start:stop]
    # Events that occupy the value: from the window's start to the event.
    held = np.arange(1, len(own) + 1) - own.searchsorted(own - reach_us, "right")
    row = int(rows[first])
    moment = np.datetime64(int(time_us[first]), "us")
    name = ids[row].decode(errors="replace")
    transaction = transaction_id[row].decode(errors="replace")
    too_many = len(np.unique(code[passed]))
    more = f" {too_many:,} ids have too many;" if too_many > 1 else ""
    higher = (
        ""
        if entity.cap == MAX_ENTRIES
        else f", raise its cap (at most {MAX_ENTRIES:,})"
    )
    fit = entity.fit
    why_no_hop = f" and a hop cannot help ({fit.obstacle})" if fit.obstacle else ""
    remedy = f"{fit.remedy} for {entity.name}, " if fit.remedy else ""
    raise InputError(
        source,
        f"{name!r} has {held[first - start]:,} events within {reach_text(entity)} at "
        f"{moment} "
        f"(transaction {transaction!r}), up to {held.max():,} in all;{more} the store "
        f"keeps {entity.cap:,} of an id, so served vectors would differ{why_no_hop}: "
        f"{remedy}shorten the windows of {entity.name}, give it a key with fewer "
        f"events per id{higher}, or leave events out",
        where=entity.key,
    )


def reach_text(entity: Entity) -> str:
    """Describe the time for which the widest window needs an event."""
    text = duration_text(entity.windows_us[-1])
    if entity.delay_us:
        text += f" and a delay of {duration_text(entity.delay_us)}"
    return text


def highest_count(entity: Entity, code: I64, time_us: I64) -> int:
    """
    Return the most events of an id within the widest window and the delay.

    Args:
        entity: The entity with its windows.
        code: Index of each event's id; events of one id follow each other.
        time_us: Time of each event; ascending for an id.
    """
    reach_us = entity.windows_us[-1] + entity.delay_us
    starts = np.flatnonzero(np.diff(code, prepend=-1))
    sizes = np.diff(starts, append=len(code))
    most = 0
    for at in np.argsort(-sizes, kind="stable"):
        if sizes[at] <= most:
            break  # no further id has more events in all
        own = time_us[starts[at] : starts[at] + sizes[at]]
        held = np.arange(1, len(own) + 1) - own.searchsorted(own - reach_us, "right")
        most = max(most, int(held.max()))
    return most


def overflowing(entity: Entity, code: I64, time_us: I64) -> I64:
    """Return the positions of events whose widest window counts a dropped event."""
    begin_us = time_us - entity.windows_us[-1] - entity.delay_us
    passed = np.flatnonzero(dropped_us(code, time_us, entity.cap) > begin_us)
    if not (len(passed) and entity.delay_us):
        return passed  # a window without a delay contains at least its own event
    # The oldest event after the window's start is dropped; is it in the window?
    oldest_us = np.empty(len(passed), np.int64)
    ids, firsts = np.unique(code[passed], return_index=True)
    for one, first, last in zip(ids, firsts, [*firsts[1:], None], strict=True):
        own = time_us[slice(*code.searchsorted([one, one + 1]))]
        among = passed[first:last]
        oldest_us[first:last] = own[own.searchsorted(begin_us[among], "right")]
    return passed[oldest_us <= time_us[passed] - entity.delay_us]
