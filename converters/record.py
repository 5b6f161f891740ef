"""Build the record (`artifact.json`) of a converted model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime, timezone

import numpy as np
import onnx

from converters.artifact import (
    Artifact,
    Graph,
    Source,
    Training,
    describe_training,
)
from converters.converted import Converted
from tollgate.repository.made_from import MadeFrom
from tollgate.repository.speed import us_per_row


def artifact_of(
    converted: Converted,
    *,
    other_files: Mapping[str, bytes],
    made_from: MadeFrom | None = None,
) -> Artifact:
    """
    Build the record of a converted model; this times the model.

    Args:
        converted: The model.
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
        ),
        graph=_graph(converted),
        parity=proven.reports,
        oracle=converted.oracle,
        made_from=made_from,
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
        score=np.ascontiguousarray(converted.probabilities(sample.rows)[:, 1]),
        origin=sample.origin,
        note=sample.note,
    )
