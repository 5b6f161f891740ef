"""
Write tree ensembles as plain ONNX operators, for runtimes without tree operators.

There are two strategies: matrix products for shallow trees, whose work doubles twice
with every level; and walking down level by level for deeper trees. Neither rounds a
test: each row takes the same path as in the tree operator, NaN and infinities included.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper

from converters.graph_edit import drop_unused
from converters.onnx_trees import OPERATORS, class_labels, trees_from_onnx
from converters.tensorize_forest import Forest, forest_of
from converters.tensorize_gemm import gemm_bytes, gemm_nodes
from converters.tensorize_nodes import Nodes
from converters.tensorize_traversal import (
    traversal_bytes,
    traversal_nodes,
    traversal_nodes_count,
)
from tollgate.errors import ConversionError
from tollgate.repository.targets import ML_DOMAIN

AUTO, GEMM, TRAVERSAL = "auto", "gemm", "traversal"
STRATEGIES = (AUTO, GEMM, TRAVERSAL)
GEMM_DEPTH = 5  # deepest trees that `auto` writes as products; docs/conversion.md
LARGEST_BYTES = 256 << 20  # of the constants; the limit of a protobuf is 2 GiB
LARGEST_NODES = 2_000  # of the graph; a step of a walk needs about 7
_OLDEST_OPSET = 13  # ReduceSum with its axes as an input


class Tensorized(msgspec.Struct, frozen=True):
    """
    A graph without tree operators.

    Attributes:
        model: The serialized graph.
        strategies: Strategy for each tree operator, in the graph's order.
        depths: Depth of the deepest tree of each tree operator.
    """

    model: bytes
    strategies: tuple[str, ...]
    depths: tuple[int, ...]


def tensorize(model: bytes, *, strategy: str = AUTO) -> Tensorized:
    """
    Replace the tree ensembles of a converted graph by plain ONNX operators.

    The result has the same inputs and outputs and no operator of `ai.onnx.ml`. Prove
    the result against the source like any other converted model.

    Args:
        model: A serialized graph.
        strategy: "gemm", "traversal", or "auto": "gemm" up to a depth of GEMM_DEPTH.

    Raises:
        ConversionError: It has no trees, uses something that is not supported, or the
            result would be too large; the error says how large.
    """
    if strategy not in STRATEGIES:
        raise ConversionError(
            f"strategy is {strategy!r}; there are {', '.join(STRATEGIES)}"
        )
    found = onnx.load_from_string(model)
    graph = found.graph
    _require_opset(found)
    kinds = _tensor_kinds(found)
    written = []
    for number, node in enumerate(_tree_operators(graph)):
        given, dtype = _features(graph, node.input[0], kinds=kinds)
        forest = forest_of(trees_from_onnx(node), dtype=dtype)
        chosen = strategy
        if strategy == AUTO:
            chosen = GEMM if forest.depth <= GEMM_DEPTH else TRAVERSAL
        _require_size(forest, strategy=chosen)
        nodes = Nodes(f"trees{number}_")
        write = gemm_nodes if chosen == GEMM else traversal_nodes
        columns = _columns(found, given, least=int(forest.feature.max()) + 1)
        sums = write(nodes, given, forest=forest, columns=columns, dtype=dtype)
        _write_scores(nodes, node, sums, graph=graph)
        _replace(graph, node, nodes)
        written.append((chosen, forest.depth))
    _require_plain(found)
    drop_unused(graph)
    strategies, depths = zip(*written, strict=True)
    return Tensorized(model=_finished(found), strategies=strategies, depths=depths)


def _tree_operators(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    found = [one for one in graph.node if one.op_type in OPERATORS]
    if not found:
        raise ConversionError(
            "the graph has no tree ensemble; tensorizing is for trees, and this "
            "model is plain operators already or needs another way"
        )
    return found


def _require_opset(model: onnx.ModelProto) -> None:
    newest = max(
        (one.version for one in model.opset_import if not one.domain), default=1
    )
    if newest < _OLDEST_OPSET:
        raise ConversionError(
            f"the graph has opset {newest}; trees are tensorised for opset "
            f"{_OLDEST_OPSET} or later: export it again for that"
        )


def _require_size(forest: Forest, *, strategy: str) -> None:
    """Raise, with the size, if the trees' tensors would be too large."""
    if strategy == GEMM:
        size, count = gemm_bytes(forest), 0
    else:
        size, count = traversal_bytes(forest), traversal_nodes_count(forest)
    if size > LARGEST_BYTES or count > LARGEST_NODES:
        other = ", or the other strategy" if strategy == GEMM else ""
        raise ConversionError(
            f"{len(forest.roots)} trees of depth {forest.depth} would take "
            f"{size:,} bytes and {count:,} nodes as {strategy}, at most are "
            f"{LARGEST_BYTES:,} and {LARGEST_NODES:,}: prune them{other}"
        )


