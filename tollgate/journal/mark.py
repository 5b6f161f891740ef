"""
How far a writer came, kept where a kill cannot take it.

A mark is a file of a few bytes that its writer has mapped into memory: every record
moves it on before it waits for anything. The file outlives the process (not the
machine). It is locked while its writer lives; who gets the lock tells the readers of
the journal how many numbers were given out, so that they see what the killed one took
with it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path

from tollgate.journal.entries import End
from tollgate.repair.segments import locked, sync_folder

SUFFIX = ".mark"
_LAYOUT = struct.Struct("<8sQB")  # writer, one behind its last number, closed in order
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT, _CLOSED_AT = 8, 16


class Mark:
    """
    The mark of one writer.

    Args:
        folder: Where; it must be there.

    Attributes:
        writer: The name drawn for it.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.writer = secrets.token_hex(8)
        self._path = folder / f"{self.writer}{SUFFIX}"
        new = self._path.with_name(f".{self._path.name}")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(new, flags, 0o600)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        os.write(self._fd, _LAYOUT.pack(bytes.fromhex(self.writer), 0, 0))
        self._map = mmap.mmap(self._fd, _LAYOUT.size)
        new.rename(self._path)
        sync_folder(folder)

    def set(self, sequence: int) -> None:
        """Note the number that the next record gets."""
        _SEQUENCE.pack_into(self._map, _SEQUENCE_AT, sequence)

    def close(self, *, told: bool) -> None:
        """
        Let it go.

        Args:
            told: The readers know the writer's end, so the file may go, too.
        """
        self._map[_CLOSED_AT] = 1
        self._map.close()
        if told:
            self._path.unlink(missing_ok=True)
        os.close(self._fd)


def dead_marks(folder: Path) -> Iterator[tuple[Path, End]]:
    """Find the marks of writers that are gone, holding each while it is looked at."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with locked(path) as fd:
            if fd is None:
                continue
            content = os.pread(fd, _LAYOUT.size, 0)
            if len(content) == _LAYOUT.size:
                writer, sequence, closed = _LAYOUT.unpack(content)
                yield path, End(writer.hex(), sequence, killed=not closed)
