"""
Convert trained scikit-learn classifiers and pipelines to ONNX.

skl2onnx converts. It rounds some steps differently: functions of this module write
their nodes, so that every number equals that of the step's own `transform` or
`predict_proba`. It also loses three things of trees, which `repair` restores: the
direction of a missing value (decision trees and forests), the float64 comparison with a
threshold (histogram boosting), and the float64 mean of forests. In float32, a certain
prediction sums to 1.0000001, and 7 of 20 trees to a value other than 0.35.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from skl2onnx import convert_sklearn
from skl2onnx._supported_operators import sklearn_operator_name_map
from skl2onnx.common._registration import get_converter, get_shape_calculator
from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import (
    LogisticRegression,
    LogisticRegressionCV,
    SGDClassifier,
)
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)

from converters.onnx.graph import (
    IR_VERSION,
    ML_OPSET,
    ML_OPSET_OF_DOUBLES,
    OPSET,
    doubled,
    drop_unused,
    set_shape,
)
from converters.onnx.two_classes import write_first_class
from converters.trees.sklearn_trees import (
    cap_thresholds,
    children,
    ensembles,
    forget_rows,
    round_histograms,
)
from converters.trees.tree_ensemble import Tree, round_down
from tollgate.errors import ConversionError
from tollgate.repository.models.targets import ML_DOMAIN
from tollgate.schema import FEATURES, PROBABILITIES

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
    steps = [("Sub", step.center_)] if step.with_centering else []
    steps += [("Div", step.scale_)] if step.with_scaling else []
    _write_steps(StepNodes(scope, container), operator, steps)


def min_max_scaler(scope: Any, operator: Any, container: Any) -> None:
    """Write x * scale + min, each in float64 and rounded to float32; then clip."""
    step = operator.raw_operator
    _write_steps(
        StepNodes(scope, container),
        operator,
        [("Mul", step.scale_), ("Add", step.min_)],
        ends=step.feature_range if step.clip else None,
    )


def max_abs_scaler(scope: Any, operator: Any, container: Any) -> None:
    """Write x / scale in float64, rounded to float32; then clip."""
    step = operator.raw_operator
    ends = (-1, 1) if getattr(step, "clip", False) else None
    _write_steps(
        StepNodes(scope, container), operator, [("Div", step.scale_)], ends=ends
    )


def _write_steps(
    write: StepNodes,
    operator: Any,
    steps: Sequence[tuple[str, Any]],
    *,
    ends: tuple[float, float] | None = None,
) -> None:
    """Apply operations with constants one after the other; then clip to `ends`."""
    wide = write.is_wide(operator)
    last = write.joined(operator)
    for kind, values in steps:
        last = (_in_wide if wide else _in_double)(write, kind, last, values)
    if ends is not None:
        dtype = np.float64 if wide else np.float32
        limits = [write.constant(np.asarray(one, dtype)) for one in ends]
        last = write.add("Clip", last, *limits)
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

    Words are codes here (`converters.sources.estimator_rows`). If the encoder would
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
    """Write 1 for the category that equals a value, 0 for others; float32 [N, K]."""
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
    """Write each category's position; NaN where the encoder refuses unknown values."""
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
    """Write both classes' columns as float32, and the label that skl2onnx expects."""
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


_NOTHING, _BELOW_ZERO = 1e-12, -1e-30  # too small to show in a margin


