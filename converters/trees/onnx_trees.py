"""
Read the trees of an ai.onnx.ml operator, and write trees as one.

Every test becomes one of three: `x < t`, `x <= t` or `x == t`. Where the operator tests
the opposite, the two children are exchanged, so each row takes the same path as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from converters.model import F64
from converters.trees.tree_ensemble import (
    AT_MOST,
    COMPARISON_TYPE,
    EQUAL,
    LEAF,
    LESS,
    Flags,
    Ints,
    Tree,
)
from tollgate.errors import ConversionError

OPERATORS = ("TreeEnsembleClassifier", "TreeEnsembleRegressor")
# Mode of a node -> comparison, and whether its children are exchanged.
_MODES = {
    "LEAF": (LEAF, False),
    "BRANCH_LT": (LESS, False),
    "BRANCH_LEQ": (AT_MOST, False),
    "BRANCH_EQ": (EQUAL, False),
    "BRANCH_GT": (AT_MOST, True),
    "BRANCH_GTE": (LESS, True),
    "BRANCH_NEQ": (EQUAL, True),
}


def trees_from_onnx(node: onnx.NodeProto) -> list[Tree]:
    """
    Read a TreeEnsembleClassifier or TreeEnsembleRegressor.

    Leaves hold one value for each sum; the leaves of the first tree include the base
    values. Several nodes of a tree may have the same child: the tests of a set of
    categories do.

    Raises:
        ConversionError: It uses something that is not supported.
    """
    found = _attributes(node)
    key = list(zip(found["nodes_treeids"], found["nodes_nodeids"], strict=True))
    place = {one: at for at, one in enumerate(key)}
    mode = [one.decode() for one in found["nodes_modes"]]
    for one in sorted({*mode} - {*_MODES}):
        raise ConversionError(f"tree nodes of the kind {one} are not tensorised")
    leaf = np.asarray([one == "LEAF" for one in mode])
    true, false = (
        np.asarray(
            [
                -1 if leaf[at] else place[key[at][0], child]
                for at, child in enumerate(found[f"nodes_{name}nodeids"])
            ],
            dtype=np.int64,
        )
        for name in ("true", "false")
    )
    swapped = np.asarray([_MODES[one][1] for one in mode])
    flags = found.get("nodes_missing_value_tracks_true") or [0] * len(key)
    # NaN differs from every number, whatever the flag says.
    differs = np.asarray([one == "BRANCH_NEQ" for one in mode])
    trees = _nodes_by_tree(found["nodes_treeids"], true=true, false=false)
    values = _values(found, place, node=node, leaf=leaf, trees=trees)
    comparison = np.asarray([_MODES[one][0] for one in mode], dtype=COMPARISON_TYPE)
    feature = np.where(leaf, 0, found["nodes_featureids"]).astype(np.int64)
    threshold = np.asarray(found["nodes_values"], dtype=np.float64)
    missing = ((np.asarray(flags, dtype=bool) | differs) ^ swapped) & ~leaf
    number = np.empty(len(key) + 1, dtype=np.int64)
    number[-1] = -1
    made = []
    for nodes in trees:
        number[nodes] = np.arange(len(nodes))
        made.append(
            Tree(
                left=number[np.where(swapped, false, true)[nodes]],
                right=number[np.where(swapped, true, false)[nodes]],
                comparison=comparison[nodes],
                feature=feature[nodes],
                threshold=threshold[nodes],
                missing_left=missing[nodes],
                value=values[nodes],
                output=-1,
            )
        )
    return made


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


def _nodes_by_tree(ids: Any, *, true: Ints, false: Ints) -> list[Ints]:
    """Return the positions of each tree's nodes, the root first."""
    _, first, number = np.unique(ids, return_index=True, return_inverse=True)
    order = np.argsort(first[number], kind="stable")
    ends = np.flatnonzero(np.diff(first[number][order])) + 1
    has_parent = np.zeros(len(true) + 1, dtype=bool)
    has_parent[true] = has_parent[false] = True
    found = []
    for nodes in np.split(order, ends):
        roots = nodes[~has_parent[nodes]]
        if len(roots) != 1:
            raise ConversionError("some tree nodes lead back to each other")
        found.append(np.concatenate([roots, nodes[nodes != roots[0]]]))
    return found


