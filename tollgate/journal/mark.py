"""
Record the progress of a writer in a file that survives a kill of the process.

A mark is a file of a few bytes, mapped into the memory of its writer. The writer
advances it for every record before it waits for anything. The file outlives the
process, but not the machine. It is locked while its writer lives. A process that
obtains the lock of a dead writer's mark reports to the readers of the journal how many
numbers were given out, so that they can count the records lost with the killed process.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
from collections.abc import Iterator
from pathlib import Path

from tollgate.journal.stream_entries import End
from tollgate.repair.spool_segments import locked, sync_folder

SUFFIX = ".mark"
_LAYOUT = struct.Struct("<8sQB")  # writer, last number + 1, closed in order
_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT, _CLOSED_AT = 8, 16


class Mark:
    """
    Mark of one writer.

    Attributes:
        writer: Random name drawn for the writer.

    Raises:
        OSError: The file cannot be created.
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
        """Store the sequence number of the next record."""
        _SEQUENCE.pack_into(self._map, _SEQUENCE_AT, sequence)

    def close(self, *, end_stored: bool) -> None:
        """Close the mark; delete the file if the stream has the writer's end."""
        self._map[_CLOSED_AT] = 1
        self._map.close()
        if end_stored:
            self._path.unlink(missing_ok=True)
        os.close(self._fd)


def dead_marks(folder: Path) -> Iterator[tuple[Path, End]]:
    """Yield the marks of stopped writers; each is locked while it is processed."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        with locked(path) as fd:
            if fd is None:
                continue
            content = os.pread(fd, _LAYOUT.size, 0)
            if len(content) == _LAYOUT.size:
                writer, sequence, closed = _LAYOUT.unpack(content)
                yield path, End(writer.hex(), sequence, killed=not closed)
