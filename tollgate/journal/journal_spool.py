"""
Store chunks on local disk while the stream cannot take them.

The files are segments in the format of the repair spool (repair/spool_segments.py),
one frame per chunk; each writer fills one file at a time. A writer drains its own
segments first, then those of dead writers, oldest first. A segment is removed when the
stream has acknowledged all of it. If a writer is killed before that, another one sends
the segment again, and the reader drops records that it has already, by writer and
sequence number.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from tollgate.errors import InputError
from tollgate.repair.spool_segments import (
    SUFFIX,
    SegmentFile,
    SegmentHeader,
    frame,
    locked,
    next_number,
    read_segment,
    segments,
    segments_bytes,
)

log = logging.getLogger(__name__)

SEGMENT_BYTES = 8 << 20
MOST_BYTES = 4 << 30  # of all writers: some 25 million records of the fraud product
MOST_CHUNKS = 64  # per call of `send`
UNREADABLE = ".unreadable"  # suffix of segments that this version cannot read

Send = Callable[[Sequence[bytes]], int]


class JournalSpool:
    """
    One writer's segments in a folder, and those that stopped writers left there.

    Args:
        folder: Folder of the segments; created if missing, with access for this user
            only.
        most_bytes: Maximum size of the folder.

    Raises:
        OSError: The folder cannot be created.
    """

    def __init__(
        self, folder: Path, *, product: str, most_bytes: int = MOST_BYTES
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder = folder
        self._product = product
        self._most_bytes = most_bytes
        self._segment: SegmentFile | None = None
        self._segment_path = folder
        self._written = 0  # segments created
        self._others_bytes = 0
        self._own: deque[Path] = deque()  # closed, oldest first
        self._draining = contextlib.ExitStack()  # holds the lock of _source
        self._source: Path | None = None
        self._source_is_own = False
        self._chunks: deque[bytes] = deque()
        self._slice = 1  # number of chunks in the next call

    @property
    def busy(self) -> bool:
        """Return whether chunks are queued, or a foreign segment is partly sent."""
        return self.waiting or self._source is not None

    @property
    def waiting(self) -> bool:
        """Return whether own chunks are queued; newer ones must queue behind."""
        return self._segment is not None or bool(self._own) or self._source_is_own

    def write(self, chunks: Sequence[tuple[int, bytes]]) -> None:
        """
        Append chunks and sync them to disk.

        Args:
            chunks: Sequence number of the first record, and the chunk.

        Raises:
            OSError: The disk failed, or the folder is full; nothing was stored.
        """
        frames = [frame(first, raw) for first, raw in chunks]
        size = sum(map(len, frames))
        if self._segment is not None and self._segment.bytes >= SEGMENT_BYTES:
            self._close_segment()
        if self._segment is None:
            self._others_bytes = segments_bytes(self.folder)
            self._require_room(size)
            number = next_number(self.folder)
            name = f"{number}-{os.getpid()}-{self._written}{SUFFIX}"
            self._written += 1
            path = self.folder / name
            head = SegmentHeader(self._product, "journal", "", first=chunks[0][0])
            self._segment = SegmentFile(path, head)
            self._segment_path = path
        else:
            self._require_room(size)
        self._segment.write(frames)

    def _require_room(self, size: int) -> None:
        own = self._segment.bytes if self._segment is not None else 0
        if self._others_bytes + own + size > self._most_bytes:
            text = f"the folder may hold {self._most_bytes:,} bytes"
            raise OSError(errno.ENOSPC, text)

    def _close_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None
            self._own.append(self._segment_path)

    def drain(self, send: Send, *, until_s: float) -> bool:
        """
        Send queued chunks: of this writer, oldest first, then of stopped writers.

        Args:
            send: Sends chunks of one segment; returns how many of them, from the first
                on, the stream has acknowledged.
            until_s: Time to stop at, on the clock of time.monotonic.

        Returns:
            True if the stream took everything that was sent.
        """
        while self._chunks or self._open_next():
            part = list(itertools.islice(self._chunks, self._slice))
            sent = send(part)
            # A stream that responded late may have taken all of them. Send single
            # chunks after a failure, so that few are sent twice.
            self._slice = min(2 * self._slice, MOST_CHUNKS) if sent == len(part) else 1
            for _ in range(sent):
                self._chunks.popleft()
            if not self._chunks:
                self._remove_source()
            if sent < len(part):
                return False
            if time.monotonic() >= until_s:
                break
        return True

    def _open_next(self) -> bool:
        """Read the next segment without a live writer; False if there is none."""
        while (path := self._next()) is not None:
            fd = self._draining.enter_context(locked(path))
            if fd is None:
                continue
            with os.fdopen(os.dup(fd), "rb") as file:
                content = file.read()
            self._source = path
            try:
                segment = read_segment(path, content)
                if segment.header.product != self._product:
                    problem = f"is of {segment.header.product}, not {self._product}"
                    raise InputError(path, problem)
            except InputError as error:
                log.error("a segment of the journal's spool is set aside: %s", error)
                path.rename(path.with_name(path.name + UNREADABLE))
                self._remove_source()
                continue
            if segment.torn_bytes:
                text = "%s ends with %d bytes that its writer did not finish"
                log.warning(text, path.name, segment.torn_bytes)
            self._chunks.extend(segment.events)
            if self._chunks:
                return True
            self._remove_source()
        return False

    def _next(self) -> Path | None:
        """Return the next segment: of this writer first, then of a stopped one."""
        self._source_is_own = False
        if not self._own:
            self._close_segment()
        if self._own:
            self._source_is_own = True
            return self._own.popleft()
        for path in segments(self.folder):
            with locked(path) as fd:
                if fd is not None:
                    return path
        return None

    def _remove_source(self) -> None:
        if self._source is not None:
            self._source.unlink(missing_ok=True)
        self._let_go()

    def _let_go(self) -> None:
        self._source = None
        self._source_is_own = False
        self._chunks.clear()
        self._draining.close()

    def close(self) -> None:
        """Release all segments; the next writer sends their chunks."""
        self._close_segment()
        self._let_go()