def _tensor_kinds(model: onnx.ModelProto) -> dict[str, int]:
    """Infer the element type of every tensor."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    values = (*inferred.input, *inferred.value_info, *inferred.output)
    return {one.name: one.type.tensor_type.elem_type for one in values}


def _features(
    graph: onnx.GraphProto, name: str, *, kinds: dict[str, int]
) -> tuple[str, type]:
    """
    Return the name and the type of the trees' input.

    If a Cast from float32 to float64 precedes a forest, return the float32 input of
    that Cast instead.
    """
    producer = next((one for one in graph.node if name in one.output), None)
    wide = kinds.get(name) == TensorProto.DOUBLE
    before = producer.input[0] if producer and producer.op_type == "Cast" else ""
    if wide and kinds.get(before) == TensorProto.FLOAT:
        return before, np.float32
    kind = kinds.get(name)
    if kind not in (TensorProto.FLOAT, TensorProto.DOUBLE):
        raise ConversionError(
            f"trees read {name!r} of type {TensorProto.DataType.Name(kind or 0)}; "
            "tensorised are those that read FLOAT or DOUBLE"
        )
    return name, np.float64 if wide else np.float32


def _columns(model: onnx.ModelProto, name: str, *, least: int) -> int:
    """Return the number of features that trees read; at least as many as they use."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    for one in (*inferred.input, *inferred.value_info):
        dims = one.type.tensor_type.shape.dim
        if one.name == name and len(dims) == 2 and dims[1].dim_value:
            return int(dims[1].dim_value)
    raise ConversionError(
        f"the graph does not say how many columns {name!r} has (at least {least})"
    )


def _write_scores(
    nodes: Nodes, node: onnx.NodeProto, sums: str, *, graph: onnx.GraphProto
) -> None:
    """Convert the sums to the operator's output, under its name."""
    found = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    how = found.get("post_transform", b"NONE").decode()
    classifier = node.op_type == OPERATORS[0]
    answer = node.output[1] if classifier else node.output[0]
    if classifier and _is_read(graph, node.output[0]):
        raise ConversionError(
            "the graph uses the label of a tree classifier; tensorised are "
            "probabilities, the decision is the policy's"
        )
    second = len(class_labels(found)) == 2 and len(set(found["class_ids"])) == 1
    if how == "SOFTMAX" and not second:
        nodes.add("Softmax", [sums], axis=1, output=answer)
    elif how in ("NONE", "LOGISTIC"):
        one = nodes.constant("one", np.float32(1))
        last = _logistic(nodes, sums, one=one) if how == "LOGISTIC" else sums
        if second:
            first = nodes.add("Sub", [one, last])
            nodes.add("Concat", [first, last], axis=1, output=answer)
        else:
            nodes.add("Identity", [last], output=answer)
    else:
        raise ConversionError(f"post_transform {how} of trees is not tensorised")


def _logistic(nodes: Nodes, margin: str, *, one: str) -> str:
    """Write 1 / (1 + exp(-margin)); Sigmoid loses small probabilities."""
    odds = nodes.add("Exp", [nodes.add("Neg", [margin])])
    return nodes.add("Div", [one, nodes.add("Add", [odds, one])])


def _is_read(graph: onnx.GraphProto, name: str) -> bool:
    outputs: Sequence[str] = [one.name for one in graph.output]
    return name in outputs or any(name in node.input for node in graph.node)


def _replace(graph: onnx.GraphProto, node: onnx.NodeProto, nodes: Nodes) -> None:
    at = list(graph.node).index(node)
    remaining = list(graph.node)
    remaining[at : at + 1] = nodes.nodes
    del graph.node[:]
    graph.node.extend(remaining)
    graph.initializer.extend(nodes.constants)


def _require_plain(model: onnx.ModelProto) -> None:
    """Raise if the graph would still need ai.onnx.ml."""
    left = sorted({one.op_type for one in model.graph.node if one.domain == ML_DOMAIN})
    if left:
        raise ConversionError(
            f"apart from its trees, the graph has {', '.join(left)} of {ML_DOMAIN}, "
            "which are not tensorised"
        )


def _finished(model: onnx.ModelProto) -> bytes:
    """Drop unused opsets, check the graph, serialize it."""
    newest = max(one.version for one in model.opset_import if not one.domain)
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", newest))
    del model.graph.value_info[:]
    try:
        onnx.checker.check_model(model)
    except onnx.checker.ValidationError as error:
        message = str(error).splitlines()[0]
        raise ConversionError(
            f"the tensorised graph is not valid: {message}"
        ) from error
    return bytes(model.SerializeToString(deterministic=True))
