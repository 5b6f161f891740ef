"""
Record every batch of a product's steps during a load, as the steps report it.

The reading end of tollgate.tracing.batches: it creates the pipe, and empties it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import ServerError
from tollgate.tracing import BATCHES_FILE, TRACE_FOLDER
from tollgate.tracing.batches import LOOK_US, BatchSpan
from tollgate.worker import Worker

_PIPE_BYTES = 1 << 20  # maximum for a user who is not root
_INTERVAL_S = 0.02
# Limit of the recorded data: 20 minutes of 5,000 requests a second.
_MOST_BYTES = 256_000_000
_DIGITS = 18  # of a number that fits int64

I64 = npt.NDArray[np.int64]


class Batches(msgspec.Struct, frozen=True, eq=False):
    """
    N batches, in the order in which they were reported, and M requests in them.

    Attributes:
        steps: The observed models, in the order of the data flow.
        step: Index of each batch's model in `steps`; int64 [N].
        start_us: Time at which the step took it, on the monotonic clock; int64 [N].
        end_us: Time at which it was done; int64 [N].
        rows: Rows of each batch; int64 [N].
        request: Numeric id that its caller gave each request; int64 [M]. Requests with
            other ids are left out.
        batch: Index of its batch; int64 [M].
        lost: Number of batches that were not reported.
    """

    steps: tuple[str, ...]
    step: I64
    start_us: I64
    end_us: I64
    rows: I64
    request: I64
    batch: I64
    lost: int


@contextmanager
def record_batches(state: Path, steps: Sequence[str]) -> Iterator[list[Batches]]:
    """
    Record the batches of steps while the block runs.

    Args:
        steps: Models to record; reports of others are left out.

    Yields:
        A list that has one element when the block has ended.

    Raises:
        ServerError: Another process records this server, or the folder does not exist.
    """
    found: list[Batches] = []
    reader = _Reader(state / TRACE_FOLDER / BATCHES_FILE)
    try:
        # After this time each step checks for the pipe before its next batch.
        time.sleep(LOOK_US / 1e6 + _INTERVAL_S)
        yield found
    finally:
        chunks = reader.close()
    found.append(batches_of(chunks, steps))


class _Reader:
    """Creates a pipe, and reads it into memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        if _has_reader(path):
            raise ServerError(
                "tollgate", "another process records this server's batches now"
            )
        try:
            path.unlink(missing_ok=True)
            os.mkfifo(path, mode=0o600)
        except OSError as error:
            raise ServerError("tollgate", f"{path}: {error.strerror}") from error
        # Open it for writing too: so it has no end of file when a step closes it.
        self._pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        with contextlib.suppress(OSError):  # more than this user may have
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._chunks: list[bytes] = []
        self._bytes = 0
        self._worker = Worker("batches", self._empty, pause_s=_INTERVAL_S)
        self._worker.start()

    def _empty(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = os.read(self._pipe, _PIPE_BYTES)
                self._bytes += len(lines)
                if self._bytes > _MOST_BYTES:
                    self._chunks.pop()  # the last report shows how many are missing
                self._chunks.append(lines)

    def close(self) -> list[bytes]:
        """Stop, and return the reports: whole lines, except where reads cut them."""
        self._path.unlink(missing_ok=True)
        self._worker.stop()
        self._empty()
        os.close(self._pipe)
        return self._chunks


def _has_reader(path: Path) -> bool:
    """Return whether the path is a pipe that another process reads."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def batches_of(chunks: Sequence[bytes], steps: Sequence[str]) -> Batches:
    """Parse reports from the pipe, in pieces cut anywhere; leave out other steps'."""
    decoder = msgspec.json.Decoder(BatchSpan)
    places = {step: place for place, step in enumerate(steps)}
    tables, pairs = [np.empty((0, 4), np.int64)], [np.empty((0, 2), np.int64)]
    reported: dict[tuple[str, int], tuple[int, int]] = {}  # batches, last number
    count, rest = 0, b""
    for piece in chunks:
        whole, _, rest = (rest + piece).rpartition(b"\n")
        spans = [one for one in decoder.decode_lines(whole) if one.step in places]
        for one in spans:
            number, _ = reported.get((one.step, one.process), (0, 0))
            reported[one.step, one.process] = (number + 1, one.number)
        lines = [
            (places[one.step], one.start_us, one.end_us, one.rows) for one in spans
        ]
        tables.append(np.array(lines, np.int64).reshape(-1, 4))
        pairs.append(_requests(spans, first=count))
        count += len(spans)
    step, start_us, end_us, rows = np.concatenate(tables).T
    request, batch = np.concatenate(pairs).T
    return Batches(
        steps=tuple(steps),
        step=step,
        start_us=start_us,
        end_us=end_us,
        rows=rows,
        request=request,
        batch=batch,
        lost=sum(last + 1 - number for number, last in reported.values()),
    )


def _requests(spans: Sequence[BatchSpan], *, first: int) -> I64:
    """List the requests with numeric ids, each with the index of its batch; [M, 2]."""
    found = [
        (int(name), place)
        for place, one in enumerate(spans, start=first)
        for name in one.requests
        if len(name) <= _DIGITS and name.isascii() and name.isdecimal()
    ]
    return np.array(found, np.int64).reshape(-1, 2)
