"""
Write the graph around the trees that all converters share: repairs, probabilities.

Trees give a summed margin; this module adds the step to probabilities. A classifier
node's LOGISTIC is 2 % off for small probabilities (onnxruntime issue 26281) and is
skipped for trees that are single leaves (27533). Its second output, the label, has rank
1, so Triton cannot batch it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from converters.trees.exact_sums import split_targets
from tollgate.repository.models.targets import ML_DOMAIN
from tollgate.schema import FEATURES, PROBABILITIES

# Older than the newest version that any release in `repository.models.targets` reads;
# the operators of our graphs have not changed since.
OPSET = 15
ML_OPSET = 1
ML_OPSET_OF_DOUBLES = 3  # of trees with float64 thresholds
IR_VERSION = 8

RAW_SCORE = "anomaly"  # output of an outlier detector, before its calibration

_ROWS = "N"


class Repairs(msgspec.Struct, frozen=True):
    """
    Changes to the features before the trees.

    Attributes:
        missing: Number that stands for a missing value; NaN if only NaN does.
        zero_is_missing: Columns in which zero stands for a missing value.
        categories: Columns of category codes.
        codes_truncate: True if codes lose their fraction toward zero (-0.5 is category
            0), as in LightGBM; otherwise downward (-0.5 is none), as in xgboost.
    """

    missing: float = float("nan")
    zero_is_missing: tuple[int, ...] = ()
    categories: tuple[int, ...] = ()
    codes_truncate: bool = False


class Margin(msgspec.Struct, frozen=True):
    """
    Computation of probabilities from the sums of the trees.

    Attributes:
        base: Start value of the sums: one number, or one per class of three or more.
        factor: Factor of the sums before the last step.
    """

    base: tuple[float, ...]
    factor: float = 1.0


def tree_graph(
    trees: dict[str, Any],
    *,
    name: str,
    columns: int,
    margin: Margin,
    repairs: Repairs = Repairs(),  # noqa: B008  (frozen)
    wide: bool = False,
) -> bytes:
    """
    Combine repairs, trees and the step to probabilities into one model.

    Args:
        trees: Attributes of a TreeEnsembleRegressor: nodes_* and target_*.
        columns: F, the number of features.
        wide: True if features, thresholds and leaves are float64; the sums are float32.

    Returns:
        A serialized graph: `features` [N, F] to `probabilities`
        float32 [N, K]; the same arguments give the same bytes.
    """
    outputs = len(margin.base)
    kind = np.float64 if wide else np.float32
    before, given, constants = _repair_nodes(repairs, columns=columns, kind=kind)
    if wide:
        trees = doubled(trees | {"base_values": list(margin.base)})
    else:
        trees = trees | {"base_values": list(margin.base)}
    node = helper.make_node(
        "TreeEnsembleRegressor",
        [given],
        ["margin"],
        name="trees",
        domain=ML_DOMAIN,
        n_targets=outputs,
        **trees,
    )
    last = "margin"
    scale = []
    if margin.factor != 1.0:
        constants.append(_constant("factor", np.float32(margin.factor)))
        scale = [helper.make_node("Mul", ["margin", "factor"], ["scaled"])]
        last = "scaled"
    if outputs == 1:
        constants.append(_constant("one", np.float32(1)))
        after = _logistic_nodes(last)
    else:
        after = [helper.make_node("Softmax", [last], [PROBABILITIES], axis=1)]
    return finish(
        [*before, node, *scale, *after],
        name=name,
        columns=columns,
        classes=max(2, outputs),
        constants=constants,
        wide=wide,
    )


def number_graph(
    trees: dict[str, Any],
    *,
    name: str,
    columns: int,
    link: str,
    rounds: int = 1,
    exact: bool = False,
    repairs: Repairs = Repairs(),  # noqa: B008  (frozen)
    wide: bool = False,
) -> bytes:
    """
    Combine repairs, trees and the step to a number into one model.

    Args:
        trees: Attributes of a TreeEnsembleRegressor: nodes_* and target_*.
        columns: F, the number of features.
        link: `identity`, `exp`, or `square` with the sign of the sum.
        rounds: Divisor of the sums.
        exact: True if the leaves are float64 and their sum is that of float64; False
            sums in float32, in the order of the trees.
        wide: True if features and thresholds are float64.

    Returns:
        A serialized graph: `features` [N, F] to `probabilities` float32 [N, 1].
    """
    kind = np.float64 if wide else np.float32
    nodes, given, constants = _repair_nodes(repairs, columns=columns, kind=kind)
    trees, parts = split_targets(trees) if exact else (trees, 1)

    def add(operator: str, *inputs: str, **attributes: Any) -> str:
        output = f"{operator.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    def constant(value: Any) -> str:
        constants.append(_constant(f"number_{len(constants)}", value))
        return str(constants[-1].name)

    sums = add(
        "TreeEnsembleRegressor",
        given,
        domain=ML_DOMAIN,
        n_targets=parts,
        **(doubled(trees) if wide else trees),
    )
    double = add("Cast", sums, to=TensorProto.DOUBLE)
    last = ""
    for part in reversed(range(parts)):  # the finest first
        column = add("Gather", double, constant(np.array([part], np.int64)), axis=1)
        last = add("Add", last, column) if last else column
    if rounds != 1:
        last = add("Div", last, constant(np.array([rounds], np.float64)))
    if link == "exp":
        last = add("Exp", last)
    elif link == "square":
        last = add("Mul", last, add("Abs", last))
    nodes.append(
        helper.make_node("Cast", [last], [PROBABILITIES], to=TensorProto.FLOAT)
    )
    return finish(
        nodes, name=name, columns=columns, classes=1, constants=constants, wide=wide
    )


def finish(
    nodes: Sequence[onnx.NodeProto],
    *,
    name: str,
    columns: int,
    classes: int,
    constants: Sequence[onnx.TensorProto],
    wide: bool = False,
) -> bytes:
    """Build a checked, serialized model of nodes from features to probabilities."""
    value = helper.make_tensor_value_info
    given = TensorProto.DOUBLE if wide else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        name,
        [value(FEATURES, given, [_ROWS, columns])],
        [value(PROBABILITIES, TensorProto.FLOAT, [_ROWS, classes])],
        constants,
    )
    model = helper.make_model(
        graph,
        producer_name="tollgate",
        ir_version=IR_VERSION,
        opset_imports=[
            helper.make_opsetid("", OPSET),
            helper.make_opsetid(ML_DOMAIN, ML_OPSET_OF_DOUBLES if wide else ML_OPSET),
        ],
    )
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))


def doubled(trees: dict[str, Any]) -> dict[str, Any]:
    """Convert the numbers of a tree ensemble to float64, for float64 features."""
    numbers = ("nodes_values", "target_weights", "class_weights", "base_values")
    found = {
        name: value
        for name, value in trees.items()
        if name not in (*numbers, "nodes_hitrates")
    }
    for name in numbers:
        if name in trees:
            array = np.asarray(trees[name], dtype=np.float64)
            found[f"{name}_as_tensor"] = numpy_helper.from_array(array, name)
    return found


def tree_attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Convert a classifier or regressor node to the attributes of a regressor."""
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    trees = {name: found[name] for name in found if name.startswith("nodes_")}
    side = "class" if "class_ids" in found else "target"
    for part in ("treeids", "nodeids", "weights", "ids"):
        trees[f"target_{part}"] = found[f"{side}_{part}"]
    return trees


