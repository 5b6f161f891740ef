"""
Save the progress of a writer, and its newest rows, in a file that survives a kill.

A mark is a file that is mapped into the memory of its writer: the number of the next
record, and a buffer with the rows that may not be durable yet. Rows are in it before
their decisions are answered. The file outlives the process, but not the machine. It is
locked while its writer lives. A process that obtains the lock of a dead writer's mark
sends its rows, and reports to the readers of the journal how many numbers were given
out, so that they can count what was lost nevertheless.

Layout, little-endian: writer (8 bytes), number of the next record (8), 1 if the writer
was closed in order (1; padded to 8), then in words of 8 bytes: size of a half of the
buffer, first and last byte in use of each half, size of the heading; then the version
of contexts and the heading (MessagePack). The halves begin at byte 4,096. A file of 17
bytes has no buffer.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import secrets
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tollgate.errors import trace_of
from tollgate.journal.journal_rows import (
    Heading,
    Numbered,
    Rows,
    decode_rows,
    encode_rows,
)
from tollgate.journal.stream_entries import End
from tollgate.repair.spool_segments import locked, sync_folder
from tollgate.schema import CONTEXT_VERSION

log = logging.getLogger(__name__)

SUFFIX = ".mark"
HALF_BYTES = 4 << 20  # some 3,500 rows of the fraud product
_START = struct.Struct("<8sQB")  # writer, last number + 1, closed in order
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT, _CLOSED_AT = 8, 16
_WORDS = struct.Struct("<6Q")
_WORDS_AT = 24
_HEADING_AT = _WORDS_AT + _WORDS.size
_PAGE = 4096
_USED = _WORDS_AT // 8 + 1  # first of the words that say what of the halves is in use
_LENGTH = struct.Struct("<I")


class Mark:
    """
    Mark of one writer.

    Args:
        folder: Folder of the spool.
        heading: The values that all records share.
        half_bytes: Size of each half of the buffer. Rows go into one half until it is
            full, and then into the other if all rows in that one are durable; if they
            are not, a kill loses the new rows.

    Attributes:
        writer: Random name drawn for the writer.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(
        self, folder: Path, heading: Heading, *, half_bytes: int = HALF_BYTES
    ) -> None:
        self.writer = secrets.token_hex(8)
        self._path = folder / f"{self.writer}{SUFFIX}"
        self._half_bytes = half_bytes
        new = self._path.with_name(f".{self._path.name}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(new, flags, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            encoded = msgspec.msgpack.encode((CONTEXT_VERSION, heading))
            if len(encoded) > _PAGE - _HEADING_AT:
                raise OSError("the names of entities and fields do not fit into a mark")
            size = _PAGE + 2 * half_bytes
            # A page of a full disk would kill the process that writes to it.
            os.posix_fallocate(self._fd, 0, size)
            self._map = mmap.mmap(self._fd, size)
        except OSError:
            os.close(self._fd)
            new.unlink()
            raise
        _START.pack_into(self._map, 0, bytes.fromhex(self.writer), 0, 0)
        words = (half_bytes, 0, 0, 0, 0, len(encoded))
        _WORDS.pack_into(self._map, _WORDS_AT, *words)
        self._map[_HEADING_AT : _HEADING_AT + len(encoded)] = encoded
        self._words = memoryview(self._map)[:_PAGE].cast("Q")
        self._half = 0
        # Of each half: number of the record after each entry, and where the entry ends.
        self._entries: tuple[deque[tuple[int, int]], ...] = (deque(), deque())
        new.rename(self._path)
        sync_folder(folder)

    def set(self, sequence: int) -> None:
        """Store the sequence number of the next record."""
        _SEQUENCE.pack_into(self._map, _SEQUENCE_AT, sequence)

    def save(self, first: int, rows: Rows) -> bool:
        """Save rows until they are durable; return whether there was room for them."""
        raw = encode_rows(first, rows)
        size = _LENGTH.size + len(raw)
        if not self._entries[self._half]:
            self._use(0, 0)
        end = self._words[_USED + 2 * self._half + 1]
        if end + size > self._half_bytes:
            if self._entries[1 - self._half] or size > self._half_bytes:
                return False
            self._half = 1 - self._half
            end = 0
            self._use(0, 0)
        at = _PAGE + self._half * self._half_bytes + end
        self._map[at : at + size] = _LENGTH.pack(len(raw)) + raw
        self._entries[self._half].append((first + len(rows), end + size))
        # Last: what is in use is complete at any moment.
        self._words[_USED + 2 * self._half + 1] = end + size
        return True

    def release(self, sequence: int) -> None:
        """Free the room of all rows with numbers below one."""
        for half, entries in enumerate(self._entries):
            while entries and entries[0][0] <= sequence:
                _, end = entries.popleft()
                self._words[_USED + 2 * half] = end

    def _use(self, begin: int, end: int) -> None:
        # A kill between the two leaves rows that are durable: their readers drop them.
        self._words[_USED + 2 * self._half + 1] = end
        self._words[_USED + 2 * self._half] = begin

    def close(self, *, end_stored: bool) -> None:
        """Close the mark; delete the file if the stream has the writer's end."""
        self._map[_CLOSED_AT] = 1
        self._words.release()
        self._map.close()
        if end_stored:
            self._path.unlink(missing_ok=True)
        os.close(self._fd)


class DeadMark(msgspec.Struct, frozen=True, eq=False):
    """
    The mark of a stopped writer.

    Attributes:
        end: Its end.
        heading: The values that its records share; None without rows.
        rows: Its rows that may not be durable, in their order; None if this version
            cannot read them.
    """

    path: Path
    end: End
    heading: Heading | None
    rows: Sequence[Numbered] | None


def dead_marks(folder: Path) -> Iterator[DeadMark]:
    """Yield the marks of stopped writers; each is locked while it is processed."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with locked(path) as fd:
            if fd is None:
                continue
            content = os.pread(fd, _START.size, 0)
            if len(content) < _START.size:
                continue
            writer, sequence, closed = _START.unpack(content)
            heading: Heading | None = None
            rows: list[Numbered] | None = None
            try:
                heading, rows = _rows(fd)
            except Exception as error:  # noqa: BLE001 - any version may have written it
                text = "the rows of the killed writer %s cannot be read: %s"
                log.error(text, writer.hex(), trace_of(error))
            if rows:
                first, last = rows[-1]
                sequence = max(sequence, first + len(last))
            end = End(writer.hex(), sequence, killed=not closed)
            yield DeadMark(path, end, heading, rows)


def _rows(fd: int) -> tuple[Heading | None, list[Numbered]]:
    """Read the heading and the rows of a mark."""
    words = os.pread(fd, _WORDS.size, _WORDS_AT)
    if len(words) < _WORDS.size:
        return None, []
    half_bytes, *used, heading_bytes = _WORDS.unpack(words)
    rows: list[Numbered] = []
    for half, (begin, end) in enumerate((used[:2], used[2:])):
        content = os.pread(fd, max(0, end - begin), _PAGE + half * half_bytes + begin)
        at = 0
        while at < len(content):
            (size,) = _LENGTH.unpack_from(content, at)
            at += _LENGTH.size
            rows.append(decode_rows(content[at : at + size]))
            at += size
    rows.sort(key=lambda one: one[0])
    encoded = os.pread(fd, heading_bytes, _HEADING_AT)
    version, heading = msgspec.msgpack.decode(encoded, type=tuple[int, Heading])
    if version != CONTEXT_VERSION:
        raise ValueError(f"context {version}, not {CONTEXT_VERSION}")
    return heading, rows
