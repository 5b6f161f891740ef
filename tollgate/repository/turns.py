"""One after the other: a lock that lives as long as who holds it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """
    Keep those apart who read what is there and write it back changed.

    Each would undo the other's change otherwise. Some network filesystems do not
    lock a folder; there, two at once must not be.

    Args:
        folder: What they have in common; it exists.
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
