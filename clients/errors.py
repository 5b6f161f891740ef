"""Turn what gRPC and Triton report into errors of our own; the only such place."""

from __future__ import annotations

import re

import grpc

from tollgate.errors import (
    ClientError,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from tollgate.schema import OVERLOADED

# What Triton puts in front of a step's own words.
_PREFIX = re.compile(
    r"^(?:\[request id: [^\]]*\] ?|in ensemble '[^']*', ?"
    r"|Failed to process the request\(s\) for model(?: instance)? '[^']*',? ?"
    r"(?:message: )?)"
)
_ROW = re.compile(r"^row (\d+): ", re.MULTILINE)


def client_error(error: grpc.RpcError, *, where: str, deadline_s: float) -> ClientError:
    """
    Map a failed call to InvalidRequest, DeadlineExceeded, Overloaded or Unavailable.

    Args:
        error: As raised by a stub's method.
        where: Product and address, for the message.
        deadline_s: What the call was given.
    """
    words = clean(error.details() or "")
    code = error.code()
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidRequest(words)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{where}: no answer within {deadline_s * 1e3:g} ms")
    if code is grpc.StatusCode.UNAVAILABLE and words.startswith(f"{OVERLOADED}: "):
        return Overloaded(f"{where}: {words}")
    return Unavailable(f"{where}: {words or code.name.lower()}")


def clean(message: str) -> str:
    """Strip what Triton puts in front of the words that matter."""
    while match := _PREFIX.match(message):
        message = message[match.end() :]
    return message.strip()


def row_errors(message: str, *, rows: int) -> list[str] | None:
    """
    Read `row i: field: value: rule` lines, the refusal of a request of bad rows.

    Args:
        message: Cleaned words of an InvalidRequest.
        rows: How many rows were sent.

    Returns:
        `field: value: rule` per row, or None when these are other words.
    """
    _, *parts = _ROW.split(message)
    numbers, errors = parts[::2], parts[1::2]
    if not message.startswith("row ") or numbers != [str(i) for i in range(rows)]:
        return None
    return [error.rstrip("\n") for error in errors]
