"""
Check what a caller passes, and encode it: columns of many rows, or one purchase.

Every check of a purchase that needs no server runs here and uses the server's wording,
so the caller learns of an invalid purchase even when no server responds.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tollgate_client.contract import (
    AMOUNT,
    CENTS_TOLERANCE,
    EVENT_TIME,
    MAX_CENTS,
    MAX_ID_BYTES,
    MIN_EVENT_TIME_US,
    TRANSACTION_ID,
)
from tollgate_client.errors import InvalidRequest

Column = Sequence[object] | npt.NDArray[Any]
Values = list[bytes] | npt.NDArray[Any]

NO_FIELDS: Mapping[str, str] = MappingProxyType({})

_NO_VALUE: Mapping[str, object] = {"BYTES": b"", "FP64": float("nan")}
_SHOWN = 40  # characters of a bad value that a message shows
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_INT64 = range(-(2**63), 2**63)
_TEXT = struct.Struct("<I")
_FP64 = struct.Struct("<d")
_INT = struct.Struct("<q")

# Columns of many rows.


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """
    Checked columns, ready to be split into requests.

    Attributes:
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
        values[name] = _COLUMN_ENCODERS[kind](name, columns[name])
    first = next(iter(inputs))
    count = len(values[first])
    for name, kind in fields.items():
        column = _filled(columns.get(name, [None] * count), _NO_VALUE[kind])
        values[name] = _COLUMN_ENCODERS[kind](name, column) if count else []
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


def _text_column(name: str, column: Column) -> list[bytes]:
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
                raise _bad_cell(name, row, value, wanted="valid Unicode") from error
        elif not isinstance(value, bytes):
            raise _bad_cell(name, row, value, wanted="text")
        encoded.append(value)
    return encoded


def _float_column(name: str, column: Column) -> npt.NDArray[np.float64]:
    """Convert a column of numbers to float64."""
    array = _as_array(name, column)
    if array.dtype.kind not in "iuf":
        raise _first_bad_cell(
            name, column, types=(int, float, np.number), wanted="a number"
        )
    return array.astype("<f8", copy=False)


def _integer_column(name: str, column: Column) -> npt.NDArray[np.int64]:
    """Convert a column of integers or datetime64 to int64; times to µs."""
    array = _as_array(name, column)
    if array.dtype.kind == "M":
        if np.isnat(array).any():
            row = int(np.flatnonzero(np.isnat(array))[0])
            raise _bad_cell(name, row, array[row], wanted="a time")
        return array.astype("datetime64[us]").astype("<i8")
    if array.dtype.kind not in "iu" or (array > np.iinfo(np.int64).max).any():
        wanted = "a 64-bit integer (µs since 1970, UTC)"
        raise _first_bad_cell(name, column, types=(int, np.integer), wanted=wanted)
    return array.astype("<i8", copy=False)


def _as_array(name: str, column: Column) -> npt.NDArray[Any]:
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


def _first_bad_cell(
    name: str, column: Column, *, types: tuple[type, ...], wanted: str
) -> InvalidRequest:
    """Find the first value of a wrong type, or otherwise the largest value."""
    values = list(column)
    for row, value in enumerate(values):
        if isinstance(value, (bool, np.bool_)) or not isinstance(value, types):
            return _bad_cell(name, row, value, wanted=wanted)
    row = max(range(len(values)), key=lambda at: abs(values[at]))
    return _bad_cell(name, row, values[row], wanted=wanted)


def _bad_cell(name: str, row: int, value: object, *, wanted: str) -> InvalidRequest:
    """Build an error that names column, row and value."""
    shown = repr(value)[:_SHOWN]
    return InvalidRequest(f"{name}: row {row}: {shown} is not {wanted}")


_COLUMN_ENCODERS: dict[str, Callable[[str, Column], Values]] = {
    "BYTES": _text_column,
    "FP64": _float_column,
    "INT64": _integer_column,
}

# One purchase.


@dataclass(frozen=True, slots=True, eq=False)
class Purchase:
    """
    A checked and encoded purchase.

    Attributes:
        transaction_id: Transaction id; empty when the product has no such input.
        amount: Amount; NaN when the product has no such input.
        parts: Bytes in a raw tensor, for each input and then for each declared field.
    """

    transaction_id: bytes
    amount: float
    parts: tuple[bytes, ...]


