"""
Apply purchases to entity values in this process while the store is unavailable.

For one response, a purchase changes a copy of the value as apply.lua changes the value
in the store. Only apply.lua changes the store's own value.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tollgate.features.windows.entity_entries import (
    COLUMN_BYTES,
    ENTRY,
    HEADER,
    LABELLED,
    PURCHASE,
    TILED,
    TILED_VERSION,
    VALUE_VERSION,
    empty_value,
    oldest_stored_us,
)
from tollgate.store.store_events import ARGUMENTS, Call

I64 = npt.NDArray[np.int64]
Entries = npt.NDArray[np.void]

_APPLIED, _TOO_LATE = 1, 3  # status bytes of apply.lua


def apply_purchases(values: Sequence[bytes], call: Call) -> tuple[list[bytes], bytes]:
    """
    Apply a call's purchases to valid values.

    Args:
        values: Per key of the call a packed value, or empty bytes.
        call: The purchases and their keys.

    Returns:
        Values from which rows read the same as from those of apply.lua, and a status
            byte per event, applied or too late. Nothing is folded into tiles. The value
            before the call decides whether an event is too late, even one that it has
            already; any other duplicate counts as applied.
    """
    arguments = np.frombuffer(call.arguments, ARGUMENTS)
    applied: list[bytes] = []
    statuses = []
    at = 0
    for entities in _alike(call, arguments):
        keys = slice(call.first_key[entities.start], call.first_key[entities.stop])
        width = int(arguments["entry_bytes"][keys.start])
        count = sum(len(call.order[entity]) for entity in entities)
        events = np.frombuffer(call.events, _layout(width), count, at)
        at += events.nbytes
        key = np.concatenate(
            [
                call.code[entity][call.order[entity]]
                + (call.first_key[entity] - keys.start)
                for entity in entities
            ]
        )
        some, status = _apply(values[keys], events, key, arguments=arguments[keys])
        applied += some
        statuses.append(status)
    return applied, b"".join(statuses)


def _alike(call: Call, arguments: Entries) -> Iterator[range]:
    """Split a call into runs of entities whose values have the same layout."""
    first = 0
    layouts = arguments[["entry_bytes", "form"]][call.first_key[:-1]].tolist()
    for entity in range(1, len(layouts) + 1):
        if entity == len(layouts) or layouts[entity] != layouts[first]:
            yield range(first, entity)
            first = entity


def _layout(entry_bytes: int) -> np.dtype[np.void]:
    """Return the dtype of an entry with the columns that follow it."""
    if entry_bytes == ENTRY.itemsize:
        return ENTRY
    return np.dtype([*ENTRY.descr, ("columns", f"V{entry_bytes - ENTRY.itemsize}")])


def _apply(
    values: Sequence[bytes], events: Entries, key: I64, *, arguments: Entries
) -> tuple[list[bytes], bytes]:
    """Apply events [N] to values [K] of one layout, given the key of each."""
    tiled = bool(arguments["form"][:1].any())
    heads, middles, stored = _unpacked(values, events.dtype, tiled=tiled)
    counts = heads["count"].astype(np.int64)
    horizon_us = arguments["horizon_us"]
    oldest_us = heads["watermark_us"] - horizon_us
    if not tiled:
        oldest_us = _oldest_stored_us(heads["watermark_us"], horizon_us)
    late = events["time_us"] < oldest_us[key]
    dropped_us = heads["dropped_us"][key]
    gone = events["time_us"] <= dropped_us
    if tiled:
        newest = b"".join([one[: TILED["order"].itemsize] for one in middles])
        order = np.frombuffer(newest, TILED["order"])[key]
        gone &= (events["time_us"] < dropped_us) | (_order(events) <= order)
    late |= (heads["overflow"][key] > 0) & gone
    merged, owner = _merged(
        stored, np.arange(len(values)).repeat(counts), events[~late], key[~late]
    )
    bought = (merged["flags"] & PURCHASE) != 0
    np.maximum.at(heads["watermark_us"], owner[bought], merged["time_us"][bought])
    if not tiled:
        oldest_us = heads["watermark_us"] - horizon_us
        stored_us = _oldest_stored_us(heads["watermark_us"], horizon_us)
        fresh = merged["time_us"] >= stored_us[owner]
        merged, owner = merged[fresh], owner[fresh]
        cap = arguments["cap"]
        merged, owner = _capped(
            merged, owner, heads=heads, cap=cap, oldest_us=oldest_us
        )
    status = np.where(late, _TOO_LATE, _APPLIED).astype(np.uint8).tobytes()
    heads["version"] = TILED_VERSION if tiled else VALUE_VERSION
    return _packed(heads, middles, merged, owner), status


def _oldest_stored_us(watermark_us: I64, horizon_us: I64) -> I64:
    pairs = zip(watermark_us.tolist(), horizon_us.tolist(), strict=True)
    return np.array([oldest_stored_us(*one) for one in pairs], np.int64)


def _order(events: Entries) -> npt.NDArray[np.bytes_]:
    """Return the order key and hash of events; S24 [N]."""
    raw = np.frombuffer(events.tobytes(), np.uint8).reshape(len(events), -1)
    found: npt.NDArray[np.bytes_] = np.ascontiguousarray(raw[:, 8:32]).view("S24")[:, 0]
    return found


def _unpacked(
    values: Sequence[bytes], layout: np.dtype[np.void], *, tiled: bool
) -> tuple[Entries, list[bytes], Entries]:
    """
    Unpack values: headers [K], the bytes between header and entries, all entries.

    The events that are applied to a value with tiles are not folded.
    """
    columns = (layout.itemsize - ENTRY.itemsize) // COLUMN_BYTES
    empty = empty_value(columns, tiled=tiled)
    whole = [value or empty for value in values]
    heads = np.frombuffer(
        bytearray(b"".join([value[: HEADER.itemsize] for value in whole])), HEADER
    )
    bodies = [
        len(value) - count * layout.itemsize
        for value, count in zip(whole, heads["count"].tolist(), strict=True)
    ]
    pairs = list(zip(whole, bodies, strict=True))
    middles = [value[HEADER.itemsize : body] for value, body in pairs]
    return (
        heads,
        middles,
        np.frombuffer(b"".join([value[body:] for value, body in pairs]), layout),
    )


def _merged(
    stored: Entries, stored_key: I64, new: Entries, new_key: I64
) -> tuple[Entries, I64]:
    """Merge entries, each id once per key, in the order of (key, time, id)."""
    # np.concatenate would convert the big-endian fields to the machine's byte order.
    joined = bytearray(stored.tobytes() + new.tobytes())
    entries = np.frombuffer(joined, new.dtype)
    key = np.concatenate([stored_key, new_key])
    by_id = np.lexsort((entries["id_hash"], key))
    again = np.zeros(len(key), np.bool_)
    again[1:] = (np.diff(key[by_id]) == 0) & (
        entries["id_hash"][by_id[1:]] == entries["id_hash"][by_id[:-1]]
    )
    for place in again.nonzero()[0].tolist():
        _join_label(entries, by_id[place - 1], by_id[place])
    single = np.sort(by_id[~again])
    entries, key = entries[single], key[single]
    order = np.lexsort(
        (
            entries["id_hash"],
            entries["order_lo"],
            entries["order_hi"],
            entries["time_us"],
            key,
        )
    )
    return entries[order], key[order]


def _join_label(entries: Entries, first: int, again: int) -> None:
    """
    Merge a purchase into the label that waits for it; ignore any other duplicate.
    """
    waiting = entries[first].copy()
    if not waiting["flags"] & PURCHASE and waiting["flags"] & LABELLED:
        entries[first] = entries[again]
        entries["flags"][first] = waiting["flags"] | PURCHASE
        entries["label_time_us"][first] = waiting["label_time_us"]


def _capped(
    entries: Entries,
    key: I64,
    *,
    heads: Entries,
    cap: npt.NDArray[np.uint32],
    oldest_us: I64,
) -> tuple[Entries, I64]:
    """Drop the oldest entries of each full value; count those within its horizon."""
    counts = np.bincount(key, minlength=len(heads))
    over = np.maximum(counts - cap.astype(np.int64), 0)
    if not over.any():
        return entries, key
    starts = counts.cumsum() - counts
    keep = np.arange(len(key)) >= (starts + over)[key]
    counted = ~keep & (entries["time_us"] >= oldest_us[key])
    dropped = np.bincount(key[counted], minlength=len(heads))
    (full,) = dropped.nonzero()
    heads["overflow"][full] += dropped[full].astype(np.uint32)
    heads["dropped_us"][full] = entries["time_us"][starts[full] + over[full] - 1]
    return entries[keep], key[keep]


def _packed(
    heads: Entries, middles: Sequence[bytes], entries: Entries, key: I64
) -> list[bytes]:
    """Pack values, with their checksums; one per header."""
    counts = np.bincount(key, minlength=len(heads))
    width = entries.dtype.itemsize
    heads["entry_bytes"] = width
    heads["count"] = counts
    heads["checksum"] = 0
    ends = counts.cumsum()
    body = entries.tobytes()
    running = np.zeros(len(entries) + 1, np.uint32)
    _sums(body, width).cumsum(dtype=np.uint32, out=running[1:])
    sums = running[ends] - running[ends - counts]
    sums += np.array([_sums(one, len(one)).sum() for one in middles], np.uint32)
    heads["checksum"] = sums + _sums(heads.tobytes(), HEADER.itemsize)
    head, size = heads.tobytes(), HEADER.itemsize
    edges = [0, *(ends * width).tolist()]
    return [
        head[at * size : (at + 1) * size] + middles[at] + body[start:stop]
        for at, (start, stop) in enumerate(itertools.pairwise(edges))
    ]


def _sums(packed: bytes, width: int) -> npt.NDArray[np.uint32]:
    """Return the sum of the 32-bit words of each record, modulo 2^32."""
    words = np.frombuffer(packed, "<u4").reshape(-1, max(width // 4, 1))
    sums: npt.NDArray[np.uint32] = words.sum(axis=1, dtype=np.uint32)
    return sums
