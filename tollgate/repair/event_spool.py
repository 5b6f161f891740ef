"""
Write purchases to local disk that the store did not apply, or maybe not.

A request never waits for the disk: purchases go to a thread, which writes them into
segments (spool_segments.py), one file per process. A process that is killed
loses the purchases that it took within the last `FLUSH_S` and those that it was just
writing; purchases that arrive while disk or memory are full are refused, and counted.
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
from tollgate.features.spec.feature_spec import load_spec
from tollgate.repair.spool_segments import (
    SUFFIX,
    SegmentFile,
    SegmentHeader,
    frame,
    next_number,
    segments_bytes,
)
from tollgate.store.store_events import Purchases
from tollgate.stream.events import EventCodec
from tollgate.worker import Worker

log = logging.getLogger(__name__)

FLUSH_S = 0.05
MOST_WAITING = 50_000  # rows in memory: half a minute of 1,500 a second, 25 MB
MOST_BYTES = 1 << 30  # on disk, of all processes: six million purchases
SEGMENT_BYTES = 8 << 20
SEGMENT_S = 1.0  # a drain cannot take the youngest segment for that long
_FULL_S = 1.0


class PurchaseSpool:
    """
    Spool purchases of one product's feature step.

    Args:
        folder: Folder of the spool; created when missing, readable for this user alone.
        spec_path: The features.yaml that scores them.
        most_waiting: Most rows to queue in memory.
        most_bytes: Largest size of the folder.

    Attributes:
        refused: Rows for which there was no room.
        lost: Rows that were taken and could not be written.

    Raises:
        SpecError: The features cannot be read.
        OSError: The folder cannot be created.
    """

    def __init__(
        self,
        folder: Path,
        spec_path: Path,
        *,
        most_waiting: int = MOST_WAITING,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        spec = load_spec(spec_path)
        self._codec = EventCodec(spec)
        self._folder = folder
        text = spec_path.read_text("utf-8")
        self._head = (spec.product, f"{spec.state_hash:016x}", text)
        self._hook = spec.hook.source if spec.hook else ""
        self._most_waiting = most_waiting
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, Purchases]] = deque()
        self._rows = 0
        self._sequence = 0
        self._written_to = 0  # sequence number at which the next segment starts
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
        """Queue purchases without waiting; return whether there was room for them."""
        rows = len(purchases)
        with self._lock:
            first = self._sequence
            self._sequence += rows  # a number without an event reveals a loss
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
        """Write all queued purchases, and stop; a second call does nothing."""
        with self._lock:
            self._stopping = True
        self._ended.set()
        self._worker.stop()

    def _step(self) -> None:
        taken = self._take()
        if taken:
            self._write_batches(taken)
        self._close_when_due()
        if taken:
            self._ended.wait(FLUSH_S)

    def _end(self) -> None:
        """Write all queued purchases, and close the segment even if that fails."""
        try:
            if taken := self._take():
                self._write_batches(taken)
        finally:
            self._close_segment()

    def _take(self) -> list[tuple[int, Purchases]]:
        with self._lock:
            taken = list(self._waiting)
            self._waiting.clear()
            self._rows = 0
        return taken

    def _write_batches(self, taken: list[tuple[int, Purchases]]) -> None:
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
        """Encode a batch as frames; if that fails, other batches are not affected."""
        try:
            events = self._codec.encode_purchases(purchases)
        except Exception as error:  # noqa: BLE001 - any unforeseen error
            rows = len(purchases)
            self.lost += rows
            log.error("%d purchases cannot be spooled: %s", rows, trace_of(error))
            return []
        return [frame(first + row, event) for row, event in enumerate(events)]

    def _write(self, frames: list[bytes]) -> None:
        """Append frames to the segment; if there is none, start one."""
        size = sum(map(len, frames))
        if self._segment is None:
            self._others_bytes = segments_bytes(self._folder)
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
    Open the spool of a starting step; return None if its folder is unusable.

    Args:
        folder: Parent folder; each product gets a folder in it. Empty for no spool.
        spec_path: The features.yaml that scores its purchases.
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