def encode_purchase(
    purchase: Mapping[str, object],
    *,
    inputs: Mapping[str, str],
    fields: Mapping[str, str],
) -> Purchase:
    """
    Check a purchase and encode it.

    Args:
        purchase: Name -> value. BYTES: str, or bytes; FP64: a number; INT64: an
            integer, or for a time a datetime with a time zone or a datetime64.
        inputs: The product's inputs: name -> type on the wire.
        fields: Declared fields of the product: name -> type on the wire; a value of
            None, or none at all, means that the purchase has no value.

    Raises:
        InvalidRequest: An input is missing, unknown, of a wrong type, or breaks a rule
            of the contract: `field: value: rule`.
    """
    parts = []
    transaction_id, amount = b"", math.nan
    for name, kind in inputs.items():
        value = purchase.get(name)
        if value is None:
            raise InvalidRequest(f"{name}: missing; needed are {', '.join(inputs)}")
        part = _VALUE_ENCODERS[kind](name, value)
        if kind == "BYTES":
            _check_id(name, part[_TEXT.size :])
        elif name == AMOUNT:
            (amount,) = _FP64.unpack(part)
            _check_amount(amount)
        elif name == EVENT_TIME:
            _check_time(_INT.unpack(part)[0])
        if name == TRANSACTION_ID:
            transaction_id = part[_TEXT.size :]
        parts.append(part)
    for name, kind in fields.items():
        value = purchase.get(name)
        parts.append(
            _NO_PART[kind] if value is None else _VALUE_ENCODERS[kind](name, value)
        )
    for name in purchase:
        if name not in inputs and name not in fields:
            known = ", ".join([*inputs, *fields])
            raise InvalidRequest(f"{name}: unknown; known are {known}")
    return Purchase(transaction_id=transaction_id, amount=amount, parts=tuple(parts))


def _text_value(name: str, value: object) -> bytes:
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError as error:
            raise _bad_value(name, value, "is not valid Unicode") from error
    if not isinstance(value, bytes):
        raise _bad_value(name, value, "is not text")
    return _TEXT.pack(len(value)) + value


def _number_value(name: str, value: object) -> bytes:
    number = isinstance(value, (int, float, np.integer, np.floating))
    if not number or isinstance(value, bool):
        raise _bad_value(name, value, "is not a number")
    try:
        return _FP64.pack(value)
    except (OverflowError, struct.error) as error:
        raise _bad_value(name, value, "is not a finite number") from error


def _integer_value(name: str, value: object) -> bytes:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = (value - _EPOCH) // _MICROSECOND
    elif isinstance(value, np.datetime64) and not np.isnat(value):
        value = value.astype("datetime64[us]").astype(np.int64)
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or int(value) not in _INT64:  # type: ignore[call-overload]
        raise _bad_value(name, value, "is not a 64-bit integer (µs since 1970, UTC)")
    return _INT.pack(value)


def _check_id(name: str, value: bytes) -> None:
    if not value:
        raise InvalidRequest(f'{name}: "": is empty')
    if len(value) > MAX_ID_BYTES:
        rule = f"has {len(value)} bytes, {MAX_ID_BYTES} are allowed"
        raise _bad_value(name, value.decode(errors="replace"), rule)
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise _bad_value(name, value, "is not UTF-8") from error


def _check_amount(amount: float) -> None:
    exact = amount * 100.0
    cents = round(exact) if math.isfinite(exact) else -1
    whole = abs(exact - cents) <= CENTS_TOLERANCE * max(1.0, cents)
    if not (whole and 0 <= cents <= MAX_CENTS):
        raise _bad_value(AMOUNT, amount, _amount_rule(amount))


def _amount_rule(amount: float) -> str:
    if not math.isfinite(amount):
        return "is not a finite number"
    if amount < 0:
        return "is negative"
    if amount * 100.0 > MAX_CENTS:
        return f"is over {MAX_CENTS / 100:.2f}"
    return "is not in whole cents"


def _check_time(time_us: int) -> None:
    # Only the server's clock can decide "over a day ahead".
    if time_us < MIN_EVENT_TIME_US:
        raise _bad_value(EVENT_TIME, time_us, "is before the year 2000")


def _bad_value(name: str, value: object, rule: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {value!r:.{_SHOWN}}: {rule}")


_VALUE_ENCODERS: Mapping[str, Callable[[str, object], bytes]] = {
    "BYTES": _text_value,
    "FP64": _number_value,
    "INT64": _integer_value,
}
_NO_PART: Mapping[str, bytes] = {
    "BYTES": _TEXT.pack(0),
    "FP64": _FP64.pack(math.nan),
}
