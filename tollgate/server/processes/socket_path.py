"""Make a path to a unix socket that fits the system's limit, also in a deep folder."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tollgate.errors import SetupError
from tollgate.store.redis.store_address import SOCKET_PATH_BYTES

# Not TMPDIR, which may be as long, nor XDG_RUNTIME_DIR, which is removed at logout.
_SHORT = Path("/tmp")
_PREFIX = "tollgate-socket-"
_FORGOTTEN_S = 3_600.0  # a start uses its folder within seconds


@contextlib.contextmanager
def short_socket_path(path: Path) -> Iterator[Path]:
    """
    Yield a path of at most 107 bytes on which to bind and reach a unix socket.

    For a longer path, the socket is in a separate folder under /tmp, which only this
    user may enter and which is removed at the end. `path` becomes a link to it and
    stays, so that the next start uses the same folder, including what a killed process
    left there; a folder that another user took meanwhile is replaced by a new one.

    Args:
        path: Wanted path of the socket. One process at a time holds its folder.

    Returns:
        The path itself if it is short enough. No socket is there yet.

    Raises:
        SetupError: /tmp cannot be written.
    """
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        path.unlink(missing_ok=True)
        yield path
        return
    folder = _linked_folder(path) or _new_folder(path)
    short = folder / path.name
    try:
        short.unlink(missing_ok=True)
        link = path.with_name(f".{path.name}.link")
        link.unlink(missing_ok=True)
        link.symlink_to(short)
        link.replace(path)
        yield short
    finally:
        with contextlib.suppress(OSError):
            short.unlink(missing_ok=True)
            folder.rmdir()


def _linked_folder(path: Path) -> Path | None:
    """Use the folder that an earlier start named; None if it is not ours alone."""
    try:
        folder = path.readlink().parent
        if folder.parent != _SHORT or not folder.name.startswith(_PREFIX):
            return None
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return None
    ours = found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if ours and stat.S_ISDIR(found.st_mode) else None


def _new_folder(path: Path) -> Path:
    _remove_forgotten()
    try:
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_SHORT))
    except OSError as error:
        raise SetupError(
            f"{_SHORT} cannot be written: {error.strerror}; it must hold the socket "
            f"{path}, whose path is longer than {SOCKET_PATH_BYTES} bytes",
            remedy=f"make {_SHORT} writable, or choose a folder with a shorter path",
        ) from error


def _remove_forgotten() -> None:
    """Remove empty folders of killed starts whose own folder never started again."""
    for folder in _SHORT.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another user's, or in use
            found = folder.lstat()
            old = time.time() - found.st_mtime > _FORGOTTEN_S
            if old and found.st_uid == os.getuid():
                folder.rmdir()
