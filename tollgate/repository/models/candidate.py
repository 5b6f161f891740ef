"""Check that a folder may become the next version of a model, before it is loaded."""

from __future__ import annotations

import stat
from pathlib import Path

from tollgate.errors import RepositoryError
from tollgate.repository.hashes import SHORT_DIGITS, hash_file, version_files
from tollgate.repository.lint.product_rules import check_staged
from tollgate.repository.models.artifact_file import read_artifact, require_same_files
from tollgate.repository.models.model_files import MODEL_FILE, require_whole
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.repository.versions import list_versions
from tollgate.schema import ARTIFACT_FILE

_NEEDED = (MODEL_FILE, ARTIFACT_FILE)
# Records and pictures are copied along with a model. No file that a server could run
# is: Triton looks for the library of a backend in the version directory first.
_CARRIED = frozenset(
    (".csv", ".html", ".json", ".md", ".npz", ".parquet", ".png", ".svg", ".txt")
)


def require_files(source: Path) -> None:
    """
    Check that a folder has the files of a model version, and no others.

    This looks at names and kinds only, so that copying the folder is safe after it.

    Raises:
        RepositoryError: It is no folder, lacks a file, or holds a link, a special file
            or a file that is neither the model nor a record of it.
    """
    if not source.is_dir():
        raise RepositoryError(source, "is not a folder")
    for path in sorted(source.rglob("*")):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise RepositoryError(path, "is not a plain file; links are not followed")
    for name in _NEEDED:
        if not (source / name).is_file():
            raise RepositoryError(source, f"has no {name}: not a converted model")
    for path in version_files(source):
        if path != source / MODEL_FILE and path.suffix not in _CARRIED:
            allowed = " ".join(sorted(_CARRIED))
            problem = f"is no part of a model version; next to {MODEL_FILE}: {allowed}"
            raise RepositoryError(path, problem)


def require_fit(staged: Path, snapshot: RepositorySnapshot, *, product: str) -> None:
    """
    Check that a staged version could serve in its product as it is released.

    Args:
        staged: Directory with the files of the version; no other process changes it.
        snapshot: The model repository that it is staged for.

    Raises:
        RepositoryError: The record and the model disagree, the model was made for other
            features, or the repository would not be valid with it.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    _require_checksum(staged)
    require_whole(staged / MODEL_FILE)
    for finding in check_staged(snapshot, product=product, staged=staged):
        raise finding.as_error()


def require_unchanged(repository: Path, step: str) -> None:
    """
    Check that no published version of a model has changed since it was published.

    Raises:
        RepositoryError: A version lost its record, or its model or a file that is read
            later has other bytes than the record says.
    """
    for number in list_versions(repository, step):
        _require_checksum(repository / step / str(number))


def _require_checksum(version: Path) -> None:
    """Compare the model, and the files that are read later, with its record."""
    record = read_artifact(version)
    named = record.sha256
    found = hash_file(version / MODEL_FILE)
    if found != named:
        raise RepositoryError(
            version / MODEL_FILE,
            f"has SHA-256 {found[:SHORT_DIGITS]}…, {ARTIFACT_FILE} says "
            f"{named[:SHORT_DIGITS]}…: damaged, or another model",
        )
    require_same_files(version, record.files)