def _values(
    found: dict[str, Any],
    place: dict[tuple[int, int], int],
    *,
    node: onnx.NodeProto,
    leaf: Flags,
    trees: list[Ints],
) -> F64:
    """Collect the values that each leaf adds to each sum; float64 [M, K]."""
    side = "class" if node.op_type == OPERATORS[0] else "target"
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
        values /= len(trees)
    base = np.asarray(found.get("base_values", ()), dtype=np.float64)
    if len(base) not in (0, outputs):
        raise ConversionError(
            f"{len(base)} base values for {outputs} sums are not tensorised"
        )
    if len(base):
        # Add it to the first tree: every row ends in exactly one of its leaves.
        values[trees[0][leaf[trees[0]]]] += base
    return values


# Write trees as the attributes of a tree operator.
#
# onnxmltools copies everything below a split by category once per category: forty
# categories took it 40 s, three hundred ended in a RecursionError. Here all tests of
# one category set share the subtrees below them.

_NODE = ("featureids", "values", "truenodeids", "falsenodeids")


def tree_operator(trees: Sequence[Tree]) -> dict[str, Any]:
    """Return the attributes of a TreeEnsembleRegressor: nodes_* and target_*."""
    parts: dict[str, list[Any]] = {}
    for number, tree in enumerate(trees):
        nodes, leaves = _nodes(tree)
        size = len(nodes["nodeids"])
        nodes |= {"treeids": [number] * size}
        for name, values in nodes.items():
            parts.setdefault(f"nodes_{name}", []).extend(values)
        for name, values in (
            ("treeids", [number] * len(leaves)),
            ("nodeids", leaves),
            ("ids", [tree.output] * len(leaves)),
            ("weights", tree.value[leaves, 0].tolist()),
        ):
            parts.setdefault(f"target_{name}", []).extend(values)
    return parts


def _nodes(tree: Tree) -> tuple[dict[str, list[Any]], list[int]]:
    """Return the nodes of one tree by attribute, and which of them are leaves."""
    left, right = tree.left.tolist(), tree.right.tolist()
    features, limits = tree.feature.tolist(), tree.threshold.tolist()
    tracks = tree.missing_left.astype(int).tolist()
    rows: list[tuple[int, str, int, float, int, int, int]] = []
    leaves: list[int] = []
    spare = len(left)  # numbers for the second and later tests of a set
    pending = [0]
    while pending:
        at = pending.pop()
        if left[at] < 0:
            rows.append((at, "LEAF", 0, 0.0, 0, 0, 0))
            leaves.append(at)
            continue
        pending += [right[at], left[at]]
        feature, missing_left = features[at], tracks[at]
        if at not in tree.codes:
            rows.append(
                (
                    at,
                    "BRANCH_LEQ" if tree.comparison[at] == AT_MOST else "BRANCH_LT",
                    feature,
                    limits[at],
                    left[at],
                    right[at],
                    missing_left,
                )
            )
            continue
        codes = tree.codes[at]
        numbers = [at, *range(spare, spare + len(codes) - 1)]
        spare += len(codes) - 1
        # A code of the set goes to the right, all else to the left.
        after = [*numbers[1:], left[at]]
        rows += [
            (own, "BRANCH_EQ", feature, float(code), right[at], other, 1 - missing_left)
            for own, code, other in zip(numbers, codes, after, strict=True)
        ]
    return _by_attribute(rows), leaves


def _by_attribute(rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    number, mode, *others, missing = (
        list(column) for column in zip(*rows, strict=True)
    )
    return {
        "nodeids": number,
        "modes": mode,
        **dict(zip(_NODE, others, strict=True)),
        "missing_value_tracks_true": missing,
    }
