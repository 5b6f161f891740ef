"""Convert a model and prove it; write what came of it into a folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import numpy as np
import onnx

from converters.artifact import Artifact, Graph, Source, write_artifact
from converters.model import F32, Facts, TrainedModel
from converters.parity import Comparison, ParityReport, measure
from converters.picture import draw
from converters.runner import onnx_runner
from tollgate.errors import ConversionError, InputError
from tollgate.repository.atomic import sync_directory
from tollgate.repository.onnx_model import MODEL_FILE

SAMPLE_ROWS = 4096  # of a sample, evenly spaced
PARITY_FILE = "parity.json"
PICTURE_FILE = "parity.png"


class Proven(msgspec.Struct, frozen=True, eq=False):
    """A converted model with its proof."""

    facts: Facts
    model: bytes
    comparison: Comparison

    @property
    def report(self) -> ParityReport:
        """The figures."""
        return self.comparison.report


def prove(
    source: TrainedModel, *, samples: F32 | None, thresholds: Sequence[float]
) -> Proven:
    """
    Convert a model and compare it with its source; the report may say that it fails.

    Args:
        source: The model.
        samples: Rows as served; float32 [N, F]; None makes some.
        thresholds: Scores at which the policy's decision changes.

    Raises:
        ConversionError: It cannot be converted, or the sample does not fit.
    """
    facts = source.facts
    converted = source.convert()
    if samples is not None:
        if samples.shape[1] != facts.columns:
            raise ConversionError(
                f"the model has {facts.columns} features, the rows to prove it on "
                f"have {samples.shape[1]}"
            )
        at = np.linspace(0, len(samples) - 1, min(len(samples), SAMPLE_ROWS))
        samples = samples[at.astype(int)]
    comparison = measure(
        source.predict,
        onnx_runner(converted),
        probes=source.probes(samples),
        thresholds=thresholds,
    )
    return Proven(facts=facts, model=converted, comparison=comparison)


def require_new_folder(folder: Path) -> None:
    """Raise InputError unless a folder is absent or empty."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise InputError(folder, "is there already and not empty; name a new folder")
    if not folder.resolve().parent.is_dir():
        raise InputError(folder, "its parent folder does not exist")


def write_proven(
    proven: Proven, folder: Path, *, names: tuple[str, ...], spec_hash: str | None
) -> None:
    """
    Write model.onnx, artifact.json, parity.json and parity.png, all or nothing.

    Raises:
        ParityError: The model failed its proof.
        InputError: The folder is there already, or cannot be written.
    """
    proven.report.check()
    require_new_folder(folder)
    target = folder.resolve()
    try:
        with tempfile.TemporaryDirectory(
            prefix=f".{target.name}.", dir=target.parent
        ) as name:
            staged = Path(name) / "staged"
            staged.mkdir()
            (staged / MODEL_FILE).write_bytes(proven.model)
            write_artifact(
                artifact_of(proven, names=names, spec_hash=spec_hash), staged
            )
            text = msgspec.json.format(msgspec.json.encode(proven.report), indent=2)
            (staged / PARITY_FILE).write_bytes(text + b"\n")
            draw(proven.comparison, staged / PICTURE_FILE)
            sync_directory(staged)
            os.rename(staged, target)  # onto nothing, or an empty folder
        sync_directory(target.parent)
    except OSError as error:
        raise InputError(folder, f"cannot be written: {error.strerror}") from error


def artifact_of(
    proven: Proven, *, names: tuple[str, ...], spec_hash: str | None
) -> Artifact:
    """Record a converted model of which the training rows are not known."""
    graph = onnx.load_from_string(proven.model)
    facts = proven.facts
    return Artifact(
        sha256=hashlib.sha256(proven.model).hexdigest(),
        spec_hash=spec_hash,
        features=names,
        source=Source(
            framework=facts.framework,
            version=facts.version,
            objective=facts.objective,
            classes=facts.classes,
            trees=facts.trees,
            parameters=facts.parameters,
        ),
        graph=Graph(
            converter=facts.converter,
            opset={one.domain or "ai.onnx": one.version for one in graph.opset_import},
            ir=graph.ir_version,
            size_bytes=len(proven.model),
        ),
        parity=(proven.report,),
        training=None,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
