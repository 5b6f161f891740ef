"""
Represent a decision tree in one form, whatever library trained it.

Each library has one reader: `trees_from_xgboost`, `trees_from_lightgbm`,
`trees_from_onnx`, and `ensembles` of `sklearn_trees`. Converting, probing, explaining,
pruning and tensorizing work on this form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from converters.model import F32, F64

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Comparisons = npt.NDArray[np.str_]

# Comparisons of numbers have the names of their ONNX operators.
LESS, AT_MOST, EQUAL = "Less", "LessOrEqual", "Equal"
IN, NOT_IN = "In", "NotIn"
LEAF = ""
COMPARISON_TYPE = np.dtype("<U11")


class Tree(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """
    One tree of M nodes. Node 0 is the root; the others are in the library's order.

    A row goes to the left child if the test of the node holds. A row whose feature is
    missing goes to the side that `missing_left` gives.

    Attributes:
        left: Child where the test holds; -1 for a leaf; int64 [M].
        right: Child where it does not; -1 for a leaf; int64 [M].
        comparison: Test of feature x: LESS `x < threshold`, AT_MOST `x <= threshold`,
            EQUAL `x == threshold`, IN or NOT_IN for "x is one of the node's codes" or
            its opposite; LEAF for a leaf; str [M].
        feature: Column that the node tests; undefined for a leaf; int64 [M].
        threshold: Number that the node compares with, as the library stores it;
            undefined for a leaf; float32 or float64 [M].
        missing_left: True if a missing value goes left; bool [M].
        codes: Category codes of each node that tests them.
        value: Numbers that a leaf adds; undefined for a split; float64 [M, K].
        cover: Weight of the training rows that reached the node; float64 [M]. None if
            the library does not store it.
        output: Margin to which a leaf adds its only value; -1 if a leaf has one value
            for each of K margins.
        wide: True if the library compares float64 features, False if it rounds them to
            float32 first.
    """

    left: Ints
    right: Ints
    comparison: Comparisons
    feature: Ints
    threshold: npt.NDArray[Any]
    missing_left: Flags
    value: F64
    codes: Mapping[int, tuple[int, ...]] = {}
    cover: F64 | None = None
    output: int = 0
    wide: bool = False

    @property
    def is_split(self) -> Flags:
        """Return which nodes are no leaves; bool [M]."""
        found: Flags = self.left >= 0
        return found


def comparisons(
    left: Ints, kind: str, *, codes: Collection[int] = (), among: str = IN
) -> Comparisons:
    """
    Return the comparison of each node of a tree with one kind of numeric test.

    Args:
        left: Left child of each node; -1 for a leaf; [M].
        kind: Comparison of the splits by number.
        codes: Nodes that test category codes.
        among: Comparison of these, IN or NOT_IN.
    """
    found: Comparisons = np.where(left >= 0, kind, LEAF).astype(COMPARISON_TYPE)
    found[list(codes)] = among
    return found


def single_leaf(value: float) -> Tree:
    """Return a tree that adds one number to each row."""
    nothing = np.full(1, -1, np.int64)
    return Tree(
        left=nothing,
        right=nothing,
        comparison=comparisons(nothing, AT_MOST),
        feature=np.zeros(1, np.int64),
        threshold=np.zeros(1, np.float32),
        missing_left=np.zeros(1, bool),
        value=np.array([[value]]),
    )


def round_down(threshold: npt.ArrayLike) -> F32:
    """Return the largest float32 numbers that are not above the given ones."""
    exact = np.asarray(threshold, dtype=np.float64)
    with np.errstate(over="ignore"):  # libraries write 1e300 for infinity
        nearest = exact.astype(np.float32)
        below = np.nextafter(nearest, np.float32(-np.inf))
    found: F32 = np.where(nearest > exact, below, nearest).astype(np.float32)
    return found


def largest_left(tree: Tree) -> F32:
    """Return the largest float32 that passes the test of each split by number; [M]."""
    nearest, passes = _nearest(tree)
    with np.errstate(over="ignore"):
        below = np.nextafter(nearest, np.float32(-np.inf))
    found: F32 = np.where(passes, nearest, below)
    return found


def smallest_right(tree: Tree) -> F32:
    """Return the smallest float32 that fails the test of each split by number; [M]."""
    nearest, passes = _nearest(tree)
    with np.errstate(over="ignore"):  # above the largest number is infinity
        above = np.nextafter(nearest, np.float32(np.inf))
    found: F32 = np.where(passes, above, nearest)
    return found


def _nearest(tree: Tree) -> tuple[F32, Flags]:
    """Return the float32 nearest to each threshold, and whether it passes the test."""
    exact = tree.threshold.astype(np.float64)
    with np.errstate(over="ignore"):
        nearest = exact.astype(np.float32)
    at_most = tree.comparison == AT_MOST
    return nearest, np.where(at_most, nearest <= exact, nearest < exact)
