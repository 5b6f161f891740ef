"""
Report each batch of a step to a connected reader: start, end, rows and request ids.

The reader makes a named pipe and reads it. While the pipe does not exist, a step looks
for it a few times a second and writes nothing. Nothing is stored, and no step waits: a
step drops what the pipe cannot take, and the numbers of the batches show the gap.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from tollgate.errors import trace_of
from tollgate.tracing import BATCHES_VARIABLE
from tollgate.tracing.spans import WRITE_BYTES

log = logging.getLogger(__name__)

LOOK_US = 250_000  # between two looks for a pipe


class BatchSpan(msgspec.Struct, frozen=True, array_like=True):
    """
    One call of a step; times in µs on the machine's monotonic clock.

    Attributes:
        process: Its process id: instances of a step work in parallel.
        number: Number of the batch among those that the process reported, from 0.
        start_us: Time when the step took the batch.
        end_us: Time when it had all answers.
        requests: Request ids that the callers gave; empty if they do not fit into a
            line.
    """

    step: str
    process: int
    number: int
    start_us: int
    end_us: int
    rows: int
    requests: tuple[str, ...] = ()


def candidates_part(step: str) -> str:
    """Return the name under which a first step reports the search for candidates."""
    return f"{step}.candidates"


class Named(Protocol):
    """The part of a Triton request that is needed here."""

    def request_id(self) -> str:
        """Return the id that the caller gave; empty if there is none."""


class BatchSpanWriter:
    """
    Write the spans of a step's batches to a pipe.

    Args:
        path: Path of the pipe, which exists while a reader is connected.
        clock: Monotonic clock, µs.
    """

    def __init__(
        self, path: str, *, step: str, clock: Callable[[], int] | None = None
    ) -> None:
        self._path = path
        self._step = step
        self._clock = clock or _now_us
        self._encode = msgspec.json.Encoder().encode
        self._pipe = -1
        self._next_look_us = 0
        self._written = 0
        self._failed = False

    def is_enabled(self) -> bool:
        """Return whether a reader is connected; else this costs a look at the clock."""
        if self._pipe >= 0:
            return True
        if self._clock() >= self._next_look_us:
            self._check_file()
        return self._pipe >= 0

    def _check_file(self) -> None:
        self._next_look_us = self._clock() + LOOK_US
        self._pipe = _opened(self._path)
        self._written = 0

    def write(self, requests: Sequence[Named], *, rows: int, began_us: int) -> None:
        """Report a batch that has just ended; never raise and never wait."""
        try:
            span = BatchSpan(
                step=self._step,
                process=os.getpid(),
                number=self._written,
                start_us=began_us,
                end_us=self._clock(),
                rows=rows,
                requests=tuple(one.request_id() for one in requests),
            )
            self._write_span(span)
        except Exception as exc:  # noqa: BLE001 - a look never costs an answer
            if not self._failed:
                log.error("the span of a batch was not written: %s", trace_of(exc))
            self._failed = True

    def _write_span(self, span: BatchSpan) -> None:
        try:
            self._put(span)
        except BrokenPipeError:  # the reader is gone; another one may have come
            self.close()
            self._check_file()
            if self._pipe >= 0:
                self._put(msgspec.structs.replace(span, number=0))

    def _put(self, span: BatchSpan) -> None:
        line = self._encode(span) + b"\n"
        if len(line) > WRITE_BYTES:
            line = self._encode(msgspec.structs.replace(span, requests=())) + b"\n"
        self._written += 1
        with contextlib.suppress(BlockingIOError):  # full: this number will be missing
            os.write(self._pipe, line)

    def close(self) -> None:
        """Close the pipe."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1


def open_batches(step: str) -> BatchSpanWriter | None:
    """Make a writer for the pipe that the environment names; None if it names none."""
    path = os.environ.get(BATCHES_VARIABLE, "")
    return BatchSpanWriter(path, step=step) if path else None


def _opened(path: str) -> int:
    """Open a pipe that has a reader; return -1 if there is none."""
    try:
        pipe = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return -1
    if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
        os.close(pipe)
        return -1
    return pipe


def _now_us() -> int:
    return time.monotonic_ns() // 1000
