"""Write down where a converted model comes from, beside it: artifact.json."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from converters.model import Parameter, Vocabulary
from tollgate.errors import RepositoryError
from tollgate.repository.artifact import ARTIFACT_FILE
from tollgate.repository.atomic import replace_file
from tollgate.repository.hashes import hash_file
from tollgate.repository.onnx_model import MODEL_FILE
from tollgate.repository.parity import ParityReport
from tollgate.repository.release import Sha256, SpecHash, UtcTime
from tollgate.repository.trade import Gate, Trade

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The trained model.

    Attributes:
        framework: Library that trained it.
        version: Of that library.
        objective: What it was trained for.
        classes: Class labels, in the order of the probabilities.
        trees: Trees that count, after early stopping.
        parameters: Those that were set; the library's defaults stand for the rest.
    """

    framework: str
    version: str
    objective: str
    classes: tuple[int | str, ...]
    trees: int
    parameters: dict[str, Parameter]


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The converted model.

    Attributes:
        converter: Library that wrote the trees, with its version.
        opset: Operator set version per domain.
        ir: ONNX file format version.
        size_bytes: Of the file.
    """

    converter: str
    opset: dict[str, int]
    ir: int
    size_bytes: int


class Distribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    How one number was distributed in training.

    Attributes:
        quantiles: Value at each of `Training.quantiles`, rows with a value only;
            empty when no row has one.
        missing: Share of rows without a value (NaN).
    """

    quantiles: tuple[float, ...]
    missing: float


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The rows it was trained on; what is served is compared with them.

    Attributes:
        rows: How many.
        frauds: How many of them are labelled 1; None when no labels were handed in.
        quantiles: The quantiles that distributions list, 0 to 1.
        features: Distribution per feature, in order.
        score: Distribution of the converted model's P(1).
        origin: `training` for the very rows it was trained on; `sample` for rows that
            were handed in with the model, of which nobody knows that.
        note: The same in words.
    """

    rows: int
    frauds: int | None
    quantiles: tuple[float, ...]
    features: dict[str, Distribution]
    score: Distribution
    origin: Literal["training", "sample"] = "training"
    note: str = ""


class Artifact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The record of one converted model.

    Attributes:
        sha256: Of the model file beside it.
        spec_hash: Of the feature spec it was trained with, 16 hexadecimal digits;
            None when it was converted for no product, and cannot be published.
        features: Names of its features, in order.
        source: The trained model.
        graph: The converted model.
        parity: How far they are apart, per runtime it was proven in.
        training: The rows it was trained on, or a sample like them; None when nobody
            handed any in.
        created: When, RFC 3339 in UTC.
        targets: Releases of Triton whose onnxruntime it was proven in.
        categories: Feature -> the categories that the source knows of it.
        us_per_row: Rows of a batch -> µs per row on one thread of the machine that
            converted it; empty in older records.
        trades: What was lost and won by making it smaller, in the order of doing. A
            `quantize` stands behind the proof: `parity` is then of the graph before it.
        allowed: What might be lost by them; None without trades.
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


def describe_training(
    features: npt.NDArray[np.float32],
    *,
    names: tuple[str, ...],
    label: npt.ArrayLike | None,
    score: npt.NDArray[np.float32],
    origin: Literal["training", "sample"] = "training",
    note: str = "",
) -> Training:
    """
    Summarise training rows.

    Args:
        features: float32 [N, F].
        names: Of the F columns.
        label: 1 for fraud, 0 otherwise; [N], or None where that is not known.
        score: P(1) of each row; float32 [N].
        origin: Where the rows come from.
        note: The same in words.
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
    there = values[~np.isnan(values)].astype(np.float64)
    # An observed value, not one between two: it stays exact and short in the file.
    found = np.quantile(there, QUANTILES, method="nearest") if there.size else there
    return Distribution(
        quantiles=tuple(found.tolist()), missing=1 - there.size / max(values.size, 1)
    )


def write_artifact(artifact: Artifact, version: Path) -> Path:
    """
    Write the artifact.json of a version directory.

    Raises:
        OSError: It cannot be written.
    """
    path = version / ARTIFACT_FILE
    text = msgspec.json.format(msgspec.json.encode(artifact), indent=2)
    replace_file(path, text + b"\n")
    return path


def read_artifact(version: Path) -> Artifact:
    """
    Read a version directory's record and prove that the model is the one it names.

    Raises:
        RepositoryError: The record or the model is missing, the record lacks a field
            or has a wrong one, or the model has changed.
    """
    path = version / ARTIFACT_FILE
    try:
        artifact = msgspec.json.decode(path.read_bytes(), type=Artifact)
    except OSError as error:
        raise RepositoryError(path, f"cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RepositoryError(path, str(error)) from error
    model = version / MODEL_FILE
    found = hash_file(model)
    if found != artifact.sha256:
        raise RepositoryError(
            model,
            f"has SHA-256 {found[:12]}…, {ARTIFACT_FILE} names "
            f"{artifact.sha256[:12]}…: it is another model, or damaged",
        )
    return artifact
