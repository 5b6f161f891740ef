"""
Spans on their way out of a step: lines in a named pipe.

A step never waits for a trace. What the pipe cannot take is dropped, so whoever
empties it decides how many there are at most.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

# A write of no more than that is never mixed with another's (pipe(7), PIPE_BUF).
WRITE_BYTES = 4096

Attribute = str | int | bool


class Span(msgspec.Struct, frozen=True, array_like=True):
    """
    A part of what became of a request.

    Attributes:
        trace_id: 32 hexadecimal digits.
        span_id: 16.
        parent_id: 16; empty without.
        name: What was done.
        start_ns: When it began, since the epoch.
        end_ns: When it ended.
        attributes: What is told of it: ids of transactions, never of people.
        server: Whether it is what the server did as a whole.
        problem: Why it failed; empty if it did not.
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
    The end of the pipe that a step has.

    Args:
        path: Of the pipe; somebody has it open.

    Raises:
        OSError: Nobody has.
    """

    def __init__(self, path: Path | str) -> None:
        self._pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        self._encode = msgspec.json.Encoder().encode

    def write(self, spans: Iterable[Span]) -> None:
        """Hand spans over, or drop what does not fit."""
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
                return  # full, or nobody reads: a trace is not worth waiting for

    def close(self) -> None:
        """Let go of the pipe."""
        os.close(self._pipe)


def read_spans(lines: bytes) -> tuple[Sequence[Span], bytes]:
    """
    Read what came out of the pipe.

    Returns:
        Its spans, and the beginning of a line that is not whole yet. A line that is
        no span is left out.
    """
    whole, _, rest = lines.rpartition(b"\n")
    found = []
    for line in whole.splitlines():
        try:
            found.append(msgspec.json.decode(line, type=Span))
        except msgspec.MsgspecError:
            continue
    return found, rest
