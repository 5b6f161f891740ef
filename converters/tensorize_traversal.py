"""
Write trees as gathers: every row walks down all trees at once, one level per step.

This is the tree traversal strategy of "A Tensor Compiler for Unified Machine Learning
Prediction Serving" (Nakandala et al., OSDI 2020). A leaf points to itself, so all trees
take as many steps as the deepest one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from converters.tensorize_forest import Forest
from converters.tensorize_nodes import (
    Nodes,
    feature_columns,
    joined_parts,
    sum_parts,
)

_NODES_PER_STEP = 7  # with one kind of comparison


def traversal_nodes_count(forest: Forest) -> int:
    """Return about how many nodes the graph would get."""
    return forest.depth * (_NODES_PER_STEP + 3 * (len(forest.modes) - 1))


def traversal_bytes(forest: Forest) -> int:
    """Return about how large the tables of nodes and leaves would be."""
    return len(forest.true) * (16 + 12 * forest.outputs)


def traversal_nodes(
    nodes: Nodes, features: str, *, forest: Forest, columns: int, dtype: type
) -> str:
    """
    Write trees as steps from node to node.

    Args:
        nodes: Nodes to add to.
        features: The features; [N, columns].
        forest: The trees.
        columns: F, the number of features.
        dtype: Type of the features.

    Returns:
        Name of the sums; float32 [N, K].
    """
    source, column = feature_columns(
        nodes, features, forest=forest, columns=columns, dtype=dtype
    )
    parts = sum_parts(forest)
    walk = _Walk(nodes, source, forest=forest, column=column, dtype=dtype)
    at = walk.first()
    for _ in range(forest.depth - 1):
        at = walk.next(at)
    leaves = np.concatenate(parts, axis=1).astype(np.float32)
    found = nodes.add("Gather", [nodes.constant("leaves", leaves), at], axis=0)
    axes = nodes.constant("trees", np.asarray([1], dtype=np.int64))
    summed = nodes.add("ReduceSum", [found, axes], keepdims=0)
    return joined_parts(nodes, summed, parts=len(parts), outputs=forest.outputs)


class _Walk:
    """Write the steps; a row's position in each tree is int32 [N, T]."""

    def __init__(
        self,
        nodes: Nodes,
        source: str,
        *,
        forest: Forest,
        column: npt.NDArray[np.int32],
        dtype: type,
    ) -> None:
        self._nodes = nodes
        self._source = source
        self._forest = forest
        self._tables = {
            "column": column,
            "threshold": forest.threshold.astype(dtype),
            "true": forest.true.astype(np.int32),
            "false": forest.false.astype(np.int32),
        } | {f"is_{one.lower()}": forest.comparison == one for one in forest.modes[1:]}
        if forest.odd.any():
            self._tables["odd"] = forest.odd
        self._names: dict[str, str] = {}

    def first(self) -> str:
        """Write the step from the roots, which are the same for every row."""
        add, roots = self._nodes.add, self._forest.roots
        chosen = {
            key: self._nodes.constant(f"root_{key}", table[roots])
            for key, table in self._tables.items()
        }
        value = add("Gather", [self._source, chosen["column"]], axis=1)
        held = self._held(value, chosen)
        return add("Where", [held, chosen["true"], chosen["false"]])

    def next(self, at: str) -> str:
        """Write one more step."""
        add = self._nodes.add
        if not self._names:
            self._names = {
                key: self._nodes.constant(key, table)
                for key, table in self._tables.items()
            }
        chosen = {
            key: add("Gather", [name, at], axis=0) for key, name in self._names.items()
        }
        value = add("GatherElements", [self._source, chosen["column"]], axis=1)
        held = self._held(value, chosen)
        return add("Where", [held, chosen["true"], chosen["false"]])

    def _held(self, value: str, chosen: dict[str, str]) -> str:
        """Test the values at the chosen nodes."""
        add = self._nodes.add
        first, *others = self._forest.modes
        held = add(first, [value, chosen["threshold"]])
        for mode in others:
            one = add(mode, [value, chosen["threshold"]])
            of_mode = chosen[f"is_{mode.lower()}"]
            # No Where here: TensorRT and onnxruntime both support And and Or of
            # booleans.
            unchanged = add("And", [held, add("Not", [of_mode])])
            held = add("Or", [unchanged, add("And", [one, of_mode])])
        if "odd" in chosen:
            gap = add("And", [add("IsNaN", [value]), chosen["odd"]])
            held = add("Or", [held, gap])
        return held