def repair(
    model: onnx.ModelProto, estimator: object, *, exact: object | None = None
) -> None:
    """
    Write thresholds and the direction of missing values into a graph's trees.

    Args:
        estimator: Estimator with thresholds as they were converted.
        exact: The same estimator with its own thresholds, if the features are
            float64; None if they are float32.
    """
    _let_margins_be_margins(model)
    known = list(ensembles(estimator))
    wide = [] if exact is None else list(ensembles(exact))
    for node in list(model.graph.node):
        if not node.op_type.startswith("TreeEnsemble"):
            continue
        found = {one.name: one for one in node.attribute}
        tree = np.asarray(found["nodes_treeids"].ints)
        at = np.asarray(found["nodes_nodeids"].ints)
        of_column = np.asarray(found["nodes_featureids"].ints)
        limit = np.asarray(found["nodes_values"].floats)
        matches = [
            place
            for place, one in enumerate(known)
            if _same(one.trees, tree=tree, at=at, feature=of_column, limit=limit)
        ]
        if not matches:
            continue  # unknown trees; the proof decides
        place = matches[0]
        ensemble = known.pop(place)
        trees = ensemble.trees
        own = wide.pop(place).trees if wide else None
        size = np.cumsum([0] + [len(one.left) for one in trees])[tree] + at
        split = np.concatenate([one.is_split for one in trees])[size]
        value = round_down(
            np.concatenate([one.threshold for one in own or trees])[size]
        )
        missing_left = np.concatenate([one.missing_left for one in trees])[size] & split
        changed = {
            "nodes_values": np.where(split, value, np.float32(0)).tolist(),
            "nodes_missing_value_tracks_true": missing_left.astype(int).tolist(),
        }
        unchanged = [one for name, one in found.items() if name not in changed]
        del node.attribute[:]
        node.attribute.extend(unchanged)
        for name, values in changed.items():
            node.attribute.append(helper.make_attribute(name, values))
        if own is not None and own[0].wide:
            limits = np.concatenate([one.threshold for one in own])[size]
            _compare_in_double(model, node, limits=np.where(split, limits, 0.0))
            continue
        if own is not None:
            _compare_in_single(model, node)
        if ensemble.averaged and node.op_type == "TreeEnsembleClassifier":
            _sum_in_double(model, node, trees=trees)


def _compare_in_double(
    model: onnx.ModelProto, node: onnx.NodeProto, *, limits: Any
) -> None:
    """Make trees of float64 features compare with float64 thresholds."""
    found = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    changed = doubled(found | {"nodes_values": limits})
    del node.attribute[:]
    node.attribute.extend(
        helper.make_attribute(name, value) for name, value in changed.items()
    )
    _raise_opset(model)


