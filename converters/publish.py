"""Publish a trained model: convert it, prove it, record it, release it."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxmltools
import xgboost
from xgboost import XGBClassifier

from converters.artifact import (
    Artifact,
    Graph,
    Source,
    describe_training,
    write_artifact,
)
from converters.model import F32, plain_parameters
from converters.onnx_from_xgboost import OBJECTIVE, onnx_from_xgboost, served_booster
from converters.parity import ParityReport, compare
from converters.probes import probes, trees_of
from converters.runner import onnx_runner
from converters.served import decision_thresholds, read_served, require_spec
from converters.training import check_training_rows
from tollgate.errors import ConversionError, RepositoryError
from tollgate.features.spec import FeatureSpec
from tollgate.repository.compose import compose_release
from tollgate.repository.onnx_model import MODEL_FILE, onnx_findings
from tollgate.repository.release import Release, write_release
from tollgate.repository.versions import publish_version

SAMPLE_ROWS = 4096  # training rows that parity is proven on, evenly spaced
_SCORE_ROWS = 65_536  # scored at once


def publish(
    model: XGBClassifier,
    *,
    repository: Path,
    product: str,
    spec: FeatureSpec,
    features: F32,
    label: npt.ArrayLike,
    actor: str,
    reason: str,
) -> Release:
    """
    Add a trained model to the repository and make it the product's release.

    Nothing is written unless the model converts, agrees with its source and was
    trained with the feature spec that the repository serves.

    Args:
        model: The trained classifier.
        repository: The model repository.
        product: Name of the ensemble.
        spec: Feature spec that the training rows were built with.
        features: The training rows; float32 [N, F].
        label: 1 for fraud, 0 otherwise; [N].
        actor: Who publishes.
        reason: Why.

    Returns:
        The release as written.

    Raises:
        ConversionError: The model is not of a kind that is converted, or its
            converted form answers differently.
        InputError: The training rows are not float32 [N, F] with labels 0 and 1.
        RepositoryError: The repository serves another feature spec, or the model
            does not fit its configuration.
        PolicyError: The policy that the model is proven with cannot be read.
    """
    check_training_rows(features, label)
    served = read_served(repository, product)
    require_spec(served, spec)
    converted, report = convert(
        model, samples=features, thresholds=decision_thresholds(served, spec)
    )
    _require_names(spec, model=model)
    artifact = _artifact(
        model, converted=converted, report=report, spec=spec, rows=(features, label)
    )
    model_step = served.product.model_step
    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        staged = Path(name)
        (staged / MODEL_FILE).write_bytes(converted)
        write_artifact(artifact, staged)
        config = served.product.steps[model_step]
        for finding in onnx_findings(staged / MODEL_FILE, config):
            raise RepositoryError(model_step, finding.problem, where=finding.where)
        number = publish_version(repository, step=model_step, source=staged)
    release = compose_release(
        repository,
        product=product,
        versions={**served.versions, model_step: number},
        actor=actor,
        reason=reason,
        spec_hash=f"{spec.spec_hash:016x}",
    )
    write_release(repository, release)
    return release


def convert(
    model: XGBClassifier, *, samples: F32, thresholds: Sequence[float]
) -> tuple[bytes, ParityReport]:
    """
    Convert a model and prove that it answers as before.

    Args:
        model: The trained classifier.
        samples: Rows as served, at least one; float32 [N, F].
        thresholds: Scores at which the policy's decision changes.

    Returns:
        The ONNX file and the proof.

    Raises:
        ConversionError: It cannot be converted, or it answers differently.
    """
    converted = onnx_from_xgboost(model)
    booster = served_booster(model)
    if samples.shape[1] != booster.num_features():
        raise ConversionError(
            f"the model has {booster.num_features()} features, the rows to prove it "
            f"on have {samples.shape[1]}"
        )
    chosen = np.linspace(0, len(samples) - 1, min(len(samples), SAMPLE_ROWS))
    report = compare(
        model.predict_proba,
        onnx_runner(converted),
        probes=probes(samples[chosen.astype(int)], trees_of(booster)),
        thresholds=thresholds,
    )
    report.check()
    return converted, report


def _require_names(spec: FeatureSpec, *, model: XGBClassifier) -> None:
    """Raise ConversionError unless the model's columns are those of the spec."""
    names = spec.feature_names
    if len(names) != model.n_features_in_:
        raise ConversionError(
            f"the feature spec has {len(names)} features, the model "
            f"{model.n_features_in_}"
        )
    known = model.get_booster().feature_names
    if known is not None and tuple(known) != names:
        raise ConversionError(
            f"the model was trained on columns {known}; the spec has {list(names)}"
        )


def _artifact(
    model: XGBClassifier,
    *,
    converted: bytes,
    report: ParityReport,
    spec: FeatureSpec,
    rows: tuple[F32, npt.ArrayLike],
) -> Artifact:
    """Write down what was trained, what came of it and on which rows."""
    features, label = rows
    graph = onnx.load_from_string(converted)
    infer = onnx_runner(converted)
    score = np.concatenate(
        [
            infer(features[start : start + _SCORE_ROWS])[:, 1]
            for start in range(0, len(features), _SCORE_ROWS)
        ]
    )
    return Artifact(
        sha256=hashlib.sha256(converted).hexdigest(),
        spec_hash=f"{spec.spec_hash:016x}",
        features=spec.feature_names,
        source=Source(
            framework="xgboost",
            version=xgboost.__version__,
            objective=OBJECTIVE,
            classes=tuple(int(one) for one in model.classes_),
            trees=len(trees_of(served_booster(model))),
            parameters=plain_parameters(model.get_params()),
        ),
        graph=Graph(
            converter=f"onnxmltools {onnxmltools.__version__}",
            opset={one.domain or "ai.onnx": one.version for one in graph.opset_import},
            ir=graph.ir_version,
            size_bytes=len(converted),
        ),
        parity=(report,),
        training=describe_training(
            features, names=spec.feature_names, label=label, score=score
        ),
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
