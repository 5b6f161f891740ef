"""Read what a request says besides its rows: headers, and the query."""

from __future__ import annotations

import math
from collections.abc import Mapping
from urllib.parse import parse_qsl

from tollgate.door.inference import MOST_DEADLINE_US
from tollgate.door.json_rows import JsonRows
from tollgate.door.refusal import JSON, Refusal

TIMEOUT_HEADER, KEY_HEADER = b"x-request-timeout-ms", b"idempotency-key"
_MOST_TIMEOUT_MS = MOST_DEADLINE_US // 1000
_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def require_json(headers: Mapping[bytes, bytes]) -> None:
    """
    Check that the body is JSON, by its headers.

    Raises:
        Refusal: It is another type, or compressed.
    """
    media_type = headers.get(b"content-type", b"")
    if media_type.partition(b";")[0].strip().lower() != JSON.encode():
        shown = media_type.decode("latin-1")
        raise Refusal(415, f"content-type is {shown!r:.80}, not {JSON}")
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise Refusal(415, "content-encoding is not supported; send plain JSON")


def timeout_of(headers: Mapping[bytes, bytes]) -> float | None:
    """
    Read the header with the caller's deadline; None without one.

    Raises:
        Refusal: It is not a number of milliseconds above 0, or over a minute.
    """
    value = headers.get(TIMEOUT_HEADER)
    if value is None:
        return None
    try:
        timeout_ms = float(value)
    except ValueError:
        timeout_ms = math.nan
    if not 0 < timeout_ms <= _MOST_TIMEOUT_MS:
        name, shown = TIMEOUT_HEADER.decode(), value.decode("latin-1")
        problem = f"{name}: {shown!r:.40} is not a number above 0 and up to"
        raise Refusal(400, f"{problem} {_MOST_TIMEOUT_MS}")
    return timeout_ms / 1e3


def dry_run_of(query: bytes) -> bool:
    """
    Read `?dry_run=true`.

    Raises:
        Refusal: Another parameter is there, or another value.
    """
    if not query:
        return False
    dry_run = False
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name != "dry_run":
            raise Refusal(400, f"parameter {name!r:.40} is unknown; known is dry_run")
        if value not in _TRUTH:
            raise Refusal(400, f"dry_run: {value!r:.40} is not true or false")
        dry_run = _TRUTH[value]
    return dry_run


def take_idempotency_key(
    headers: Mapping[bytes, bytes], parsed: JsonRows, *, id_name: str
) -> None:
    """
    Use the header Idempotency-Key as the id of the only row.

    Raises:
        Refusal: The key is no text, there are several rows, or the row has another
            id.
    """
    value = headers.get(KEY_HEADER)
    if value is None:
        return
    try:
        key = value.decode().strip().strip('"')
    except UnicodeDecodeError as error:
        raise Refusal(400, "Idempotency-Key is not UTF-8") from error
    (row, *others) = parsed.rows
    if others or not parsed.alone:
        problem = "Idempotency-Key names one row: send the row alone, as an object"
        raise Refusal(400, problem)
    if isinstance(row, str):
        return
    found = row.setdefault(id_name, key)
    if found != key:
        problem = f"Idempotency-Key: {key!r:.40} is not the row's {id_name}"
        raise Refusal(422, f"{problem}, {found!r:.40}")
