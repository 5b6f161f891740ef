"""
Write the trees of an XGBoost model in ONNX form, from the model's own JSON.

onnxmltools copies everything below a split by category once per category: forty
categories took it 40 s, three hundred ended in a RecursionError. Here all tests of one
category set share the subtrees below them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_NODE = ("featureids", "values", "truenodeids", "falsenodeids")


def tree_operator(model: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the attributes of a TreeEnsembleRegressor: nodes_* and target_*.

    Args:
        model: `gradient_booster.model` of the booster's JSON.
    """
    parts: dict[str, list[Any]] = {}
    for number, (tree, target) in enumerate(
        zip(model["trees"], model["tree_info"], strict=True)
    ):
        nodes, leaves = _nodes(tree)
        size = len(nodes["nodeids"])
        nodes |= {"treeids": [number] * size}
        for name, values in nodes.items():
            parts.setdefault(f"nodes_{name}", []).extend(values)
        for name, values in (
            ("treeids", [number] * len(leaves)),
            ("nodeids", leaves),
            ("ids", [target] * len(leaves)),
            ("weights", [_single(tree["split_conditions"][at]) for at in leaves]),
        ):
            parts.setdefault(f"target_{name}", []).extend(values)
    return parts


def tree_part(
    document: Mapping[str, Any],
) -> tuple[dict[str, Any], Sequence[float] | None]:
    """
    Return the trees in a booster's JSON, and the weights of a DART model.

    Returns:
        The object with `trees`, and a weight for each or None. Until 3.2 a DART model
        is a booster `dart` around a `gbtree`; since 3.4 it is a `gbtree` with weights.
    """
    booster = document["learner"]["gradient_booster"]
    if "gbtree" in booster:
        return booster["gbtree"]["model"], booster["weight_drop"]
    return booster["model"], booster["model"].get("weight_drop")


def weigh_leaves(tree: dict[str, Any], weight: float) -> None:
    """Multiply a tree's leaves, and the values that splits would have, in float32."""
    factor = np.float32(weight)
    for name in ("split_conditions", "base_weights"):
        tree[name] = [
            float(factor * np.float32(value))
            if left < 0 or name == "base_weights"
            else value
            for value, left in zip(tree[name], tree["left_children"], strict=True)
        ]


def category_sets(tree: Mapping[str, Any]) -> dict[int, Sequence[int]]:
    """
    Read the categories that splits send to the right, by node.

    Args:
        tree: One of `trees` of the booster's JSON.
    """
    return {
        node: tree["categories"][start : start + size]
        for node, start, size in zip(
            tree.get("categories_nodes", ()),
            tree.get("categories_segments", ()),
            tree.get("categories_sizes", ()),
            strict=True,
        )
    }


def _nodes(tree: Mapping[str, Any]) -> tuple[dict[str, list[Any]], list[int]]:
    """Return the nodes of one tree by attribute, and which of them are leaves."""
    left, right = tree["left_children"], tree["right_children"]
    spans = category_sets(tree)
    rows: list[tuple[int, str, int, float, int, int, int]] = []
    leaves: list[int] = []
    spare = len(left)  # numbers for the second and later tests of a set
    waiting = [0]
    while waiting:
        at = waiting.pop()
        if left[at] < 0:
            rows.append((at, "LEAF", 0, 0.0, 0, 0, 0))
            leaves.append(at)
            continue
        waiting += [right[at], left[at]]
        feature, missing_left = tree["split_indices"][at], int(tree["default_left"][at])
        if at not in spans:
            limit = _single(tree["split_conditions"][at])
            rows.append(
                (at, "BRANCH_LT", feature, limit, left[at], right[at], missing_left)
            )
            continue
        # xgboost sends the listed categories to the right, all else to the left.
        codes = spans[at]
        numbers = [at, *range(spare, spare + len(codes) - 1)]
        spare += len(codes) - 1
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


def _single(value: float) -> float:
    """Return the float32 that xgboost holds; its JSON may write fewer digits."""
    return float(np.float32(value))
