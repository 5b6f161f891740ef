"""
An entity's value: a header and its events, ordered by (time, id).

Rules: docs/contract.md. The one writer of the layout is tollgate/store/apply.lua;
here it is checked and read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

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

# Order key and hash are big-endian and side by side: compared as bytes, they sort
# as (order_hi, order_lo, id_hash) do.
_ORDER = np.dtype(
    {"names": ["order"], "formats": ["S24"], "offsets": [8], "itemsize": 48}
)
_FORMAT = VALUE_VERSION | ENTRY.itemsize << 8  # a header's first 32-bit word
# What stands in for a value that is not there: no entries, checksum included.
_EMPTY = b"".join(word.to_bytes(4, "little") for word in (_FORMAT, _FORMAT)) + bytes(24)

I64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


class Entries(msgspec.Struct, frozen=True):
    """
    The events of S entities as columns, entity by entity, each in order.

    A label that waits for its purchase is no purchase: no cents, no fraud.

    Attributes:
        starts: Where each entity's events begin, and where the last one's end;
            int64 [S + 1].
        time_us: int64 [E].
        order: What sorts events of one instant, of any type that compares; [E].
        purchase: Does it count? bool or 0 and 1 [E].
        cents: Integers [E].
        fraud: Is it one, once its label is known? bool [E].
        label_time_us: When that is; int64 [E].
    """

    starts: I64
    time_us: I64
    order: npt.NDArray[Any]
    purchase: npt.NDArray[Any]
    cents: npt.NDArray[Any]
    fraud: Bool
    label_time_us: I64


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
    size = np.fromiter(map(len, values), np.int64, len(values))
    framed = size % ENTRY.itemsize == HEADER.itemsize
    if not framed.all():
        return _unpack_others(values, framed, corrupt=~framed & (size > 0))
    head = b"".join([value[: HEADER.itemsize] for value in values])
    headers = np.frombuffer(head, HEADER)
    count = size // ENTRY.itemsize
    sound = np.frombuffer(head, "<u4")[:: HEADER.itemsize // 4] == _FORMAT
    sound &= headers["count"] == count
    sound &= headers["checksum"] == _checksums(values, size) - headers["checksum"]
    if not sound.all():
        return _unpack_others(values, sound, corrupt=~sound)
    starts = np.zeros(len(values) + 1, np.int64)
    count.cumsum(out=starts[1:])
    body = b"".join([value[HEADER.itemsize :] for value in values])
    return Values(
        entries=_columns(starts, np.frombuffer(body, ENTRY)),
        watermark_us=headers["watermark_us"],
        overflow=headers["overflow"],
        dropped_us=headers["dropped_us"],
        corrupt=np.zeros(len(values), np.bool_),
    )


def _unpack_others(values: Sequence[bytes], kept: Bool, *, corrupt: Bool) -> Values:
    """Unpack the values to keep, with nothing in the place of the others."""
    rest = unpack_values(
        [value if keep else _EMPTY for value, keep in zip(values, kept, strict=True)]
    )
    return msgspec.structs.replace(rest, corrupt=corrupt | rest.corrupt)


def _checksums(values: Sequence[bytes], size: I64) -> npt.NDArray[np.uint32]:
    """Add up each value's 32-bit words, modulo 2^32."""
    words = np.frombuffer(b"".join(values), "<u4")
    begins = (size.cumsum() - size) // 4
    if not len(begins):
        return words
    return np.add.reduceat(words, begins, dtype=np.uint32)


def _columns(starts: I64, body: npt.NDArray[np.void]) -> Entries:
    flags = body["flags"]
    purchase = flags & PURCHASE
    known_fraud = PURCHASE | LABELLED | FRAUD
    return Entries(
        starts=starts,
        time_us=body["time_us"],
        order=order_of(body),
        purchase=purchase,
        cents=body["cents"] * purchase,
        fraud=(flags & known_fraud) == known_fraud,
        label_time_us=body["label_time_us"],
    )


def order_of(entries: npt.NDArray[np.void]) -> npt.NDArray[np.bytes_]:
    """Take what sorts entries of one instant: their ids' order key and hash; S24."""
    order: npt.NDArray[np.bytes_] = entries.view(_ORDER)["order"]
    return order
