"""
Check and read an entity's value: a header and its events, ordered by (time, id).

An entry may be followed by columns: int64 each, the values beyond the amount that the
features of its entity are computed from. Rules: docs/contract.md. The only writer of
the layout is tollgate/store/apply.lua; this module checks and reads it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.schema import MISSING as MISSING

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
PURCHASE, LABELLED, FRAUD = 1, 2, 4
REVISION_SHIFT = 8

# Order key and hash are big-endian and adjacent: compared as bytes, they sort as
# (order_hi, order_lo, id_hash) do.
_ORDER = np.dtype(
    {"names": ["order"], "formats": ["S24"], "offsets": [8], "itemsize": 48}
)
COLUMN_BYTES = 8

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_NO_COLUMNS = np.empty((0, 0), np.int64)


class Entries(msgspec.Struct, frozen=True):
    """
    Hold the events of S entities as columns, entity by entity, each in order.

    A label that waits for its purchase is no purchase: no cents, no fraud.

    Attributes:
        starts: First event of each entity, then the end of the last; int64 [S + 1].
        time_us: int64 [E].
        order: Sort key of events of one instant, of any type that compares; [E].
        purchase: True for events that count; bool or 0 and 1 [E].
        cents: Integers [E].
        fraud: True for fraud, from the time on at which its label is known; bool [E].
        label_time_us: That time; int64 [E].
        columns: Columns of the entries, in the order of their entity's columns; MISSING
            where an entity has fewer; int64 [K, E].
    """

    starts: I64
    time_us: I64
    order: npt.NDArray[Any]
    purchase: npt.NDArray[Any]
    cents: npt.NDArray[Any]
    fraud: Bool
    label_time_us: I64
    columns: I64 = _NO_COLUMNS

    def part(self, first: int, last: int) -> Entries:
        """Return the entities [first, last)."""
        starts = self.starts[first : last + 1]
        chosen = slice(int(starts[0]), int(starts[-1]))
        return Entries(
            starts=starts - starts[0],
            time_us=self.time_us[chosen],
            order=self.order[chosen],
            purchase=self.purchase[chosen],
            cents=self.cents[chosen],
            fraud=self.fraud[chosen],
            label_time_us=self.label_time_us[chosen],
            columns=self.columns[:, chosen],
        )


class Values(msgspec.Struct, frozen=True):
    """
    Hold unpacked entity values: entries, and per value the fields of its header; [S].
    """

    entries: Entries
    watermark_us: I64
    overflow: I64
    dropped_us: I64
    corrupt: Bool


def unpack_values(
    values: Sequence[bytes], *, columns: Sequence[int] | I64 | None = None
) -> Values:
    """
    Unpack entity values as the store returned them.

    Args:
        values: S packed values; empty bytes for an entity never seen. A value that is
            damaged (version, length, count or checksum) is marked and left empty.
        columns: Number of columns of each value's entries; int64 [S]. None: no value
            has any.

    Returns:
        Entries, watermarks (µs), overflows, newest dropped (µs) and damage marks.
    """
    entry_bytes: int | I64 = ENTRY.itemsize
    if columns is not None:
        entry_bytes = ENTRY.itemsize + COLUMN_BYTES * np.asarray(columns, np.int64)
    size = np.fromiter(map(len, values), np.int64, len(values))
    # A header is shorter than an entry, so nothing shorter than a header passes.
    framed = size % entry_bytes == HEADER.itemsize % entry_bytes
    if not framed.all():
        corrupt = ~framed & (size > 0)
        return _unpack_others(values, framed, corrupt=corrupt, columns=columns)
    head = b"".join([value[: HEADER.itemsize] for value in values])
    headers = np.frombuffer(head, HEADER)
    count = (size - HEADER.itemsize) // entry_bytes
    sound = np.frombuffer(head, "<u4")[:: HEADER.itemsize // 4] == _format(entry_bytes)
    sound &= headers["count"] == count
    sound &= headers["checksum"] == _checksums(values, size) - headers["checksum"]
    if not sound.all():
        return _unpack_others(values, sound, corrupt=~sound, columns=columns)
    starts = np.zeros(len(values) + 1, np.int64)
    count.cumsum(out=starts[1:])
    body = b"".join([value[HEADER.itemsize :] for value in values])
    if isinstance(entry_bytes, int):
        entries = _columns(starts, np.frombuffer(body, ENTRY))
    else:
        entries = _wide_columns(starts, np.frombuffer(body, "<i8"), entry_bytes)
    return Values(
        entries=entries,
        watermark_us=headers["watermark_us"],
        overflow=headers["overflow"],
        dropped_us=headers["dropped_us"],
        corrupt=np.zeros(len(values), np.bool_),
    )


def _format(entry_bytes: int | I64) -> int | I64:
    """Compute a header's first 32-bit word."""
    return entry_bytes << 8 | VALUE_VERSION


def _empty(columns: int) -> bytes:
    """Pack a value without entries, for a value that does not exist."""
    word = _format(ENTRY.itemsize + COLUMN_BYTES * columns)
    # All other words are 0, so the checksum equals the first one.
    return int(word).to_bytes(4, "little") * 2 + bytes(HEADER.itemsize - 8)


