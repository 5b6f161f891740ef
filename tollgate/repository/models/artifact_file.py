"""
Read the part of artifact.json that a server needs of a converted model.

Converters write the complete record.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from tollgate.errors import RepositoryError
from tollgate.repository.hashes import SHORT_DIGITS, hash_file
from tollgate.repository.models.model_vocabulary import Vocabulary
from tollgate.repository.models.origin import MadeFrom
from tollgate.repository.models.parity_record import TOLERANCE, Oracle, ParityReport
from tollgate.repository.models.quality_loss import Gate, Trade
from tollgate.repository.models.targets import OURS
from tollgate.repository.releases.release_file import Name, Sha256, SpecHash
from tollgate.schema import ARTIFACT_FILE

__all__ = [
    "ARTIFACT_FILE",
    "Artifact",
    "read_artifact",
    "require_proof",
    "require_same_files",
]


class Artifact(msgspec.Struct, frozen=True):
    """
    The part of artifact.json that decides whether a model fits; the rest is skipped.

    Attributes:
        sha256: Hash of the model file next to it.
        spec_hash: Hash of the feature spec it was trained with, 16 hexadecimal digits.
        features: Names of its features, in order.
        parity: Differences from its source, per runtime it was proven in.
        trades: Quality lost and won by making it smaller.
        allowed: Limits of that loss; None for the defaults.
        files: SHA-256 of the files next to the model that are read later, by name.
        categories: Feature -> the categories that the source knows of it.
        oracle: Source and rows that it was proven against; None in older records.
        made_from: The files it was converted from; None if there were none, and in
            older records.
    """

    sha256: Sha256
    spec_hash: SpecHash
    features: tuple[str, ...]
    parity: tuple[ParityReport, ...] = ()
    trades: tuple[Trade, ...] = ()
    allowed: Gate | None = None
    files: dict[Name, Sha256] = {}
    categories: dict[str, Vocabulary] = {}
    oracle: Oracle | None = None
    made_from: MadeFrom | None = None


def require_proof(version: Path) -> None:
    """
    Check that a model was proven in the onnxruntime that serves it here.

    Raises:
        RepositoryError: The record has no proof for that runtime, or one that failed;
            or making it smaller lost more than was allowed.
    """
    path = version / ARTIFACT_FILE
    runtime = f"onnxruntime {OURS.onnxruntime}"
    record = read_artifact(version)
    reports = record.parity
    if runtime not in {one.runtime for one in reports}:
        found = ", ".join(one.runtime for one in reports) or "none"
        problem = f"has no proof for {runtime}, only for: {found}; convert it again"
        raise RepositoryError(path, problem, where="parity")
    for report in reports:
        if not report.passed or report.tolerance > TOLERANCE:
            problem = f"says that it does not answer as its source: {report.figures}"
            raise RepositoryError(path, problem, where="parity")
    gate = record.allowed or Gate()
    for trade in record.trades:
        for found in gate.problems(trade):
            problem = f"{trade.kind} ({trade.detail}) costs too much: {found}"
            raise RepositoryError(path, problem, where="trades")


def require_same_files(version: Path, files: Mapping[str, str]) -> None:
    """
    Check that the files next to a model are those that its record names.

    Args:
        version: The version directory.
        files: SHA-256 by name.

    Raises:
        RepositoryError: A file is missing or has other bytes.
    """
    for name, named in files.items():
        path = version / name
        if not path.is_file():
            raise RepositoryError(path, f"is missing: {ARTIFACT_FILE} names it")
        found = hash_file(path)
        if found != named:
            raise RepositoryError(
                path,
                f"has SHA-256 {found[:SHORT_DIGITS]}…, {ARTIFACT_FILE} says "
                f"{named[:SHORT_DIGITS]}…: damaged, or of another model",
            )


def read_artifact(version: Path) -> Artifact:
    """
    Read the artifact.json of a version directory.

    Raises:
        RepositoryError: It is missing, or a field is missing or wrong.
    """
    path = version / ARTIFACT_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Artifact)
    except OSError as exc:
        raise RepositoryError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        if "got `null` - at `$.spec_hash`" in str(exc):
            problem = "is null: convert the model for a product"
            raise RepositoryError(path, problem, where="spec_hash") from exc
        raise RepositoryError(path, str(exc)) from exc
