"""
Look up numbers from tables for the purchases of a batch, in memory or in its one flush.

A table without `refresh` is read with every batch. A table with `refresh` is read when
the step starts and held in memory; a value that is not there, or was read longer ago
than `refresh`, is read in the same flush as the batch's own call. So a look-up costs no
extra round trip. If the store has no reply, its previous reply stands in.
"""

from __future__ import annotations

import itertools
import struct
import time
import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.features.feature_tables import (
    Slots,
    TableColumns,
    columns_of,
    unpack_slots,
)
from tollgate.features.spec.feature_spec import FeatureSpec, Table
from tollgate.schema import Degraded
from tollgate.store.fallback.last_known import LastKnown
from tollgate.store.redis.connection import Command
from tollgate.store.redis.redis_store import RedisStore
from tollgate.store.store_events import Purchases

# Locate the values of tables, list their ids, and read them at start.

# Most ids of a table that a starting step reads: tables held in memory are small.
MAX_LISTED = 10_000
_CHECKSUM = struct.Struct("<I")
_KEYS_PER_READ = 256


def table_prefix(spec: FeatureSpec, table: Table) -> bytes:
    """
    Return the prefix of the store keys of a table; a colon and the id follow.

    Without an id it is the key of the list of ids.
    """
    name = f"tollgate:{spec.product}:table:{table.name}:{table.layout:016x}"
    return name.encode()


def pack_ids(ids: Sequence[bytes]) -> bytes:
    """Pack a list of ids, with its checksum."""
    body = msgspec.msgpack.encode(list(ids))
    return _CHECKSUM.pack(zlib.crc32(body)) + body


def unpack_ids(value: object) -> list[bytes]:
    """Read a list of ids; empty if the value is none, or damaged."""
    if not isinstance(value, bytes) or len(value) < _CHECKSUM.size:
        return []
    body = value[_CHECKSUM.size :]
    if _CHECKSUM.unpack_from(value)[0] != zlib.crc32(body):
        return []
    try:
        return msgspec.msgpack.decode(body, type=list[bytes])
    except msgspec.MsgspecError:
        return []


def preload(
    spec: FeatureSpec, memory: LastKnown, store: RedisStore, *, until_s: float
) -> int:
    """
    Read tables with `refresh` into memory, as far as they fit.

    Args:
        spec: Declares the tables.
        memory: The cache to fill.
        store: The store to read.
        until_s: Deadline, of time.monotonic; the rest is read when it is needed.

    Returns:
        Number of values that were read.

    Raises:
        StoreError: The store did not reply.
    """
    count = 0
    for table in spec.tables:
        if not table.refresh_us:
            continue
        prefix = table_prefix(spec, table)
        _, (reply,) = store.flush([], extra_commands=[(b"GET", prefix)])
        keys = [prefix + b":" + one for one in unpack_ids(reply)]
        for start in range(0, len(keys), _KEYS_PER_READ):
            if time.monotonic() > until_s:
                return count
            part = keys[start : start + _KEYS_PER_READ]
            _, (values,) = store.flush([], extra_commands=[(b"MGET", *part)])
            loaded = {
                key: value
                for key, value in zip(part, values, strict=True)
                if isinstance(value, bytes)
            }
            memory.put(list(loaded), list(loaded.values()))
            count += len(loaded)
    return count


I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

FOUND = ("memory", "store", "absent", "corrupt", "unread")

_TABLE_MISSING = np.uint32(Degraded.TABLE_MISSING)
_STATE_CORRUPT = np.uint32(Degraded.STATE_CORRUPT)
_UNAVAILABLE = np.uint32(Degraded.STORE_UNAVAILABLE)
_LAST_KNOWN = np.uint32(Degraded.LAST_KNOWN_VECTOR)

_NO_KEYS = np.zeros(0, np.bool_)
_NO_AGES = np.zeros(0, np.int64)
_SPREAD = 0.2  # part of `refresh` by which ids differ: not all are due at once
_MAX_HASH = 2**32


