"""Record the origin of a converted model in `artifact.json`, in the model's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from converters.model import Parameter, Vocabulary
from tollgate.errors import RepositoryError
from tollgate.repository.atomic import replace_file
from tollgate.repository.hashes import hash_file
from tollgate.repository.models.artifact_file import ARTIFACT_FILE, require_same_files
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.models.origin import MadeFrom
from tollgate.repository.models.parity_record import Oracle, ParityReport
from tollgate.repository.models.quality_loss import Gate, Trade
from tollgate.repository.releases.release_file import Name, Sha256, SpecHash, UtcTime

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The trained model.

    Attributes:
        framework: Library that trained it.
        version: Version of that library.
        objective: Training objective.
        classes: Class labels, in the order of the probabilities.
        trees: Number of trees in use, after early stopping.
        parameters: Parameters that were set; all others have the library's defaults.
        written_by: Version of the library that wrote the file, if the version above,
            which read it, does not guarantee the same predictions; otherwise empty.
    """

    framework: str
    version: str
    objective: str
    classes: tuple[int | str, ...]
    trees: int
    parameters: dict[str, Parameter]
    written_by: str = ""


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The converted model.

    Attributes:
        converter: Library that wrote the trees, with its version.
        opset: Operator set version per domain.
        ir: ONNX file format version.
        size_bytes: Size of the file.
    """

    converter: str
    opset: dict[str, int]
    ir: int
    size_bytes: int


class Distribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    Distribution of one number in the training rows.

    Attributes:
        quantiles: Value at each of `Training.quantiles`, finite values only; empty
            when no row has one.
        missing: Share of rows without a value (NaN).
        infinite: Share of rows with an infinity; no quantile counts these.
    """

    quantiles: tuple[float, ...]
    missing: float
    infinite: float = 0.0


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The training rows, with which served requests are compared.

    Attributes:
        rows: Number of rows.
        frauds: Number of rows labelled 1; None without labels.
        quantiles: Quantile levels that distributions list, 0 to 1.
        features: Distribution of each feature, in order.
        score: Distribution of the converted model's P(1).
        origin: `training` for exactly the rows that the model was trained on; `held
            out` for rows excluded from training; `sample` for rows supplied with the
            model whose role in training is unknown.
        note: Description of the origin.
    """

    rows: int
    frauds: int | None
    quantiles: tuple[float, ...]
    features: dict[str, Distribution]
    score: Distribution
    origin: Literal["training", "held out", "sample"] = "training"
    note: str = ""


class Artifact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The record of one converted model.

    Attributes:
        sha256: SHA-256 of the model file in the same folder.
        spec_hash: Hash of the feature spec it was trained with, 16 hexadecimal digits;
            None when it was converted for no product, so that it cannot be published.
        features: Names of its features, in order.
        source: The trained model.
        graph: The converted model.
        parity: Difference between the two, for each runtime in which it was proven.
        training: The training rows, or a similar sample; None if no rows were supplied.
        created: Time of conversion, RFC 3339 in UTC.
        targets: Triton releases whose onnxruntime was used to prove it.
        categories: Feature -> the categories of it that the source knows.
        us_per_row: Rows of a batch -> µs per row on one thread of the machine that
            converted it; empty in older records.
        trades: Loss and gain of each step that made it smaller, in order. A `quantize`
            comes after the proof: `parity` then describes the graph before it.
        allowed: Loss allowed for these steps; None without trades.
        parity_of: The subject of `parity`: the model in this folder, or the graph from
            which it was quantised; then no proof covers the model.
        files: SHA-256 by name of the files in the folder that programs read later.
            Cards, pictures and parity.json are for people.
        oracle: The reference it was proven against; None in older records.
        made_from: The files it was converted from; None if there was none, and in older
            records.
    """

    sha256: Sha256
    spec_hash: SpecHash | None
    features: tuple[str, ...]
    source: Source
    graph: Graph
    parity: tuple[ParityReport, ...]
    training: Training | None
    created: UtcTime
    targets: tuple[str, ...] = ()
    categories: dict[str, Vocabulary] = {}
    us_per_row: dict[int, float] = {}
    allowed: Gate | None = None
    trades: tuple[Trade, ...] = ()
    parity_of: Literal["model", "before quantize"] = "model"
    files: dict[Name, Sha256] = {}
    oracle: Oracle | None = None
    made_from: MadeFrom | None = None


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
