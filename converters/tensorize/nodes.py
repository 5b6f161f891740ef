"""Write the nodes and constants that replace one tree operator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from converters.model import F64
from converters.tensorize.forest import Forest

# A float32 adds whole numbers up to 2**24 without rounding; one bit is a reserve.
_EXACT_BITS = 23


class Nodes:
    """
    Nodes in execution order, with their constants.

    Args:
        prefix: Start of every name, so that two operators of a graph do not collide.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: npt.ArrayLike) -> str:
        """Add a constant; return its full name."""
        full = f"{self._prefix}{name}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), full))
        return full

    def add(
        self,
        kind: str,
        inputs: Sequence[str],
        *,
        axis: int | None = None,
        to: int | None = None,
        perm: Sequence[int] | None = None,
        keepdims: int | None = None,
        output: str | None = None,
    ) -> str:
        """Add a node with one output; return the output's name."""
        name = output or f"{self._prefix}{len(self.nodes)}_{kind.lower()}"
        node = helper.make_node(kind, list(inputs), [name], name=name)
        attributes = {"axis": axis, "to": to, "perm": perm, "keepdims": keepdims}
        for key, value in attributes.items():
            if value is not None:
                node.attribute.append(helper.make_attribute(key, value))
        self.nodes.append(node)
        return name


def feature_columns(
    nodes: Nodes, features: str, *, forest: Forest, columns: int, dtype: type
) -> tuple[str, npt.NDArray[np.int32]]:
    """
    Prepare the columns that trees read, and return which one each node reads.

    Where NaN takes the path of a test that holds, the node reads a copy of its column
    with minus infinity for NaN. Columns are gathered: in a product with a matrix of
    zeros and ones, one infinity would make the whole row NaN.

    Args:
        nodes: Nodes to add to.
        features: The features; [N, columns].
        forest: The trees.
        columns: F, the number of features.
        dtype: Type of the features.

    Returns:
        Name of a tensor [N, F] or [N, 2 F], and a column per node; int32 [M].
    """
    lowered = forest.missing & ~forest.odd
    column = forest.feature + columns * lowered
    if not lowered.any():
        return features, column.astype(np.int32)
    lowest = nodes.constant("lowest", np.asarray(-np.inf, dtype=dtype))
    gap = nodes.add("IsNaN", [features])
    filled = nodes.add("Where", [gap, lowest, features])
    both = nodes.add("Concat", [features, filled], axis=1)
    return both, column.astype(np.int32)


def sum_parts(forest: Forest) -> list[F64]:
    """
    Split leaf values into parts whose sums float32 holds exactly, in any order.

    Each part is a multiple of a power of two, so coarse that no sum of one leaf per
    tree needs more than 24 bits; the next part is the remainder. The sum of a row is
    then the same alone and in a batch, and the same as in float64.

    Returns:
        One to three float64 [M, K] that hold exact float32; their sum is the values.
    """
    parts: list[F64] = []
    left = forest.values
    for _ in range(3):
        largest = np.zeros((len(forest.roots), forest.outputs))
        np.maximum.at(largest, forest.tree, np.abs(left))
        most = float(largest.sum(axis=0).max())
        if most == 0 and parts:
            break
        unit = 2.0 ** (np.ceil(np.log2(most)) - _EXACT_BITS) if most else 1.0
        part = np.round(left / unit) * unit
        parts.append(part)
        left = left - part
    return parts


def joined_parts(nodes: Nodes, sums: str, *, parts: int, outputs: int) -> str:
    """Add up the sums of all parts, the finest first; [N, parts K] to [N, K]."""
    if parts == 1:
        return sums
    split = []
    for part in range(parts):
        chosen = np.arange(outputs, dtype=np.int32) + part * outputs
        at = nodes.constant(f"part_{part}", chosen)
        split.append(nodes.add("Gather", [sums, at], axis=1))
    total = split.pop()
    while split:
        total = nodes.add("Add", [total, split.pop()])
    return total
