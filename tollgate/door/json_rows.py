"""
Read the JSON body of a request: one row, or a list of rows.

msgspec reads a body in microseconds, but takes the last of two equal keys and refuses a
whole body for one number that no double holds. A body that may have either is read
again, more slowly, so that only the row with the mistake is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from tollgate.door.refusal import Refusal
from tollgate.schema import EVENT_TIME

_SHOWN = 40  # characters of a bad value that a message shows
_decode = msgspec.json.Decoder().decode


class JsonRows(msgspec.Struct, frozen=True):
    """
    The rows of a body.

    Attributes:
        rows: Field -> value of each row; a text where the row cannot be used, which
            says why.
        alone: True if the body is one object and not a list.
    """

    rows: list[dict[str, Any] | str]
    alone: bool

    @property
    def usable(self) -> list[dict[str, Any]]:
        """Return the rows that can be used."""
        return [row for row in self.rows if not isinstance(row, str)]


def read_rows(body: bytes, *, most: int) -> JsonRows:
    """
    Read one row, or a list of rows.

    Args:
        most: Maximum number of rows.

    Raises:
        Refusal: The body is not JSON, no row or list of rows, or has too many rows.
    """
    value = read_json(body)
    if isinstance(value, (dict, RepeatedKey)):
        return JsonRows([_row(value)], alone=True)
    if not isinstance(value, list):
        kind = _JSON_KINDS.get(type(value), "a number")
        problem = f"the body is {kind}; send a row as an object, or a list of rows"
        raise Refusal(400, problem)
    if not 1 <= len(value) <= most:
        raise Refusal(400, f"{len(value)} rows; a request holds 1 to {most}")
    return JsonRows([_row(one) for one in value], alone=False)


def read_json(body: bytes) -> Any:
    """
    Read a JSON document; an object with a key twice becomes a `RepeatedKey`.

    Raises:
        Refusal: It is not JSON.
    """
    if not body:
        raise Refusal(400, "the body is empty; send JSON")
    try:
        value = _decode(body)
    except msgspec.ValidationError:
        return _read_slowly(body)
    except msgspec.DecodeError as error:
        raise Refusal(400, _malformed(error)) from error
    except UnicodeDecodeError as error:
        raise Refusal(400, "the body is not UTF-8") from error
    except RecursionError as error:
        raise Refusal(400, "the body is nested too deeply") from error
    return value if _has_each_key_once(value, body) else _read_slowly(body)


class RepeatedKey(msgspec.Struct, frozen=True):
    """Stands for an object in which a key is repeated."""

    key: str


def _has_each_key_once(value: Any, body: bytes) -> bool:
    """
    Return whether no key can be repeated; False where that is not certain.

    Each text has two quotes, so a repeated key leaves more quotes in the body than the
    texts that were read.
    """
    if b"\\" in body:
        return False
    texts = 0
    for row in value if isinstance(value, list) else [value]:
        if isinstance(row, dict):
            texts += len(row)
            for one in row.values():
                if isinstance(one, str):
                    texts += 1
                elif isinstance(one, (dict, list)):
                    return False
        elif isinstance(row, str):
            texts += 1
        elif isinstance(row, list):
            return False
    return body.count(b'"') == 2 * texts


class _TooLarge:
    """Stands for a number that no double holds."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _read_slowly(body: bytes) -> Any:
    try:
        return json.loads(
            body.decode(),
            object_pairs_hook=_object,
            parse_float=_float,
            parse_int=_integer,
            parse_constant=_no_constant,
        )
    except RecursionError as error:
        raise Refusal(400, "the body is nested too deeply") from error
    except ValueError as error:
        raise Refusal(400, _malformed(error)) from error


def _object(pairs: list[tuple[str, Any]]) -> Any:
    found: dict[str, Any] = {}
    for key, value in pairs:
        # As msgspec does, refuse half a surrogate pair: no answer could repeat it.
        key.encode()
        if isinstance(value, str):
            value.encode()
        if key in found:
            return RepeatedKey(key)
        found[key] = value
    return found


def _float(text: str) -> Any:
    value = float(text)
    return value if abs(value) != float("inf") else _TooLarge(text[:_SHOWN])


def _integer(text: str) -> Any:
    # No input holds more than 64 bits; Python reads long numbers slowly.
    return int(text) if len(text) <= _SHOWN else _TooLarge(text[:_SHOWN])


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _malformed(error: Exception) -> str:
    return f"the body is not valid JSON: {error}"


_JSON_KINDS: Mapping[type, str] = {
    str: "a text",
    bool: "a truth value",
    type(None): "null",
}


def _row(value: Any) -> dict[str, Any] | str:
    if isinstance(value, dict):
        time = value.get(EVENT_TIME)
        if isinstance(time, str):
            return _with_time(value, time)
        return value
    if isinstance(value, RepeatedKey):
        return f"{value.key}: appears twice"
    return f"{value!r:.{_SHOWN}}: is not an object with fields"


def _with_time(row: dict[str, Any], text: str) -> dict[str, Any] | str:
    """Replace a time in RFC 3339, which JSON callers have, by a datetime."""
    problem = f"{EVENT_TIME}: {text!r:.{_SHOWN}}: is neither µs since 1970 nor "
    problem += "RFC 3339 with a time zone"
    try:
        time = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        return problem
    return {**row, EVENT_TIME: time} if time.tzinfo else problem


def field_of(message: str, known: Sequence[str]) -> str:
    """Return the field that a row's error begins with; empty for none."""
    name = message.partition(":")[0]
    return name if name in known else ""
