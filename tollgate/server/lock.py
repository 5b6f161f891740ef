"""
One server per state folder.

The lock is an flock that child processes inherit, so it is free only when the last
of them is gone, also after the owner was killed.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from tollgate.errors import SetupError


class FolderLock:
    """
    Hold a folder for one owner until released.

    Args:
        folder: What is held; made when missing.
        name: What the lock file in it is called.
        patience_s: How long children of a dead owner may take to finish.

    Raises:
        SetupError: A living process holds it, or it cannot be written.
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
        """Give our hold up; children that inherited it keep theirs."""
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
    Make a folder of a server's state, unless it is there.

    Raises:
        SetupError: It cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise _not_ours(folder, exc) from exc


def make_private_folder(folder: Path) -> None:
    """
    Make a folder that no other user may enter; one of this user is closed to others.

    Raises:
        SetupError: It cannot be made.
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
