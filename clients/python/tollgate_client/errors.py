"""
Define every error that the client raises; map those of gRPC and Triton to them.

    ClientError                   base of all; a response that cannot be read
    ├── InputError                an option, an address, a rule or a file is wrong
    ├── SetupError                this machine lacks a library; says what to install
    ├── InvalidRequest            the request is wrong; sending it again is futile
    ├── DeadlineExceeded          no response in time
    └── Unavailable               no server, or it refused to work
        └── Overloaded            ... because it has too much to do
"""

from __future__ import annotations

import re

import grpc

from tollgate_client.contract import DEADLINE_US, OVERLOADED


class ClientError(Exception):
    """
    Base of every error that the client raises on purpose.

    Attributes:
        exit_status: Exit status of a command that ends with this error.
    """

    exit_status = 1


class InputError(ClientError):
    """
    An argument, an option, a rule or a file is invalid.

    Args:
        source: Argument or file that the value came from.
        problem: The error with the value, and the valid choice.
        where: Field inside the source; empty when it is the whole.
    """

    exit_status = 2

    def __init__(self, source: object, problem: str, *, where: str = "") -> None:
        self.source = str(source)
        self.problem = problem
        self.where = where
        super().__init__(
            ": ".join(part for part in (self.source, where, problem) if part)
        )


class SetupError(ClientError):
    """
    This machine lacks a library.

    Args:
        missing: Description of the gap.
        remedy: Command that installs it.
    """

    exit_status = 2

    def __init__(self, missing: str, *, remedy: str) -> None:
        self.missing = missing
        self.remedy = remedy
        super().__init__(f"{missing}; {remedy}")


class InvalidRequest(ClientError):
    """The request is invalid; sending it again is futile."""

    exit_status = 2


class DeadlineExceeded(ClientError):
    """No response came in time."""


class Unavailable(ClientError):
    """No server responds, or it refused to work."""


class Overloaded(Unavailable):
    """The server has more to decide than it can in time; nothing was done."""


# Prefixes that Triton adds to a step's own message.
_PREFIX = re.compile(
    r"^(?:\[request id: [^\]]*\] ?|in ensemble '[^']*', ?"
    r"|Failed to process the request\(s\) for model(?: instance)? '[^']*',? ?"
    r"(?:message: )?)"
)
_ROW = re.compile(r"^row (\d+): ", re.MULTILINE)
# The only row error that is not the caller's fault: time ran out on the way.
_TIME_RAN_OUT = f"{DEADLINE_US}:"


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

    Returns:
        `field: value: rule` for each row, or None when the message has another form.
    """
    _, *parts = _ROW.split(message)
    numbers, errors = parts[::2], parts[1::2]
    if not message.startswith("row ") or numbers != [str(i) for i in range(rows)]:
        return None
    return [error.rstrip("\n") for error in errors]


def refusal(error: str) -> ClientError:
    """Map a row's error: InvalidRequest if invalid, ClientError if time ran out."""
    if error.startswith(_TIME_RAN_OUT):
        return ClientError(error)
    return InvalidRequest(error)
