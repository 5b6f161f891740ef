"""
Convert scikit-learn's scalers so that every number equals that of their `transform`.

A scaler that multiplies by 1 / s instead of dividing by s, as skl2onnx writes some,
moves rows across the splits of the tree behind it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from converters.sklearn_nodes import StepNodes


def standard_scaler(scope: Any, operator: Any, container: Any) -> None:
    """Write (x - mean) / scale, in the precision of the installed scikit-learn."""
    step = operator.raw_operator
    write = StepNodes(scope, container)
    wide = write.is_wide(operator)
    last = write.cast(write.joined(operator), np.float64 if wide else np.float32)
    scaled = _in_single if _rounds_constants_first() else _in_double
    if wide:
        scaled = _in_wide
    if step.with_mean and step.mean_ is not None:
        last = scaled(write, "Sub", last, step.mean_)
    if step.with_std and step.scale_ is not None:
        last = scaled(write, "Div", last, step.scale_)
    write.put("Identity", last, output=operator.outputs[0].full_name)


@functools.cache
def _rounds_constants_first() -> bool:
    """
    Detect how the installed scikit-learn scales float32 rows.

    Up to 1.7 each operation runs in float64 and its result is rounded; 1.9 rounds mean
    and scale to float32 and stays there. The two differ by an ulp, enough to move a row
    across a split.
    """
    step = StandardScaler().fit([[-1.0], [1.0]])
    step.mean_ = np.array([0.1])
    return bool(step.transform(np.array([[0.1]], np.float32))[0, 0] == 0)


def robust_scaler(scope: Any, operator: Any, container: Any) -> None:
    """Write (x - center) / scale, each in float64 and rounded to float32."""
    step = operator.raw_operator
    write = StepNodes(scope, container)
    double = _in_wide if write.is_wide(operator) else _in_double
    last = write.joined(operator)
    if step.with_centering:
        last = double(write, "Sub", last, step.center_)
    if step.with_scaling:
        last = double(write, "Div", last, step.scale_)
    write.put("Identity", last, output=operator.outputs[0].full_name)


def min_max_scaler(scope: Any, operator: Any, container: Any) -> None:
    """Write x * scale + min, each in float64 and rounded to float32; then clip."""
    step = operator.raw_operator
    write = StepNodes(scope, container)
    double = _in_wide if write.is_wide(operator) else _in_double
    kind = np.float64 if write.is_wide(operator) else np.float32
    last = double(write, "Mul", write.joined(operator), step.scale_)
    last = double(write, "Add", last, step.min_)
    if step.clip:
        ends = [write.constant(np.asarray(one, kind)) for one in step.feature_range]
        last = write.add("Clip", last, *ends)
    write.put("Identity", last, output=operator.outputs[0].full_name)


def max_abs_scaler(scope: Any, operator: Any, container: Any) -> None:
    """Write x / scale in float64, rounded to float32; then clip."""
    step = operator.raw_operator
    write = StepNodes(scope, container)
    double = _in_wide if write.is_wide(operator) else _in_double
    kind = np.float64 if write.is_wide(operator) else np.float32
    last = double(write, "Div", write.joined(operator), step.scale_)
    if getattr(step, "clip", False):
        ends = [write.constant(np.asarray(one, kind)) for one in (-1, 1)]
        last = write.add("Clip", last, *ends)
    write.put("Identity", last, output=operator.outputs[0].full_name)


def _in_single(write: StepNodes, kind: str, name: str, values: Any) -> str:
    return write.add(kind, name, write.constant(np.asarray(values, dtype=np.float32)))


def _in_double(write: StepNodes, kind: str, name: str, values: Any) -> str:
    double = write.cast(name, np.float64)
    constant = write.constant(np.asarray(values, dtype=np.float64))
    return write.cast(write.add(kind, double, constant), np.float32)


def _in_wide(write: StepNodes, kind: str, name: str, values: Any) -> str:
    return write.add(kind, name, write.constant(np.asarray(values, dtype=np.float64)))
