"""
Look up what a batch needs besides its windows, in the flush that reads them.

* feeds: the watermarks of the product's feeds, once a second;
* tables: numbers by entity id, from memory or from the store;
* lists, stored decisions and prepared candidates, for each row.

All commands travel in the flush that the windows need anyway, so a look-up costs no
extra round trip.
"""

from __future__ import annotations

import itertools
import struct
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from tollgate.errors import InputError
from tollgate.features.feature_tables import (
    Slots,
    TableColumns,
    columns_of,
    unpack_slots,
)
from tollgate.features.spec.feature_spec import FeatureSpec, Table
from tollgate.ranking.prepared import prepared_key
from tollgate.schema import LISTS_PARAMETER, MAX_BATCH_ROWS, TRANSACTION_ID, Degraded
from tollgate.store.fallback.last_known import LastKnown
from tollgate.store.id_lists import LookupList
from tollgate.store.redis.redis_store import Command, RedisStore
from tollgate.store.store_events import Purchases
from tollgate.store.stored_decisions import stored_decision_key

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

# Watermarks of feeds.
#
# A feed delivers events: `purchases` (from the scoring call itself, or from a stream)
# and `labels`. Its watermark is the newest event time that its writer has applied, so
# the age of the watermark is the age of the events that the windows may lack. The
# writer of a feed that has caught up advances the watermark although no event came. A
# stream delivers events by partitions, each with its own watermark
# (tollgate/stream/consumer.py): the watermark of the feed is the lowest of them.

PURCHASES, LABELS = "purchases", "labels"
FEEDS = (PURCHASES, LABELS)

# Newest event time applied, and the writer's clock at that moment; µs.
_WATERMARK = struct.Struct("<qq")


def feed_key(product: str, feed: str) -> bytes:
    """Return the store key of a feed's watermark."""
    return f"tollgate:{product}:feed:{feed}".encode()


def partition_key(product: str, feed: str, *, source: str, partition: int) -> bytes:
    """Return the store key of the watermark of one partition of a feed."""
    return feed_key(product, feed) + f":{source}:{partition}".encode()


def pack_watermark(event_time_us: int, *, now_us: int) -> bytes:
    """Pack a watermark; one that is ahead of the clock is set back to the clock."""
    return _WATERMARK.pack(min(event_time_us, now_us), now_us)


def unpack_watermark(value: object) -> int | None:
    """Read the event time of a watermark, µs; None if the value is not a watermark."""
    if not isinstance(value, bytes) or len(value) != _WATERMARK.size:
        return None
    return int(_WATERMARK.unpack(value)[0])


class Feeds:
    """
    Track the watermarks of a product's feeds for one caller of the store.

    The watermarks are sent with a call once per interval, not with every one: they are
    compared with limits of minutes.

    Args:
        product: The product.
        max_age_us: Feed -> largest age of its watermark; a feed that is not named is
            read, and is never stale.
        interval_us: Interval between reads and between writes.
        marks: True if this caller writes the purchases' watermark.
    """

    def __init__(
        self,
        product: str,
        max_age_us: Mapping[str, int],
        *,
        interval_us: int,
        marks: bool = True,
    ) -> None:
        self._names = tuple(dict.fromkeys((*FEEDS, *max_age_us)))
        self._keys = [feed_key(product, name) for name in self._names]
        self._purchases_key = feed_key(product, PURCHASES)
        self._max_age_us = dict(max_age_us)
        self._interval_us = interval_us
        self._marks = marks
        self._read_due_us = 0
        self._write_due_us = 0
        self._applied_us = 0  # newest purchase this caller has written
        self.watermark_us: dict[str, int] = {}

    def commands(self, now_us: int, *, newest_us: int | None) -> list[Command]:
        """
        Return the commands to send with the next call; mostly none.

        Args:
            now_us: The clock.
            newest_us: Newest purchase that the call writes; None when it writes none.
        """
        if not self._marks:
            newest_us = None
        if newest_us is not None and newest_us > self._applied_us:
            self._applied_us = newest_us
        commands: list[Command] = []
        if newest_us is not None and now_us >= self._write_due_us:
            self._write_due_us = now_us + self._interval_us
            value = pack_watermark(self._applied_us, now_us=now_us)
            commands.append((b"SET", self._purchases_key, value))
        if commands or now_us >= self._read_due_us:
            self._read_due_us = now_us + self._interval_us
            commands.append((b"MGET", *self._keys))
        return commands

    def note(self, replies: list[Any]) -> None:
        """Take the store's replies to these commands; an error changes nothing."""
        if not replies or not isinstance(replies[-1], list):
            return
        for name, value in zip(self._names, replies[-1], strict=True):
            watermark_us = unpack_watermark(value)
            if watermark_us is not None:
                self.watermark_us[name] = watermark_us

    def retry(self) -> None:
        """Send the commands again with the next call; the last one got no reply."""
        self._read_due_us = self._write_due_us = 0

    def ages_us(self, now_us: int) -> dict[str, int]:
        """Return the age of each watermark that was ever read."""
        return {
            name: max(0, now_us - mark_us)
            for name, mark_us in self.watermark_us.items()
        }

    def stale(self, now_us: int) -> frozenset[str]:
        """Return the feeds that are too old, or have no watermark."""
        if not self._max_age_us:
            return frozenset()
        ages_us = self.ages_us(now_us)
        return frozenset(
            name
            for name, most_us in self._max_age_us.items()
            if ages_us.get(name, most_us + 1) > most_us
        )


