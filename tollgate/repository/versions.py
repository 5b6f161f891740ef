"""
Add and list version directories: numbered, immutable, never visible half-written.

A publisher stages a version in a hidden folder until it is renamed into place, and
holds a lock on that folder for as long as it lives. The lock distinguishes the folder
of a running publisher from one that a killed publisher left behind; the next publisher
removes the latter.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError, os_errors
from tollgate.repository.atomic import sync_directory
from tollgate.repository.hashes import version_files

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


@contextmanager
def staging(repository: Path) -> Iterator[Staging]:
    """
    Make a folder to stage in; remove it when the context ends.

    This also removes the folders that killed publishers left behind.

    Raises:
        RepositoryError: No folder can be made next to the repository or in it.
    """
    remove_leftovers(repository)
    place = _staging_place(repository)
    with os_errors(RepositoryError, place, "cannot be written"):
        folder, lock = _locked_folder(place)
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
            with suppress(OSError):
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


_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


def list_versions(repository: Path, step: str) -> list[int]:
    """
    List the versions of a model that are in the repository, ascending.

    Raises:
        RepositoryError: The model has no directory.
    """
    directory = repository / step
    if not directory.is_dir():
        raise RepositoryError(directory, "there is no such model directory")
    names = [path.name for path in directory.iterdir() if path.is_dir()]
    # Triton ignores names with a leading zero, and there is no version 0 here.
    return sorted(
        int(name)
        for name in names
        if name.isascii() and name.isdigit() and not name.startswith("0")
    )


@contextmanager
def staged_version(repository: Path, *, step: str, source: Path) -> Iterator[Staging]:
    """
    Copy a directory into a staging folder; remove the copy at the end if still there.

    Args:
        source: Directory with the files of the version; Python's byte code is left out.

    Raises:
        RepositoryError: There is no such step, the source is not a directory or is
            empty, or the files cannot be copied.
    """
    list_versions(repository, step)
    files = version_files(source)
    if not files:
        raise RepositoryError(source, "there is no file to publish")
    with staging(repository) as staged:
        try:
            _copy(files, source, target=staged.version)
        except OSError as exc:
            raise _not_published(source, exc) from exc
        yield staged


def place_version(staged: Staging, *, repository: Path, step: str) -> int:
    """
    Rename a staged version into place under the next free number.

    The version is on disk by then, so either all of its files are there or none.
    Nothing is ever overwritten: of two publishers at the same time, each gets a
    different number.

    Returns:
        The new version's number, one above the highest existing one.

    Raises:
        RepositoryError: It cannot be renamed; the repository is unchanged.
    """
    while True:
        number = max(list_versions(repository, step), default=0) + 1
        try:
            os.rename(staged.version, repository / step / str(number))
        except OSError as exc:
            if exc.errno in _TAKEN:  # another publisher was faster
                continue
            raise _not_published(repository / step, exc) from exc
        sync_directory(repository / step)
        return number


def withdraw_version(staged: Staging, model: Path, *, number: int) -> None:
    """
    Remove a version that was just placed, with all its files at once.

    Raises:
        RepositoryError: It cannot be renamed; it stays, complete.
    """
    path = model / str(number)
    with os_errors(RepositoryError, path, "cannot be removed"):
        os.rename(path, staged.version)
        sync_directory(model)


def _not_published(source: Path, exc: OSError) -> RepositoryError:
    where = exc.filename or source
    return RepositoryError(source, f"cannot be published: {exc.strerror}: {where}")


def _copy(files: list[Path], source: Path, *, target: Path) -> None:
    """Copy files below a new directory, readable by all, and flush them to disk."""
    target.mkdir(mode=0o755)
    directories = {target}
    for path in files:
        copy = target / path.relative_to(source)
        copy.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        directories.add(copy.parent)
        with path.open("rb") as origin, copy.open("xb") as file:
            shutil.copyfileobj(origin, file)
            file.flush()
            os.fsync(file.fileno())
    for directory in directories:
        sync_directory(directory)
