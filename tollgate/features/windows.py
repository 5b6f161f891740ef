"""
Window sums as of a moment: the arithmetic that offline and online share.

An entity's value is a header and its events, ordered by (time, id). A window ends
at a row's own event, or `delay` before it; its sums are integers, so their order
does not matter and online equals offline to the last bit. Layout and rules:
docs/contract.md; the one writer of the layout is tollgate/store/apply.lua.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec import Entity

VALUE_VERSION = 1
HEADER = np.dtype(
    [
        ("version", "u1"),
        ("entry_bytes", "u1"),
        ("pad", "<u2"),
        ("checksum", "<u4"),  # sum of all other 32-bit words, the entries' too
        ("overflow", "<u4"),  # entries dropped because the value was full
        ("count", "<u4"),
        ("watermark_us", "<i8"),  # newest purchase applied
        ("dropped_us", "<i8"),  # newest entry dropped because the value was full
    ]
)
ENTRY = np.dtype(
    [
        ("time_us", "<i8"),
        ("order_hi", ">u8"),
        ("order_lo", ">u8"),
        ("id_hash", ">u8"),
        ("cents", "<u4"),
        ("flags", "<u4"),
        ("label_time_us", "<i8"),
    ]
)
_HEADER_WORDS = HEADER.itemsize // 4
PURCHASE, LABELLED, FRAUD = 1, 2, 4
REVISION_SHIFT = 8

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Entries(msgspec.Struct, frozen=True):
    """
    The events of S entities as columns, entity by entity, each in order.

    `starts` [S + 1] holds where each entity's events begin; the rest is [E].
    """

    starts: I64
    time_us: I64
    order_hi: npt.NDArray[np.uint64]
    order_lo: npt.NDArray[np.uint64]
    id_hash: npt.NDArray[np.uint64]
    cents: I64
    purchase: Bool
    fraud: Bool
    label_time_us: I64


class Rows(msgspec.Struct, frozen=True):
    """The moments to read at: entity (index into `starts`), time and id; [N] each."""

    entity: I64
    time_us: I64
    order_hi: npt.NDArray[np.uint64]
    order_lo: npt.NDArray[np.uint64]
    id_hash: npt.NDArray[np.uint64]


class Sums(msgspec.Struct, frozen=True):
    """
    What the windows of one entity hold.

    Attributes:
        count: Purchases; int64 [N, W].
        cents: Their amounts; int64 [N, W].
        fraud: Those known as fraud at the row's time; int64 [N, W].
        upto: Purchases of any age up to the row's own, it included; int64 [N].
    """

    count: I64
    cents: I64
    fraud: I64
    upto: I64


class Values(msgspec.Struct, frozen=True):
    """Entity values, unpacked: entries, and per value what its header says; [S]."""

    entries: Entries
    watermark_us: I64
    overflow: I64
    dropped_us: I64
    corrupt: Bool


def unpack_values(values: Sequence[bytes]) -> Values:
    """
    Unpack entity values as the store returned them.

    Args:
        values: S packed values; empty bytes for an entity never seen. One that is
            damaged (version, length, count or checksum) is marked and left empty.

    Returns:
        Entries, watermarks (µs), overflows, newest dropped (µs) and damage marks.
    """
    sound = [value if _framed(value) else b"" for value in values]
    empty = bytes(HEADER.itemsize)
    headers = np.frombuffer(
        b"".join([value[: HEADER.itemsize] or empty for value in sound]), HEADER
    )
    raw = np.frombuffer(b"".join([value[HEADER.itemsize :] for value in sound]), ENTRY)
    starts = np.zeros(len(values) + 1, np.int64)
    np.cumsum(headers["count"], out=starts[1:])
    corrupt = np.fromiter(map(len, values), np.int64, len(values)) > 0
    corrupt &= np.fromiter(map(len, sound), np.int64, len(values)) == 0
    words = np.zeros(len(raw) + 1, np.uint64)
    np.cumsum(
        raw.view("<u4").reshape(-1, ENTRY.itemsize // 4).sum(axis=1, dtype=np.uint64),
        out=words[1:],
    )
    checksum = words[starts[1:]] - words[starts[:-1]]
    checksum += headers.view("<u4").reshape(-1, _HEADER_WORDS).sum(axis=1, dtype="u8")
    checksum = (checksum - headers["checksum"]) & np.uint64(0xFFFFFFFF)
    damaged = checksum != headers["checksum"]
    if damaged.any():
        kept = [
            b"" if bad else value for bad, value in zip(damaged, sound, strict=True)
        ]
        rest = unpack_values(kept)
        return msgspec.structs.replace(rest, corrupt=corrupt | damaged)
    return Values(
        entries=_columns(starts, raw),
        watermark_us=headers["watermark_us"].astype(np.int64),
        overflow=headers["overflow"].astype(np.int64),
        dropped_us=headers["dropped_us"].astype(np.int64),
        corrupt=corrupt,
    )


def _framed(value: bytes) -> bool:
    """Tell whether a value's version and length are right."""
    head = HEADER.itemsize
    if len(value) < head or value[0] != VALUE_VERSION or value[1] != ENTRY.itemsize:
        return False
    count = int.from_bytes(value[12:16], "little")
    return len(value) == head + count * ENTRY.itemsize


def _columns(starts: I64, raw: npt.NDArray[np.void]) -> Entries:
    flags = raw["flags"]
    return Entries(
        starts=starts,
        time_us=np.ascontiguousarray(raw["time_us"], np.int64),
        order_hi=raw["order_hi"].astype(np.uint64),
        order_lo=raw["order_lo"].astype(np.uint64),
        id_hash=raw["id_hash"].astype(np.uint64),
        cents=raw["cents"].astype(np.int64),
        purchase=(flags & PURCHASE) != 0,
        fraud=(flags & (LABELLED | FRAUD)) == (LABELLED | FRAUD),
        label_time_us=np.ascontiguousarray(raw["label_time_us"], np.int64),
    )


