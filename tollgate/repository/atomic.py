"""
Change files of a folder that other processes read and change at the same time.

No reader, crash or full disk ever leaves half of a file, and a lock lets one process at
a time read, change and write; it ends when its holder ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """
    Write a file under another name, flush it to disk, then rename it into place.

    Args:
        mode: Permissions; by default all users may read it, since the server may run as
            another user.

    Raises:
        OSError: It could not be written; the old file is untouched and no new file is
            left next to it.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Flush a directory to disk, so that a rename in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """
    Lock a folder for a process that reads its files, changes them and writes them back.

    Without the lock, two processes would overwrite each other's changes. Some network
    filesystems do not lock a folder; there, the caller must make sure that only one
    process runs.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP):
                raise
        yield
    finally:
        os.close(descriptor)
