"""Where the values of tables lie, which ids they have, and reading them at a start."""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Sequence

import msgspec

from tollgate.features.spec import FeatureSpec, Table
from tollgate.store.last_known import LastKnown
from tollgate.store.redis import RedisStore

# Ids of a table that a starting step reads: what is held in memory is small.
MAX_LISTED = 10_000
_CHECKSUM = struct.Struct("<I")
_KEYS_PER_READ = 256


def table_prefix(spec: FeatureSpec, table: Table) -> bytes:
    """Name what the store keys of a table's ids begin with; a colon and the id follow.

    By itself it is the key of the list of ids.
    """
    name = f"tollgate:{spec.product}:table:{table.name}:{table.layout:016x}"
    return name.encode()


def pack_ids(ids: Sequence[bytes]) -> bytes:
    """Pack a list of ids, with its checksum."""
    body = msgspec.msgpack.encode(list(ids))
    return _CHECKSUM.pack(zlib.crc32(body)) + body


def unpack_ids(value: object) -> list[bytes]:
    """Read a list of ids; none if it is none, or damaged."""
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
    Read tables with `refresh` into memory, as far as it holds them.

    Args:
        spec: Whose tables.
        memory: Where to.
        store: Where from.
        until_s: When to stop, of time.monotonic; what is left is read as it is wanted.

    Returns:
        How many values were read.

    Raises:
        StoreError: The store has no answer.
    """
    count = 0
    for table in spec.tables:
        if not table.refresh_us:
            continue
        prefix = table_prefix(spec, table)
        _, (reply,) = store.flush([], beside=[(b"GET", prefix)])
        keys = [prefix + b":" + one for one in unpack_ids(reply)]
        for start in range(0, len(keys), _KEYS_PER_READ):
            if time.monotonic() > until_s:
                return count
            part = keys[start : start + _KEYS_PER_READ]
            _, (values,) = store.flush([], beside=[(b"MGET", *part)])
            came = {
                key: value
                for key, value in zip(part, values, strict=True)
                if isinstance(value, bytes)
            }
            memory.put(list(came), list(came.values()))
            count += len(came)
    return count