def window_sums(entries: Entries, rows: Rows, *, entity: Entity) -> Sums:
    """
    Sum each row's windows, as of the row's time and id.

    A purchase counts in a window w when t - delay - w < time <= t - delay; without
    a delay, at time t itself only ids up to the row's own count. It counts as fraud
    when its label was known at t.

    Args:
        entries: Events of the entities the rows name.
        rows: Where to read.
        entity: Windows and delay.

    Returns:
        Sums over `entity.windows_us`, in that order.
    """
    keys = _SearchKeys(entries, rows, entity)
    own = _position_of_own(entries, rows, keys)
    end = own if entity.delay_us == 0 else keys.search(entity.delay_us)
    begin = np.stack(
        [keys.search(entity.delay_us + width) for width in entity.windows_us], axis=1
    )
    # A row older than its entity's newest events: its end can lie before its begin
    # only when both are outside of what is kept.
    begin = np.minimum(begin, end[:, None])
    purchases = _running(entries.purchase)
    fraud = entries.fraud & entries.purchase
    frauds = _running(fraud)
    cents = _running(np.where(entries.purchase, entries.cents, 0))
    known = frauds[end][:, None] - frauds[begin]
    return Sums(
        count=purchases[end][:, None] - purchases[begin],
        cents=cents[end][:, None] - cents[begin],
        fraud=known - _not_yet_known(entries, rows, entity, fraud, begin, end),
        upto=purchases[own] - purchases[entries.starts[rows.entity]],
    )


class _SearchKeys:
    """Entity and time in one integer, so that one binary search serves all rows."""

    def __init__(self, entries: Entries, rows: Rows, entity: Entity) -> None:
        reach_us = entity.delay_us + entity.windows_us[-1] + 1
        times = (entries.time_us, rows.time_us)
        low = min((int(time.min()) for time in times if len(time)), default=0)
        low -= reach_us
        high = max((int(time.max()) for time in times if len(time)), default=0) + 1
        span = high - low + 1
        if span * len(entries.starts) >= 2**63:
            raise OverflowError("too many entities over too long a time for one call")
        counts = np.diff(entries.starts)
        segment = np.repeat(np.arange(len(counts), dtype=np.int64), counts)
        self._entries = segment * span + (entries.time_us - low)
        self._rows = rows.entity * span + (rows.time_us - low)

    def search(self, before_us: int, *, after_equal: bool = True) -> I64:
        """Count, per row, the entries at or before its time less `before_us`."""
        side: Literal["left", "right"] = "right" if after_equal else "left"
        found: I64 = np.searchsorted(self._entries, self._rows - before_us, side)
        return found


def _position_of_own(entries: Entries, rows: Rows, keys: _SearchKeys) -> I64:
    """Find, per row, where the events up to its own (time, id) end."""
    low = keys.search(0, after_equal=False)
    high = keys.search(0)
    tied = np.flatnonzero(high > low)
    row, entry = expand(tied, low[tied], high[tied])
    upto = _not_after(entries, entry, rows, row)
    return low + np.bincount(row[upto], minlength=len(low)).astype(np.int64)


def _not_after(entries: Entries, entry: I64, rows: Rows, row: I64) -> Bool:
    """Compare ids: is the entry's at most the row's?"""
    hi, lo = entries.order_hi[entry], entries.order_lo[entry]
    own_hi, own_lo = rows.order_hi[row], rows.order_lo[row]
    by_hash = entries.id_hash[entry] <= rows.id_hash[row]
    same = hi == own_hi
    low_half = (lo < own_lo) | ((lo == own_lo) & by_hash)
    before: Bool = (hi < own_hi) | (same & low_half)
    return before


def _not_yet_known(
    entries: Entries,
    rows: Rows,
    entity: Entity,
    fraud: Bool,
    begin: I64,
    end: I64,
) -> I64:
    """
    Count the frauds of each window whose label came after the row's time.

    Only a label that came later than `delay` after its purchase can be one; there
    are few, so each is held against every row of its entity.
    """
    hidden = np.zeros(begin.shape, np.int64)
    late = fraud & (entries.label_time_us > entries.time_us + entity.delay_us)
    position = np.flatnonzero(late)
    if not len(position):
        return hidden
    bounds = np.searchsorted(position, entries.starts)
    first, last = bounds[rows.entity], bounds[rows.entity + 1]
    row, nth = expand(np.arange(len(first)), first, last)
    event = position[nth]
    unknown = entries.label_time_us[event] > rows.time_us[row]
    row, event = row[unknown], event[unknown]
    inside = (event[:, None] >= begin[row]) & (event < end[row])[:, None]
    np.add.at(hidden, row, inside.astype(np.int64))
    return hidden


def expand(owner: I64, start: I64, stop: I64) -> tuple[I64, I64]:
    """
    List every (owner, position) with start <= position < stop.

    Args:
        owner: What each range belongs to; int64 [R].
        start: First position of each range.
        stop: One past its last.

    Returns:
        Owners and positions, range by range; int64 [sum of lengths] each.
    """
    length = stop - start
    total = int(length.sum())
    offset = np.repeat(np.cumsum(length) - length, length)
    return (
        np.repeat(owner, length),
        np.arange(total) - offset + np.repeat(start, length),
    )


def _running(values: npt.NDArray[np.generic]) -> I64:
    """Sum up to, not including, each position; int64 [E + 1]."""
    total = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=total[1:])
    return total
