"""
Purchases that the store did not apply, or maybe not, on this machine's disk.

A request never waits for the disk: purchases are handed to a thread, which writes them
into segments (tollgate/repair/segments.py), one file per process. What a process that
is killed loses is what it took within the last `flush_s`, and what it was just
writing; what it takes while disk or memory are full is refused, and counted.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from pathlib import Path

from tollgate.errors import trace_of
from tollgate.features.spec import load_spec
from tollgate.repair.segments import (
    SUFFIX,
    SegmentFile,
    SegmentHeader,
    frame,
    next_number,
    segments,
)
from tollgate.store.events import Purchases
from tollgate.stream.events import EventCodec
from tollgate.worker import Worker

log = logging.getLogger(__name__)

FLUSH_S = 0.05
MOST_WAITING = 50_000  # rows in memory: half a minute of 1,500 a second, 25 MB
MOST_BYTES = 1 << 30  # on disk, of all processes: six million purchases
SEGMENT_BYTES = 8 << 20
SEGMENT_S = 1.0  # the youngest segment is closed to a drain for that long
_FULL_S = 1.0


class PurchaseSpool:
    """
    Keeps purchases of one product's feature step.

    Args:
        folder: Where; made when missing, readable for this user alone.
        spec_path: The features.yaml that scores them.
        flush_s: How often the disk is waited for, at most.
        most_waiting: Rows that may wait in memory.
        most_bytes: What the folder may hold.

    Attributes:
        refused: Rows that found no room.
        lost: Rows that were taken and could not be written.

    Raises:
        SpecError: The features cannot be read.
        OSError: The folder cannot be made.
    """

    def __init__(
        self,
        folder: Path,
        spec_path: Path,
        *,
        flush_s: float = FLUSH_S,
        most_waiting: int = MOST_WAITING,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        spec = load_spec(spec_path)
        self._codec = EventCodec(spec)
        self._folder = folder
        text = spec_path.read_text("utf-8")
        self._head = (spec.product, f"{spec.state_hash:016x}", text)
        self._hook = spec.hook.source if spec.hook else ""
        self._flush_s = flush_s
        self._most_waiting = most_waiting
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, Purchases]] = deque()
        self._rows = 0
        self._sequence = 0
        self._written_to = 0  # what a segment's numbers go on from
        self._full_until_s = 0.0
        self._segment: SegmentFile | None = None
        self._segment_until_s = 0.0
        self._others_bytes = 0
        self._stopping = False
        self._ended = threading.Event()
        self.refused = 0
        self.lost = 0
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._worker = Worker(
            "spool",
            self._step,
            pause_s=lambda: None if self._segment is None else SEGMENT_S,
            finish=self._end,
        )
        self._worker.start()

    def append(self, purchases: Purchases) -> bool:
        """
        Take purchases, without waiting.

        Returns:
            Whether there was room for them.
        """
        rows = len(purchases)
        with self._lock:
            first = self._sequence
            self._sequence += rows  # a number without an event tells of a loss
            if (
                self._stopping
                or self._rows + rows > self._most_waiting
                or time.monotonic() < self._full_until_s
            ):
                self.refused += rows
                return False
            self._waiting.append((first, purchases))
            self._rows += rows
        self._worker.wake()
        return True

    def close(self) -> None:
        """Write what waits, and end; a second call does nothing."""
        with self._lock:
            self._stopping = True
        self._ended.set()
        self._worker.stop()

    def _step(self) -> None:
        taken = self._take()
        if taken:
            self._keep(taken)
        self._close_when_due()
        if taken:
            self._ended.wait(self._flush_s)

    def _end(self) -> None:
        """Write what waits, and let the segment go whatever comes of that."""
        try:
            if taken := self._take():
                self._keep(taken)
        finally:
            self._close_segment()

    def _take(self) -> list[tuple[int, Purchases]]:
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
            self._rows = 0
        return taken

    def _keep(self, taken: list[tuple[int, Purchases]]) -> None:
        frames = [one for first, batch in taken for one in self._frames(first, batch)]
        rows = len(frames)
        try:
            if frames:
                self._write(frames)
            self._written_to = taken[-1][0] + len(taken[-1][1])
        except OSError as error:
            self.lost += rows
            self._full_until_s = time.monotonic() + _FULL_S
            log.warning("%d purchases are lost to the spool: %s", rows, error.strerror)
        except Exception:
            self.lost += rows
            raise

    def _frames(self, first: int, purchases: Purchases) -> list[bytes]:
        """Frame a batch; one that cannot be encoded takes no other with it."""
        try:
            events = self._codec.encode_purchases(purchases)
        except Exception as error:  # noqa: BLE001 - nobody foresaw it
            rows = len(purchases)
            self.lost += rows
            log.error("%d purchases cannot be spooled: %s", rows, trace_of(error))
            return []
        return [frame(first + row, event) for row, event in enumerate(events)]

    def _write(self, frames: list[bytes]) -> None:
        """Append frames to the segment; without one, begin one."""
        size = sum(map(len, frames))
        if self._segment is None:
            self._others_bytes = _bytes_of(self._folder)
            self._require_room(size)
            product, state, spec = self._head
            self._segment = SegmentFile(
                self._folder / f"{next_number(self._folder)}-{os.getpid()}{SUFFIX}",
                SegmentHeader(
                    product, state, spec, first=self._written_to, hook=self._hook
                ),
            )
            self._segment_until_s = time.monotonic() + SEGMENT_S
        else:
            self._require_room(size)
        self._segment.write(frames)

    def _require_room(self, size: int) -> None:
        own = self._segment.bytes if self._segment is not None else 0
        if self._others_bytes + own + size > self._most_bytes:
            text = f"it may hold {self._most_bytes:,} bytes"
            raise OSError(errno.ENOSPC, text)

    def _close_when_due(self) -> None:
        segment = self._segment
        if segment is None:
            return
        due = time.monotonic() >= self._segment_until_s
        if due or segment.bytes >= SEGMENT_BYTES:
            self._close_segment()

    def _close_segment(self) -> None:
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()


def open_spool(folder: str, spec_path: Path, *, product: str) -> PurchaseSpool | None:
    """
    Open the spool of a step that starts, or go on without one.

    Args:
        folder: Where; each product gets a folder in it. Empty for no spool.
        spec_path: The features.yaml that scores its purchases.
        product: Whose.
    """
    if not folder:
        return None
    path = Path(folder) / product
    try:
        return PurchaseSpool(path, spec_path)
    except OSError as error:
        text = "no spool, purchases that the store misses are lost: %s: %s"
        log.warning(text, path, error.strerror)
        return None


def _bytes_of(folder: Path) -> int:
    """Add up what all segments hold; one that is drained meanwhile holds nothing."""
    total = 0
    for path in segments(folder):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
