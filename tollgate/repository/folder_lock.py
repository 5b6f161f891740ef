"""Lock a folder for one process at a time; the lock ends when its holder ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """
    Lock a folder for a process that reads its files, changes them and writes them back.

    Without the lock, two processes would overwrite each other's changes. Some network
    filesystems do not lock a folder; there, the caller must make sure that only one
    process runs.

    Args:
        folder: The folder to lock; it exists.
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
