"""Put graphs right that other libraries wrote; needs onnx alone."""

from __future__ import annotations

from typing import Any

import onnx


def set_shape(tensor: Any, *, columns: int | None) -> None:
    """Make a tensor [N, columns]; None keeps the columns it has."""
    if columns is None:
        columns = tensor.shape.dim[1].dim_value
    del tensor.shape.dim[:]
    tensor.shape.dim.add().dim_param = "N"
    tensor.shape.dim.add().dim_value = columns


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
    """Name what the graphs inside a node (If, Loop) read."""
    return {
        name
        for attribute in node.attribute
        for graph in (*attribute.graphs, attribute.g)
        for inner in graph.node
        for name in (*inner.input, *_outer_names(inner))
    }
