"""
A release taken out again: each file proven by the hash that the release names.

What the journal kept is taken from there, so that a record can be told years later;
the model itself is in the repository alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.audit.kept import Kept, release_of, with_file
from tollgate.errors import InputError, RepositoryError
from tollgate.explanation import EXPLAIN_FILE, Explanation, decode_explanation
from tollgate.features.definition import FeatureSpec
from tollgate.features.exact import exact_features
from tollgate.features.hook import HOOK_FILE
from tollgate.features.spec import SPEC_FILE, load_spec
from tollgate.policy import POLICY_FILE, Policy, RowFacts, load_policy
from tollgate.repository.arithmetic import Arithmetic, arithmetic_of
from tollgate.repository.hashes import SHORT_DIGITS, hash_file
from tollgate.repository.history import find_release
from tollgate.repository.onnx_model import MODEL_FILE
from tollgate.repository.release import RELEASE_FILE, Release
from tollgate.schema import FEATURES, MAX_BATCH_ROWS, PROBABILITIES
from tollgate.server.onnx_session import OnnxSession

F32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.floating[Any]]


class ReleaseFiles:
    """
    The files of one release.

    Args:
        release: Which.
        kept: Those that the journal has, by name.
        repository: Where the others are; None for nowhere.
    """

    def __init__(
        self,
        release: Release,
        *,
        kept: Mapping[str, bytes],
        repository: Path | None,
    ) -> None:
        self.release = release
        self._kept = kept
        self._repository = repository

    def read(self, name: str) -> bytes:
        """
        Read a file, from the journal where it is kept there.

        Raises:
            RepositoryError: It is nowhere, or has changed.
        """
        place = self._place(name)
        if name in self._kept:
            content = self._kept[name]
            self._require(place, hashlib.sha256(content).hexdigest())
            return content
        path = self.path(name)
        try:
            return path.read_bytes()
        except OSError as exc:
            raise RepositoryError(path, f"cannot be read: {exc.strerror}") from exc

    def has(self, name: str) -> bool:
        """Tell whether a file belongs to the release."""
        return self._found(name) is not None

    def path(self, name: str) -> Path:
        """
        Find a file in the repository.

        Raises:
            RepositoryError: It is not there, or has changed.
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
                f"is not what release {self.release.name} was made of: SHA-256 "
                f"{found[:SHORT_DIGITS]}…, not {named[:SHORT_DIGITS]}…"
            )
            raise RepositoryError(place, problem)


class Model:
    """
    A release's model, run as its step runs it.

    Args:
        path: The model.onnx.

    Attributes:
        arithmetic: What it computes with.

    Raises:
        RepositoryError: It cannot be loaded.
    """

    def __init__(self, path: Path) -> None:
        self.arithmetic: Arithmetic = arithmetic_of(path)
        self._session = OnnxSession(path, intra_op_threads=1)
        if PROBABILITIES not in self._session.outputs:
            raise RepositoryError(path, f"has no output {PROBABILITIES}")
        self._dtype = self._session.inputs[FEATURES].dtype

    def vectors(self, facts: RowFacts, spec: FeatureSpec) -> Floats:
        """
        Return the vectors that the model got for rows, [N, F].

        Args:
            facts: What is recorded of the rows.
            spec: Of their features.
        """
        if self._dtype != np.float64:
            return facts.features
        return exact_features(
            spec, facts.features, cents=facts.cents, fields=facts.fields
        )

    def probabilities(self, features: Floats) -> F32:
        """Compute [N, F] → [N, K], as many rows at once as a step may get."""
        rows = np.ascontiguousarray(features, self._dtype)
        parts = [
            self._session.run(
                [PROBABILITIES], {FEATURES: rows[at : at + MAX_BATCH_ROWS]}
            )[0]
            for at in range(0, len(rows), MAX_BATCH_ROWS)
        ]
        return np.concatenate(parts).astype(np.float32, copy=False)


class Opened(msgspec.Struct, frozen=True, eq=False):
    """
    A release that can decide and explain.

    Attributes:
        name: Its name.
        spec: What its vectors are.
        policy: What it makes of probabilities.
        files: All there is of it.
    """

    name: str
    spec: FeatureSpec
    policy: Policy
    files: ReleaseFiles

    def model(self) -> Model:
        """
        Open its model.

        Raises:
            RepositoryError: It is not in the repository, or not the one it was.
        """
        return Model(self.files.path(MODEL_FILE))

    def explanation(self) -> Explanation:
        """
        Read how its answers are explained.

        Raises:
            RepositoryError: There is nothing to explain them with; says why.
        """
        source = f"release {self.name}: {EXPLAIN_FILE}"
        found = decode_explanation(self.files.read(EXPLAIN_FILE), source=source)
        if found.features != self.spec.feature_names:
            raise RepositoryError(source, "is of other features than the release")
        return found


def open_release(
    name: str, *, kept: Kept | None, repository: Path | None, product: str
) -> Opened:
    """
    Take a release out again.

    Args:
        name: Which.
        kept: What the journal kept of it; None for nothing.
        repository: The model repository; None for none.
        product: Whose release.

    Raises:
        RepositoryError: Nobody knows it any more, or a file of it is gone or changed.
        PolicyError, SpecError: A file cannot be used by this Tollgate.
    """
    if kept is not None and RELEASE_FILE in kept.files:
        release, contents = release_of(kept), kept.files
    else:
        release, contents = _served(name, repository, product=product), {}
    return open_files(ReleaseFiles(release, kept=contents, repository=repository))


def open_files(files: ReleaseFiles) -> Opened:
    """
    Take a release out again whose files are at hand.

    Raises:
        RepositoryError: A file of it is gone or changed.
        PolicyError, SpecError: A file cannot be used by this Tollgate.
    """
    beside = {HOOK_FILE: files.read(HOOK_FILE)} if files.has(HOOK_FILE) else {}
    spec = with_file(SPEC_FILE, files.read(SPEC_FILE), load_spec, beside=beside)

    def read_policy(path: Path) -> Policy:
        return load_policy(
            path,
            feature_names=spec.feature_names,
            fields=spec.fields,
            id_names=spec.id_names,
            amount=spec.amount,
        )

    policy = with_file(POLICY_FILE, files.read(POLICY_FILE), read_policy)
    return Opened(files.release.name, spec, policy, files)


def _served(name: str, repository: Path | None, *, product: str) -> Release:
    problem = "was not kept by the journal, and is not the repository's"
    if repository is None:
        raise RepositoryError(f"release {name}", problem)
    try:
        return find_release(repository, product, name)
    except (RepositoryError, InputError) as exc:
        raise RepositoryError(f"release {name}", f"{problem}: {exc}") from exc
