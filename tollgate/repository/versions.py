"""Version directories: numbered, immutable, and never seen half-written."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from pathlib import Path

from tollgate.errors import RepositoryError
from tollgate.repository.atomic import sync_directory
from tollgate.repository.hashes import version_files

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


def publish_version(repository: Path, *, step: str, source: Path) -> int:
    """
    Copy a directory into the repository as the next version of a step.

    The copy is made beside the repository and renamed into place when it is on disk,
    so the version is either there with all its files or not there. Nothing is ever
    overwritten: of two publishers at once, each gets a number of its own.

    Args:
        repository: The model repository.
        step: Model that the version belongs to.
        source: Directory with the files of the version; Python's byte code is left out.

    Returns:
        The new version's number, one above the highest there is.

    Raises:
        RepositoryError: There is no such step, the source is not a directory or is
            empty, or the files cannot be copied; the repository is unchanged.
    """
    list_versions(repository, step)
    files = version_files(source)
    if not files:
        raise RepositoryError(source, "there is no file to publish")
    staging = Path(tempfile.mkdtemp(prefix=".publish-", dir=_staging_place(repository)))
    try:
        staged = staging / "version"
        _copy(files, source, target=staged)
        return _rename_to_next(staged, repository=repository, step=step)
    except OSError as exc:
        where = exc.filename or staging
        problem = f"cannot be published: {exc.strerror}: {where}"
        raise RepositoryError(source, problem) from exc
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _staging_place(repository: Path) -> Path:
    """Choose where to stage: a rename works only inside one filesystem."""
    parent = repository.resolve().parent
    mounted = parent.stat().st_dev != repository.stat().st_dev
    return repository if mounted else parent


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


def _rename_to_next(staged: Path, *, repository: Path, step: str) -> int:
    """Give a staged directory the next free number."""
    while True:
        number = max(list_versions(repository, step), default=0) + 1
        try:
            os.rename(staged, repository / step / str(number))
        except OSError as exc:
            if exc.errno in _TAKEN:  # another publisher was faster
                continue
            raise
        sync_directory(repository / step)
        return number