def _constant(name: str, value: Any) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(value), name)


def _repair_nodes(
    repairs: Repairs, *, columns: int, kind: Any
) -> tuple[list[onnx.NodeProto], str, list[onnx.TensorProto]]:
    """Write the nodes that repair features; return nodes, output name and constants."""
    nodes: list[onnx.NodeProto] = []
    constants = []
    last = FEATURES

    def mask(name: str, chosen: tuple[int, ...]) -> str:
        flags = np.zeros(columns, dtype=bool)
        flags[list(chosen)] = True
        constants.append(_constant(name, flags))
        return name

    def add(kind: str, inputs: list[str], output: str) -> str:
        nodes.append(helper.make_node(kind, inputs, [output]))
        return output

    if repairs.missing == repairs.missing or repairs.zero_is_missing:
        constants.append(_constant("nan", kind(np.nan)))
    if repairs.missing == repairs.missing:
        constants.append(_constant("missing", kind(repairs.missing)))
        add("Equal", [last, "missing"], "is_missing")
        last = add("Where", ["is_missing", "nan", last], "given")
    if repairs.zero_is_missing:
        # LightGBM treats |x| <= 1e-35 as zero.
        constants.append(_constant("zero", kind(np.float32(1e-35))))
        add("Abs", [last], "size")
        add("LessOrEqual", ["size", "zero"], "is_zero")
        of_columns = mask("zero_is_missing", repairs.zero_is_missing)
        add("And", ["is_zero", of_columns], "is_gap")
        last = add("Where", ["is_gap", "nan", last], "nonzero")
    if repairs.categories:
        of_columns = mask("is_category", repairs.categories)
        code = add("Floor", [last], "floored")
        if repairs.codes_truncate:
            constants.append(_constant("origin", kind(0)))
            add("Ceil", [last], "raised")
            add("Less", [last, "origin"], "is_negative")
            code = add("Where", ["is_negative", "raised", code], "truncated")
        last = add("Where", [of_columns, code, last], "coded")
    return nodes, last, constants


