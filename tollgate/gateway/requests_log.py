"""
Read the request log of nginx as it grows, and keep the file small.

nginx appends whole buffers, so it never waits for the reader; if it cannot write the
file, it goes on serving without it.
"""

from __future__ import annotations

import os
from io import FileIO
from pathlib import Path

from tollgate.errors import InputError

_TRUNCATE_BYTES = 4 << 20  # the file is truncated once so much was read
_READ_BYTES = 4 << 20  # per read: 70,000 requests
_LINE_BYTES = 64 << 10  # longer text without a line end is not a line


class RequestsLog:
    """
    Read the new lines of the file at each look.

    When more than 4 MiB was read, it is cut off as `copytruncate` of logrotate does it:
    nginx goes on at the beginning of the file. A buffer that nginx writes in the
    microseconds between the look and the cut is lost.

    Args:
        path: The file. Its present content was counted before, and is skipped; the file
            need not exist yet.

    Raises:
        InputError: The file cannot be opened for reading and truncating.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rest = b""
        self._file = self._open()
        if self._file is not None:
            self._file.seek(0, os.SEEK_END)

    def read(self) -> bytes:
        """
        Read the lines that were written since the last look.

        Returns:
            Complete lines with their ends, 4 MiB at most; empty if there are none.

        Raises:
            InputError: The file cannot be opened, read or truncated.
        """
        if self._file is None:
            self._file = self._open()
        if self._file is None:
            return b""
        try:
            return self._read_new(self._file)
        except OSError as exc:
            raise InputError(self._path, f"cannot be read: {exc.strerror}") from exc

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._rest = b""

    def _open(self) -> FileIO | None:
        try:
            return self._path.open("r+b", buffering=0)
        except FileNotFoundError:
            return None
        except OSError as exc:
            problem = f"cannot be opened for reading and cutting: {exc.strerror}"
            raise InputError(self._path, problem) from exc

    def _read_new(self, file: FileIO) -> bytes:
        at = file.tell()
        if os.fstat(file.fileno()).st_size < at:  # another process truncated it
            at = file.seek(0)
            self._rest = b""
        read = file.read(_READ_BYTES)
        text = self._rest + read
        whole = text.rfind(b"\n") + 1
        self._rest = text[whole:][:_LINE_BYTES]
        at += len(read)
        if at >= _TRUNCATE_BYTES and not self._rest:
            _truncate(file, at)
        elif not read and self._replaced(file):
            self.close()
        return text[:whole]

    def _replaced(self, file: FileIO) -> bool:
        """Return whether the path now names another file, or none."""
        try:
            there = self._path.stat()
        except OSError:
            return True
        return not os.path.samestat(there, os.fstat(file.fileno()))


def _truncate(file: FileIO, at: int) -> None:
    """Truncate the file if all of it was read."""
    if os.fstat(file.fileno()).st_size == at:
        file.truncate(0)
        file.seek(0)