class TableLookup(msgspec.Struct, frozen=True):
    """
    Hold the numbers of the tables for a batch of purchases.

    Attributes:
        columns: (table, column) -> numbers, NaN where there is none; float64 [N].
        degraded: Degraded bits; uint32 [N].
        age_us: Age of the oldest value that stands in for a reply; int64 [N].
    """

    columns: TableColumns
    degraded: npt.NDArray[np.uint32]
    age_us: I64


class TableQuery(msgspec.Struct):
    """
    Hold the ids that some batches need, and their known values.

    Attributes:
        keys: Their store keys, table by table; [K].
        first: First key of each table, then the end of the last; [tables + 1].
        code: Per batch and table, the key that each purchase needs; [N] each.
        time_us: Per batch, the purchases' times; [N].
        values: Packed values; empty for a missing one; [K].
        known: True if some reply of the store is known; bool [K].
        due: Keys to read from the store; indices, ascending.
        unread: True for those without a reply so far; bool [K].
        age_us: Time since the store's last reply; int64 [K].
    """

    keys: list[bytes]
    first: list[int]
    code: list[list[I64]]
    time_us: list[I64]
    values: list[bytes]
    known: Bool
    due: list[int]
    unread: Bool
    age_us: I64

    def commands(self) -> list[Command]:
        """Return the commands to send with the batches' calls: one MGET, or none."""
        if not self.due:
            return []
        return [(b"MGET", *(self.keys[at] for at in self.due))]