def _logistic_nodes(margin: str) -> list[onnx.NodeProto]:
    """Write P(1) = 1 / (1 + exp(-margin)) and P(0) = 1 - P(1)."""
    return [
        helper.make_node("Neg", [margin], ["negated"]),
        helper.make_node("Exp", ["negated"], ["odds_against"]),
        helper.make_node("Add", ["odds_against", "one"], ["whole"]),
        helper.make_node("Div", ["one", "whole"], ["second"]),
        helper.make_node("Sub", ["one", "second"], ["first"]),
        helper.make_node("Concat", ["first", "second"], [PROBABILITIES], axis=1),
    ]


# Correct graphs that other libraries wrote; needs only onnx.


def set_shape(tensor: Any, *, columns: int | None) -> None:
    """Set a tensor's shape to [N, columns]; None leaves the columns unchanged."""
    if columns is None:
        columns = tensor.shape.dim[1].dim_value
    del tensor.shape.dim[:]
    tensor.shape.dim.add().dim_param = "N"
    tensor.shape.dim.add().dim_value = columns


def cast_first(model: bytes) -> bytes:
    """Make a graph of float32 features accept float64, which it rounds at once."""
    graph = onnx.load_from_string(model)
    given = graph.graph.input[0]
    single = _rounded(given.name)
    for node in graph.graph.node:
        node.input[:] = [single if one == given.name else one for one in node.input]
    cast = helper.make_node("Cast", [given.name], [single], to=TensorProto.FLOAT)
    graph.graph.node.insert(0, cast)
    given.type.tensor_type.elem_type = TensorProto.DOUBLE
    return bytes(graph.SerializeToString(deterministic=True))


def rounds_first(model: bytes) -> bool:
    """Return whether `cast_first` made this graph."""
    graph = onnx.load_from_string(model).graph
    return bool(graph.node[0].output[0] == _rounded(graph.input[0].name))


def _rounded(name: str) -> str:
    return f"{name}_single"


def drop_unused(graph: onnx.GraphProto) -> None:
    """Remove the nodes and constants that no output needs."""
    needed = {one.name for one in graph.output}
    nodes = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed |= set(node.input) | _outer_names(node)
    constants = [one for one in graph.initializer if one.name in needed]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(reversed(nodes))
    graph.initializer.extend(constants)


def _outer_names(node: onnx.NodeProto) -> set[str]:
    """Return the names that the graphs inside a node (If, Loop) read."""
    return {
        name
        for attribute in node.attribute
        for graph in (*attribute.graphs, attribute.g)
        for inner in graph.node
        for name in (*inner.input, *_outer_names(inner))
    }
