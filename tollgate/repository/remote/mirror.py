"""
Copy the files that a server needs from an object store to a local folder.

A file of a version is used only with the hash that the release names. Files come first,
release.json last, each complete and renamed into place; so however a server ends in the
middle, the folder holds a repository that can be served, the old one or the new one.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import msgspec

from tollgate.errors import InputError, ObjectStoreError, RepositoryError
from tollgate.repository.atomic import replace_file
from tollgate.repository.configs import NAMED_CONFIGS
from tollgate.repository.hashes import (
    PLAN_FILE,
    SHORT_DIGITS,
    hash_file,
    plan_record,
    version_files,
)
from tollgate.repository.releases.release_file import (
    RELEASE_FILE,
    Release,
    decode_release,
    read_release,
    release_path,
    write_release,
)
from tollgate.repository.remote.objects import Objects
from tollgate.repository.versions import list_versions

log = logging.getLogger(__name__)

MIRROR_FOLDER = "mirror"  # name of the folder in the state folder
_INCOMING = ".incoming"  # prefix of the product's file
_KNOWN = ".stamps"  # prefix of the stamps of files without a hash in the release
_FETCHES = 2  # of a file that does not match its hash; the transfer may be at fault
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def mirror_folder(state: Path, url: str, *, kind: str = MIRROR_FOLDER) -> Path:
    """Return the folder of a state folder for the files of a store."""
    url = url.rstrip("/")
    short = hashlib.sha256(url.encode()).hexdigest()[:8]
    name = re.sub(r"[^A-Za-z0-9._-]", "_", url.rpartition("/")[2])
    return state / kind / f"{name}-{short}"


def is_mirror(folder: Path) -> bool:
    """Return whether a folder is a server's copy of an object store."""
    return any(folder.glob(f"{_KNOWN}-*.json"))


def read_wanted(objects: Objects, *, product: str) -> Release:
    """
    Read the release that a store names.

    Raises:
        RepositoryError: There is none, or it cannot be used.
        ObjectStoreError: The store does not answer.
    """
    path = f"{product}/{RELEASE_FILE}"
    content = _read(objects, path)
    return decode_release(content, product=product, source=objects.name(path))


def _read(objects: Objects, path: str) -> bytes:
    try:
        found = objects.read(path)
    except InputError as error:
        raise RepositoryError(error.source, error.problem) from error
    if found is None:
        raise RepositoryError(objects.name(path), "is not there")
    return found[0]


