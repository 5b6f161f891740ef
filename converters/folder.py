"""Write a converted model and its `artifact.json`: completely, or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import onnx

from converters.card.card import write_card
from converters.compression.prune_sweep import draw_sweep
from converters.converted import Converted
from converters.parity.parity import Comparison
from tollgate.errors import InputError, RepositoryError
from tollgate.explanation import EXPLAIN_FILE, encode_explanation
from tollgate.repository.atomic import replace_file, sync_directory
from tollgate.repository.models.artifact_file import (
    Artifact,
    Distribution,
    Graph,
    MadeFrom,
    Source,
    Training,
)
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.models.speed import us_per_row
from tollgate.schema import ARTIFACT_FILE

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
        label: 1 for fraud, 0 otherwise; [N], or None where labels are unknown.
        score: P(1) of each row, or the number; float32 [N].
        origin: Origin of the rows; see `Training.origin`.
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
    try:
        msgspec.json.decode(encoded, type=Artifact)
    except msgspec.DecodeError as error:
        raise RepositoryError(path, str(error)) from error
    replace_file(path, msgspec.json.format(encoded, indent=2) + b"\n")
    return path


# Plot a proof: the differences between the scores, and one score against the other.

_SMALLEST = 1e-10  # smaller differences are drawn here: a logarithm has no zero


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Write a PNG, a row per runtime: a histogram of |Δp|, and score against score."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = len(comparisons)
    figure = Figure(figsize=(9, 4 * count), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    for comparison, (left, right) in zip(
        comparisons, figure.subplots(count, 2, squeeze=False), strict=True
    ):
        _draw_one(comparison, left, right)
    figure.savefig(path)


def _draw_one(comparison: Comparison, left: Axes, right: Axes) -> None:
    report = comparison.report
    delta = np.clip(comparison.delta, _SMALLEST, 1)
    left.hist(delta, bins=np.geomspace(_SMALLEST, 1, 61).tolist(), color="tab:blue")
    left.axvline(
        report.tolerance, color="tab:red", label=f"allowed {report.tolerance:g}"
    )
    what = "|Δp|" if report.unit is None else "|Δ| / size"
    left.set(xscale="log", yscale="log", xlabel=what, ylabel="rows")
    left.set_title(f"max {report.max_delta:.2g}, {report.flips} flips")
    left.legend()
    right.plot(comparison.source[:, -1], comparison.converted[:, -1], ".", markersize=3)
    for threshold in report.thresholds:
        right.axvline(threshold, color="tab:gray", linewidth=0.5)
    right.set(xlabel="score by the source", ylabel="score converted")
    right.set_title(f"{report.rows:,} rows, {report.runtime}")


# Build the record (`artifact.json`) of a converted model.


def artifact_of(
    converted: Converted,
    *,
    other_files: Mapping[str, bytes],
    made_from: MadeFrom | None = None,
) -> Artifact:
    """
    Build the record of a converted model; this times the model.

    Args:
        other_files: Name -> content of the files in the same folder that programs read
            later.
        made_from: The files it was converted from; None for none.

    Raises:
        InputError: A label of the sample is none of the model's classes.
    """
    proven, names = converted.proven, converted.names
    facts = proven.facts
    return Artifact(
        sha256=hashlib.sha256(converted.model).hexdigest(),
        spec_hash=converted.purpose.spec_hash,
        features=names,
        source=Source(
            framework=facts.framework,
            version=facts.version,
            objective=facts.objective,
            classes=facts.classes,
            trees=facts.trees,
            parameters=facts.parameters,
            written_by=facts.written_by,
            kind="number" if facts.number else "classes",
        ),
        graph=_graph(converted),
        parity=proven.reports,
        oracle=converted.oracle,
        made_from=made_from,
        calibration=converted.calibration,
        training=_training(converted),
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        # A quantised model was evaluated only in this machine's runtime.
        targets=proven.targets if converted.is_proven else proven.targets[:1],
        categories={names[at]: known for at, known in facts.categories.items()},
        us_per_row=us_per_row(converted.model),
        trades=converted.trades,
        allowed=converted.allowed,
        parity_of="model" if converted.is_proven else "before quantize",
        files={
            name: hashlib.sha256(content).hexdigest()
            for name, content in other_files.items()
        },
    )


def _graph(converted: Converted) -> Graph:
    graph = onnx.load_from_string(converted.model)
    return Graph(
        converter=converted.proven.facts.converter,
        opset={one.domain or "ai.onnx": one.version for one in graph.opset_import},
        ir=graph.ir_version,
        size_bytes=len(converted.model),
    )


def _training(converted: Converted) -> Training | None:
    """Describe the rows of the sample, and the model's scores for them."""
    sample, known = converted.sample, converted.proven.facts.classes
    if sample is None:
        return None
    return describe_training(
        sample.rows,
        names=converted.names,
        label=sample.classes(known) if len(known) == 2 else None,
        score=np.ascontiguousarray(
            converted.probabilities(sample.rows)[:, 0 if len(known) == 1 else 1]
        ),
        origin=sample.origin,
        note=sample.note,
    )


PARITY_FILE = "parity.json"
PICTURE_FILE = "parity.png"
SWEEP_FILE = "prune.png"


def require_new_folder(folder: Path) -> None:
    """Raise InputError unless a folder does not exist or is empty."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise InputError(folder, "is there already and not empty; name a new folder")
    if not folder.resolve().parent.is_dir():
        raise InputError(folder, "its parent folder does not exist")


def write_converted(
    converted: Converted, folder: Path, *, made_from: MadeFrom | None = None
) -> Artifact:
    """
    Write the model, its record, its proof, its card and their pictures.

    Args:
        folder: Folder that does not exist or is empty.
        made_from: The files it was converted from; None for none.

    Returns:
        The record.

    Raises:
        ParityError: The model failed its proof.
        InputError: The folder is not empty, or cannot be written.
    """
    converted.proven.check()
    require_new_folder(folder)
    target = folder.resolve()
    try:
        with tempfile.TemporaryDirectory(
            prefix=f".{target.name}.", dir=target.parent
        ) as name:
            staged = Path(name) / "staged"
            staged.mkdir()
            record = _write(converted, staged, made_from)
            sync_directory(staged)
            os.rename(staged, target)  # works if nothing or an empty folder is there
        sync_directory(target.parent)
    except OSError as error:
        raise InputError(folder, f"cannot be written: {error.strerror}") from error
    return record


def _write(converted: Converted, staged: Path, made_from: MadeFrom | None) -> Artifact:
    (staged / MODEL_FILE).write_bytes(converted.model)
    explanation = converted.explanation
    other_files = {}
    if not explanation.reason:
        other_files[EXPLAIN_FILE] = encode_explanation(explanation)
    for name, content in other_files.items():
        (staged / name).write_bytes(content)
    record = artifact_of(converted, other_files=other_files, made_from=made_from)
    write_artifact(record, staged)
    proven = converted.proven
    text = msgspec.json.format(msgspec.json.encode(proven.reports), indent=2)
    (staged / PARITY_FILE).write_bytes(text + b"\n")
    draw(proven.comparisons, staged / PICTURE_FILE)
    if converted.sweep is not None:
        draw_sweep(converted.sweep, staged / SWEEP_FILE)
    write_card(staged, record, quality=converted.quality(), explanation=explanation)
    return record
