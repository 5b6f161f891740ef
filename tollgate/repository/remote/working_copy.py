"""
Check out one product of a repository in an object store, so that a command changes it.

The copy is pulled, changed as a folder, and pushed: versions first, then the history,
release.json last. Each write names the object that it replaces, so of two people who
push at the same time, one gets an error.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import msgspec

from tollgate.errors import ObjectChanged, RepositoryError
from tollgate.repository.atomic import lock_folder, replace_file
from tollgate.repository.configs import read_config
from tollgate.repository.hashes import hash_file
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.releases.release_file import RELEASE_FILE
from tollgate.repository.releases.release_history import HISTORY_FILE, PROPOSAL_FILE
from tollgate.repository.remote.objects import Objects
from tollgate.schema import ARTIFACT_FILE

WORKING_FOLDER = "working"  # name of the folder in the state folder
_INDEX = ".index.json"
_INCOMING = ".incoming"
# Files that make the others visible, in the order of writing; the release comes last.
_LAST = (PROPOSAL_FILE, HISTORY_FILE, RELEASE_FILE)


class _FetchedObject(msgspec.Struct, frozen=True):
    """A fetched object: its stamp in the store, its SHA-256 here."""

    stamp: str
    sha256: str


class WorkingCopy:
    """One product's models, all versions, in a folder that stays between commands."""

    def __init__(self, objects: Objects, *, folder: Path, product: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._objects = objects
        self._home = folder.resolve()
        self._product = product
        # Publishing makes a staging folder next to the repository: it stays inside our
        # folder.
        self.folder = self._home / "repository"

    @contextlib.contextmanager
    def read(self) -> Iterator[Path]:
        """
        Update the local repository from the store, and yield its folder.

        Raises:
            RepositoryError: It cannot be read.
            ObjectStoreError: The store does not answer.
        """
        with lock_folder(self._home):
            self.pull()
            yield self.folder

    @contextlib.contextmanager
    def changed(self) -> Iterator[Path]:
        """
        Update the local repository; push the block's changes unless it raises.

        Raises:
            RepositoryError: It cannot be read.
            ObjectStoreError: The store does not answer.
            ObjectChanged: Another writer was faster.
        """
        with self.read() as folder:
            yield folder
            self.push()

    def refresh(self) -> None:
        """
        Update the local repository, with one small request if nothing changed.

        This compares the files next to the ensemble: release, history, gates. A command
        that failed may have left other content here than the store has.

        Raises:
            RepositoryError: It cannot be read.
            ObjectStoreError: The store does not answer.
        """
        there = self._objects.files(self._product, deep=True)
        with lock_folder(self._home):
            own = {
                path: one
                for path, one in self._index().items()
                if path.startswith(f"{self._product}/")
            }
            known = {path: one.stamp for path, one in own.items()} == there
            if not (known and self._holds(own)):
                self.pull()

    def pull(self) -> None:
        """
        Fetch objects that are missing here; delete those that the store no longer has.

        Raises:
            RepositoryError: It cannot be read, or cannot be written here.
            ObjectStoreError: The store does not answer.
        """
        try:
            self._pull()
        except OSError as error:
            problem = f"cannot be written: {error.strerror}: {error.filename}"
            raise RepositoryError(self._home, problem) from error

    def _pull(self) -> None:
        self.folder.mkdir(exist_ok=True)
        held, there = self._index(), self._objects.files(self._product, deep=True)
        if not there:
            raise RepositoryError(self._objects.name(self._product), "is not there")
        self._take(there, held)
        ensemble = read_config(self.folder, self._product).ensemble_scheduling
        for step in {one.model_name for one in ensemble.step}:
            _require_name(step)
            found = self._objects.files(step, deep=True)
            whole = _whole(found)
            self._take(whole, held)
            there |= whole
        for path in self._local():
            if path not in there:
                (self.folder / path).unlink()
        for folder in sorted(self.folder.glob("*/*/"), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()  # an empty folder is no version
        # Stores have no empty folders, and Triton requires one for the ensemble.
        (self.folder / self._product / "1").mkdir(exist_ok=True)
        fetched = {path: one for path, one in held.items() if path in there}
        replace_file(self._home / _INDEX, msgspec.json.encode(fetched))

    def push(self) -> None:
        """Write changed files to the store, and last those that name the others."""
        held, local = self._index(), self._local()
        changed = [
            path
            for path in local
            if path not in held or hash_file(self.folder / path) != held[path].sha256
        ]
        for path in sorted(changed, key=_turn):
            was = held[path].stamp if path in held else None
            try:
                self._objects.write(path, self.folder / path, was=was)
            except ObjectChanged as error:
                raise _conflict(error, path, was=was) from error
        for path in held.keys() - set(local):
            self._objects.remove(path)

    def _take(self, there: dict[str, str], held: dict[str, _FetchedObject]) -> None:
        part = self._home / _INCOMING
        for path, stamp in there.items():
            target = self.folder / path
            if ".." in PurePosixPath(path).parts:
                raise RepositoryError(self._objects.name(path), "is no path of a file")
            one = held.get(path)
            same = one is not None and one.stamp == stamp and target.is_file()
            if same and one is not None and hash_file(target) == one.sha256:
                continue
            sha256 = self._objects.fetch(path, part)
            if sha256 is None or self._objects.stamp(path) != stamp:
                problem = "changes while it is read; try again"
                raise ObjectChanged(self._objects.name(path), problem)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(part, target)
            held[path] = _FetchedObject(stamp, sha256)

    def _holds(self, own: dict[str, _FetchedObject]) -> bool:
        """Return whether the files next to the ensemble are those that were fetched."""
        return own.keys() == set(self._local(self._product)) and all(
            hash_file(self.folder / path) == one.sha256 for path, one in own.items()
        )

    def _local(self, below: str = ".") -> list[str]:
        """List the files of this copy, without hidden ones."""
        names = (
            path.relative_to(self.folder)
            for path in (self.folder / below).rglob("*")
            if path.is_file()
        )
        return sorted(
            name.as_posix() for name in names if not name.parts[0].startswith(".")
        )

    def _index(self) -> dict[str, _FetchedObject]:
        try:
            content = (self._home / _INDEX).read_bytes()
            return msgspec.json.decode(content, type=dict[str, _FetchedObject])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            return {}


def _require_name(step: str) -> None:
    if "/" in step or step.startswith("."):
        raise RepositoryError(step, "is no name of a model")


def _whole(found: dict[str, str]) -> dict[str, str]:
    """Leave out incomplete versions: those with a model, but no record yet."""
    halves = {
        path.rpartition("/")[0]
        for path in found
        if path.endswith(f"/{MODEL_FILE}")
        and f"{path.rpartition('/')[0]}/{ARTIFACT_FILE}" not in found
    }
    return {
        path: stamp
        for path, stamp in found.items()
        if not any(path.startswith(f"{half}/") for half in halves)
    }


def _turn(path: str) -> tuple[int, bool, bool, str]:
    """
    Return the sort key for the order of writes.

    Of a version, the model comes first: of two writers that take one number, the first
    one gets it. The record comes last, so that a version without it counts as
    incomplete.
    """
    name = PurePosixPath(path).name
    last = _LAST.index(name) + 1 if name in _LAST else 0
    return last, name == ARTIFACT_FILE, name != MODEL_FILE, path


def _conflict(error: ObjectChanged, path: str, *, was: str | None) -> ObjectChanged:
    if was is None and PurePosixPath(path).name == MODEL_FILE:
        problem = (
            "is there already: somebody else publishes this version, or was stopped "
            "half-way; try again, and remove it if it stays without artifact.json"
        )
        return ObjectChanged(error.url, problem)
    return ObjectChanged(error.url, f"{error.problem}; look again, then run it again")