# Tables.
#
# A table without `refresh` is read with every batch. A table with `refresh` is read
# when the step starts and held in memory; a value that is not there, or was read longer
# ago than `refresh`, is read in the same flush as the batch's own call. If the store
# has no reply, its previous reply stands in.

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


# Lists, stored decisions and prepared candidates: one command reads the stored
# decisions of all ids of a batch, one reads each list, and one reads the candidates of
# all users where the product ranks.

MOST_LISTS = 32  # bits of `list_hits`
_UNREAD = np.uint32(Degraded.LOOKUPS_UNREAD)
_ZEROS = np.zeros(MAX_BATCH_ROWS, np.uint32)
_ZEROS.setflags(write=False)


class LookupResult(msgspec.Struct, frozen=True, eq=False):
    """
    Hold the results of the look-ups for N rows.

    Attributes:
        earlier: Per row its stored decision, as packed; empty without one.
        list_hits: Bit i: the i-th list contains an id of the row; uint32 [N].
        degraded: LOOKUPS_UNREAD where any of it could not be read; uint32 [N].
        prepared: Of a product that ranks: per row the entry with its user's prepared
            candidates, empty without one, None where it could not be read.
    """

    earlier: list[bytes]
    list_hits: npt.NDArray[np.uint32]
    degraded: npt.NDArray[np.uint32]
    prepared: Sequence[bytes | None] = ()


NO_LOOKUPS = LookupResult([], np.zeros(0, np.uint32), np.zeros(0, np.uint32))  # no rows


class Lookups:
    """
    Build the look-up commands of one product, and read their replies.

    Args:
        spec: Names the ids of a row.
        lists: In the order of their bits.

    Raises:
        InputError: A list is of ids that rows do not have, or there are too many.
    """

    def __init__(self, spec: FeatureSpec, lists: Sequence[LookupList] = ()) -> None:
        columns = [TRANSACTION_ID, *(entity.key for entity in spec.entities)]
        if len(lists) > MOST_LISTS:
            problem = f"{len(lists)} of them, {MOST_LISTS} are allowed"
            raise InputError(LISTS_PARAMETER, problem)
        for one in lists:
            if one.of not in columns:
                problem = f"{one.of!r} is none of {', '.join(columns)}"
                raise InputError(LISTS_PARAMETER, problem, where=one.name)
        self._prefix = stored_decision_key(spec.product, b"")
        self._lists = [(one.key, columns.index(one.of)) for one in lists]
        self._product = spec.product
        self._user = None if spec.history is None else spec.history.entity + 1

    def commands(self, batches: Sequence[Purchases]) -> list[Command]:
        """Return the look-up commands for batches of purchases, all for one flush."""
        prefix = self._prefix
        keys = [prefix + one for batch in batches for one in batch.transaction_id]
        return [
            (b"MGET", *keys),
            *((b"SMISMEMBER", key, *_column(batches, at)) for key, at in self._lists),
            *self._prepared_commands(batches),
        ]

    def _prepared_commands(self, batches: Sequence[Purchases]) -> list[Command]:
        if self._user is None:
            return []
        users = _column(batches, self._user)
        return [(b"MGET", *(prepared_key(self._product, one) for one in users))]

    def read(
        self, batches: Sequence[Purchases], replies: Sequence[Any]
    ) -> list[LookupResult]:
        """
        Read the replies, batch by batch.

        Args:
            batches: The same as for `commands`.
            replies: To these commands, exceptions among them; empty when there was no
                call, or it failed.
        """
        if self._user is None:
            return self._read_common(batches, replies)
        results = self._read_common(batches, replies[:-1])
        found = _entries(replies[-1] if replies else None)
        return [
            structs.replace(
                one,
                prepared=[next(found, None) for _ in range(len(one.degraded))],
            )
            for one in results
        ]

    def _read_common(
        self, batches: Sequence[Purchases], replies: Sequence[Any]
    ) -> list[LookupResult]:
        """Read lists and stored decisions."""
        counts = [len(batch.transaction_id) for batch in batches]
        rows = sum(counts)
        values = [b""] * rows
        if len(batches) == 1 and [
            isinstance(one, list) and one.count(0 if place else None)
            for place, one in enumerate(replies)
        ] == [rows] * max(1, len(replies)):
            # Mostly: one batch, no stored decision at all, and no id in any list.
            none = _ZEROS[:rows] if rows <= len(_ZEROS) else np.zeros(rows, np.uint32)
            return [LookupResult(values, none, none)]
        degraded, hits = np.zeros((2, rows), np.uint32)
        if not replies:
            degraded[:] = _UNREAD
        for place, reply in enumerate(replies):
            if not isinstance(reply, list):  # refused, or its node is unavailable
                degraded[:] = _UNREAD
            elif place:
                hits |= np.array(reply, np.uint32) << np.uint32(place - 1)
            elif reply.count(None) < rows:
                values = [one if isinstance(one, bytes) else b"" for one in reply]
                lost = [isinstance(one, Exception) for one in reply]
                degraded |= np.array(lost) * _UNREAD
        results, start = [], 0
        for count in counts:
            part = slice(start, start + count)
            results.append(LookupResult(values[part], hits[part], degraded[part]))
            start = part.stop
        return results


def _entries(reply: Any) -> Iterator[bytes | None]:
    """Return what was read of each row: empty for no entry, None for no reply."""
    for one in reply if isinstance(reply, list) else ():
        yield b"" if one is None else one if isinstance(one, bytes) else None


def _column(batches: Sequence[Purchases], at: int) -> list[bytes]:
    """Return the ids of all batches: 0 is the transaction's, then the entities'."""
    return [
        one
        for batch in batches
        for one in (batch.entity_id[at - 1] if at else batch.transaction_id)
    ]
