"""
Anchors: what the chain was, kept where whoever changes the folder cannot reach.

A chain proves that what is in it was not changed, but not that links at its end were
not cut off, or all of it made anew. An anchor is a file with one line per link; each
must be a link of the chain.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tollgate.errors import JournalError
from tollgate.repository.atomic import sync_directory

_LINE_BYTES = 4_096  # more than any line has


class Mark(msgspec.Struct, frozen=True):
    """A link that was there: its chain, number and hash."""

    chain: str
    number: int
    hash: str


class AnchorFile:
    """
    A file that is only ever added to.

    Args:
        path: Where; made when missing.

    Attributes:
        last: The newest mark; None without any.

    Raises:
        JournalError: It cannot be read, or a line of it is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last: Mark | None = None
        self.refresh()

    def refresh(self) -> None:
        """
        Read what others noted.

        Raises:
            JournalError: It cannot be read, or a line of it is none.
        """
        marks = read_anchor(self._path)
        self.last = marks[-1] if marks else None

    def note(self, mark: Mark) -> None:
        """
        Add a link, unless it is there, and wait for the disk.

        Raises:
            JournalError: It cannot be written.
        """
        if self.last is not None and mark.number <= self.last.number:
            return
        line = msgspec.json.encode(mark) + b"\n"
        try:
            new = not self._path.exists()
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            fd = os.open(self._path, flags, 0o600)
            try:
                whole, known = _end_of(fd)
                if known is None or known.number < mark.number:
                    os.ftruncate(fd, whole)  # half a line, of a worker that was killed
                    os.pwrite(fd, line, whole)
                    os.fsync(fd)
            finally:
                os.close(fd)
            if new:
                sync_directory(self._path.parent)
        except (OSError, msgspec.MsgspecError) as exc:
            raise JournalError(self._path, f"cannot be written: {exc}") from exc
        self.last = mark


def _end_of(fd: int) -> tuple[int, Mark | None]:
    """Tell where the last whole line ends, and what it says."""
    size = os.fstat(fd).st_size
    begin = max(0, size - _LINE_BYTES)
    tail = os.pread(fd, _LINE_BYTES, begin)
    tail = tail[: tail.rfind(b"\n") + 1]
    last = tail.splitlines()[-1:]
    known = msgspec.json.decode(last[0], type=Mark) if last else None
    return begin + len(tail), known


def read_anchor(path: Path) -> list[Mark]:
    """
    Read an anchor; one that is not there has no marks.

    Raises:
        JournalError: It cannot be read, or a line of it is none.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise JournalError(path, f"cannot be read: {exc.strerror}") from exc
    marks = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            marks.append(msgspec.json.decode(line, type=Mark))
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise JournalError(path, f"line {number} is no mark: {exc}") from exc
    return marks
