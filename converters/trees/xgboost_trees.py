"""Read the trees of an XGBoost model from its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from converters.trees.tree_ensemble import LESS, NOT_IN, Tree, comparisons

if TYPE_CHECKING:
    from xgboost import Booster


def trees_from_xgboost(booster: Booster) -> list[Tree]:
    """Read the trees of a booster; those of DART lack the weights of their trees."""
    model = tree_part(json.loads(booster.save_raw("json")))[0]
    return [
        tree_from_json(tree, output=output)
        for tree, output in zip(model["trees"], model["tree_info"], strict=True)
    ]


def tree_from_json(tree: Mapping[str, Any], *, output: int = 0) -> Tree:
    """Read one of `trees` of the booster's JSON."""
    left = np.asarray(tree["left_children"], dtype=np.int64)
    split = left >= 0
    # A leaf stores its value where a split stores its threshold.
    number = np.asarray(tree["split_conditions"], dtype=np.float32)
    codes = category_sets(tree)
    return Tree(
        left=left,
        right=np.where(split, np.asarray(tree["right_children"]), -1),
        # xgboost sends the listed categories to the right.
        comparison=comparisons(left, LESS, codes=codes, among=NOT_IN),
        feature=np.asarray(tree["split_indices"], dtype=np.int64),
        threshold=number,
        missing_left=np.asarray(tree["default_left"], dtype=bool),
        codes=codes,
        value=number.astype(np.float64)[:, None],
        cover=np.asarray(tree["sum_hessian"], dtype=np.float64),
        output=output,
    )


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


def category_sets(tree: Mapping[str, Any]) -> dict[int, tuple[int, ...]]:
    """
    Read the categories that splits send to the right, by node.

    Args:
        tree: One of `trees` of the booster's JSON; older files have no categories.
    """
    return {
        node: tuple(tree["categories"][start : start + size])
        for node, start, size in zip(
            tree.get("categories_nodes", ()),
            tree.get("categories_segments", ()),
            tree.get("categories_sizes", ()),
            strict=True,
        )
    }
