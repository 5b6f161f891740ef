"""Locate the values of tables, list their ids, and read them at start."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Sequence

import msgspec

from tollgate.features.spec import FeatureSpec, Table
from tollgate.store.last_known import LastKnown
from tollgate.store.redis import RedisStore

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
