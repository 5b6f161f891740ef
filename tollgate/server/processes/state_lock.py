"""
Lock a state folder, so that only one server runs on it.

The lock is an flock that child processes inherit. So it becomes free only when the last
of them has ended, also after the owner was killed.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from tollgate.errors import SetupError


class FolderLock:
    """
    Lock a folder for one owner until it is released.

    Args:
        folder: Folder to lock; created if missing.
        patience_s: Seconds to wait for children of a dead owner to end.

    Raises:
        SetupError: A living process holds the lock, or the file cannot be written.
    """

    def __init__(self, folder: Path, *, name: str, patience_s: float = 20.0) -> None:
        make_folder(folder)
        self.path = folder / name
        try:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise _not_ours(self.path, exc) from exc
        until = time.monotonic() + patience_s
        while not self._try():
            owner = self._owner()
            if _alive(owner) or time.monotonic() > until:
                os.close(self.fd)
                raise SetupError(
                    f"{folder} is in use by "
                    + (f"process {owner}" if _alive(owner) else "a server's remains"),
                    remedy="stop that one, or choose another state folder",
                )
            time.sleep(0.05)
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Release our lock; children that inherited it still hold theirs."""
        os.close(self.fd)

    def _try(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _owner(self) -> int:
        text = os.pread(self.fd, 20, 0).decode("ascii", "replace")
        return int(text) if text.isdigit() else 0


def make_folder(folder: Path) -> None:
    """
    Create a folder of a server's state, unless it exists.

    Raises:
        SetupError: It cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise _not_ours(folder, exc) from exc


def make_private_folder(folder: Path) -> None:
    """
    Create a folder that no other user may enter; close one of this user to others.

    Raises:
        SetupError: It cannot be created.
    """
    make_folder(folder)
    try:
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(0o700)
    except OSError as exc:
        raise _not_ours(folder, exc) from exc


def _not_ours(path: Path, exc: OSError) -> SetupError:
    return SetupError(
        f"{path} cannot be written: {exc.strerror}",
        remedy="choose another state folder, or make it this user's",
    )


def _alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
