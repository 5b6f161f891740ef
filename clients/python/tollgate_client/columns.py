"""Check the columns that a caller passes, before anything is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import InvalidRequest
from tollgate.schema import AMOUNT, EVENT_TIME, TRANSACTION_ID

Column = Sequence[object] | npt.NDArray[Any]
Values = list[bytes] | npt.NDArray[Any]

# Inputs of the ensemble `fraud`: name -> type on the wire.
FRAUD_INPUTS = MappingProxyType(
    {
        TRANSACTION_ID: "BYTES",
        "customer_id": "BYTES",
        "terminal_id": "BYTES",
        AMOUNT: "FP64",
        EVENT_TIME: "INT64",
    }
)

NO_FIELDS: Mapping[str, str] = MappingProxyType({})

_NOTHING: Mapping[str, object] = {"BYTES": b"", "FP64": float("nan")}
_SHOWN = 40  # characters of a bad value that a message shows


class Rows(msgspec.Struct, frozen=True, eq=False):
    """
    Checked columns, ready to be split into requests.

    Attributes:
        count: Number of rows.
        inputs: Name -> type on the wire.
        values: For each name, the encoded texts, or a little-endian array.
    """

    count: int
    inputs: Mapping[str, str]
    values: dict[str, Values]


def check_columns(
    columns: Mapping[str, Column],
    *,
    inputs: Mapping[str, str],
    fields: Mapping[str, str] = NO_FIELDS,
) -> Rows:
    """
    Check the names, types and lengths of columns.

    Args:
        columns: For each input one column of N values. BYTES: str, or bytes as they
            are; FP64: numbers; INT64: integers, or datetime64 in UTC.
        inputs: Name -> type on the wire.
        fields: Optional inputs, which features.yaml declares. None stands for a row
            without a value; a missing column, for no value in any row. All are always
            sent, because Triton does not batch requests that have an optional input
            with requests that lack it.

    Raises:
        InvalidRequest: A column is missing, unknown, of another length or holds a value
            of another type; the error names column, row and value.
    """
    for name in inputs:
        if name not in columns:
            raise InvalidRequest(f"{name}: missing; needed are {', '.join(inputs)}")
    known = {**inputs, **fields}
    for name in columns:
        if name not in known:
            raise InvalidRequest(f"{name}: unknown; known are {', '.join(known)}")
    values: dict[str, Values] = {}
    for name, kind in inputs.items():
        values[name] = _ENCODERS[kind](name, columns[name])
    first = next(iter(inputs))
    count = len(values[first])
    for name, kind in fields.items():
        column = _filled(columns.get(name, [None] * count), _NOTHING[kind])
        values[name] = _ENCODERS[kind](name, column) if count else []
    for name, checked in values.items():
        if len(checked) != count:
            raise InvalidRequest(
                f"{name}: {len(checked)} rows, but {first} has {count}"
            )
    if count == 0:
        raise InvalidRequest(f"{first}: no rows")
    return Rows(count=count, inputs=known, values=values)


def _filled(column: Column, nothing: object) -> Column:
    """Replace None by the wire value for "not there"."""
    if isinstance(column, (str, bytes)) or not hasattr(column, "__len__"):
        return column
    if isinstance(column, np.ndarray) and column.dtype.kind != "O":
        return column
    return [nothing if value is None else value for value in column]


def _texts(name: str, column: Column) -> list[bytes]:
    """Encode a text column."""
    if isinstance(column, (str, bytes)) or not hasattr(column, "__len__"):
        raise InvalidRequest(f"{name}: must be a column, one value per row")
    values = column.tolist() if isinstance(column, np.ndarray) else list(column)
    encoded = []
    for row, value in enumerate(values):
        if isinstance(value, str):
            try:
                value = value.encode()
            except UnicodeEncodeError as error:
                raise _bad_value(name, row, value, wanted="valid Unicode") from error
        elif not isinstance(value, bytes):
            raise _bad_value(name, row, value, wanted="text")
        encoded.append(value)
    return encoded


def _floats(name: str, column: Column) -> npt.NDArray[np.float64]:
    """Convert a column of numbers to float64."""
    array = _array(name, column)
    if array.dtype.kind not in "iuf":
        raise _first_bad(name, column, types=(int, float, np.number), wanted="a number")
    return array.astype("<f8", copy=False)


def _integers(name: str, column: Column) -> npt.NDArray[np.int64]:
    """Convert a column of integers or datetime64 to int64; times to µs."""
    array = _array(name, column)
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            row = int(np.flatnonzero(np.isnat(array))[0])
            raise _bad_value(name, row, array[row], wanted="a time")
        return array.astype("datetime64[us]").astype("<i8")
    if array.dtype.kind not in "iu" or (array > np.iinfo(np.int64).max).any():
        wanted = "a 64-bit integer (µs since 1970, UTC)"
        raise _first_bad(name, column, types=(int, np.integer), wanted=wanted)
    return array.astype("<i8", copy=False)


def _array(name: str, column: Column) -> npt.NDArray[Any]:
    """Convert a column to a one-dimensional array."""
    try:
        array = np.asarray(column)
    except ValueError as error:
        raise InvalidRequest(f"{name}: must be one value per row") from error
    if array.ndim != 1:
        raise InvalidRequest(
            f"{name}: must be one value per row, not of shape {list(array.shape)}"
        )
    if array.size == 0:
        raise InvalidRequest(f"{name}: no rows")
    return array


def _first_bad(
    name: str, column: Column, *, types: tuple[type, ...], wanted: str
) -> InvalidRequest:
    """Find the first value of a wrong type, or otherwise the largest value."""
    values = list(column)
    for row, value in enumerate(values):
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, types):
            return _bad_value(name, row, value, wanted=wanted)
    row = max(range(len(values)), key=lambda at: abs(values[at]))
    return _bad_value(name, row, values[row], wanted=wanted)


def _bad_value(name: str, row: int, value: object, *, wanted: str) -> InvalidRequest:
    """Build an error that names column, row and value."""
    shown = repr(value)[:_SHOWN]
    return InvalidRequest(f"{name}: row {row}: {shown} is not {wanted}")


_ENCODERS: dict[str, Callable[[str, Column], Values]] = {
    "BYTES": _texts,
    "FP64": _floats,
    "INT64": _integers,
}
