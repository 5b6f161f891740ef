"""
Write trees as matrix products: all splits at once, then the leaf that matches them.

This is the GEMM strategy of "A Tensor Compiler for Unified Machine Learning Prediction
Serving" (Nakandala et al., OSDI 2020): a row reaches a leaf if every test that must
hold on the leaf's path holds, and none that must not. All numbers before the leaf
values are small integers, so nothing is rounded on the way.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from converters.model import F64
from converters.tensorize_forest import Forest
from converters.tensorize_nodes import (
    Nodes,
    feature_columns,
    joined_parts,
    sum_parts,
)

_NEVER = -1.0  # unreachable count of tests, for leaves that pad a smaller tree


def gemm_bytes(forest: Forest) -> int:
    """Return how large the matrices of paths would be."""
    inner, leaves = _sizes(forest)
    return 4 * len(forest.roots) * inner * leaves


def gemm_nodes(
    nodes: Nodes, features: str, *, forest: Forest, columns: int, dtype: type
) -> str:
    """
    Write trees as matrix products.

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
    paths = _Paths(forest)
    # Put rows last: a batch of any size is then the last dimension of every product.
    turned = nodes.add("Transpose", [source], perm=(1, 0))
    at = nodes.constant("columns", column[paths.split])
    values = nodes.add("Gather", [turned, at], axis=0)
    held = _held(nodes, values, forest=forest, paths=paths, dtype=dtype)
    if forest.odd.any():
        gap = nodes.add("IsNaN", [values])
        odd = nodes.constant("odd", forest.odd[paths.split][:, :, None])
        held = nodes.add("Or", [held, nodes.add("And", [gap, odd])])
    counted = nodes.add("Cast", [held], to=TensorProto.FLOAT)
    way = nodes.constant("paths", paths.matrix)
    agreed = nodes.add("MatMul", [way, counted])
    wanted = nodes.constant("wanted", paths.wanted)
    reached = nodes.add("Equal", [agreed, wanted])
    hot = nodes.add("Cast", [reached], to=TensorProto.FLOAT)
    leaves = np.concatenate([paths.leaf_values(part) for part in parts], axis=1)
    weights = nodes.constant("leaves", leaves.astype(np.float32))
    of_trees = nodes.add("MatMul", [weights, hot])
    axes = nodes.constant("trees", np.asarray([0], dtype=np.int64))
    summed = nodes.add("ReduceSum", [of_trees, axes], keepdims=0)
    upright = nodes.add("Transpose", [summed], perm=(1, 0))
    return joined_parts(nodes, upright, parts=len(parts), outputs=forest.outputs)


class _Paths:
    """
    The tests on the path to each leaf, with trees padded to the size of the largest.

    Attributes:
        split: Node at each position; int [T, I].
        matrix: +1 where a test must hold, -1 where it must not; float32 [T, L, I].
        wanted: Number of tests that must hold; float32 [T, L, 1].
        leaf: Node at the end of each path, -1 for none; int [T, L].
    """

    def __init__(self, forest: Forest) -> None:
        trees = len(forest.roots)
        splits, paths = _sizes(forest)
        self.split = np.repeat(forest.roots[:, None], splits, axis=1)
        self.matrix = np.zeros((trees, paths, splits), dtype=np.float32)
        self.wanted = np.full((trees, paths, 1), _NEVER, dtype=np.float32)
        self.leaf = np.full((trees, paths), -1, dtype=np.int64)
        for tree in range(trees):
            self._fill(tree, forest)

    def _fill(self, tree: int, forest: Forest) -> None:
        """Follow every path of one tree."""
        inner = np.flatnonzero((forest.tree == tree) & ~forest.leaf)
        self.split[tree, : len(inner)] = inner
        place = {int(at): number for number, at in enumerate(inner)}
        found = 0
        pending: list[tuple[int, dict[int, float]]] = [(int(forest.roots[tree]), {})]
        while pending:
            at, tests = pending.pop()
            if at in place:
                pending.append((int(forest.true[at]), {**tests, place[at]: 1.0}))
                pending.append((int(forest.false[at]), {**tests, place[at]: -1.0}))
                continue
            self.leaf[tree, found] = at
            self.wanted[tree, found] = sum(one > 0 for one in tests.values())
            self.matrix[tree, found, list(tests)] = list(tests.values())
            found += 1

    def leaf_values(self, values: F64) -> F64:
        """Arrange the values of leaves, [M, K], as [T, K, L]."""
        placed = values[self.leaf] * (self.leaf >= 0)[:, :, None]
        arranged: F64 = np.swapaxes(placed, 1, 2)
        return arranged


def _sizes(forest: Forest) -> tuple[int, int]:
    """Count the splits, at least one, and the paths of the largest tree."""
    splits = np.bincount(forest.tree[~forest.leaf], minlength=1)
    ways = [1] * len(forest.leaf)
    for at in np.argsort(-forest.level):
        if forest.true[at] != at:
            ways[at] = ways[forest.true[at]] + ways[forest.false[at]]
    return max(1, int(splits.max())), max(ways[root] for root in forest.roots)


def _held(
    nodes: Nodes, values: str, *, forest: Forest, paths: _Paths, dtype: type
) -> str:
    """Write the comparisons; bool [T, I, N]."""
    at = paths.split[:, :, None]
    against = nodes.constant("thresholds", forest.threshold[at].astype(dtype))
    modes = forest.modes
    if len(modes) == 1:
        return nodes.add(modes[0], [values, against])
    held = ""
    for mode in modes:
        chosen = (forest.comparison == mode)[paths.split][:, :, None]
        of_mode = nodes.constant(f"is_{mode.lower()}", chosen)
        one = nodes.add("And", [nodes.add(mode, [values, against]), of_mode])
        held = nodes.add("Or", [held, one]) if held else one
    return held
