"""
Check one purchase and encode it for the wire.

Every check that needs no server runs here and uses the server's wording, so the caller
learns of an invalid purchase even when no server responds.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta, timezone

import msgspec
import numpy as np

from tollgate.errors import InvalidRequest
from tollgate.schema import (
    AMOUNT,
    CENTS_TOLERANCE,
    EVENT_TIME,
    MAX_CENTS,
    MAX_ID_BYTES,
    MIN_EVENT_TIME_US,
    TRANSACTION_ID,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MICROSECOND = timedelta(microseconds=1)
_INT64 = range(-(2**63), 2**63)
_SHOWN = 40  # characters of a bad value that a message shows
_TEXT = struct.Struct("<I")
_FP64 = struct.Struct("<d")
_INT = struct.Struct("<q")


class Purchase(msgspec.Struct, frozen=True, eq=False):
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


def encode(
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
        part = _ENCODERS[kind](name, value)
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
        parts.append(_NOTHING[kind] if value is None else _ENCODERS[kind](name, value))
    for name in purchase:
        if name not in inputs and name not in fields:
            known = ", ".join([*inputs, *fields])
            raise InvalidRequest(f"{name}: unknown; known are {known}")
    return Purchase(transaction_id=transaction_id, amount=amount, parts=tuple(parts))


def _text(name: str, value: object) -> bytes:
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError as error:
            raise _bad(name, value, "is not valid Unicode") from error
    if not isinstance(value, bytes):
        raise _bad(name, value, "is not text")
    return _TEXT.pack(len(value)) + value


def _number(name: str, value: object) -> bytes:
    number = isinstance(value, (int, float, np.integer, np.floating))
    if not number or isinstance(value, bool):
        raise _bad(name, value, "is not a number")
    try:
        return _FP64.pack(value)
    except OverflowError as error:
        raise _bad(name, value, "is not a finite number") from error


def _integer(name: str, value: object) -> bytes:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = (value - _EPOCH) // _MICROSECOND
    elif isinstance(value, np.datetime64) and not np.isnat(value):
        value = value.astype("datetime64[us]").astype(np.int64)
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or int(value) not in _INT64:  # type: ignore[call-overload]
        raise _bad(name, value, "is not a 64-bit integer (µs since 1970, UTC)")
    return _INT.pack(value)


def _check_id(name: str, value: bytes) -> None:
    if not value:
        raise InvalidRequest(f'{name}: "": is empty')
    if len(value) > MAX_ID_BYTES:
        rule = f"has {len(value)} bytes, {MAX_ID_BYTES} are allowed"
        raise _bad(name, value.decode(errors="replace"), rule)
    try:
        value.decode()
    except UnicodeDecodeError as error:
        raise _bad(name, value, "is not UTF-8") from error


def _check_amount(amount: float) -> None:
    exact = amount * 100.0
    cents = round(exact) if math.isfinite(exact) else -1
    whole = abs(exact - cents) <= CENTS_TOLERANCE * max(1.0, cents)
    if not (whole and 0 <= cents <= MAX_CENTS):
        raise _bad(AMOUNT, amount, _amount_rule(amount))


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
        raise _bad(EVENT_TIME, time_us, "is before the year 2000")


def _bad(name: str, value: object, rule: str) -> InvalidRequest:
    return InvalidRequest(f"{name}: {value!r:.{_SHOWN}}: {rule}")


_ENCODERS: Mapping[str, Callable[[str, object], bytes]] = {
    "BYTES": _text,
    "FP64": _number,
    "INT64": _integer,
}
_NOTHING: Mapping[str, bytes] = {
    "BYTES": _TEXT.pack(0),
    "FP64": _FP64.pack(math.nan),
}
