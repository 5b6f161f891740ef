"""
Convert fitted scikit-learn outlier detectors to ONNX that gives their raw score.

The raw score rises with the anomaly: the opposite of `score_samples`, or the squared
error of a reconstruction. `converters.calibration` turns it into a probability.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.covariance import EllipticEnvelope
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.neural_network import MLPRegressor
from sklearn.svm import OneClassSVM

from converters.model import AnomalyScore
from converters.onnx.estimator_graph import EstimatorGraph
from converters.onnx.graph import RAW_SCORE
from converters.sources.estimator_rows import parts_of, reconstructs
from converters.trees.sklearn_trees import isolation_trees, mean_path
from tollgate.errors import ConversionError

_MOST_DIFFERENCES = 4_000_000  # numbers of a batch of 32 rows: 32 MB
_BATCH_ROWS = 32
# Detectors that are no model of ours, and the nearest one that is.
_OTHERS = {
    "LocalOutlierFactor": "it compares a row with all rows of the training; train an "
    "IsolationForest or an EllipticEnvelope",
    "SGDOneClassSVM": "train an IsolationForest, or a OneClassSVM with kernel 'rbf'",
    "KernelPCA": "train a PCA",
    "FastICA": "train a PCA",
    "TruncatedSVD": "train a PCA",
    "KernelDensity": "train an IsolationForest or an EllipticEnvelope",
    "GaussianMixture": "train an EllipticEnvelope",
}


def anomaly_score(estimator: Any) -> AnomalyScore | None:
    """
    Return the form of a detector's raw score; None for a model that is no detector.

    A network that reproduces its own columns, more than one, is a detector.

    Raises:
        ConversionError: It is a detector that is not converted.
    """
    last = parts_of(estimator)[1]
    name = type(last).__name__
    if isinstance(last, IsolationForest):
        return AnomalyScore(scale="linear", most=1.0)
    if isinstance(last, EllipticEnvelope) or reconstructs(last):
        return AnomalyScore(scale="log", most=1e80)
    if isinstance(last, OneClassSVM):
        if last.kernel != "rbf":
            raise ConversionError(
                f"OneClassSVM: kernel {last.kernel!r} is not converted; train it with "
                "'rbf', or an IsolationForest"
            )
        return AnomalyScore(scale="linear", most=0.0)
    if name in _OTHERS:
        raise ConversionError(f"a {name} is not converted: {_OTHERS[name]}")
    return None


def require_fitted(estimator: Any) -> None:
    """Raise ConversionError for a detector that is not trained."""
    if not hasattr(estimator, "n_features_in_"):
        raise ConversionError(
            f"the {type(estimator).__name__} is not trained; call fit first"
        )


def onnx_from_outlier_detector(estimator: Any, *, wide: bool = False) -> bytes:
    """
    Convert a fitted detector, or a pipeline that ends in one.

    Args:
        wide: True if its features are float64; else float32.

    Returns:
        A serialized graph: `features` [N, F] to `anomaly` float64 [N, 1], the raw
        score.

    Raises:
        ConversionError: It has a step that is not supported.
    """
    require_fitted(estimator)
    steps, last = parts_of(estimator)
    graph = EstimatorGraph(steps, columns=int(estimator.n_features_in_), wide=wide)
    for kind, write in _WRITERS.items():
        if isinstance(last, kind):
            return graph.finish(write(graph, last), name=RAW_SCORE, dtype=np.float64)
    raise ConversionError(f"a {type(last).__name__} is no outlier detector")


def _isolation_forest(graph: EstimatorGraph, forest: IsolationForest) -> str:
    """Write 2 ** -(sum of path lengths / (trees * mean path of a tree's rows))."""
    trees = isolation_trees(forest)
    longest = len(trees) * float(mean_path([forest._max_samples])[0])
    if not longest:
        raise ConversionError(
            "IsolationForest: each tree has one row, so all scores are equal; train "
            "it with more max_samples"
        )
    path = graph.tree_sum(trees)
    share = graph.add("Div", graph.add("Neg", path), graph.number(longest))
    return graph.add("Pow", graph.number(2.0), share)


def _elliptic_envelope(graph: EstimatorGraph, step: EllipticEnvelope) -> str:
    """Write (x - location) precision (x - location)."""
    double = graph.cast(graph.given, np.float64)
    away = graph.add(
        "Sub", double, graph.constant(np.asarray(step.location_, np.float64)[None])
    )
    turned = graph.product(away, step.get_precision())
    return graph.sums(graph.add("Mul", turned, away))


def _one_class_svm(graph: EstimatorGraph, step: OneClassSVM) -> str:
    """Write the weighted sum of exp(-gamma |x - support vector|²), with minus."""
    vectors = np.asarray(step.support_vectors_, np.float64)
    if vectors.size * _BATCH_ROWS > _MOST_DIFFERENCES:
        raise ConversionError(
            f"OneClassSVM: {len(vectors):,} support vectors of {vectors.shape[1]} "
            "columns need too much memory; train it with a smaller nu, or an "
            "IsolationForest"
        )
    double = graph.cast(graph.given, np.float64)
    row = graph.add("Unsqueeze", double, graph.constant(np.array([1], np.int64)))
    away = graph.add("Sub", row, graph.constant(vectors[None]))
    square = graph.add("Mul", away, away)
    axis = graph.constant(np.array([2], np.int64))
    distance = graph.add("ReduceSum", square, axis, keepdims=0)
    near = graph.add("Exp", graph.add("Mul", distance, graph.number(-step._gamma)))
    weights = np.asarray(step.dual_coef_, np.float64).T
    return graph.add("Neg", graph.product(near, weights))


def _pca(graph: EstimatorGraph, step: PCA) -> str:
    """Write the squared distance of a row from the plane of the components."""
    dtype = step.components_.dtype
    scale: Any = np.ones(len(step.components_))
    if step.whiten:
        scale = np.sqrt(step.explained_variance_)
        scale = np.maximum(scale, np.finfo(scale.dtype).eps)[:, None]
        back = np.sqrt(step.explained_variance_)[:, None] * step.components_
    else:
        scale, back = scale[:, None], step.components_
    given = graph.cast(graph.given, dtype)
    turned = graph.product(given, step.components_.T, dtype=dtype)
    centre = np.asarray(step.mean_[None] @ step.components_.T, dtype)
    turned = graph.add("Sub", turned, graph.constant(centre))
    turned = graph.add("Div", turned, graph.constant(np.asarray(scale.T, dtype)))
    again = graph.product(turned, back, dtype=dtype)
    mean = graph.constant(np.asarray(step.mean_, dtype))
    return _error(graph, graph.add("Add", again, mean))


def _network(graph: EstimatorGraph, step: MLPRegressor) -> str:
    """Write the squared difference of a row from the network's answer."""
    return _error(graph, graph.network(step))


def _error(graph: EstimatorGraph, again: str) -> str:
    given = graph.cast(graph.given, np.float64)
    away = graph.add("Sub", given, graph.cast(again, np.float64))
    return graph.sums(graph.add("Mul", away, away))


_WRITERS: Mapping[type, Any] = {
    IsolationForest: _isolation_forest,
    EllipticEnvelope: _elliptic_envelope,
    OneClassSVM: _one_class_svm,
    PCA: _pca,
    MLPRegressor: _network,
}
