"""Write, sync, describe and lock files in the journal's folder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from tollgate.audit.chain.links import File, hidden_path
from tollgate.errors import JournalError, os_errors

_READ_ONLY = (errno.EACCES, errno.EROFS)
_COMPRESSION_LEVEL = 3  # zstd: a third of the time of level 10, 2.4 % more bytes


def write_hidden(folder: Path, name: str, content: bytes) -> File:
    """
    Write a file under its hidden name; it is on disk when this returns.

    Raises:
        OSError: The file cannot be written.
    """
    path = hidden_path(folder, name)
    path.write_bytes(content)
    sync_file(path)
    return _described(name, content)


def write_hidden_table(folder: Path, name: str, table: pl.DataFrame) -> File:
    """
    Write a table as Parquet under its hidden name; see `write_hidden`.

    Raises:
        OSError: The file cannot be written.
    """
    path = hidden_path(folder, name)
    try:
        table.write_parquet(
            path, compression="zstd", compression_level=_COMPRESSION_LEVEL
        )
    except pl.exceptions.PolarsError as exc:
        raise OSError(f"{path}: {exc}") from exc
    sync_file(path)
    return _described(name, path.read_bytes())


def _described(name: str, content: bytes) -> File:
    digest = hashlib.sha256(content).hexdigest()
    return File(name=name, bytes=len(content), sha256=digest)


def sync_file(path: Path) -> None:
    """Sync a file to disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """
    Hold the lock of a file.

    Yields False if another process holds the lock and `wait` is False.
    """
    with os_errors(JournalError, path, "cannot be locked"):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            if exc.errno not in _READ_ONLY:
                raise
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # the caller only reads
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)
