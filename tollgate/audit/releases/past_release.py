"""
Open a release of the past, and check each file against the hash in the release.

Files that the journal archived are read from the journal, so that a record can be
explained years later. The model itself exists only in the model repository.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from tollgate.audit.releases.archived_release import (
    ArchivedRelease,
    read_with_file,
    release_of,
)
from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.scoring_model import ScoringModel
from tollgate.errors import InputError, RepositoryError, os_errors
from tollgate.explanation import EXPLAIN_FILE, Explanation, decode_explanation
from tollgate.features.hook.hook_file import HOOK_FILE
from tollgate.features.spec.feature_spec import SPEC_FILE, load_spec
from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.policy import POLICY_FILE, Policy, load_policy
from tollgate.repository.hashes import SHORT_DIGITS, hash_file
from tollgate.repository.models.model_files import MODEL_FILE, Arithmetic, arithmetic_of
from tollgate.repository.releases.release_file import RELEASE_FILE, Release
from tollgate.repository.releases.release_history import find_release


class ReleaseFiles:
    """
    Files of one release.

    Args:
        archived: Content of the files archived in the journal, by name.
        repository: Model repository with the other files; None for none.
    """

    def __init__(
        self,
        release: Release,
        *,
        archived: Mapping[str, bytes],
        repository: Path | None,
    ) -> None:
        self.release = release
        self._archived = archived
        self._repository = repository

    def read(self, name: str) -> bytes:
        """
        Read a file, from the journal if it is archived there.

        Raises:
            RepositoryError: The file is nowhere, or was changed.
        """
        place = self._place(name)
        if name in self._archived:
            content = self._archived[name]
            self._require(place, hashlib.sha256(content).hexdigest())
            return content
        path = self.path(name)
        with os_errors(RepositoryError, path, "cannot be read"):
            return path.read_bytes()

    def has(self, name: str) -> bool:
        """Return whether the release has a file of this name."""
        return self._found(name) is not None

    def path(self, name: str) -> Path:
        """
        Return the path of a file in the repository.

        Raises:
            RepositoryError: The file is not there, or was changed.
        """
        place = self._place(name)
        if self._repository is None or not (self._repository / place).is_file():
            step, version = place.split("/")[:2]
            problem = f"version {version} of {step} is not in the repository"
            raise RepositoryError(f"release {self.release.name}", problem, where=name)
        path = self._repository / place
        self._require(place, hash_file(path))
        return path

    def _place(self, name: str) -> str:
        place = self._found(name)
        if place is None:
            raise RepositoryError(f"release {self.release.name}", f"has no {name}")
        return place

    def _found(self, name: str) -> str | None:
        for place in self.release.hashes:
            step, version, *rest = place.split("/")
            pinned = str(self.release.versions.get(step)) == version
            if pinned and rest == [name]:
                return place
        return None

    def _require(self, place: str, found: str) -> None:
        named = self.release.hashes[place]
        if found != named:
            problem = (
                f"is not the file of release {self.release.name}: SHA-256 "
                f"{found[:SHORT_DIGITS]}…, not {named[:SHORT_DIGITS]}…"
            )
            raise RepositoryError(place, problem)


class ReleaseModel(ScoringModel):
    """
    Model of a release, run with onnxruntime as its step runs it.

    Attributes:
        arithmetic: Accuracy that follows from the operators of its graph.

    Raises:
        RepositoryError: The model cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(OnnxSession(path, intra_op_threads=1))
        self.arithmetic: Arithmetic = arithmetic_of(path)


class OpenedRelease(msgspec.Struct, frozen=True, eq=False):
    """A release that can decide and explain."""

    name: str
    spec: FeatureSpec
    policy: Policy
    files: ReleaseFiles

    def model(self) -> ReleaseModel:
        """
        Load the model.

        Raises:
            RepositoryError: The model is not in the repository, or was changed.
        """
        return ReleaseModel(self.files.path(MODEL_FILE))

    def explanation(self) -> Explanation:
        """
        Load the data that explains the model's scores.

        Raises:
            RepositoryError: The release has no usable explanation; the message says
                why.
        """
        source = f"release {self.name}: {EXPLAIN_FILE}"
        found = decode_explanation(self.files.read(EXPLAIN_FILE), source=source)
        if found.features != self.spec.feature_names:
            raise RepositoryError(source, "is of other features than the release")
        return found


def open_release(
    name: str,
    *,
    archived: ArchivedRelease | None,
    repository: Path | None,
    product: str,
) -> OpenedRelease:
    """
    Open a release of the past.

    Args:
        archived: Release as archived in the journal; None if it was not archived.
        repository: Model repository; None for none.

    Raises:
        RepositoryError: The release is unknown, or a file of it is missing or was
            changed.
        PolicyError, SpecError: This Tollgate cannot use a file of it.
    """
    if archived is not None and RELEASE_FILE in archived.files:
        release, contents = release_of(archived), archived.files
    else:
        release, contents = _served(name, repository, product=product), {}
    return open_files(ReleaseFiles(release, archived=contents, repository=repository))


def open_files(files: ReleaseFiles) -> OpenedRelease:
    """
    Open a release whose files are available.

    Raises:
        RepositoryError: A file is missing or was changed.
        PolicyError, SpecError: This Tollgate cannot use a file.
    """
    extra_files = {HOOK_FILE: files.read(HOOK_FILE)} if files.has(HOOK_FILE) else {}
    spec = read_with_file(
        SPEC_FILE, files.read(SPEC_FILE), load_spec, extra_files=extra_files
    )

    def read_policy(path: Path) -> Policy:
        return load_policy(
            path,
            feature_names=spec.feature_names,
            fields=spec.fields,
            id_names=spec.id_names,
            amount=spec.amount,
        )

    policy = read_with_file(POLICY_FILE, files.read(POLICY_FILE), read_policy)
    return OpenedRelease(files.release.name, spec, policy, files)


def _served(name: str, repository: Path | None, *, product: str) -> Release:
    problem = "is neither in the journal nor in the repository"
    if repository is None:
        raise RepositoryError(f"release {name}", problem)
    try:
        return find_release(repository, product, name)
    except (RepositoryError, InputError) as exc:
        raise RepositoryError(f"release {name}", f"{problem}: {exc}") from exc
