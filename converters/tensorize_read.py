"""
Read the trees of an ai.onnx.ml operator into arrays from which tensors are built.

Every form of split becomes one of three: `x < t`, `x <= t` or `x == t`. Where the
operator tests the opposite, the two children are exchanged. So a strategy handles only
three comparisons, and each row takes the same path as before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from converters.tensorize_forest import AT_MOST, EQUAL, F64, LESS, Flags, Forest, Ints
from tollgate.errors import ConversionError

_LEAF = "LEAF"
# Mode of a node -> comparison, and whether its children are exchanged.
_MODES = {
    "BRANCH_LT": (LESS, False),
    "BRANCH_LEQ": (AT_MOST, False),
    "BRANCH_EQ": (EQUAL, False),
    "BRANCH_GT": (AT_MOST, True),
    "BRANCH_GTE": (LESS, True),
    "BRANCH_NEQ": (EQUAL, True),
}
OPERATORS = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")


def read_forest(node: onnx.NodeProto, *, dtype: type) -> Forest:
    """
    Read a TreeEnsembleClassifier or TreeEnsembleRegressor.

    Args:
        node: The tree operator.
        dtype: Type of the features that it reads; thresholds are rounded to that type,
            in the direction that changes the path of no such number.

    Raises:
        ConversionError: It uses something that is not supported.
    """
    found = _attributes(node)
    side = "class" if node.op_type == OPERATORS[0] else "target"
    key = list(zip(found["nodes_treeids"], found["nodes_nodeids"], strict=True))
    place = {one: at for at, one in enumerate(key)}
    mode = [one.decode() for one in found["nodes_modes"]]
    for one in sorted({*mode} - {_LEAF, *_MODES}):
        raise ConversionError(f"tree nodes of the kind {one} are not tensorised")
    leaf = np.asarray([one == _LEAF for one in mode])
    way = {
        name: np.asarray(
            [
                at if leaf[at] else place[key[at][0], child]
                for at, child in enumerate(found[f"nodes_{name}nodeids"])
            ],
            dtype=np.int64,
        )
        for name in ("true", "false")
    }
    swapped = np.asarray([one != _LEAF and _MODES[one][1] for one in mode])
    flags = found.get("nodes_missing_value_tracks_true") or [0] * len(key)
    # NaN differs from every number, whatever the flag says.
    differs = np.asarray([one == "BRANCH_NEQ" for one in mode])
    missing = ((np.asarray(flags, dtype=bool) | differs) ^ swapped) & ~leaf
    comparison = np.asarray(["" if one == _LEAF else _MODES[one][0] for one in mode])
    threshold = np.asarray(found["nodes_values"], dtype=np.float64)
    children = np.concatenate([way["true"][~leaf], way["false"][~leaf]])
    roots = np.setdiff1d(np.arange(len(key)), children)
    true = np.where(swapped, way["false"], way["true"])
    false = np.where(swapped, way["true"], way["false"])
    level, number = _places(roots, true=true, false=false)
    return Forest(
        roots=roots,
        comparison=comparison,
        feature=np.where(leaf, 0, found["nodes_featureids"]).astype(np.int64),
        threshold=_rounded(threshold, comparison, dtype=dtype),
        missing=missing,
        true=true,
        false=false,
        values=_values(found, place, side=side, leaf=leaf, tree=number),
        level=level,
        tree=number,
    )


def class_labels(attributes: dict[str, Any]) -> list[Any]:
    """Return the labels in a classifier's attributes; empty for a regressor."""
    return [
        *attributes.get("classlabels_int64s", ()),
        *attributes.get("classlabels_strings", ()),
    ]


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Read attributes; tensors get the name of the attribute without "_as_tensor"."""
    found = {}
    for one in node.attribute:
        value = helper.get_attribute_value(one)
        name = one.name.removesuffix("_as_tensor")
        if name != one.name:
            value = numpy_helper.to_array(value)
        found[name] = value
    return found


def _values(
    found: dict[str, Any],
    place: dict[tuple[int, int], int],
    *,
    side: str,
    leaf: Flags,
    tree: Ints,
) -> F64:
    """Collect the values that each leaf adds to each sum; float64 [M, K]."""
    ids = np.asarray(found[f"{side}_ids"], dtype=np.int64)
    if side == "target":
        outputs = int(found.get("n_targets", ids.max() + 1))
    else:
        labels = class_labels(found)
        # Two classes and one sum: the sum is the second class's, whatever its number.
        single = len(labels) == 2 and len(set(ids.tolist())) == 1
        ids = np.zeros_like(ids) if single else ids
        outputs = 1 if single else len(labels)
    values = np.zeros((len(leaf), outputs))
    keys = zip(found[f"{side}_treeids"], found[f"{side}_nodeids"], strict=True)
    at = np.asarray([place[key] for key in keys], dtype=np.int64)
    np.add.at(values, (at, ids), found[f"{side}_weights"])
    how = found.get("aggregate_function", b"SUM").decode()
    if how not in ("SUM", "AVERAGE"):
        raise ConversionError(f"trees joined by {how} are not tensorised; SUM is")
    if how == "AVERAGE":
        values /= int(tree.max()) + 1
    base = np.asarray(found.get("base_values", ()), dtype=np.float64)
    if len(base) not in (0, outputs):
        raise ConversionError(
            f"{len(base)} base values for {outputs} sums are not tensorised"
        )
    if len(base):
        # Add it to the first tree: every row ends in exactly one of its leaves.
        values[leaf & (tree == 0)] += base
    return values


def _places(roots: Ints, *, true: Ints, false: Ints) -> tuple[Ints, Ints]:
    """
    Count the steps from the root to every node, and number its tree; int [M].

    Several nodes may lead to one (a set of categories does): the longest path counts.
    """
    level = np.full(len(true), -1, dtype=np.int64)
    tree = level.copy()
    tree[roots] = np.arange(len(roots))
    now = roots
    for steps in range(len(true)):
        level[now] = steps
        inner = now[true[now] != now]
        for way in (true, false):
            tree[way[inner]] = tree[inner]
        now = np.unique(np.concatenate([true[inner], false[inner]]))
        if not len(now):
            break
    if len(now) or (level < 0).any():
        raise ConversionError("some tree nodes lead back to each other")
    return level, tree


def _rounded(threshold: F64, comparison: npt.NDArray[np.str_], *, dtype: type) -> F64:
    """Round thresholds to a type so that no value of that type changes its path."""
    with np.errstate(over="ignore"):
        same: npt.NDArray[Any] = threshold.astype(dtype)
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
