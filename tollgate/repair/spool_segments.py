"""
Segments of the spool: files of framed events, each with its checksum.

A frame is length u4, CRC-32 u4 and sequence number u8, then that many bytes; the CRC
covers sequence number and bytes. The first frame of a file is its header. The process
that writes a file locks it (flock) for as long as it lives: a process that gets the
lock knows that no writer will append to the file. If a killed writer left a
half-written frame at the end, its checksum does not match and it is left out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tollgate.errors import InputError

SUFFIX = ".spool"
NEW_SUFFIX = ".new"
MAGIC = b"TGSPOOL1"

_FRAME = struct.Struct("<IIQ")
_SEQUENCE = struct.Struct("<Q")
_MOST_FRAME_BYTES = 1 << 20


class SegmentHeader(msgspec.Struct, frozen=True):
    """
    Describe the events of a segment.

    Attributes:
        state: State hash of the features that scored them, 16 hexadecimal digits.
        spec: That features.yaml, so that they can be applied after a release.
        first: Sequence number of the first event, as its writer counts.
        hook: The hook.py next to it; empty where it names none.
    """

    product: str
    state: str
    spec: str
    first: int
    hook: str = ""


class Segment(msgspec.Struct, frozen=True):
    """
    Hold a segment that was read.

    Attributes:
        events: The events, as tollgate/stream/events.py encodes them.
        missing: Events that its writer took and could not write, by their numbers.
        torn_bytes: Bytes at the end that make no complete frame.
    """

    header: SegmentHeader
    events: list[bytes]
    missing: int
    torn_bytes: int


def frame(sequence: int, payload: bytes) -> bytes:
    """Encode one event as a frame."""
    crc = zlib.crc32(payload, zlib.crc32(_SEQUENCE.pack(sequence)))
    return _FRAME.pack(len(payload), crc, sequence) + payload


def head(header: SegmentHeader) -> bytes:
    """Encode the start of a segment."""
    return MAGIC + frame(header.first, msgspec.json.encode(header))


def segments(folder: Path) -> list[Path]:
    """List a folder's segments, oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}"))


def segments_bytes(folder: Path) -> int:
    """Return the size of all segments; one that is removed meanwhile counts 0."""
    total = 0
    for path in segments(folder):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def clear_heads(folder: Path) -> None:
    """Delete the files of writers that were killed before their segment had a name."""
    for path in folder.glob(f".*{SUFFIX}{NEW_SUFFIX}"):
        with locked(path) as fd:
            if fd is not None:
                path.unlink(missing_ok=True)


def spools(folder: Path) -> list[Path]:
    """List the spools in a folder, one per product; itself if it is one."""
    inner = folder.iterdir() if folder.is_dir() else ()
    found = sorted(path for path in inner if path.is_dir())
    return [folder, *found] if segments(folder) or not found else found


def next_number(folder: Path) -> str:
    """
    Return a number for a new segment: the time, in ns since the epoch.

    It is higher than all existing numbers, even after the clock is set back: segments
    are applied in order, and an entity value that is full takes nothing older than the
    events it dropped.
    """
    newest = max((path.name.partition("-")[0] for path in segments(folder)), default="")
    behind = int(newest) + 1 if newest.isdigit() else 0
    return f"{max(time.time_ns(), behind):019d}"


def read_segment(path: Path, content: bytes) -> Segment:
    """
    Read a segment; everything after the first damage is left out.

    Raises:
        InputError: It is no segment, or its header is damaged.
    """
    frames = list(_frames(content)) if content[: len(MAGIC)] == MAGIC else []
    if not frames:
        raise InputError(path, "is no segment of a spool, or its head is damaged")
    try:
        header = msgspec.json.decode(frames[0][1], type=SegmentHeader)
    except msgspec.MsgspecError as exc:
        raise InputError(path, f"its head cannot be read: {exc}") from exc
    events = frames[1:]
    whole = frames[-1][2]
    taken = events[-1][0] + 1 - header.first if events else 0
    return Segment(
        header=header,
        events=[payload for _, payload, _ in events],
        missing=taken - len(events),
        torn_bytes=len(content) - whole,
    )


def _frames(content: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Yield sequence number, bytes and end of each valid frame."""
    at = len(MAGIC)
    while at + _FRAME.size <= len(content):
        length, crc, sequence = _FRAME.unpack_from(content, at)
        begin, end = at + _FRAME.size, at + _FRAME.size + length
        if length > _MOST_FRAME_BYTES or end > len(content):
            return
        payload = content[begin:end]
        if zlib.crc32(payload, zlib.crc32(_SEQUENCE.pack(sequence))) != crc:
            return
        yield sequence, payload, end
        at = end


class SegmentFile:
    """
    Write a segment, which is locked until it is closed.

    It gets its name when its head is on disk, so no reader sees half a head.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, path: Path, header: SegmentHeader) -> None:
        new = path.with_name(f".{path.name}{NEW_SUFFIX}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(new, flags, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            self.bytes = 0
            self._put(head(header))
            new.rename(path)
            sync_folder(path.parent)
        except OSError:
            os.close(self._fd)
            new.unlink(missing_ok=True)
            raise

    def write(self, frames: Sequence[bytes]) -> None:
        """
        Append frames and wait until they are on disk.

        Raises:
            OSError: Writing failed; frames that were written in part are removed.
        """
        self._put(b"".join(frames))

    def _put(self, content: bytes) -> None:
        left = memoryview(content)
        try:
            while left:
                left = left[os.write(self._fd, left) :]
            os.fsync(self._fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.bytes)
                os.lseek(self._fd, self.bytes, os.SEEK_SET)
            raise
        self.bytes += len(content)

    def close(self) -> None:
        """Close and unlock the file; from now on a drain may take it."""
        os.close(self._fd)


def sync_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(path: Path, *, flags: int = os.O_RDWR) -> Iterator[int | None]:
    """Hold a file's lock; None when another process holds it, or the file is gone."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        yield None
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)
