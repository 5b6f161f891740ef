"""
Steps of scikit-learn that skl2onnx writes less exactly than scikit-learn computes.

Each function writes the nodes of one fitted step, number by number as the step's own
`transform` or `predict_proba` does: a scaler that multiplies by 1 / s instead of
dividing by s moves rows across the splits of the tree behind it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from onnx import TensorProto
from skl2onnx._supported_operators import sklearn_operator_name_map
from skl2onnx.common._registration import get_converter, get_shape_calculator
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import (
    MinMaxScaler,
    OneHotEncoder,
    RobustScaler,
    StandardScaler,
)

from tollgate.errors import ConversionError

_ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "logistic": "Sigmoid"}


class _Nodes:
    """Adds nodes one after the other to what skl2onnx is writing."""

    def __init__(self, scope: Any, container: Any) -> None:
        self._scope = scope
        self._container = container

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        output = str(self._scope.get_unique_variable_name(kind.lower()))
        self.put(kind, *inputs, output=output, **attributes)
        return output

    def put(self, kind: str, *inputs: str, output: str, **attributes: Any) -> None:
        """Add a node whose output has a name already."""
        name = self._scope.get_unique_operator_name(kind)
        self._container.add_node(kind, list(inputs), output, name=name, **attributes)

    def constant(self, values: Any) -> str:
        """Add a float32, float64 or int64 constant; return its name."""
        array = np.asarray(values)
        kinds = {
            "float32": TensorProto.FLOAT,
            "float64": TensorProto.DOUBLE,
            "int64": TensorProto.INT64,
        }
        name = str(self._scope.get_unique_variable_name("constant"))
        self._container.add_initializer(
            name, kinds[array.dtype.name], list(array.shape), array.ravel()
        )
        return name

    def joined(self, operator: Any) -> str:
        """Return the step's input; several are put side by side."""
        names = [one.full_name for one in operator.inputs]
        return names[0] if len(names) == 1 else self.add("Concat", *names, axis=1)

    def cast(self, name: str, dtype: Any) -> str:
        """Cast to float32 or float64."""
        to = TensorProto.DOUBLE if dtype == np.float64 else TensorProto.FLOAT
        return self.add("Cast", name, to=to)


def standard_scaler(scope: Any, operator: Any, container: Any) -> None:
    """(x - mean) / scale, in the precision of the installed scikit-learn."""
    step = operator.raw_operator
    write = _Nodes(scope, container)
    last = write.cast(write.joined(operator), np.float32)
    scaled = _in_single if _rounds_constants_first() else _in_double
    if step.with_mean and step.mean_ is not None:
        last = scaled(write, "Sub", last, step.mean_)
    if step.with_std and step.scale_ is not None:
        last = scaled(write, "Div", last, step.scale_)
    write.put("Identity", last, output=operator.outputs[0].full_name)


@functools.cache
def _rounds_constants_first() -> bool:
    """
    Ask scikit-learn how it scales float32 rows.

    Up to 1.7 each operation runs in float64 and its result is rounded; 1.9 rounds mean
    and scale to float32 and stays there. The two differ by an ulp, enough to move a row
    across a split.
    """
    step = StandardScaler().fit([[-1.0], [1.0]])
    step.mean_ = np.array([0.1])
    return bool(step.transform(np.array([[0.1]], np.float32))[0, 0] == 0)


def robust_scaler(scope: Any, operator: Any, container: Any) -> None:
    """(x - center) / scale, each in float64 and rounded to float32."""
    step = operator.raw_operator
    write = _Nodes(scope, container)
    last = write.joined(operator)
    if step.with_centering:
        last = _in_double(write, "Sub", last, step.center_)
    if step.with_scaling:
        last = _in_double(write, "Div", last, step.scale_)
    write.put("Identity", last, output=operator.outputs[0].full_name)


def min_max_scaler(scope: Any, operator: Any, container: Any) -> None:
    """Write x * scale + min, each in float64 and rounded to float32; then clip."""
    step = operator.raw_operator
    write = _Nodes(scope, container)
    last = _in_double(write, "Mul", write.joined(operator), step.scale_)
    last = _in_double(write, "Add", last, step.min_)
    if step.clip:
        ends = [write.constant(np.float32(one)) for one in step.feature_range]
        last = write.add("Clip", last, *ends)
    write.put("Identity", last, output=operator.outputs[0].full_name)


def _in_single(write: _Nodes, kind: str, name: str, values: Any) -> str:
    return write.add(kind, name, write.constant(np.asarray(values, dtype=np.float32)))


def _in_double(write: _Nodes, kind: str, name: str, values: Any) -> str:
    double = write.cast(name, np.float64)
    constant = write.constant(np.asarray(values, dtype=np.float64))
    return write.cast(write.add(kind, double, constant), np.float32)


