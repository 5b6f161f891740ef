"""What a server must know of a converted model; converters write the whole record."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError
from tollgate.repository.release import Sha256, SpecHash

ARTIFACT_FILE = "artifact.json"


class Artifact(msgspec.Struct, frozen=True):
    """
    The part of artifact.json that decides whether a model fits; the rest is skipped.

    Attributes:
        sha256: Of the model file beside it.
        spec_hash: Of the feature spec it was trained with, 16 hexadecimal digits.
        features: Names of its features, in order.
    """

    sha256: Sha256
    spec_hash: SpecHash
    features: tuple[str, ...]


def read_artifact(version: Path) -> Artifact:
    """
    Read the artifact.json of a version directory.

    Raises:
        RepositoryError: It is missing, or lacks a field or has a wrong one.
    """
    path = version / ARTIFACT_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Artifact)
    except OSError as exc:
        raise RepositoryError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        if "got `null` - at `$.spec_hash`" in str(exc):
            problem = "is null: convert it with --product, which says what it is for"
            raise RepositoryError(path, problem, where="spec_hash") from exc
        raise RepositoryError(path, str(exc)) from exc
