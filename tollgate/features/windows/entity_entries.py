"""
Check and read an entity's value: a header and its events, ordered by (time, id).

An entry may be followed by columns: int64 each, the values beyond the amount that the
features of its entity are computed from. Rules: docs/contract.md. The only writer of
the layout is tollgate/store/apply.lua; this module checks and reads it.
"""

from __future__ import annotations

import hashlib
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
_KNOWN_FRAUD = PURCHASE | LABELLED | FRAUD
_CENTS_MASK = 2**32 - 1
REVISION_SHIFT = 8

# Order key and hash are big-endian and adjacent: compared as bytes, they sort as
# (order_hi, order_lo, id_hash) do.
_ORDER = np.dtype(
    {"names": ["order"], "formats": ["S24"], "offsets": [8], "itemsize": 48}
)
COLUMN_BYTES = 8
_ENTRY_WORDS = ENTRY.itemsize // COLUMN_BYTES
_HEADER_WORDS = np.arange(HEADER.itemsize // COLUMN_BYTES)

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_NO_COLUMNS = np.empty((0, 0), np.int64)


class PackedOrder:
    """
    Sort keys of events of one instant, which are read from packed values on use.

    Few rows have another event at their instant, so most keys are never read.

    Args:
        packed: Packed values: whole 64-bit words.
        word: First word of each event's entry; int64 [E].
    """

    def __init__(self, packed: bytes, word: I64) -> None:
        places = (len(packed) - HEADER.itemsize) // COLUMN_BYTES + 1 if packed else 0
        # One for each word, although only some of the words begin an entry.
        self._keys: npt.NDArray[np.bytes_] = np.ndarray(
            places, "S24", packed, COLUMN_BYTES if packed else 0, COLUMN_BYTES
        )
        self._word = word

    def __len__(self) -> int:
        return len(self._word)

    def __getitem__(self, at: I64 | slice) -> npt.NDArray[np.bytes_]:
        """Return the keys of some events, by their positions."""
        keys: npt.NDArray[np.bytes_] = self._keys[self._word[at]]
        return keys


class Entries(msgspec.Struct, frozen=True):
    """
    Hold the events of S entities as columns, entity by entity, each in order.

    A label that waits for its purchase is no purchase: no cents, no fraud.

    Attributes:
        starts: First event of each entity, then the end of the last; int64 [S + 1].
        time_us: int64 [E].
        order: Sort keys of events of one instant: an array of any type that compares,
            or PackedOrder; [E].
        purchase: True for events that count; bool or 0 and 1 [E].
        cents: Integers [E].
        fraud: True for fraud, from the time on at which its label is known; bool [E].
        label_time_us: That time; int64 [E], of no meaning where there is no fraud.
        columns: Columns of the entries, in the order of their entity's columns; MISSING
            where an entity has fewer; int64 [K, E].
    """

    starts: I64
    time_us: I64
    order: Any
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
    lengths = list(map(len, values))
    size = np.array(lengths, np.int64)
    if min(lengths, default=HEADER.itemsize) < HEADER.itemsize or np.count_nonzero(
        size % COLUMN_BYTES
    ):
        readable = (size >= HEADER.itemsize) & (size % COLUMN_BYTES == 0)
        corrupt = ~readable & (size > 0)
        return _unpack_others(values, readable, corrupt=corrupt, columns=columns)
    packed = b"".join(values)
    words = np.frombuffer(packed, "<i8")
    head = np.add.accumulate(size)
    head -= size
    head //= COLUMN_BYTES
    headers = words[head[:, None] + _HEADER_WORDS].view(HEADER)[:, 0]
    count = headers["count"].astype(np.int64)
    sound = count * entry_bytes == size - HEADER.itemsize
    sound &= headers.view("<u4")[:: HEADER.itemsize // 4] == _format(entry_bytes)
    sound &= headers["checksum"] == _checksums(packed, head) - headers["checksum"]
    if not np.logical_and.reduce(sound):
        return _unpack_others(values, sound, corrupt=~sound, columns=columns)
    starts = np.zeros(len(values) + 1, np.int64)
    count.cumsum(out=starts[1:])
    return Values(
        entries=_entries(packed, words, head, starts=starts, entry_bytes=entry_bytes),
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


def _checksums(packed: bytes, head: I64) -> npt.NDArray[np.uint32]:
    """Return the sum of each value's 32-bit words, modulo 2^32; head: first words."""
    words = np.frombuffer(packed, "<u4")
    if not len(head):
        return words
    return np.add.reduceat(words, head * (COLUMN_BYTES // 4), dtype=np.uint32)


def _entries(
    packed: bytes, words: I64, head: I64, *, starts: I64, entry_bytes: int | I64
) -> Entries:
    """
    Gather the entries of packed values as columns.

    Args:
        packed: All values, one after the other.
        words: The same as 64-bit words.
        head: First word of each value; int64 [S].
        starts: First event of each value, then the end of the last; int64 [S + 1].
        entry_bytes: Size of each value's entries.
    """
    counts, total = starts[1:] - starts[:-1], int(starts[-1])
    size = entry_bytes // COLUMN_BYTES
    first = head + len(_HEADER_WORDS) - starts[:-1] * size
    if isinstance(size, int):
        at = np.arange(0, total * size, size)
        at += first.repeat(counts)
        columns = _NO_COLUMNS
    else:
        own_size = size.repeat(counts)
        at = np.arange(total) * own_size
        at += first.repeat(counts)
        columns = np.full(
            (int(size.max(initial=_ENTRY_WORDS)) - _ENTRY_WORDS, total), MISSING
        )
        for place, column in enumerate(columns, start=_ENTRY_WORDS):
            (wide,) = (own_size > place).nonzero()
            column[wide] = words[at[wide] + place]
    numbers = words[4:].take(at)  # flags above cents, 32 bits each
    flags = numbers >> 32
    purchase = flags & PURCHASE
    numbers &= _CENTS_MASK
    numbers *= purchase
    flags &= _KNOWN_FRAUD
    fraud = flags == _KNOWN_FRAUD
    (frauds,) = fraud.nonzero()
    label_time_us = np.zeros(total, np.int64)
    label_time_us[frauds] = words[at[frauds] + 5]
    return Entries(
        starts=starts,
        time_us=words.take(at),
        order=PackedOrder(packed, at),
        purchase=purchase,
        cents=numbers,
        fraud=fraud,
        label_time_us=label_time_us,
        columns=columns,
    )


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
_BLAKE2B = hashlib.blake2b(digest_size=8)

U64 = npt.NDArray[np.uint64]


def identify(entries: npt.NDArray[np.void], ids: Sequence[bytes]) -> None:
    """Write order key and hash of ids into entries; ENTRY [N], of N ids."""
    rows = entries.view(np.uint8).reshape(len(ids), ENTRY.itemsize)
    rows[:, 8:24] = _order_bytes(ids)
    rows[:, 24:32] = np.frombuffer(_hash_bytes(ids), np.uint8).reshape(-1, 8)


def order_keys(ids: Sequence[bytes]) -> tuple[U64, U64]:
    """
    Map ids to two numbers that sort as (length, first fifteen bytes).

    Args:
        ids: N ids of at most 255 bytes.

    Returns:
        The high and the low half of the order key; uint64 [N] each.
    """
    halves = _order_bytes(ids).view(">u8").astype(np.uint64)
    return halves[:, 0], halves[:, 1]


def hash_ids(ids: Sequence[bytes]) -> U64:
    """
    Hash ids to 64 bits (BLAKE2b), the identity of an event in an entity value.

    Returns:
        uint64 [N].
    """
    return np.frombuffer(_hash_bytes(ids), ">u8").astype(np.uint64)


def _order_bytes(ids: Sequence[bytes]) -> npt.NDArray[np.uint8]:
    key = np.empty((len(ids), _PREFIX + 1), np.uint8)
    key[:, 0] = np.fromiter(map(len, ids), np.uint8, len(ids))
    key[:, 1:] = np.array(ids, dtype=f"S{_PREFIX}").view(np.uint8).reshape(-1, _PREFIX)
    return key


def _hash_bytes(ids: Sequence[bytes]) -> bytes:
    digests = []
    copy = _BLAKE2B.copy  # faster than a new one with its size
    for one in ids:
        state = copy()
        state.update(one)
        digests.append(state.digest())
    return b"".join(digests)


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
