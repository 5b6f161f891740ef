"""
Convert scikit-learn steps that skl2onnx reproduces less exactly.

Each function writes the nodes of one fitted step, so that every number equals that of
the step's own `transform` or `predict_proba`. Scalers are in `sklearn_scalers`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from onnx import TensorProto
from skl2onnx._supported_operators import sklearn_operator_name_map
from skl2onnx.common._registration import get_converter, get_shape_calculator
from skl2onnx.common.data_types import DoubleTensorType
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    SGDClassifier,
)
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)

from tollgate.errors import ConversionError

# Add the nodes of one fitted step to the graph that skl2onnx is writing.


class StepNodes:
    """Append nodes to the graph that skl2onnx is writing."""

    def __init__(self, scope: Any, container: Any) -> None:
        self._scope = scope
        self._container = container

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        output = str(self._scope.get_unique_variable_name(kind.lower()))
        self.put(kind, *inputs, output=output, **attributes)
        return output

    def put(self, kind: str, *inputs: str, output: str, **attributes: Any) -> None:
        """Add a node whose output already has a name."""
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
        """Return the step's input; concatenate several."""
        names = [one.full_name for one in operator.inputs]
        return names[0] if len(names) == 1 else self.add("Concat", *names, axis=1)

    def is_wide(self, operator: Any) -> bool:
        """Return whether a step's input is float64."""
        return isinstance(operator.inputs[0].type, DoubleTensorType)

    def cast(self, name: str, dtype: Any) -> str:
        """Cast to float32 or float64."""
        to = TensorProto.DOUBLE if dtype == np.float64 else TensorProto.FLOAT
        return self.add("Cast", name, to=to)


# Convert scikit-learn's scalers so that every number equals that of their `transform`.
#
# A scaler that multiplies by 1 / s instead of dividing by s, as skl2onnx writes some,
# moves rows across the splits of the tree behind it.


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


_ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "logistic": "Sigmoid"}


def one_hot_encoder(scope: Any, operator: Any, container: Any) -> None:
    """
    Compare with every category as a number; an unknown value is 0 in each column.

    Words are codes here (`converters.sources.estimator_words`). If the encoder would
    refuse an unknown value, that value becomes NaN. The probability of a linear model
    is then NaN too, and no decision follows from it.
    """
    step = operator.raw_operator
    write = StepNodes(scope, container)
    parts = [
        _one_hot(write, value, step, column=column)
        for column, value in enumerate(_columns(write, operator))
    ]
    write.put("Concat", *parts, output=operator.outputs[0].full_name, axis=1)


def _columns(write: StepNodes, operator: Any) -> list[str]:
    """Split an encoder's input into single columns."""
    features = write.joined(operator)
    found = []
    for column, categories in enumerate(operator.raw_operator.categories_):
        if np.asarray(categories).dtype.kind not in "biuf":
            raise ConversionError(
                f"{type(operator.raw_operator).__name__}: its column {column} has "
                f"categories that are no numbers, {list(categories)[:2]}"
            )
        index = write.constant(np.array([column], dtype=np.int64))
        found.append(write.add("Gather", features, index, axis=1))
    return found


def _flags(write: StepNodes, value: str, categories: Any) -> str:
    """
    Write 1 for the category that equals a value, 0 for the others; float32 [N, K].
    """
    categories = np.asarray(categories, dtype=np.float64)
    equal = write.add(
        "Equal", write.cast(value, np.float64), write.constant(categories[None])
    )
    flags = write.cast(equal, np.float32)
    if np.isnan(categories).any():
        is_nan = write.cast(write.add("IsNaN", value), np.float32)
        place = np.isnan(categories).astype(np.float32)[None]
        flags = write.add("Add", flags, write.add("Mul", is_nan, write.constant(place)))
    return flags


def _one_hot(write: StepNodes, value: str, step: Any, *, column: int) -> str:
    count = len(step.categories_[column])
    flags = _flags(write, value, step.categories_[column])
    known = write.add("ReduceMax", flags, axes=[1], keepdims=1)
    if step.handle_unknown == "error":
        flags = write.add("Div", flags, known)  # 0 / 0 is NaN
    rare = None
    if getattr(step, "_infrequent_enabled", False):
        if step.drop is not None:
            raise ConversionError(
                "OneHotEncoder: min_frequency and max_categories are not converted "
                "together with drop"
            )
        rare = step._default_to_infrequent_mappings[column]
    if rare is not None:
        place = np.zeros((count, int(rare.max()) + 1), dtype=np.float32)
        place[np.arange(count), rare] = 1
        flags = write.add("MatMul", flags, write.constant(place))
        if step.handle_unknown in ("infrequent_if_exist", "warn"):
            # The last column is that of the rare categories.
            last = np.zeros((1, place.shape[1]), dtype=np.float32)
            last[0, -1] = 1
            unknown = write.add("Sub", write.constant(np.ones(1, np.float32)), known)
            other = write.add("Mul", unknown, write.constant(last))
            flags = write.add("Add", flags, other)
    dropped = None if step.drop_idx_ is None else step.drop_idx_[column]
    if dropped is None:
        return flags
    remaining = [one for one in range(count) if one != dropped]
    return write.add(
        "Gather", flags, write.constant(np.array(remaining, np.int64)), axis=1
    )


