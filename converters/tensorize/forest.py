"""Hold the trees of one operator as arrays from which tensors are built."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from converters.model import F64
from converters.trees.tree_ensemble import (
    AT_MOST,
    EQUAL,
    LEAF,
    LESS,
    Comparisons,
    Flags,
    Ints,
    Tree,
)
from tollgate.errors import ConversionError


class Forest(msgspec.Struct, frozen=True, eq=False):
    """
    The trees of one operator, with consecutive node numbers.

    Attributes:
        roots: First node of each tree; int [T].
        comparison: Comparison at a node, the name of an ONNX operator; LEAF for a leaf;
            str [M].
        feature: Column that a node tests; int [M].
        threshold: Value that a node compares with; float64 [M].
        missing: True if NaN takes the path of a test that holds; bool [M].
        true: Next node if the test holds, a leaf's own number; int [M].
        false: Next node otherwise, a leaf's own number; int [M].
        values: Value that a leaf adds, including the operator's base values; float64
            [M, K].
        level: Number of steps from the root; int [M].
        tree: Number of the node's tree; int [M].
    """

    roots: Ints
    comparison: Comparisons
    feature: Ints
    threshold: F64
    missing: Flags
    true: Ints
    false: Ints
    values: F64
    level: Ints
    tree: Ints

    @property
    def depth(self) -> int:
        """Return the number of steps to the deepest leaf."""
        return int(self.level.max())

    @property
    def leaf(self) -> Flags:
        """Return which nodes are leaves; bool [M]."""
        leaf: Flags = self.true == np.arange(len(self.true))
        return leaf

    @property
    def outputs(self) -> int:
        """Return K, the number of sums of the trees."""
        return int(self.values.shape[1])

    @property
    def modes(self) -> tuple[str, ...]:
        """Return the comparisons in use, the most frequent first; at least one."""
        found, count = np.unique(
            self.comparison[self.comparison != LEAF], return_counts=True
        )
        return tuple(str(found[at]) for at in np.argsort(-count)) or (AT_MOST,)

    @property
    def odd(self) -> Flags:
        """Return the nodes that send NaN another way than minus infinity; bool [M]."""
        lowest = np.full(len(self.threshold), -np.inf)
        holds = np.zeros(len(lowest), dtype=bool)
        for mode in self.modes:
            holds |= (self.comparison == mode) & _test(mode, lowest, self.threshold)
        odd: Flags = self.missing & ~holds
        return odd


def forest_of(trees: Sequence[Tree], *, dtype: type) -> Forest:
    """
    Join trees.

    Args:
        trees: At least one; leaves have a value for each sum.
        dtype: Type of the features; thresholds are rounded to that type, in the
            direction that changes the path of no such number.

    Raises:
        ConversionError: A threshold of an EQUAL test is no number of that type, or
            nodes form a circle.
    """
    sizes = [len(one.left) for one in trees]
    start = np.cumsum([0, *sizes])
    own = np.arange(start[-1])

    def joined(arrays: list[Any]) -> Any:
        return np.concatenate(arrays)

    def children(arrays: list[Ints]) -> Ints:
        child = joined([one + first for one, first in zip(arrays, start, strict=False)])
        found: Ints = np.where(joined(arrays) >= 0, child, own)
        return found

    true = children([one.left for one in trees])
    false = children([one.right for one in trees])
    comparison = joined([one.comparison for one in trees])
    threshold = joined([one.threshold for one in trees])
    return Forest(
        roots=start[:-1],
        comparison=comparison,
        feature=joined([one.feature for one in trees]),
        threshold=_rounded(threshold, comparison, dtype=dtype),
        missing=joined([one.missing_left for one in trees]),
        true=true,
        false=false,
        values=joined([one.value for one in trees]),
        level=_levels(start[:-1], true=true, false=false),
        tree=np.repeat(np.arange(len(sizes)), sizes),
    )


def _levels(roots: Ints, *, true: Ints, false: Ints) -> Ints:
    """
    Count the steps from the root to every node; int [M].

    Several nodes may lead to one (a set of categories does): the longest path counts.
    """
    level = np.full(len(true), -1, dtype=np.int64)
    now = roots
    for steps in range(len(true)):
        level[now] = steps
        inner = now[true[now] != now]
        now = np.unique(np.concatenate([true[inner], false[inner]]))
        if not len(now):
            break
    if len(now) or (level < 0).any():
        raise ConversionError("some tree nodes lead back to each other")
    return level


def _rounded(threshold: F64, comparison: Comparisons, *, dtype: type) -> F64:
    """Round thresholds to a type so that no value of that type changes its path."""
    with np.errstate(over="ignore"):
        same = threshold.astype(dtype)
        near: F64 = same.astype(np.float64)
        down, up = (
            np.nextafter(same, dtype(end)).astype(np.float64)
            for end in (-np.inf, np.inf)
        )
    low = np.where(near > threshold, down, near)
    high = np.where(near < threshold, up, near)
    lost = (comparison == EQUAL) & (near != threshold)
    if lost.any():
        raise ConversionError(
            f"a tree tests for {threshold[lost][0]!r}, which is no {dtype.__name__}"
        )
    rounded: F64 = np.where(comparison == AT_MOST, low, high)
    return rounded


def _test(mode: str, values: F64, threshold: F64) -> Flags:
    """Apply one of the three comparisons."""
    held: Flags = values == threshold
    if mode != EQUAL:
        held = values < threshold if mode == LESS else values <= threshold
    return held
