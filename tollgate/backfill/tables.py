"""Load a table into the store in parts: a packed value for each id."""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.backfill.materialize import Checkpoint, run_commands
from tollgate.backfill.pace import open_pace
from tollgate.features.feature_tables import Slots, TableRows, pack_slots, unpack_slots
from tollgate.features.spec.feature_spec import FeatureSpec, Table
from tollgate.store.lookups import MAX_LISTED, pack_ids, table_prefix, unpack_ids
from tollgate.store.redis.redis_store import Command, RedisStore

I64 = npt.NDArray[np.int64]
Progress = Callable[[int, int], None]

_PART_IDS = 64  # ids per call: a decision may wait behind it
_JITTER = 0.1  # part of `max_age` by which TTLs differ, by id
_MAX_HASH = 2**32


class TableLoadCounts(msgspec.Struct):
    """
    Count the results of a run.

    Attributes:
        rows: Rows of the file.
        ids: Ids of the file.
        done_before: Ids that an earlier run loaded.
        written: Ids that this run wrote.
        too_old: Ids without any row that a purchase may take, left out.
        damaged: Values that could not be read, and were replaced.
        newest_us: Time from which the newest row is valid; µs, 0 for always or no row.
    """

    rows: int = 0
    ids: int = 0
    done_before: int = 0
    written: int = 0
    too_old: int = 0
    damaged: int = 0
    newest_us: int = 0


def load_table(
    spec: FeatureSpec,
    table: Table,
    rows: TableRows,
    store: RedisStore,
    *,
    rate_per_s: float | None = 0.0,
    progress: Progress | None = None,
    wall_us: Callable[[], int] = lambda: time.time_ns() // 1000,
) -> TableLoadCounts:
    """
    Add a table's rows to those in the store, from where an earlier run stopped.

    The newest rows of an id stay. Run only one load at a time: two would lose each
    other's rows.

    Args:
        spec: The spec that declares the table.
        table: The table.
        rows: The rows to add.
        store: The store to fill.
        rate_per_s: Most ids per second; see `Pace`.
        progress: Called with (ids done, ids in all).
        wall_us: The clock; TTLs are counted from it.

    Raises:
        StoreError: The store did not reply; another run continues from there.
    """
    number: dict[bytes, int] = {}
    owner = np.array([number.setdefault(one, len(number)) for one in rows.ids], "i8")
    slots = Slots.empty(len(number), len(table.columns)).joined(
        owner, valid_us=rows.valid_us, values=rows.values
    )
    ids = list(number)
    checkpoint = Checkpoint(spec, _fingerprint(table, rows), store)
    done = TableLoadCounts(rows=len(rows), ids=len(ids))
    done.done_before = min(checkpoint.read(), len(ids))
    done.newest_us = int(rows.valid_us.max(initial=0))
    pace = open_pace(spec, store, rate_per_s)
    load = _Load(spec, table, store, done)
    for start in range(done.done_before, len(ids), _PART_IDS):
        started_s = pace.begin()
        part = slice(start, start + _PART_IDS)
        load.part(ids[part], slots.part(part), now_us=wall_us())
        checkpoint.write(min(part.stop, len(ids)))
        pace.end(started_s, len(ids[part]))
        if progress:
            progress(min(part.stop, len(ids)), len(ids))
    if table.refresh_us:
        load.listed(ids)
    checkpoint.write(0)  # loading this file again later is a separate load
    return done


class _Load:
    """Write the values of one table."""

    def __init__(
        self, spec: FeatureSpec, table: Table, store: RedisStore, done: TableLoadCounts
    ) -> None:
        self._table = table
        self._store = store
        self._done = done
        self._lateness_us = spec.lateness_us
        self._prefix = table_prefix(spec, table)

    def part(self, ids: Sequence[bytes], new: Slots, *, now_us: int) -> None:
        """Merge some ids' rows with those in the store."""
        keys = [b"%b:%b" % (self._prefix, one) for one in ids]
        found = run_commands(self._store, [(b"GET", key) for key in keys])
        old = unpack_slots(self._table, [value or b"" for value in found])
        self._done.damaged += int(old.corrupt.sum())
        joined = old.with_slots(new)
        commands: list[Command] = []
        for key, value, left_s in zip(
            keys,
            pack_slots(self._table, joined),
            self._left_s(keys, joined.newest_us(), now_us).tolist(),
            strict=True,
        ):
            if not self._table.max_age_us:
                commands.append((b"SET", key, value))
            elif left_s > 0:
                commands.append((b"SET", key, value, b"EX", b"%d" % left_s))
        run_commands(self._store, commands)
        self._done.written += len(commands)
        self._done.too_old += len(keys) - len(commands)

    def listed(self, ids: Sequence[bytes]) -> None:
        """Update the list of ids that a starting step reads."""
        (value,) = run_commands(self._store, [(b"GET", self._prefix)])
        listed = list(dict.fromkeys([*ids, *unpack_ids(value)]))[:MAX_LISTED]
        run_commands(self._store, [(b"SET", self._prefix, pack_ids(listed))])

    def _left_s(self, keys: Sequence[bytes], newest_us: I64, now_us: int) -> I64:
        """Return how long values are useful; [K] whole seconds, rounded up."""
        spread = np.array([zlib.crc32(key) / _MAX_HASH for key in keys])
        most_us = self._table.max_age_us
        of_use_us = newest_us + most_us + self._lateness_us - now_us
        left_s = (of_use_us + spread * _JITTER * most_us) // 1_000_000 + 1
        return np.where(of_use_us > 0, left_s, 0).astype(np.int64)


def _fingerprint(table: Table, rows: TableRows) -> str:
    """Return a hash that identifies a load; 16 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=8)
    digest.update(table.layout.to_bytes(8, "big"))
    digest.update(rows.valid_us.tobytes())
    digest.update(rows.values.tobytes())
    digest.update(b"\0".join(rows.ids))
    return digest.hexdigest()
