"""
Compute the digest of each record, whatever file format holds the records.

The digest of a row is the hash of: the hash of all column names and types, then the
columns of fixed width (one byte that says whether there is a value, then the value,
little-endian), then the texts and byte strings, each preceded by its length.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.chain.merkle import LEAF
from tollgate.errors import JournalError

_LENGTH = struct.Struct("<I")
_NO_TEXT = _LENGTH.pack(0xFFFFFFFF)

# These type names are hashed. They are not polars' names, so that a change in polars
# does not change digests. The values give the layout of the types of fixed width.
_TEXT, _BYTES = "text", "bytes"
_WIDE: dict[str, str] = {
    "bool": "u1",
    "uint8": "u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "int64": "<i8",
    "float32": "<f4",
    "time_us": "<i8",
}
_NAMES: list[tuple[Any, str]] = [
    (pl.Boolean(), "bool"),
    (pl.UInt8(), "uint8"),
    (pl.UInt16(), "uint16"),
    (pl.UInt32(), "uint32"),
    (pl.UInt64(), "uint64"),
    (pl.Int64(), "int64"),
    (pl.Float32(), "float32"),
    (pl.Datetime("us", "UTC"), "time_us"),
    (pl.String(), _TEXT),
    (pl.Binary(), _BYTES),
]


def columns_of(frame: pl.DataFrame) -> tuple[tuple[str, str], ...]:
    """
    Return name and type of a table's columns, in order.

    Raises:
        JournalError: A column has a type that tables of the journal do not use.
    """
    return tuple((name, _type_name(name, kind)) for name, kind in frame.schema.items())


def _type_name(column: str, kind: Any) -> str:
    for known, name in _NAMES:
        if kind == known:
            return name
    raise JournalError(
        f"column {column}", f"has type {kind}, which no table of a journal has"
    )


def digests(frame: pl.DataFrame) -> list[bytes]:
    """
    Compute the digest of each row, 32 bytes each.

    Raises:
        JournalError: A column has a type that tables of the journal do not use.
    """
    columns = columns_of(frame)
    layout = "\n".join(f"{name} {kind}" for name, kind in columns)
    head = LEAF + hashlib.sha256(layout.encode()).digest()
    fixed = [(name, _WIDE[kind]) for name, kind in columns if kind in _WIDE]
    texts = [_texts(frame[name]) for name, kind in columns if kind not in _WIDE]
    packed = _packed(frame, fixed)
    hashed = hashlib.sha256
    return [
        hashed(head + row + b"".join(own)).digest()
        for row, own in zip(
            packed,
            zip(*texts, strict=True) if texts else [()] * len(frame),
            strict=True,
        )
    ]


def _packed(frame: pl.DataFrame, fixed: list[tuple[str, str]]) -> list[bytes]:
    fields = [part for at, (_, kind) in enumerate(fixed) for part in _pair(at, kind)]
    rows = np.zeros(len(frame), np.dtype(fields))
    for at, (name, kind) in enumerate(fixed):
        rows[f"there{at}"] = frame[name].is_not_null().to_numpy()
        rows[f"value{at}"] = _numbers(frame[name]).astype(kind, copy=False)
    size = rows.dtype.itemsize
    raw = rows.tobytes()
    return [raw[at : at + size] for at in range(0, size * len(frame), size)]


def _pair(at: int, kind: str) -> list[tuple[str, str]]:
    return [(f"there{at}", "u1"), (f"value{at}", kind)]


def _numbers(column: pl.Series) -> npt.NDArray[np.generic]:
    if isinstance(column.dtype, pl.Datetime):
        column = column.to_physical()
    elif column.dtype == pl.Boolean:
        column = column.cast(pl.UInt8)
    found: npt.NDArray[np.generic] = column.fill_null(0).to_numpy()
    return found


def _texts(column: pl.Series) -> list[bytes]:
    """Encode each text, or byte string, after its length."""
    encoded = (
        text.encode() if isinstance(text, str) else text for text in column.to_list()
    )
    return [
        _NO_TEXT if text is None else _LENGTH.pack(len(text)) + text for text in encoded
    ]