class Tables:
    """
    Look up the tables of one product.

    Args:
        spec: Declares the tables.
        memory: Cache of values that were read.
    """

    def __init__(self, spec: FeatureSpec, memory: LastKnown) -> None:
        self.counts: Counter[str] = Counter()
        self.memory = memory
        self._tables = spec.tables
        self._prefix = [table_prefix(spec, table) + b":" for table in spec.tables]

    def plan(self, batches: Sequence[Purchases]) -> TableQuery:
        """Collect the ids that batches need, with their values from memory."""
        if not self._tables:
            return _empty_query([purchases.event_time_us for purchases in batches])
        place: dict[bytes, int] = {}
        first = [0]
        code: list[list[I64]] = [[] for _ in batches]
        for table, prefix in zip(self._tables, self._prefix, strict=True):
            for purchases, own in zip(batches, code, strict=True):
                keys = [prefix + one for one in purchases.entity_id[table.entity]]
                places = [place.setdefault(key, len(place)) for key in keys]
                own.append(np.array(places, np.int64) - first[-1])
            first.append(len(place))
        count = len(place)
        query = TableQuery(
            keys=list(place),
            first=first,
            code=code,
            time_us=[purchases.event_time_us for purchases in batches],
            values=[b""] * count,
            known=np.zeros(count, np.bool_),
            due=[],
            unread=np.ones(count, np.bool_),
            age_us=np.zeros(count, np.int64),
        )
        for table, (start, stop) in zip(
            self._tables, itertools.pairwise(first), strict=True
        ):
            if table.refresh_us:
                self._read_memory(query, range(start, stop))
                limit_us = _limits_us(table, query.keys[start:stop])
                fresh = query.known[start:stop] & (query.age_us[start:stop] <= limit_us)
                query.unread[start:stop] = ~fresh
        query.due = query.unread.nonzero()[0].tolist()
        self.counts["memory"] += count - len(query.due)
        return query

    def take_replies(self, query: TableQuery, replies: Sequence[Any]) -> None:
        """Take the replies to the commands; a value without a reply stays unread."""
        for reply in replies:
            if isinstance(reply, list) and len(reply) == len(query.due):
                self._take_values(query, reply)

    def read(self, query: TableQuery) -> list[TableLookup]:
        """Return the numbers that are known by now, for each batch."""
        if not self._tables:
            return [_no_numbers(len(one)) for one in query.time_us]
        if query.unread.any():
            lost = query.unread & ~query.known
            self._read_memory(query, lost.nonzero()[0].tolist())
        slots = [
            unpack_slots(table, query.values[start:stop])
            for table, (start, stop) in zip(
                self._tables, itertools.pairwise(query.first), strict=True
            )
        ]
        self._count(query, np.concatenate([one.corrupt for one in slots]))
        return [
            self._lookup_of(query, slots, batch) for batch in range(len(query.code))
        ]

    def _read_memory(self, query: TableQuery, places: Sequence[int]) -> None:
        """Read the values of some keys from memory, by their indices."""
        found = self.memory.find([query.keys[at] for at in places])
        query.known[places] = found.known
        query.age_us[places] = found.age_us
        for at, value in zip(places, found.values, strict=True):
            query.values[at] = value

    def _take_values(self, query: TableQuery, reply: Sequence[Any]) -> None:
        keys, values = [], []
        for at, value in zip(query.due, reply, strict=True):
            if isinstance(value, Exception):
                continue
            query.values[at] = value = value or b""
            query.unread[at], query.known[at] = False, True
            query.age_us[at] = 0
            keys.append(query.keys[at])
            values.append(value)
        self.memory.put(keys, values)

    def _count(self, query: TableQuery, corrupt: Bool) -> None:
        there = np.array([bool(value) for value in query.values], np.bool_)
        queried = np.zeros(len(there), np.bool_)
        queried[query.due] = True
        replied = queried & ~query.unread
        for name, places in (
            ("store", replied & there & ~corrupt),
            ("absent", replied & ~there),
            ("corrupt", replied & corrupt),
            ("unread", query.unread),
        ):
            self.counts[name] += int(places.sum())

    def _lookup_of(
        self, query: TableQuery, slots: Sequence[Slots], batch: int
    ) -> TableLookup:
        own = query.code[batch]
        time_us = query.time_us[batch]
        degraded = np.zeros(len(time_us), np.uint32)
        age_us = np.zeros(len(time_us), np.int64)
        columns: dict[tuple[str, str], npt.NDArray[np.float64]] = {}
        for table, some, code, start in zip(
            self._tables, slots, own, query.first[:-1], strict=True
        ):
            numbers = some.as_of(table, code, time_us)
            columns |= columns_of(table, numbers)
            unread, known = query.unread[code + start], query.known[code + start]
            corrupt = some.corrupt[code]
            lacking = np.isnan(numbers).any(axis=1) & (known | ~unread)
            degraded |= lacking * _TABLE_MISSING | corrupt * _STATE_CORRUPT
            degraded |= (unread & known) * _LAST_KNOWN
            degraded |= (unread & ~known) * _UNAVAILABLE
            stand_in = np.where(unread & known, query.age_us[code + start], 0)
            np.maximum(age_us, stand_in, out=age_us)
        return TableLookup(columns=columns, degraded=degraded, age_us=age_us)


def _limits_us(table: Table, keys: Sequence[bytes]) -> npt.NDArray[np.float64]:
    """Return the age at which values are read from the store again; [K]."""
    part = np.fromiter(map(zlib.crc32, keys), np.float64, len(keys))
    limits: npt.NDArray[np.float64] = table.refresh_us * (
        1 - part * (_SPREAD / _MAX_HASH)
    )
    return limits


def _empty_query(time_us: list[I64]) -> TableQuery:
    return TableQuery(
        keys=[],
        first=[0],
        code=[[] for _ in time_us],
        time_us=time_us,
        values=[],
        known=_NO_KEYS,
        due=[],
        unread=_NO_KEYS,
        age_us=_NO_AGES,
    )


def _no_numbers(rows: int) -> TableLookup:
    return TableLookup(
        columns={},
        degraded=np.zeros(rows, np.uint32),
        age_us=np.zeros(rows, np.int64),
    )
