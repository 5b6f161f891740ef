"""Record the origin of a converted model in `artifact.json`, in the model's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import RepositoryError
from tollgate.repository.atomic import replace_file
from tollgate.repository.hashes import hash_file
from tollgate.repository.models.artifact_file import (
    ARTIFACT_FILE,
    Artifact,
    Distribution,
    Training,
    require_same_files,
)
from tollgate.repository.models.model_files import MODEL_FILE

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


def describe_training(
    features: npt.NDArray[np.float32],
    *,
    names: tuple[str, ...],
    label: npt.ArrayLike | None,
    score: npt.NDArray[np.float32],
    origin: Literal["training", "held out", "sample"] = "training",
    note: str = "",
) -> Training:
    """
    Summarise training rows.

    Args:
        features: float32 [N, F].
        names: Names of the F columns.
        label: 1 for fraud, 0 otherwise; [N], or None where labels are unknown.
        score: P(1) of each row; float32 [N].
        origin: Origin of the rows; see `Training.origin`.
        note: Description of the origin.
    """
    return Training(
        rows=len(features),
        frauds=None if label is None else int((np.asarray(label) == 1).sum()),
        quantiles=QUANTILES,
        features={
            name: _distribution(column)
            for name, column in zip(names, features.T, strict=True)
        },
        score=_distribution(score),
        origin=origin,
        note=note,
    )


def _distribution(values: npt.NDArray[np.float32]) -> Distribution:
    there = values[np.isfinite(values)].astype(np.float64)
    # Take an observed value, not one between two: it stays exact and short in the file.
    found = np.quantile(there, QUANTILES, method="nearest") if there.size else there
    rows = max(values.size, 1)
    return Distribution(
        quantiles=tuple(found.tolist()),
        missing=float(np.isnan(values).sum() / rows),
        infinite=float(np.isinf(values).sum() / rows),
    )


def write_artifact(artifact: Artifact, version: Path) -> Path:
    """
    Write the artifact.json of a version directory.

    Raises:
        OSError: The file cannot be written.
        RepositoryError: The record could not be read again: JSON has no infinity and no
            NaN.
    """
    path = version / ARTIFACT_FILE
    encoded = msgspec.json.encode(artifact)
    _decoded(encoded, path)
    replace_file(path, msgspec.json.format(encoded, indent=2) + b"\n")
    return path


def _decoded(text: bytes, path: Path) -> Artifact:
    try:
        return msgspec.json.decode(text, type=Artifact)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RepositoryError(path, str(error)) from error


def read_artifact(version: Path) -> Artifact:
    """
    Read a version directory's record and verify the hashes of the files it names.

    Raises:
        RepositoryError: The record or a file it names is missing, the record lacks a
            field or has a wrong one, or a file has changed.
    """
    path = version / ARTIFACT_FILE
    try:
        text = path.read_bytes()
    except OSError as error:
        raise RepositoryError(path, f"cannot be read: {error.strerror}") from error
    artifact = _decoded(text, path)
    model = version / MODEL_FILE
    found = hash_file(model)
    if found != artifact.sha256:
        raise RepositoryError(
            model,
            f"has SHA-256 {found[:12]}…, {ARTIFACT_FILE} names "
            f"{artifact.sha256[:12]}…: it is another model, or damaged",
        )
    require_same_files(version, artifact.files)
    return artifact
