"""Extract the explanation of a scikit-learn classifier: its trees or coefficients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from sklearn.base import is_classifier
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    SGDClassifier,
)
from sklearn.tree import BaseDecisionTree

from converters.explain_calibrated import opened
from converters.explain_steps import Column, columns_after
from converters.explain_thresholds import behind_steps
from converters.explain_trees import stored_trees
from converters.model import F32, Facts
from converters.sklearn_trees import ensembles
from converters.trees import Tree
from tollgate.errors import ConversionError
from tollgate.explanation import Explanation, Linear, Link

_LINEAR = (
    *(LogisticRegression, LogisticRegressionCV, SGDClassifier),
    LinearDiscriminantAnalysis,
)


def explain_sklearn(
    estimator: Any, *, facts: Facts, given: Callable[[F32], Any]
) -> Explanation:
    """
    Describe a fitted classifier, or a pipeline that ends in one.

    Args:
        estimator: The classifier.
        facts: Facts about the classifier.
        given: Function that converts float32 rows to the classifier's training input,
            with column names.

    Raises:
        ConversionError: Its predictions are no sum over trees or coefficients of single
            features; the error says why.
    """
    whole = opened(estimator)
    steps, last = whole.steps, whole.last
    columns = [Column(source) for source in range(facts.columns)]
    for step in steps:
        columns = columns_after(step, columns)
    trees = linear = None
    if isinstance(last, _LINEAR):
        base, linear = _linear(last, columns)
        link: Link = "logistic" if len(base) == 1 else "softmax"
        linear = msgspec.structs.replace(
            linear, coefficient=whole.slope * linear.coefficient
        )
    else:
        link, base, found = _trees(last)
        if steps:
            found = behind_steps(
                found,
                steps=steps,
                columns=columns,
                given=given,
                width=facts.columns,
            )
        trees = stored_trees(
            [
                msgspec.structs.replace(one, value=whole.slope * one.value)
                for one in found
            ],
            codes_exact=True,
        )
    return Explanation(
        features=facts.feature_names,
        classes=facts.classes,
        link=link,
        base=whole.slope * base + whole.offset,
        trees=trees,
        linear=linear,
    )


def _linear(model: Any, columns: list[Column]) -> tuple[Any, Linear]:
    """Return intercepts and coefficients."""
    name = type(model).__name__
    coefficient = np.atleast_2d(np.asarray(model.coef_, dtype=np.float64))
    if isinstance(model, SGDClassifier):
        if model.loss != "log_loss" or len(coefficient) > 1:
            raise ConversionError(
                f"{name} of several classes or without log_loss has no margin that "
                "its coefficients add up to"
            )
    elif len(coefficient) > 1 and getattr(model, "multi_class", "auto") == "ovr":
        raise ConversionError(
            f"{name} of one class against the rest has no common margin"
        )

    def per_column(name: str, dtype: Any) -> Any:
        return np.asarray([getattr(one, name) for one in columns], dtype=dtype)

    base = np.broadcast_to(np.asarray(model.intercept_, float), len(coefficient)).copy()
    return base, Linear(
        source=per_column("source", np.int32),
        slope=per_column("slope", np.float64),
        offset=per_column("offset", np.float64),
        by_category=per_column("by_category", np.bool_),
        category=per_column("category", np.float64),
        filled=per_column("filled", np.float64),
        mean=np.zeros(len(columns)),
        coefficient=coefficient,
    )


def _trees(model: Any) -> tuple[Link, Any, list[Tree]]:
    """
    Return link, base and trees; thresholds are float64 and belong to the last step.
    """
    if isinstance(model, BaseDecisionTree) and is_classifier(model):
        return "identity", np.zeros(len(model.classes_)), _shares(model)
    if isinstance(model, (RandomForestClassifier, ExtraTreesClassifier)):
        return "identity", np.zeros(len(model.classes_)), _shares(model)
    if isinstance(model, GradientBoostingClassifier):
        base, factor = _boosting_start(model)
    elif isinstance(model, HistGradientBoostingClassifier):
        base = np.asarray(model._baseline_prediction, dtype=np.float64).ravel()
        factor = 1.0
    else:
        raise ConversionError(
            f"{type(model).__name__} is no sum over trees or coefficients"
        )
    (ensemble,) = ensembles(model)
    trees = [
        msgspec.structs.replace(
            one, value=factor * one.value, output=number % len(base)
        )
        for number, one in enumerate(ensemble.trees)
    ]
    return "logistic" if len(base) == 1 else "softmax", base, trees


def _boosting_start(model: Any) -> tuple[Any, float]:
    """Return the start margins of gradient boosting, and the factor of its leaves."""
    # With exponential loss, the probability is the sigmoid of twice the sum.
    factor = 2.0 if model.loss == "exponential" else 1.0
    if not (model.init_ == "zero" or type(model.init_).__name__ == "DummyClassifier"):
        raise ConversionError("its trees start from the predictions of another model")
    row = np.zeros((1, model.n_features_in_), dtype=np.float32)
    base = factor * np.asarray(model._raw_predict_init(row), dtype=np.float64).ravel()
    return base, factor * model.learning_rate


def _shares(model: Any) -> list[Tree]:
    """Return trees whose leaves hold their share of each probability."""
    (ensemble,) = ensembles(model)
    return [
        msgspec.structs.replace(
            one,
            value=one.value
            / one.value.sum(axis=1, keepdims=True)
            / len(ensemble.trees),
            output=-1,
        )
        for one in ensemble.trees
    ]
