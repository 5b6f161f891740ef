"""
Check and read an entity's value: a header and its events, ordered by (time, id).

An entry may be followed by columns: int64 each, the values beyond the amount that the
features of its entity are computed from. Rules: docs/contract.md. The only writer of
the layout is tollgate/store/apply.lua; this module checks and reads it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.features.spec.tile_form import (
    NEWEST_BYTES,
    PREFIX_BYTES,
    REGISTERS,
    SKETCH_BYTES,
    FieldKind,
    TileField,
    TileForm,
)
from tollgate.schema import MISSING as MISSING

VALUE_VERSION, TILED_VERSION = 1, 2
HEADER = np.dtype(
    [
        ("version", "u1"),
        ("entry_bytes", "u1"),
        ("pad", "<u2"),
        ("checksum", "<u4"),  # sum of all other 32-bit words, the entries' too
        ("overflow", "<u4"),  # entries dropped, or folded, because the value was full
        ("count", "<u4"),
        ("watermark_us", "<i8"),  # newest purchase applied
        ("dropped_us", "<i8"),  # newest entry dropped, or folded
    ]
)
# A value with tiles: what follows its header, before the newest folded values.
TILED = np.dtype(
    [
        ("order", "S24"),  # order key and hash of the newest folded purchase
        ("base", "<i8"),  # index from which those of the tiles count
        ("tiles", "<u4"),
        ("labels", "<u4"),
        ("label_us", "<i8"),  # newest label that left the labels: its time
        ("label_hash", ">u8"),
        ("aged_us", "<i8"),  # watermark up to which tiles were merged
        ("first_us", "<i8"),  # the first purchase that was folded
        ("first_order", "S24"),
        ("loaded_us", "<i8"),  # the newest before it that a history added
        ("loaded_order", "S24"),
    ]
)
NEWEST = np.dtype([("value", "<i8"), ("time_us", "<i8")])
LABEL = np.dtype(
    [
        ("time_us", "<i8"),
        ("id_hash", ">u8"),
        ("label_time_us", "<i8"),
        ("flags", "<u4"),
        ("pad", "<u4"),
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
        self.word = word

    def __len__(self) -> int:
        return len(self.word)

    def __getitem__(self, at: I64 | slice) -> npt.NDArray[np.bytes_]:
        """Return the keys of some events, by their positions."""
        keys: npt.NDArray[np.bytes_] = self._keys[self.word[at]]
        return keys


class Tiles(msgspec.Struct, frozen=True):
    """
    Hold the numbers of tiles, at their positions among E tiles and events.

    Attributes:
        there: True for a tile, False for an event; bool [E].
        flagged: Frauds; int64 [E], 0 for an event.
        numbers: Other numbers of the tiles, per kind and column (-1 for the amount);
            int64 [E], of no effect for an event.
        wide: Numbers of 128 bits, as four words of 32 bits, the lowest first; the last
            has the sign; int64 [4, E], 0 for an event.
        newest: Per column (-1 for the amount), the newest folded value at the tile that
            contains it, MISSING elsewhere; int64 [E].
        sketches: Per column, the ranks of the tiles' registers
            (tollgate/features/windows/distinct_values.py); uint8 [E, 128], 0 for an
            event.
    """

    there: Bool
    flagged: I64
    numbers: Mapping[tuple[FieldKind, int], I64]
    wide: Mapping[tuple[FieldKind, int], I64]
    newest: Mapping[int, I64]
    sketches: Mapping[int, npt.NDArray[np.uint8]] = MappingProxyType({})

    def part(self, chosen: slice) -> Tiles:
        """Return the tiles at some of the positions."""
        return Tiles(
            there=self.there[chosen],
            flagged=self.flagged[chosen],
            numbers={name: one[chosen] for name, one in self.numbers.items()},
            wide={name: one[:, chosen] for name, one in self.wide.items()},
            newest={column: one[chosen] for column, one in self.newest.items()},
            sketches={column: one[chosen] for column, one in self.sketches.items()},
        )


class Entries(msgspec.Struct, frozen=True):
    """
    Hold the events of S entities as columns, entity by entity, each in order.

    A label that waits for its purchase is no purchase: no cents, no fraud. A tile comes
    before the events of its entity, with the number of its purchases and the sum of
    their cents.

    Attributes:
        starts: First event of each entity, then the end of the last; int64 [S + 1].
        time_us: int64 [E].
        order: Sort keys of events of one instant: an array of any type that compares,
            or PackedOrder; [E].
        purchase: Number of purchases, mostly 1; bool or integers [E].
        cents: Integers [E].
        fraud_at: Position of each fraud whose label is known, ascending; int64 [F].
        fraud_known_us: Time from which on it is known; int64 [F].
        columns: Columns of the entries, in the order of their entity's columns; MISSING
            where an entity has fewer; int64 [K, E].
        tiles: The numbers of the tiles; None without any.
    """

    starts: I64
    time_us: I64
    order: Any
    purchase: npt.NDArray[Any]
    cents: npt.NDArray[Any]
    fraud_at: I64
    fraud_known_us: I64
    columns: I64 = _NO_COLUMNS
    tiles: Tiles | None = None

    def part(self, first: int, last: int) -> Entries:
        """Return the entities [first, last)."""
        starts = self.starts[first : last + 1]
        chosen = slice(int(starts[0]), int(starts[-1]))
        frauds = slice(*self.fraud_at.searchsorted([chosen.start, chosen.stop]))
        return Entries(
            starts=starts - starts[0],
            time_us=self.time_us[chosen],
            order=self.order[chosen],
            purchase=self.purchase[chosen],
            cents=self.cents[chosen],
            fraud_at=self.fraud_at[frauds] - chosen.start,
            fraud_known_us=self.fraud_known_us[frauds],
            columns=self.columns[:, chosen],
            tiles=self.tiles.part(chosen) if self.tiles else None,
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
    label_us: I64 | None = None  # time of the newest label that left the labels
    tiled: Bool | None = None  # True for values with tiles


class TiledValues(msgspec.Struct, frozen=True):
    """Name the values [first, last) that have tiles of one form."""

    first: int
    last: int
    form: TileForm
    columns: int
    horizon_us: int

    @property
    def prefix_bytes(self) -> int:
        """Return the size of what precedes the tiles."""
        return PREFIX_BYTES + NEWEST_BYTES * (1 + self.columns)


def tiled_values(spec: FeatureSpec, first_key: Sequence[int]) -> list[TiledValues]:
    """Name the values with tiles among those of a spec, by the first of each entity."""
    return [
        TiledValues(
            first=first,
            last=last,
            form=entity.tiles,
            columns=len(entity.columns),
            horizon_us=entity.horizon_us,
        )
        for entity, (first, last) in zip(
            spec.entities, itertools.pairwise(first_key), strict=True
        )
        if entity.tiles
    ]


def unpack_values(
    values: Sequence[bytes],
    *,
    columns: Sequence[int] | I64 | None = None,
    tiled: Sequence[TiledValues] = (),
) -> Values:
    """
    Unpack entity values as the store returned them.

    Args:
        values: S packed values; empty bytes for an entity never seen. A value that is
            damaged (version, length, count or checksum) is marked and left empty.
        columns: Number of columns of each value's entries; int64 [S]. None: no value
            has any.
        tiled: The values that have tiles; ascending.

    Returns:
        Entries, watermarks (µs), overflows, newest dropped (µs) and damage marks.
    """
    entry_bytes: int | I64 = ENTRY.itemsize
    if columns is not None:
        entry_bytes = ENTRY.itemsize + COLUMN_BYTES * np.asarray(columns, np.int64)
    lengths = list(map(len, values))
    size = np.array(lengths, np.int64)
    least: int | I64 = HEADER.itemsize
    if tiled:
        least = np.full(len(values), HEADER.itemsize)
        for one in tiled:
            least[one.first : one.last] = one.prefix_bytes
    if np.logical_or.reduce(size < least) or np.count_nonzero(size % COLUMN_BYTES):
        readable = (size >= least) & (size % COLUMN_BYTES == 0)
        corrupt = ~readable & (size > 0)
        return _unpack_others(
            values, readable, corrupt=corrupt, columns=columns, tiled=tiled
        )
    packed = b"".join(values)
    words = np.frombuffer(packed, "<i8")
    head = np.add.accumulate(size)
    head -= size
    head //= COLUMN_BYTES
    headers = words[head[:, None] + _HEADER_WORDS].view(HEADER)[:, 0]
    count = headers["count"].astype(np.int64)
    form = _format(entry_bytes)
    blocks: list[_Block] = []
    before: int | I64 = HEADER.itemsize  # bytes before the entries
    if tiled:
        form = np.broadcast_to(form, len(values)).copy()
        before = np.full(len(values), HEADER.itemsize)
        for one in tiled:
            block = _Block(one, packed, head)
            form[one.first : one.last] += TILED_VERSION - VALUE_VERSION
            before[one.first : one.last] = block.bytes
            blocks.append(block)
    sound = count * entry_bytes == size - before
    sound &= headers.view("<u4")[:: HEADER.itemsize // 4] == form
    sound &= headers["checksum"] == _checksums(packed, head) - headers["checksum"]
    if not np.logical_and.reduce(sound):
        return _unpack_others(
            values, sound, corrupt=~sound, columns=columns, tiled=tiled
        )
    starts = np.zeros(len(values) + 1, np.int64)
    count.cumsum(out=starts[1:])
    folded = any(block.tiles.any() for block in blocks)
    if folded:
        packed += bytes(ENTRY.itemsize)  # the order key of a tile: before all others
        words = np.frombuffer(packed, "<i8")
    entries = _entries(
        packed,
        words,
        head + before // COLUMN_BYTES,
        starts=starts,
        entry_bytes=entry_bytes,
    )
    label_us: I64 | None = None
    has_tiles: Bool | None = None
    if blocks:
        has_tiles = np.asarray(form != _format(entry_bytes))
        label_us = np.full(len(values), _NEVER_US)
        for block in blocks:
            label_us[block.of.first : block.of.last] = block.heads["label_us"]
        if folded:
            entries = _with_tiles(entries, blocks, headers, packed)
    return Values(
        entries=entries,
        watermark_us=headers["watermark_us"],
        overflow=headers["overflow"],
        dropped_us=headers["dropped_us"],
        corrupt=np.zeros(len(values), np.bool_),
        label_us=label_us,
        tiled=has_tiles,
    )


_NEVER_US = np.iinfo(np.int64).min


def _format(entry_bytes: int | I64) -> int | I64:
    """Compute the first 32-bit word of a value without tiles."""
    return entry_bytes << 8 | VALUE_VERSION


Times = TypeVar("Times", int, I64)


def oldest_stored_us(watermark_us: Times, horizon_us: int) -> Times:
    """
    Return the time before which a value without tiles holds no event, µs.

    It is watermark - horizon, rounded down to a multiple of a power of two, the largest
    that is at most an eighth of the horizon. So several entries leave at once, and most
    purchases remove none.
    """
    width_us = 1 << max((horizon_us // 8).bit_length() - 1, 0)
    return (watermark_us - horizon_us) // width_us * width_us


def empty_value(columns: int, *, tiled: bool = False) -> bytes:
    """Pack a value without entries, for a value that does not exist."""
    word = _format(ENTRY.itemsize + COLUMN_BYTES * columns)
    if not tiled:
        # All other words are 0, so the checksum equals the first one.
        return int(word).to_bytes(4, "little") * 2 + bytes(HEADER.itemsize - 8)
    more = np.zeros(1, TILED)
    for name in ("label_us", "first_us", "loaded_us"):
        more[name] = _NEVER_US
    newest = np.zeros(1 + columns, NEWEST)
    newest["value"] = MISSING
    whole = int(word + TILED_VERSION - VALUE_VERSION).to_bytes(4, "little")
    whole += bytes(HEADER.itemsize - 4) + more.tobytes() + newest.tobytes()
    checksum = int(np.frombuffer(whole, "<u4").sum(dtype=np.uint32))
    return whole[:4] + checksum.to_bytes(4, "little") + whole[8:]


class _Block:
    """Find the tiles and the labels of values of one form."""

    def __init__(self, of: TiledValues, packed: bytes, head: I64) -> None:
        self.of = of
        self._byte = head[of.first : of.last] * COLUMN_BYTES
        self._packed = packed
        self.heads = self._records(self._byte + HEADER.itemsize, TILED)
        # A damaged value may have any number here; its checksum is verified later.
        most = len(packed) // COLUMN_BYTES
        self.tiles = np.minimum(self.heads["tiles"].astype(np.int64), most)
        self._labels = np.minimum(self.heads["labels"].astype(np.int64), most)
        size = self.tiles * of.form.record_bytes
        size += -size % COLUMN_BYTES
        self._label_byte = self._byte + of.prefix_bytes + size
        self.bytes = of.prefix_bytes + size + self._labels * LABEL.itemsize

    def _records(self, byte: I64, layout: np.dtype[np.void]) -> npt.NDArray[np.void]:
        """Read a record at each of some bytes; values have whole words of 8 bytes."""
        words = np.arange(layout.itemsize // COLUMN_BYTES)
        at = byte[:, None] // COLUMN_BYTES + words
        every = np.frombuffer(self._packed, "<i8")
        return every.take(at, mode="clip").view(layout)[:, 0]

    def read(
        self, starts: I64, headers: npt.NDArray[np.void]
    ) -> tuple[I64, npt.NDArray[np.uint32], _TileSearch]:
        """
        Read the tiles, given the first position of each value.

        Returns:
            Position and 32-bit words of each tile, and a search among them.
        """
        of, counts = self.of, self.tiles
        owner = np.arange(len(counts)).repeat(counts)
        within = np.arange(len(owner)) - (counts.cumsum() - counts)[owner]
        byte = self._byte[owner] + of.prefix_bytes + within * of.form.record_bytes
        at = byte[:, None] // 4 + np.arange(of.form.record_bytes // 4)
        records = np.frombuffer(self._packed, "<u4")[at]
        position = starts[of.first : of.last][owner] + within
        search = _TileSearch(
            owner=owner,
            index=records[:, 0].astype(np.int64),
            position=position,
            base=self.heads["base"],
            oldest_us=headers["watermark_us"][of.first : of.last] - of.horizon_us,
            width_us=of.form.width_us,
        )
        return position, records, search

    def labels(self) -> tuple[I64, npt.NDArray[np.void]]:
        """Read the labels of folded purchases, each with the number of its value."""
        counts = self._labels
        owner = np.arange(len(counts)).repeat(counts)
        within = np.arange(len(owner)) - (counts.cumsum() - counts)[owner]
        byte = self._label_byte[owner] + within * LABEL.itemsize
        return owner, self._records(byte, LABEL)

    def newest(self, column: int) -> npt.NDArray[np.void]:
        """Read the newest folded value of a column of each value; NEWEST [S]."""
        byte = self._byte + PREFIX_BYTES + NEWEST_BYTES * (1 + column)
        return self._records(byte, NEWEST)


class _TileSearch(msgspec.Struct, frozen=True):
    """Search tiles by time: the value, index and position of each, ascending."""

    owner: I64
    index: I64
    position: I64
    base: I64
    oldest_us: I64
    width_us: int

    def find(self, owner: I64, time_us: I64) -> I64:
        """
        Find the tile of a value that contains a time.

        Returns:
            Its position; -1 where the tile has left every window; int64 [N].
        """
        index = -(-time_us // self.width_us) - self.base[owner]
        wanted = owner << 33 | np.clip(index, 0, 2**32)
        place = (self.owner << 33 | self.index).searchsorted(wanted)
        there = place < len(self.owner)
        place[~there] = 0
        if len(self.owner):
            there &= self.owner[place] == owner
            there &= time_us > self.oldest_us[owner]
            place = self.position[place]
        return np.where(there, place, -1)


_NEUTRAL = {
    FieldKind.FLAGGED: 0,
    FieldKind.KNOWN: 0,
    FieldKind.SUM: 0,
    FieldKind.MIN: np.iinfo(np.int64).max,
    FieldKind.MAX: np.iinfo(np.int64).min,
}


def _with_tiles(
    entries: Entries,
    blocks: Sequence[_Block],
    headers: npt.NDArray[np.void],
    packed: bytes,
) -> Entries:
    """Insert the tiles of values before their events."""
    counts = entries.starts[1:] - entries.starts[:-1]
    tiles = np.zeros(len(counts), np.int64)
    for block in blocks:
        tiles[block.of.first : block.of.last] = block.tiles
    starts = entries.starts.copy()
    starts[1:] += tiles.cumsum()
    total = int(starts[-1])
    at = np.arange(len(entries.time_us)) + tiles.cumsum().repeat(counts)

    def spread(values: npt.NDArray[Any], fill: int = 0) -> I64:
        whole = np.full(total, fill)
        whole[at] = values
        return whole

    time_us = spread(entries.time_us)
    purchase, cents = spread(entries.purchase), spread(entries.cents)
    columns = np.full((len(entries.columns), total), MISSING)
    if len(columns):
        columns[:, at] = entries.columns
    # The order key of a tile is the end of `packed`: zeros, before all others.
    zeros = (len(packed) - ENTRY.itemsize) // COLUMN_BYTES
    order = PackedOrder(packed, spread(entries.order.word, zeros))
    there = np.ones(total, np.bool_)
    there[at] = False
    flagged = np.zeros(total, np.int64)
    numbers: dict[tuple[FieldKind, int], I64] = {}
    wide: dict[tuple[FieldKind, int], I64] = {}
    newest: dict[int, I64] = {}
    sketches: dict[int, npt.NDArray[np.uint8]] = {}
    fraud_at, known_us = [at[entries.fraud_at]], [entries.fraud_known_us]
    for block in blocks:
        of = block.of
        position, records, search = block.read(starts, headers)
        end_us = (search.base[search.owner] + search.index) * search.width_us
        folded_us = headers["dropped_us"][of.first : of.last]
        time_us[position] = np.minimum(end_us, folded_us[search.owner])
        purchase[position] = records[:, 1]
        for field in of.form.fields:
            name = (field.kind, field.column)
            if field.kind == FieldKind.SKETCH:
                ranks = np.zeros((total, REGISTERS), np.uint8)
                ranks = sketches.setdefault(field.column, ranks)
                ranks[position] = _tile_ranks(records, field)
                continue
            if field.kind.size_bytes > COLUMN_BYTES:
                words = wide.setdefault(name, np.zeros((4, total), np.int64))
                words[:, position] = _tile_words(records, field)
                continue
            number = _tile_number(records, field)
            if field.kind == FieldKind.FLAGGED:
                flagged[position] = number
            elif field.kind == FieldKind.SUM and field.column < 0:
                cents[position] = number
            else:
                fill = _NEUTRAL[field.kind]
                numbers.setdefault(name, np.full(total, fill))[position] = number
        for column in range(-1, of.columns):
            one = block.newest(column)
            (known,) = (one["value"] != MISSING).nonzero()
            place = search.find(known, one["time_us"][known])
            whole = newest.setdefault(column, np.full(total, MISSING))
            whole[place[place >= 0]] = one["value"][known[place >= 0]]
        owner, labels = block.labels()
        (frauds,) = ((labels["flags"] & FRAUD) != 0).nonzero()
        place = search.find(owner[frauds], labels["time_us"][frauds])
        fraud_at.append(place[place >= 0])
        known_us.append(labels["label_time_us"][frauds[place >= 0]])
    found, known_from = np.concatenate(fraud_at), np.concatenate(known_us)
    ascending = found.argsort(kind="stable")
    return Entries(
        starts=starts,
        time_us=time_us,
        order=order,
        purchase=purchase,
        cents=cents,
        fraud_at=found[ascending],
        fraud_known_us=known_from[ascending],
        columns=columns,
        tiles=Tiles(
            there=there,
            flagged=flagged,
            numbers=numbers,
            wide=wide,
            newest=newest,
            sketches=sketches,
        ),
    )


def _tile_number(records: npt.NDArray[np.uint32], field: TileField) -> I64:
    """Read a number of each tile; int64 [T]."""
    word = field.offset // 4
    low = records[:, word].astype(np.int64)
    if field.kind in (FieldKind.FLAGGED, FieldKind.KNOWN):
        return low
    return records[:, word + 1].view(np.int32).astype(np.int64) << 32 | low


def _tile_words(records: npt.NDArray[np.uint32], field: TileField) -> I64:
    """Read a number of 128 bits of each tile as four words; int64 [4, T]."""
    first = field.offset // 4
    words = records[:, first : first + 4].T.astype(np.int64)
    words[3] = records[:, first + 3].view(np.int32)
    return words


def _tile_ranks(
    records: npt.NDArray[np.uint32], field: TileField
) -> npt.NDArray[np.uint8]:
    """Read the ranks of the registers of each tile; uint8 [T, 128]."""
    first = field.offset // 4
    words = np.ascontiguousarray(records[:, first : first + SKETCH_BYTES // 4])
    packed = words.view(np.uint8)
    ranks = np.empty((len(packed), REGISTERS), np.uint8)
    ranks[:, ::2], ranks[:, 1::2] = packed & 0xF, packed >> 4
    return ranks


def _unpack_others(
    values: Sequence[bytes],
    readable: Bool,
    *,
    corrupt: Bool,
    columns: Sequence[int] | I64 | None,
    tiled: Sequence[TiledValues],
) -> Values:
    """Unpack the given values, with empty ones in the place of the others."""
    whole = list(values)
    for at in np.flatnonzero(~readable).tolist():
        whole[at] = empty_value(
            0 if columns is None else int(columns[at]),
            tiled=any(one.first <= at < one.last for one in tiled),
        )
    rest = unpack_values(whole, columns=columns, tiled=tiled)
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
        head: First word of each value's entries; int64 [S].
        starts: First event of each value, then the end of the last; int64 [S + 1].
        entry_bytes: Size of each value's entries.
    """
    counts, total = starts[1:] - starts[:-1], int(starts[-1])
    size = entry_bytes // COLUMN_BYTES
    first = head - starts[:-1] * size
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
    (frauds,) = (flags == _KNOWN_FRAUD).nonzero()
    return Entries(
        starts=starts,
        time_us=words.take(at),
        order=PackedOrder(packed, at),
        purchase=purchase,
        cents=numbers,
        fraud_at=frauds,
        fraud_known_us=words[at[frauds] + 5],
        columns=columns,
    )


def running(values: npt.NDArray[np.generic]) -> I64:
    """
    Add up values of entries: a window's sum is the difference between its ends.

    Returns:
        The sum of the values before each position, modulo 2^64; int64 [E + 1].
    """
    sums = np.zeros(len(values) + 1, np.int64)
    np.add.accumulate(values, dtype=np.int64, out=sums[1:])
    return sums


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
