"""
Stage a version in a hidden folder until it is renamed into place.

A publisher holds a lock on its staging folder for as long as it lives. The lock
distinguishes the folder of a running publisher from one that a killed publisher left
behind; the next publisher removes the latter.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError

PREFIX = ".publish-"
# A file, not the folder itself: NFS locks only what is open for writing.
_LOCK, _VERSION, _REHEARSAL = "lock", "version", "rehearsal"
_PARTS = {_LOCK, _VERSION, _REHEARSAL}


class Staging(msgspec.Struct, frozen=True):
    """A publisher's private folder, on the filesystem of the repository."""

    folder: Path

    @property
    def version(self) -> Path:
        """Folder of the version's files until they are renamed into place."""
        return self.folder / _VERSION

    @property
    def rehearsal(self) -> Path:
        """Folder in which a version may be tried out."""
        return self.folder / _REHEARSAL


@contextlib.contextmanager
def staging(repository: Path) -> Iterator[Staging]:
    """
    Make a folder to stage in; remove it when the context ends.

    This also removes the folders that killed publishers left behind.

    Raises:
        RepositoryError: No folder can be made next to the repository or in it.
    """
    remove_leftovers(repository)
    place = _staging_place(repository)
    try:
        folder, lock = _locked_folder(place)
    except OSError as exc:
        raise RepositoryError(place, f"cannot be written: {exc.strerror}") from exc
    try:
        yield Staging(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_leftovers(repository: Path) -> None:
    """Remove the staging folders of publishers that have ended."""
    for place in {repository.resolve().parent, repository.resolve()}:
        for folder in place.glob(f"{PREFIX}*"):
            # Skip another user's folder, and one that is gone by now.
            with contextlib.suppress(OSError):
                if _is_staging(folder) and (lock := _lock(folder)) is not None:
                    shutil.rmtree(folder, ignore_errors=True)
                    os.close(lock)


def _staging_place(repository: Path) -> Path:
    """Choose where to stage: a rename works only inside one filesystem."""
    parent = repository.resolve().parent
    mounted = parent.stat().st_dev != repository.stat().st_dev
    usable = os.access(parent, os.W_OK | os.X_OK) and not mounted
    return parent if usable else repository


def _locked_folder(place: Path) -> tuple[Path, int]:
    """Make a folder and lock it before another publisher takes it for a leftover."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        lock = _lock(folder)
        if lock is not None:
            return folder, lock


def _is_staging(folder: Path) -> bool:
    """Return whether a folder holds only entries that a publisher makes."""
    return {entry.name for entry in os.scandir(folder)} <= _PARTS


def _lock(folder: Path) -> int | None:
    """Lock a staging folder; None if another process holds the lock or it is gone."""
    path = folder / _LOCK
    lock = -1
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), path.stat()):
            held, lock = lock, -1
            return held
    except (BlockingIOError, FileNotFoundError):
        pass
    finally:
        if lock >= 0:
            os.close(lock)
    return None
