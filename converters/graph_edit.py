"""Correct graphs that other libraries wrote; needs only onnx."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper


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
