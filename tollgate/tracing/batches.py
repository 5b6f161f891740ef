"""
What a step worked on and when, batch by batch, for whoever looks.

Who looks makes a named pipe and reads it; while it is not there, a step looks for it a
few times a second and tells nothing. Nothing of it is kept, and nobody waits: what the
pipe cannot take is dropped, and the numbers of the batches show it.
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
    One call of a step; µs on the monotonic clock of the machine.

    Attributes:
        step: The model.
        process: Its process id: instances of a step work side by side.
        number: Of the batch among those that the process told, from 0.
        start_us: When the step took the batch.
        end_us: When it had all answers.
        rows: In it.
        requests: What their callers called the requests; empty where that is too much
            for a line.
    """

    step: str
    process: int
    number: int
    start_us: int
    end_us: int
    rows: int
    requests: tuple[str, ...] = ()


class Named(Protocol):
    """A request of Triton's, as far as it is needed here."""

    def request_id(self) -> str:
        """What its caller called it; empty for nothing."""


class BatchTeller:
    """
    The end of the pipe that a step has.

    Args:
        path: Where the pipe is while somebody looks.
        step: Whose batches they are.
        clock: Monotonic, µs.
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
        self._told = 0
        self._failed = False

    def wanted(self) -> bool:
        """Tell whether somebody looks; a look at the clock while nobody does."""
        if self._pipe >= 0:
            return True
        if self._clock() >= self._next_look_us:
            self._look()
        return self._pipe >= 0

    def _look(self) -> None:
        self._next_look_us = self._clock() + LOOK_US
        self._pipe = _opened(self._path)
        self._told = 0

    def tell(self, requests: Sequence[Named], *, rows: int, began_us: int) -> None:
        """
        Tell of a batch that is done just now; it never raises and never waits.

        Args:
            requests: Of the batch.
            rows: In all of them.
            began_us: When the step took it.
        """
        try:
            span = BatchSpan(
                step=self._step,
                process=os.getpid(),
                number=self._told,
                start_us=began_us,
                end_us=self._clock(),
                rows=rows,
                requests=tuple(one.request_id() for one in requests),
            )
            self._write(span)
        except Exception as exc:  # noqa: BLE001 - a look never costs an answer
            if not self._failed:
                log.error("no batch was told: %s", trace_of(exc))
            self._failed = True

    def _write(self, span: BatchSpan) -> None:
        try:
            self._put(span)
        except BrokenPipeError:  # who looked has gone; another one may have come
            self.close()
            self._look()
            if self._pipe >= 0:
                self._put(msgspec.structs.replace(span, number=0))

    def _put(self, span: BatchSpan) -> None:
        line = self._encode(span) + b"\n"
        if len(line) > WRITE_BYTES:
            line = self._encode(msgspec.structs.replace(span, requests=())) + b"\n"
        self._told += 1
        with contextlib.suppress(BlockingIOError):  # full: its number will be missing
            os.write(self._pipe, line)

    def close(self) -> None:
        """Let go of the pipe."""
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe = -1


def open_batches(step: str) -> BatchTeller | None:
    """Make a step's end of what the environment names; None when it names nothing."""
    path = os.environ.get(BATCHES_VARIABLE, "")
    return BatchTeller(path, step=step) if path else None


def _opened(path: str) -> int:
    """Open a pipe that somebody reads; -1 when there is none."""
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
