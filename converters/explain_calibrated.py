"""
Unwrap a classifier from the steps before it and the calibration around it.

A calibration by one sigmoid rescales and shifts the margin, so a sum stays a sum. The
mean of several sigmoids, or a step function (isotonic), does not preserve sums.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sklearn.calibration import CalibratedClassifierCV
from sklearn.pipeline import Pipeline

from tollgate.errors import ConversionError


class Opened(msgspec.Struct, frozen=True):
    """
    A classifier, the steps before it and the calibration around it.

    Attributes:
        steps: Steps before it, in order.
        last: The classifier itself.
        slope: Factor of its margin.
        offset: Number that is added after that.
    """

    steps: tuple[Any, ...]
    last: Any
    slope: float = 1.0
    offset: float = 0.0


def opened(estimator: Any) -> Opened:
    """
    Separate a classifier from its steps and its calibration.

    Raises:
        ConversionError: After the calibration there is no margin that is a sum.
    """
    steps: list[Any] = []
    slope, offset = 1.0, 0.0
    while True:
        if isinstance(estimator, Pipeline):
            steps += [step for _, step in estimator.steps[:-1]]
            estimator = estimator.steps[-1][1]
        elif isinstance(estimator, CalibratedClassifierCV):
            sigmoid, estimator = _only_sigmoid(estimator)
            # P = 1 / (1 + exp(a m + b)) of the margin m; a calibration has no margin
            # of its own, so there is one at most.
            slope, offset = -float(sigmoid.a_), -float(sigmoid.b_)
        else:
            return Opened(tuple(steps), estimator, slope, offset)


def _only_sigmoid(model: Any) -> tuple[Any, Any]:
    """Return the only sigmoid of a calibration, and the classifier it calibrates."""
    name = type(model).__name__
    parts = model.calibrated_classifiers_
    if model.method != "sigmoid":
        raise ConversionError(
            f"{name} with method={model.method!r} is no sum over trees or "
            "coefficients; one by sigmoid is"
        )
    if len(parts) > 1:
        raise ConversionError(
            f"{name} is the mean of {len(parts)} models and no sum of their margins; "
            "with ensemble=False it is one"
        )
    (part,) = parts
    if len(part.calibrators) > 1:
        raise ConversionError(f"{name} of several classes has no common margin")
    if not hasattr(part.estimator, "decision_function"):
        raise ConversionError(
            f"{name} of a {type(part.estimator).__name__}, which has no margin"
        )
    return part.calibrators[0], part.estimator
