"""Convert fitted scikit-learn regressors to ONNX that answers the same number."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from sklearn.compose import TransformedTargetRegressor
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import GradientBoostingRegressor, HistGradientBoostingRegressor
from sklearn.ensemble._forest import BaseForest
from sklearn.neural_network import MLPRegressor
from sklearn.svm import LinearSVR
from sklearn.tree import BaseDecisionTree

from converters.onnx.estimator_graph import EstimatorGraph
from converters.sources.estimator_rows import parts_of
from converters.trees.sklearn_trees import ensembles
from converters.trees.tree_ensemble import Tree
from tollgate.errors import ConversionError
from tollgate.schema import PROBABILITIES

_CONVERTED = (
    "converted are linear models, decision trees, forests, gradient boosting, "
    "histogram boosting, networks (MLPRegressor), and TransformedTargetRegressor with "
    "numpy.exp or numpy.expm1 around one of these; the nearest is a "
    "HistGradientBoostingRegressor"
)


def require_number(estimator: Any) -> None:
    """Raise ConversionError unless a fitted regressor answers one number a row."""
    name = type(estimator).__name__
    if not hasattr(estimator, "n_features_in_"):
        raise ConversionError(f"the {name} is not trained; call fit first")
    last = parts_of(estimator)[1]
    if isinstance(last, TransformedTargetRegressor):
        last = parts_of(last.regressor_)[1]
    outputs = getattr(last, "n_outputs_", 1)
    coefficients = np.asarray(getattr(last, "coef_", 0.0))
    if coefficients.ndim == 2:
        outputs = len(coefficients)
    if outputs != 1:
        raise ConversionError(
            f"{outputs} numbers per row; a decision needs one: train a model for each"
        )


def onnx_from_regressor(estimator: Any, *, wide: bool = False) -> bytes:
    """
    Convert a fitted regressor, or a pipeline that ends in one.

    Args:
        wide: True if its features are float64; else float32.

    Returns:
        A serialized graph: `features` [N, F] to `probabilities` float32 [N, 1], the
        number.

    Raises:
        ConversionError: It has a step that is not supported.
    """
    require_number(estimator)
    steps, last = parts_of(estimator)
    inverse = None
    if isinstance(last, TransformedTargetRegressor):
        inverse = last.inverse_func
        if inverse not in (np.exp, np.expm1):
            raise ConversionError(
                "TransformedTargetRegressor: inverse_func is not numpy.exp or "
                "numpy.expm1; train on the target itself, or on its logarithm"
            )
        more, last = parts_of(last.regressor_)
        steps = [*steps, *more]
    graph = EstimatorGraph(steps, columns=int(estimator.n_features_in_), wide=wide)
    answer = _number(graph, last)
    if inverse is not None:
        answer = graph.add("Exp", answer)
    if inverse is np.expm1:
        answer = graph.add("Sub", answer, graph.number(1.0))
    return graph.finish(answer, name=PROBABILITIES, dtype=np.float32)


def _number(graph: EstimatorGraph, last: Any) -> str:
    """Write the last step, float64 [N, 1]."""
    if isinstance(last, (BaseDecisionTree, BaseForest)):
        return _averaged(graph, last)
    if isinstance(last, GradientBoostingRegressor):
        return _boosted(graph, last)
    if isinstance(last, HistGradientBoostingRegressor):
        return _histograms(graph, last)
    if isinstance(last, MLPRegressor):
        if last.out_activation_ not in ("identity", "exp"):
            problem = f"its output is {last.out_activation_!r}"
            raise ConversionError(f"MLPRegressor: {problem}")
        answer = graph.cast(graph.network(last), np.float64)
        return graph.add("Exp", answer) if last.out_activation_ == "exp" else answer
    module = type(last).__module__
    linear = module.startswith("sklearn.linear_model.") or isinstance(last, LinearSVR)
    if linear and hasattr(last, "coef_") and hasattr(last, "intercept_"):
        return _linear(graph, last)
    raise ConversionError(f"a {type(last).__name__} is not converted: {_CONVERTED}")


def _trees(estimator: Any) -> list[Tree]:
    return [tree for one in ensembles(estimator) for tree in one.trees]


def _averaged(graph: EstimatorGraph, forest: Any) -> str:
    trees = _trees(forest)
    total = graph.tree_sum(trees)
    return graph.add("Div", total, graph.number(float(len(trees))))


def _boosted(graph: EstimatorGraph, step: GradientBoostingRegressor) -> str:
    """Write the start value and the shrunk steps."""
    start = 0.0
    if isinstance(step.init_, DummyRegressor):
        start = float(np.ravel(step.init_.constant_)[0])
    elif step.init_ != "zero":
        raise ConversionError(
            f"GradientBoostingRegressor: init is a {type(step.init_).__name__}; train "
            "it with init=None or 'zero'"
        )
    trees = [
        msgspec.structs.replace(tree, value=tree.value * step.learning_rate)
        for tree in _trees(step)
    ]
    return graph.add("Add", graph.tree_sum(trees), graph.number(start))


def _histograms(graph: EstimatorGraph, step: HistGradientBoostingRegressor) -> str:
    start = float(np.ravel(step._baseline_prediction)[0])
    answer = graph.add("Add", graph.tree_sum(_trees(step)), graph.number(start))
    return _linked(graph, answer, loss=step._loss)


def _linear(graph: EstimatorGraph, step: Any) -> str:
    """Write the sum of the products in the precision of the coefficients."""
    coefficients = np.reshape(step.coef_, (-1, 1))
    dtype = coefficients.dtype
    given = graph.cast(graph.given, dtype)
    answer = graph.product(given, coefficients, dtype=dtype)
    intercept = np.asarray(np.ravel(step.intercept_), dtype)
    answer = graph.add("Add", answer, graph.constant(intercept))
    answer = graph.cast(answer, np.float64)
    return _linked(graph, answer, loss=getattr(step, "_base_loss", None))


def _linked(graph: EstimatorGraph, answer: str, *, loss: Any) -> str:
    """Apply the inverse of the link function of a loss; None is the identity."""
    link = type(getattr(loss, "link", None)).__name__
    if link in ("NoneType", "IdentityLink"):
        return answer
    if link != "LogLink":
        raise ConversionError(f"the link of its loss is {link}; converted is the log")
    return graph.add("Exp", answer)