def one_hot_encoder(scope: Any, operator: Any, container: Any) -> None:
    """
    Compare with every category as a number; what is unknown is 0 everywhere.

    Where the encoder would refuse the unknown it becomes NaN, and so does what a
    linear model makes of it: an answer that no decision is taken from.
    """
    step = operator.raw_operator
    if getattr(step, "_infrequent_enabled", False):
        raise ConversionError(
            "OneHotEncoder: min_frequency and max_categories are not converted; "
            "group rare categories before training"
        )
    write = _Nodes(scope, container)
    features = write.joined(operator)
    parts = []
    for column, categories in enumerate(step.categories_):
        if np.asarray(categories).dtype.kind not in "biuf":
            raise ConversionError(
                f"OneHotEncoder: its column {column} has text categories, "
                f"{list(categories)[:2]}; the served features are numbers: "
                "encode them as codes and train on those"
            )
        index = write.constant(np.array([column], dtype=np.int64))
        value = write.add("Gather", features, index, axis=1)
        parts.append(_one_hot(write, value, step, column=column))
    write.put("Concat", *parts, output=operator.outputs[0].full_name, axis=1)


def _one_hot(write: _Nodes, value: str, step: Any, *, column: int) -> str:
    categories = np.asarray(step.categories_[column], dtype=np.float64)
    equal = write.add(
        "Equal", write.cast(value, np.float64), write.constant(categories[None])
    )
    flags = write.cast(equal, np.float32)
    if np.isnan(categories).any():
        is_nan = write.cast(write.add("IsNaN", value), np.float32)
        place = np.isnan(categories).astype(np.float32)[None]
        flags = write.add("Add", flags, write.add("Mul", is_nan, write.constant(place)))
    if step.handle_unknown == "error":
        known = write.add("ReduceMax", flags, axes=[1], keepdims=1)
        flags = write.add("Div", flags, known)  # 0 / 0 is NaN
    dropped = None if step.drop_idx_ is None else step.drop_idx_[column]
    if dropped is None:
        return flags
    kept = [one for one in range(len(categories)) if one != dropped]
    return write.add("Gather", flags, write.constant(np.array(kept, np.int64)), axis=1)


def logistic_regression(scope: Any, operator: Any, container: Any) -> None:
    """Write a linear model in the precision of its coefficients."""
    step = operator.raw_operator
    if container.get_options(step, {"raw_scores": False})["raw_scores"]:
        get_converter("SklearnLinearClassifier")(scope, operator, container)
        return
    write = _Nodes(scope, container)
    dtype = step.coef_.dtype
    last = write.cast(write.joined(operator), dtype)
    last = write.add("MatMul", last, write.constant(np.ascontiguousarray(step.coef_.T)))
    intercept = np.broadcast_to(step.intercept_, len(step.coef_)).astype(dtype)
    last = write.add("Add", last, write.constant(intercept))
    last = write.add("Sigmoid", last) if len(step.coef_) == 1 else _softmax(write, last)
    _answer(write, last, operator, dtype=dtype)


def mlp_classifier(scope: Any, operator: Any, container: Any) -> None:
    """Write a network in the precision of its coefficients."""
    step = operator.raw_operator
    write = _Nodes(scope, container)
    dtype = step.coefs_[0].dtype
    last = write.cast(write.joined(operator), dtype)
    for layer, weights in enumerate(step.coefs_):
        last = write.add("MatMul", last, write.constant(weights))
        last = write.add("Add", last, write.constant(step.intercepts_[layer]))
        if layer + 1 < len(step.coefs_) and step.activation != "identity":
            last = write.add(_ACTIVATIONS[step.activation], last)
    if step.out_activation_ not in ("logistic", "softmax"):
        raise ConversionError(f"MLPClassifier: its output is {step.out_activation_!r}")
    binary = step.out_activation_ == "logistic"
    last = write.add("Sigmoid", last) if binary else _softmax(write, last)
    _answer(write, last, operator, dtype=dtype)


def _softmax(write: _Nodes, name: str) -> str:
    return write.add("Softmax", name, axis=1)


def _answer(write: _Nodes, name: str, operator: Any, *, dtype: Any) -> None:
    """Write both columns of two classes, as float32, and the label skl2onnx wants."""
    label, probabilities = (one.full_name for one in operator.outputs)
    classes = len(operator.raw_operator.classes_)
    if classes == 2:
        one = write.constant(np.asarray(1, dtype=dtype))
        name = write.add("Concat", write.add("Sub", one, name), name, axis=1)
    write.put("Cast", name, output=probabilities, to=TensorProto.FLOAT)
    write.put("ArgMax", probabilities, output=label, axis=1, keepdims=0)


CONVERTERS = {
    StandardScaler: standard_scaler,
    RobustScaler: robust_scaler,
    MinMaxScaler: min_max_scaler,
    OneHotEncoder: one_hot_encoder,
    LogisticRegression: logistic_regression,
    LogisticRegressionCV: logistic_regression,
    MLPClassifier: mlp_classifier,
}
SHAPES = {
    kind: get_shape_calculator(sklearn_operator_name_map[kind]) for kind in CONVERTERS
}
