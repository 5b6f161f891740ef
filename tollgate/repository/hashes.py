"""Compute the SHA-256 of the files in a version directory."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tollgate.errors import RepositoryError, os_errors

_CHUNK_BYTES = 1 << 20
SHORT_DIGITS = 12  # of a hash, in text for people
PLAN_FILE = "model.plan"


def plan_record(plan: Path) -> Path:
    """Return the path of the record of a TensorRT plan."""
    return plan.with_name(f"{plan.name}.json")


def version_files(version: Path) -> list[Path]:
    """
    List the files of a version directory, sorted, without Python's byte code.

    A link to a folder is in the list, and cannot be read as a file: the files behind it
    would be neither hashed nor copied.

    Raises:
        RepositoryError: There is no such directory.
    """
    if not version.is_dir():
        raise RepositoryError(version, "there is no such version directory")
    return sorted(
        path
        for path in version.rglob("*")
        if (path.is_symlink() or not path.is_dir())
        and "__pycache__" not in path.relative_to(version).parts
    )


def hash_file(path: Path) -> str:
    """
    Compute the SHA-256 of a file, as 64 hexadecimal digits.

    Raises:
        RepositoryError: The file cannot be read.
    """
    digest = hashlib.sha256()
    with os_errors(RepositoryError, path, "cannot be read"), path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def hash_version(repository: Path, model: str, *, version: int) -> dict[str, str]:
    """
    Compute the SHA-256 of every file of one version of a model.

    A TensorRT plan and its record are left out: each machine builds its own, and
    `tollgate.repository.models.model_files` ties it to the model.

    Returns:
        Path relative to the repository -> hash, in the order of the paths.

    Raises:
        RepositoryError: There is no such version, or a file cannot be read.
    """
    directory = repository / model / str(version)
    plan = directory / PLAN_FILE
    return {
        path.relative_to(repository).as_posix(): hash_file(path)
        for path in version_files(directory)
        if path not in (plan, plan_record(plan))
    }


def hash_tree(directory: Path) -> str:
    """
    Compute one SHA-256 over the names and contents of all files below a directory.

    Raises:
        RepositoryError: There is no such directory, or a file cannot be read.
    """
    digest = hashlib.sha256()
    for path in version_files(directory):
        name = path.relative_to(directory).as_posix()
        digest.update(f"{name}\0{hash_file(path)}\n".encode())
    return digest.hexdigest()