def _unpack_others(
    values: Sequence[bytes],
    readable: Bool,
    *,
    corrupt: Bool,
    columns: Sequence[int] | I64 | None,
) -> Values:
    """Unpack the given values, with empty ones in the place of the others."""
    whole = list(values)
    for at in np.flatnonzero(~readable).tolist():
        whole[at] = _empty(0 if columns is None else int(columns[at]))
    rest = unpack_values(whole, columns=columns)
    return msgspec.structs.replace(rest, corrupt=corrupt | rest.corrupt)


def _checksums(values: Sequence[bytes], size: I64) -> npt.NDArray[np.uint32]:
    """Return the sum of each value's 32-bit words, modulo 2^32."""
    words = np.frombuffer(b"".join(values), "<u4")
    begins = (size.cumsum() - size) // 4
    if not len(begins):
        return words
    return np.add.reduceat(words, begins, dtype=np.uint32)


def _columns(starts: I64, body: npt.NDArray[np.void]) -> Entries:
    # Fields that are read more than once are copied out of the entries first.
    flags, time_us = body["flags"].copy(), body["time_us"].copy()
    purchase = flags & PURCHASE
    known_fraud = PURCHASE | LABELLED | FRAUD
    return Entries(
        starts=starts,
        time_us=time_us,
        order=order_of(body),
        purchase=purchase,
        cents=body["cents"] * purchase,
        fraud=(flags & known_fraud) == known_fraud,
        label_time_us=body["label_time_us"],
    )


def _wide_columns(starts: I64, words: I64, entry_bytes: I64) -> Entries:
    """Separate entries from the columns that follow them, run by run of equal width."""
    counts = starts[1:] - starts[:-1]
    ends = np.flatnonzero(np.diff(entry_bytes)) + 1
    edges = [0, *ends.tolist(), len(entry_bytes)]
    base = np.empty((starts[-1], ENTRY.itemsize // COLUMN_BYTES), np.int64)
    most = (int(entry_bytes.max(initial=0)) - ENTRY.itemsize) // COLUMN_BYTES
    columns = np.full((max(most, 0), starts[-1]), MISSING)
    at = 0
    for first, last in itertools.pairwise(edges):
        if first == last:
            continue
        width = int(entry_bytes[first]) // COLUMN_BYTES
        entries = slice(int(starts[first]), int(starts[last]))
        stop = at + int(counts[first:last].sum()) * width
        run = words[at:stop].reshape(-1, width)
        base[entries] = run[:, : base.shape[1]]
        columns[: width - base.shape[1], entries] = run[:, base.shape[1] :].T
        at = stop
    narrow = _columns(starts, base.reshape(-1).view(ENTRY))
    return msgspec.structs.replace(narrow, columns=columns)


def order_of(entries: npt.NDArray[np.void]) -> npt.NDArray[np.bytes_]:
    """Return the sort key of entries of one instant: ids' order key and hash; S24."""
    order: npt.NDArray[np.bytes_] = entries.view(_ORDER)["order"]
    return order


# Order and hash ids, to distinguish events of the same instant.
#
# Ids are ordered by (length, bytes), so that decimal ids sort as numbers. An entry
# stores that order in sixteen bytes, the length and the first fifteen bytes: exact for
# ids up to fifteen bytes. Longer ids that agree in all of these are ordered by their
# hash, the same way offline and online.

_PREFIX = 15

U64 = npt.NDArray[np.uint64]


def order_keys(ids: Sequence[bytes]) -> tuple[U64, U64]:
    """
    Map ids to two numbers that sort as (length, first fifteen bytes).

    Args:
        ids: N ids of at most 255 bytes.

    Returns:
        The high and the low half of the order key; uint64 [N] each.
    """
    key = np.zeros((len(ids), _PREFIX + 1), np.uint8)
    key[:, 0] = np.fromiter(map(len, ids), np.uint8, len(ids))
    key[:, 1:] = np.array(ids, dtype=f"S{_PREFIX}").view(np.uint8).reshape(-1, _PREFIX)
    halves = key.view(">u8").astype(np.uint64)
    return halves[:, 0], halves[:, 1]


def hash_ids(ids: Sequence[bytes]) -> U64:
    """
    Hash ids to 64 bits (BLAKE2b), the identity of an event in an entity value.

    Returns:
        uint64 [N].
    """
    blake2b = hashlib.blake2b
    packed = b"".join([blake2b(one, digest_size=8).digest() for one in ids])
    return np.frombuffer(packed, ">u8").astype(np.uint64)


def tie_hashes(ids: Sequence[bytes]) -> U64:
    """
    Hash only the ids whose order key does not determine their order.

    Returns:
        uint64 [N]; zero for ids of at most fifteen bytes.
    """
    long = [position for position, one in enumerate(ids) if len(one) > _PREFIX]
    hashes = np.zeros(len(ids), np.uint64)
    if long:
        hashes[long] = hash_ids([ids[position] for position in long])
    return hashes