def _compare_in_single(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Round float64 features first, as scikit-learn's own trees do."""
    single = f"{node.output[0]}_single"
    at = list(model.graph.node).index(node)
    cast = helper.make_node("Cast", [node.input[0]], [single], to=TensorProto.FLOAT)
    node.input[0] = single
    model.graph.node.insert(at, cast)


def _let_margins_be_margins(model: onnx.ModelProto) -> None:
    """
    Stop onnxruntime from treating the margin of trees without splits as a probability.

    It does so if no leaf weight is negative: trees that found nothing to split, from
    few rows, have one leaf each, of about 0.
    """
    for node in model.graph.node:
        found = {one.name: one for one in node.attribute}
        weights = found.get("class_weights")
        if weights is None or found["post_transform"].s != b"LOGISTIC":
            continue
        values = list(weights.floats)
        if 0 <= min(values) < _NOTHING:
            del weights.floats[:]
            weights.floats.extend(
                _BELOW_ZERO if value < _NOTHING else value for value in values
            )


def _sum_in_double(
    model: onnx.ModelProto, node: onnx.NodeProto, *, trees: list[Tree]
) -> None:
    """Make a forest sum in float64: double features, thresholds and weights."""
    found = {
        one.name: helper.get_attribute_value(one)
        for one in node.attribute
        if one.name not in ("nodes_values", "class_weights", "nodes_hitrates")
    }
    values = next(one.floats for one in node.attribute if one.name == "nodes_values")
    # For two classes skl2onnx writes only the second, with the number 0.
    second = trees[0].value.shape[1] == 2 and set(found["class_ids"]) == {0}
    weights = [
        trees[tree].value[at, 1 if second else label] / len(trees)
        for tree, at, label in zip(
            found["class_treeids"],
            found["class_nodeids"],
            found["class_ids"],
            strict=True,
        )
    ]
    for name, numbers in (("nodes_values", values), ("class_weights", weights)):
        array = np.asarray(numbers, dtype=np.float64)
        found[f"{name}_as_tensor"] = numpy_helper.from_array(array, name)
    del node.attribute[:]
    node.attribute.extend(
        helper.make_attribute(name, value) for name, value in found.items()
    )
    wide = f"{node.output[1]}_features"
    at = list(model.graph.node).index(node)
    cast = helper.make_node("Cast", [node.input[0]], [wide], to=TensorProto.DOUBLE)
    node.input[0] = wide
    # Clip, because 1 - 1.0000000000000002 is no probability.
    ends = [f"{wide}_{name}" for name in ("least", "most")]
    for name, value in zip(ends, (0, 1), strict=True):
        constant = numpy_helper.from_array(np.asarray(value, dtype=np.float32), name)
        model.graph.initializer.append(constant)
    unclipped = f"{wide}_unclipped"
    clip = helper.make_node("Clip", [unclipped, *ends], [node.output[1]])
    node.output[1] = unclipped
    model.graph.node.insert(at + 1, clip)
    model.graph.node.insert(at, cast)
    _raise_opset(model)


def _raise_opset(model: onnx.ModelProto) -> None:
    for opset in model.opset_import:
        if opset.domain == ML_DOMAIN:
            opset.version = max(opset.version, ML_OPSET_OF_DOUBLES)


def _same(trees: list[Tree], *, tree: Any, at: Any, feature: Any, limit: Any) -> bool:
    """
    Return whether a node's trees have the shape, columns and thresholds of these.

    Boosted stumps differ only in their thresholds.
    """
    sizes = [len(one.left) for one in trees]
    if len(tree) != sum(sizes) or tree.max() >= len(sizes):
        return False
    if (np.bincount(tree, minlength=len(sizes)) != sizes).any():
        return False
    place = np.cumsum([0, *sizes])[tree] + at
    split = np.concatenate([one.is_split for one in trees])[place]
    column = np.concatenate([one.feature for one in trees])[place]
    if (np.where(split, column, 0) != np.where(split, feature, 0)).any():
        return False
    value = np.concatenate([one.threshold for one in trees])[place][split]
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = value.astype(np.float32)
        near = np.isclose(limit[split], rounded, rtol=1e-6, atol=0) | (
            limit[split] == rounded
        )
    return bool(near.all())


def onnx_from_sklearn(estimator: Any, *, wide: bool = False) -> bytes:
    """
    Convert a fitted classifier, or a pipeline that ends in one.

    Args:
        wide: True if its features are float64, as it computes with them; else float32.

    Returns:
        A serialized graph: input `features` [N, F], one output
        `probabilities` float32 [N, K], K classes, P(class 0) first.

    Raises:
        ConversionError: It is no fitted classifier with probabilities, or has a step
            that is not supported.
    """
    refuse_unfaithful(estimator)
    numbered = by_position(estimator)
    exact = by_position(estimator) if wide else None
    round_histograms(numbered)
    forget_rows(numbered)
    if wide:
        cap_thresholds(numbered)
    converted = _converted(numbered, wide=wide)
    repair(converted, numbered, exact=exact)
    write_first_class(converted)
    return _finished(converted, classes=len(estimator.classes_))


def transformer_graph(steps: Pipeline, *, wide: bool) -> onnx.ModelProto:
    """
    Convert fitted preprocessing steps.

    Args:
        wide: True if the features are float64; else float32.

    Returns:
        A graph from `features` to one output, the transformed columns.

    Raises:
        ConversionError: A step is not supported.
    """
    _require_features(steps)
    return _converted(by_position(steps), wide=wide)


def _require_features(estimator: Any) -> None:
    """Raise ConversionError for a pipeline that does not know its features."""
    first = estimator.steps[0][1] if isinstance(estimator, Pipeline) else estimator
    if first in (None, "passthrough"):
        raise ConversionError(
            "its first step is 'passthrough', which does not know how many features "
            "there are; leave that step out"
        )


def _converted(estimator: Any, *, wide: bool) -> onnx.ModelProto:
    columns = int(estimator.n_features_in_)
    tensor_type = DoubleTensorType if wide else FloatTensorType
    try:
        with warnings.catch_warnings():
            # skl2onnx passes numpy flags to protobuf, which numpy will refuse one day.
            warnings.simplefilter("ignore", DeprecationWarning)
            found: onnx.ModelProto = convert_sklearn(
                estimator,
                name="scikit-learn",
                initial_types=[(FEATURES, tensor_type([None, columns]))],
                options=_options(estimator),
                target_opset={
                    "": OPSET,
                    ML_DOMAIN: ML_OPSET_OF_DOUBLES if wide else ML_OPSET,
                },
                custom_conversion_functions=CONVERTERS,
                custom_shape_calculators=SHAPES,
            )
            return found
    except ConversionError:
        raise
    except Exception as error:
        # skl2onnx raises any error that a step causes; its first line names the
        # problem.
        lines = str(error).strip().splitlines() or [repr(error)]
        raise ConversionError(
            f"skl2onnx cannot convert {_names(estimator)}: {lines[0]}"
        ) from error


def _options(estimator: Any) -> dict[int, dict[str, bool]]:
    """Request plain columns of probabilities, and margins where they are read."""
    if not hasattr(estimator, "predict_proba"):
        return {}
    return {id(estimator): {"zipmap": False}, **_margin_options(estimator)}


def _margin_options(estimator: Any) -> dict[int, dict[str, bool]]:
    """
    Request the margin of the last step of a calibrated pipeline.

    skl2onnx requests the margin of a calibrated classifier, but not if that classifier
    is a pipeline: the calibration then reads probabilities.
    """
    found = {}
    pending = [estimator]
    while pending:
        one = pending.pop()
        pending += children(one)
        if isinstance(one, CalibratedClassifierCV):
            for part in one.calibrated_classifiers_:
                last = part.estimator
                while isinstance(last, Pipeline):
                    last = last.steps[-1][1]
                if last is not part.estimator and hasattr(last, "decision_function"):
                    found[id(last)] = {"raw_scores": True}
    return found


def refuse_unfaithful(estimator: Any) -> None:
    """Raise ConversionError with the reason when a model must not be converted."""
    name = type(estimator).__name__
    if not hasattr(estimator, "predict_proba"):
        raise ConversionError(
            f"a {name} gives no probabilities; needed is a classifier with "
            "predict_proba, a regressor, or an outlier detector"
        )
    _require_features(estimator)
    if not hasattr(estimator, "classes_") or not hasattr(estimator, "n_features_in_"):
        raise ConversionError(f"the {name} is not trained; call fit first")
    if isinstance(estimator.classes_, list):
        raise ConversionError(
            f"{len(estimator.classes_)} labels per row; a decision needs one label"
        )
    if len(estimator.classes_) < 2:
        raise ConversionError(f"{len(estimator.classes_)} class; a decision needs two")


def by_position(estimator: Any) -> Any:
    """Return a copy whose column transformers find columns by position, not by name."""
    copied = copy.deepcopy(estimator)
    pending = [copied]
    while pending:
        one = pending.pop()
        pending += children(one)
        # A calibration also stores the estimator that it fitted copies of.
        if isinstance(one, ColumnTransformer) and hasattr(one, "transformers_"):
            chosen = one._transformer_to_input_indices
            one.transformers_ = [
                (name, step, list(map(int, chosen.get(name, []))))
                for name, step, _ in one.transformers_
            ]
    return copied


def _names(estimator: Any) -> str:
    if isinstance(estimator, Pipeline):
        return " → ".join(type(step).__name__ for _, step in estimator.steps)
    return type(estimator).__name__


def _finished(model: onnx.ModelProto, *, classes: int) -> bytes:
    """Drop the label, free the batch dimension, set the names that the server reads."""
    graph = model.graph
    outputs = [one for one in graph.output if one.name == PROBABILITIES]
    if len(outputs) != 1:
        raise ConversionError(
            f"the graph's outputs are {[one.name for one in graph.output]}; "
            f"{PROBABILITIES} is not among them"
        )
    del graph.output[:]
    graph.output.extend(outputs)
    drop_unused(graph)
    tensor = graph.output[0].type.tensor_type
    tensor.elem_type = TensorProto.FLOAT
    set_shape(tensor, columns=classes)
    set_shape(graph.input[0].type.tensor_type, columns=None)
    model.ir_version = min(model.ir_version, IR_VERSION)
    model.producer_name, model.producer_version = "tollgate", ""
    model.doc_string = graph.doc_string = ""
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        raise ConversionError(f"the graph is not valid: {error}") from error
    return bytes(model.SerializeToString(deterministic=True))
