"""Replace files so that a reader, a crash or a full disk never sees half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """
    Write a file under another name, flush it to disk, then rename it into place.

    Args:
        path: The file.
        content: Its complete content.
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