class Mirror:
    """A repository in an object store, as a server follows it, and its local copies."""

    def __init__(self, objects: Objects, *, folder: Path, product: str) -> None:
        self._objects = objects
        self._product = product
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder.resolve()
        self._incoming = self.folder / f"{_INCOMING}-{product}"
        self._known_path = self.folder / f"{_KNOWN}-{product}.json"

    def look(self) -> str:
        """Fetch the stamp of release.json, one small request."""
        return self._objects.stamp(self._release_path) or ""

    @property
    def release_name(self) -> str:
        """Address of release.json."""
        return self._objects.name(self._release_path)

    def read(self) -> bytes:
        """Read the release.json of the store."""
        return _read(self._objects, self._release_path)

    def begin(self) -> None:
        """
        Fetch the store's release; if that fails, start with the one already here.

        Raises:
            RepositoryError: The store's cannot be used, and there is no other.
            ObjectStoreError: The store does not answer, and there is no other.
        """
        try:
            self.bring(read_wanted(self._objects, product=self._product))
        except (RepositoryError, ObjectStoreError) as error:
            if not release_path(self.folder, self._product).exists():
                raise
            before = read_release(self.folder, product=self._product)
            log.warning("%s: starts with release %s", error, before.name)

    def bring(self, release: Release) -> None:
        """Fetch the missing files of a release; then write its release.json here."""
        self._require_paths(release)
        shutil.rmtree(self._incoming, ignore_errors=True)
        try:
            self._incoming.mkdir()
            for path, sha256 in release.hashes.items():
                self._bring_proven(path, sha256)
            for model in (*release.versions, self._product):
                self._fetch_model_files(model)
            (self.folder / self._product / "1").mkdir(parents=True, exist_ok=True)
            write_release(self.folder, release)
            self._sweep(release)
        except OSError as error:
            problem = f"cannot be written: {error.strerror}: {error.filename}"
            raise RepositoryError(self.folder, problem) from error

    @property
    def _release_path(self) -> str:
        return f"{self._product}/{RELEASE_FILE}"

    def _require_paths(self, release: Release) -> None:
        """Check that a release names files below its own version directories only."""
        source = self.release_name
        for model in (*release.versions, self._product):
            if not _MODEL.fullmatch(model):
                raise RepositoryError(source, f"{model!r} is no name of a model")
        for path in release.hashes:
            step, version, *rest = (*PurePosixPath(path).parts, "", "")
            named = version in map(str, release.loaded_versions(step))
            plain = str(PurePosixPath(path)) == path and ".." not in rest
            if not (named and plain and rest[0]):
                raise RepositoryError(source, f"{path!r} is no file of a version")

    def _bring_proven(self, path: str, sha256: str) -> None:
        """Fetch a file of a version if missing, and check its hash in the release."""
        target = self.folder / path
        if target.is_file() and hash_file(target) == sha256:
            return
        found: str | None = ""
        for _ in range(_FETCHES):
            part = self._incoming / "part"
            found = self._objects.fetch(path, part)
            if found is None:
                raise RepositoryError(self._objects.name(path), "is not there")
            if found == sha256:
                self._place(part, target)
                return
        was, now = sha256[:SHORT_DIGITS], (found or "")[:SHORT_DIGITS]
        problem = f"is not what was released: release {was}…, object {now}…"
        raise RepositoryError(self._objects.name(path), problem)

    def _fetch_model_files(self, model: str) -> None:
        """Fetch the files next to the versions of a model, as the store has them."""
        there = self._objects.files(model, deep=False)
        there |= self._objects.files(f"{model}/{NAMED_CONFIGS}", deep=False)
        there.pop(self._release_path, None)
        known = self._known()
        for path, stamp in there.items():
            target = self.folder / path
            if known.get(path) == stamp and target.is_file():
                continue
            part = self._incoming / "part"
            if self._objects.fetch(path, part) is not None:
                self._place(part, target)
                known[path] = stamp
        for path in self._model_files(model):
            if path not in there:
                (self.folder / path).unlink()
                known.pop(path, None)
        replace_file(self._known_path, msgspec.json.encode(known))

    def _model_files(self, model: str) -> list[str]:
        folders = (self.folder / model, self.folder / model / NAMED_CONFIGS)
        found = (path for one in folders if one.is_dir() for path in one.iterdir())
        names = [path.relative_to(self.folder).as_posix() for path in found]
        own = {self._release_path}
        return [
            name for name in names if (self.folder / name).is_file() and name not in own
        ]

    def _known(self) -> dict[str, str]:
        try:
            content = self._known_path.read_bytes()
            return msgspec.json.decode(content, type=dict[str, str])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}

    def _place(self, part: Path, target: Path) -> None:
        """Flush a complete file to disk, then rename it into place."""
        with part.open("rb") as file:
            os.fsync(file.fileno())
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(part, target)

    def _sweep(self, release: Release) -> None:
        """Remove versions, and files in them, that the release does not name."""
        for step in release.versions:
            for version in list_versions(self.folder, step):
                folder = self.folder / step / str(version)
                if version not in release.loaded_versions(step):
                    shutil.rmtree(folder, ignore_errors=True)
                else:
                    self._sweep_files(version_files(folder), release)

    def _sweep_files(self, files: Iterable[Path], release: Release) -> None:
        for path in files:
            # This machine built the plan, so the release does not name it.
            own = (PLAN_FILE, plan_record(Path(PLAN_FILE)).name)
            named = path.relative_to(self.folder).as_posix() in release.hashes
            if not named and path.name not in own:
                path.unlink()
