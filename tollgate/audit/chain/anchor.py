"""
Read and write anchors: copies of a chain's link hashes, stored outside its folder.

A chain proves that its content was not changed. It cannot prove that no links were cut
off at its end, or that the chain was not rebuilt from the start. An anchor can, if it
is stored out of reach of everyone who may change the folder. It is a file with one line
per link; each line must match a link of the chain.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from tollgate.errors import JournalError
from tollgate.repository.atomic import sync_directory

_LINE_BYTES = 4_096  # more than any line has


class AnchorMark(msgspec.Struct, frozen=True):
    """A link as an anchor remembers it: chain id, link number and link hash."""

    chain: str
    number: int
    hash: str


class AnchorFile:
    """
    An append-only anchor file.

    Args:
        path: Path of the file; created at the first mark if missing.

    Attributes:
        last: Newest mark; None while there is none.

    Raises:
        JournalError: The file cannot be read, or a line of it is not a mark.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.last: AnchorMark | None = None
        self.refresh()

    def refresh(self) -> None:
        """
        Read the marks that other processes added.

        Raises:
            JournalError: The file cannot be read, or a line of it is not a mark.
        """
        marks = read_anchor(self._path)
        self.last = marks[-1] if marks else None

    def note(self, mark: AnchorMark) -> None:
        """
        Append a link unless the file has it already, and sync the file to disk.

        Raises:
            JournalError: The file cannot be written.
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
                    os.ftruncate(fd, whole)  # cuts half a line of a killed worker
                    os.pwrite(fd, line, whole)
                    os.fsync(fd)
            finally:
                os.close(fd)
            if new:
                sync_directory(self._path.parent)
        except (OSError, msgspec.MsgspecError) as exc:
            raise JournalError(self._path, f"cannot be written: {exc}") from exc
        self.last = mark


def _end_of(fd: int) -> tuple[int, AnchorMark | None]:
    """Return the offset after the last complete line, and its mark or None."""
    size = os.fstat(fd).st_size
    begin = max(0, size - _LINE_BYTES)
    tail = os.pread(fd, _LINE_BYTES, begin)
    tail = tail[: tail.rfind(b"\n") + 1]
    last = tail.splitlines()[-1:]
    known = msgspec.json.decode(last[0], type=AnchorMark) if last else None
    return begin + len(tail), known


def read_anchor(path: Path) -> list[AnchorMark]:
    """
    Read all marks of an anchor; a missing file has none.

    Raises:
        JournalError: The file cannot be read, or a line of it is not a mark.
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
            marks.append(msgspec.json.decode(line, type=AnchorMark))
        except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
            raise JournalError(path, f"line {number} is not a mark: {exc}") from exc
    return marks
