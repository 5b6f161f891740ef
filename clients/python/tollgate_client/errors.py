"""Map the errors of gRPC and Triton to ours; the only module that does so."""

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

# Prefixes that Triton adds to a step's own message.
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
        error: Error as a stub's method raised it.
        where: Product and address, for the message.
        deadline_s: Timeout of the call, seconds.
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
    """Strip the prefixes that Triton adds to a message."""
    while match := _PREFIX.match(message):
        message = message[match.end() :]
    return message.strip()


def row_errors(message: str, *, rows: int) -> list[str] | None:
    """
    Parse the `row i: field: value: rule` lines that refuse a request of bad rows.

    Args:
        message: Cleaned message of an InvalidRequest.
        rows: Number of rows sent.

    Returns:
        `field: value: rule` for each row, or None when the message has another form.
    """
    _, *parts = _ROW.split(message)
    numbers, errors = parts[::2], parts[1::2]
    if not message.startswith("row ") or numbers != [str(i) for i in range(rows)]:
        return None
    return [error.rstrip("\n") for error in errors]
