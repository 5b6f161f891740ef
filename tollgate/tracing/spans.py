"""
Carry spans out of a step as lines in a named pipe.

A step never waits for a trace. It drops what the pipe cannot take, so the process that
empties the pipe limits how many spans there are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

# A write of at most this size is never mixed with another's (pipe(7), PIPE_BUF).
WRITE_BYTES = 4096

Attribute = str | int | bool


class Span(msgspec.Struct, frozen=True, array_like=True):
    """
    One operation on a request.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16 hexadecimal digits.
        parent_id: 16 hexadecimal digits; empty if there is no parent.
        start_ns: Start, ns since the epoch.
        end_ns: End, ns since the epoch.
        attributes: Details: ids of transactions, never of people.
        server: True if it is the server's root span of the request.
        problem: Reason why it failed; empty if it did not.
    """

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Attribute] = {}
    server: bool = False
    problem: str = ""


class SpanWriter:
    """
    Write a step's spans to the pipe.

    Args:
        path: Path of the pipe; a reader has it open.

    Raises:
        OSError: No reader has it open.
    """

    def __init__(self, path: Path | str) -> None:
        self._pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        self._encode = msgspec.json.Encoder().encode

    def write(self, spans: Iterable[Span]) -> None:
        """Write spans; drop those that do not fit."""
        waiting = b""
        for span in spans:
            line = self._encode(span) + b"\n"
            if len(waiting) + len(line) > WRITE_BYTES:
                self._put(waiting)
                waiting = b""
            waiting += line
        self._put(waiting)

    def _put(self, lines: bytes) -> None:
        if 0 < len(lines) <= WRITE_BYTES:
            try:
                os.write(self._pipe, lines)
            except (BlockingIOError, BrokenPipeError):
                return  # full, or no reader: a trace is not worth a wait

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._pipe)


def read_spans(lines: bytes) -> tuple[Sequence[Span], bytes]:
    """
    Parse the bytes that were read from the pipe.

    Returns:
        The spans, and the beginning of an incomplete line. A line that is not a span is
        skipped.
    """
    whole, _, rest = lines.rpartition(b"\n")
    found = []
    for line in whole.splitlines():
        try:
            found.append(msgspec.json.decode(line, type=Span))
        except msgspec.MsgspecError:
            continue
    return found, rest