def ordinal_encoder(scope: Any, operator: Any, container: Any) -> None:
    """
    Write the position of each category; NaN where the encoder refuses unknown values.
    """
    step = operator.raw_operator
    if getattr(step, "_infrequent_enabled", False):
        raise ConversionError(
            "OrdinalEncoder: min_frequency and max_categories are not converted; "
            "group rare categories before training"
        )
    write = StepNodes(scope, container)
    unknown = np.nan if step.handle_unknown == "error" else step.unknown_value
    parts = []
    for column, value in enumerate(_columns(write, operator)):
        flags = _flags(write, value, step.categories_[column])
        codes = np.arange(len(step.categories_[column]), dtype=np.float32)
        missing = step._missing_indices.get(column)
        if missing is not None:
            codes[missing] = 0
        code = write.add("MatMul", flags, write.constant(codes[:, None]))
        if missing is not None:
            at = write.constant(np.array([missing], dtype=np.int64))
            code = _where(
                write,
                write.add("Gather", flags, at, axis=1),
                write.constant(np.array([[step.encoded_missing_value]], np.float32)),
                code,
            )
        known = write.add("ReduceMax", flags, axes=[1], keepdims=1)
        other = write.constant(np.array([[unknown]], np.float32))
        parts.append(_where(write, known, code, other))
    write.put("Concat", *parts, output=operator.outputs[0].full_name, axis=1)


def _where(write: StepNodes, flag: str, first: str, second: str) -> str:
    """Select the first value where a flag is 1, otherwise the second."""
    chosen = write.add("Greater", flag, write.constant(np.array([[0.5]], np.float32)))
    return write.add("Where", chosen, first, second)


def logistic_regression(scope: Any, operator: Any, container: Any) -> None:
    """
    Write a linear model in the precision of its coefficients.

    A calibration reads its margin. The margin of two classes is summed in float64: with
    huge float32 numbers, a row alone and the same row in a batch overflow differently.
    """
    step = operator.raw_operator
    margin = container.get_options(step, {"raw_scores": False})["raw_scores"]
    if margin and len(step.coef_) > 1:
        get_converter("SklearnLinearClassifier")(scope, operator, container)
        return
    write = StepNodes(scope, container)
    dtype = np.dtype(np.float64) if margin else step.coef_.dtype
    last = _linear(write, operator, dtype=dtype)
    if margin:
        _margins(write, last, operator)
        return
    last = write.add("Sigmoid", last) if len(step.coef_) == 1 else _softmax(write, last)
    _answer(write, last, operator, dtype=dtype)


def sgd_classifier(scope: Any, operator: Any, container: Any) -> None:
    """
    Write a linear model trained by gradient descent, in its coefficients' precision.

    Each class has its own probability; all are divided by their sum, or equal if that
    is 0. In float32 a probability is 0 below a margin of -88, in float64 below -709;
    features that nobody scaled lead there.
    """
    step = operator.raw_operator
    margin = container.get_options(step, {"raw_scores": False})["raw_scores"]
    if margin and len(step.coef_) > 1:
        get_converter("SklearnSGDClassifier")(scope, operator, container)
        return
    write = StepNodes(scope, container)
    dtype = np.dtype(np.float64) if margin else step.coef_.dtype
    last = _linear(write, operator, dtype=dtype)
    if margin:
        _margins(write, last, operator)
        return
    one = write.constant(np.ones((), dtype))
    if step.loss == "modified_huber":
        last = write.add("Clip", last, write.add("Neg", one), one)
        half = write.constant(np.full((), 0.5, dtype))
        last = write.add("Mul", write.add("Add", last, one), half)
    else:
        # onnxruntime's Sigmoid is 0 from about -40 on, in float64 too.
        grown = write.add("Exp", write.add("Neg", last))
        last = write.add("Reciprocal", write.add("Add", grown, one))
    classes = len(step.coef_)
    if classes > 1:
        total = write.add("MatMul", last, write.constant(np.ones((classes, 1), dtype)))
        none = write.add("Equal", total, write.constant(np.zeros((), dtype)))
        every = write.constant(np.full((), classes, dtype))
        last = write.add("Where", none, one, last)
        last = write.add("Div", last, write.add("Where", none, every, total))
    _answer(write, last, operator, dtype=dtype)


def _linear(write: StepNodes, operator: Any, *, dtype: Any) -> str:
    """Write the margins of a linear model: a column per row of its coefficients."""
    step = operator.raw_operator
    last = write.cast(write.joined(operator), dtype)
    coefficient = np.ascontiguousarray(step.coef_.T, dtype=dtype)
    last = write.add("MatMul", last, write.constant(coefficient))
    intercept = np.broadcast_to(step.intercept_, len(step.coef_)).astype(dtype)
    return write.add("Add", last, write.constant(intercept))


def _margins(write: StepNodes, name: str, operator: Any) -> None:
    """Write the margins of two classes, -m and m, and the label."""
    label, margins = (one.full_name for one in operator.outputs)
    name = write.add("Concat", write.add("Neg", name), name, axis=1)
    write.put("Cast", name, output=margins, to=TensorProto.FLOAT)
    write.put("ArgMax", margins, output=label, axis=1, keepdims=0)


def mlp_classifier(scope: Any, operator: Any, container: Any) -> None:
    """Write a network in the precision of its coefficients."""
    step = operator.raw_operator
    write = StepNodes(scope, container)
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


def _softmax(write: StepNodes, name: str) -> str:
    return write.add("Softmax", name, axis=1)


def _answer(write: StepNodes, name: str, operator: Any, *, dtype: Any) -> None:
    """
    Write both columns of two classes as float32, and the label that skl2onnx expects.
    """
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
    MaxAbsScaler: max_abs_scaler,
    MinMaxScaler: min_max_scaler,
    OneHotEncoder: one_hot_encoder,
    OrdinalEncoder: ordinal_encoder,
    LogisticRegression: logistic_regression,
    LogisticRegressionCV: logistic_regression,
    LinearDiscriminantAnalysis: logistic_regression,
    MLPClassifier: mlp_classifier,
    SGDClassifier: sgd_classifier,
}
SHAPES = {
    kind: get_shape_calculator(sklearn_operator_name_map[kind]) for kind in CONVERTERS
}
