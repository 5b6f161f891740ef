"""
Remove trees, or levels of trees, from an XGBoost model.

This module edits the model's JSON and lets xgboost load the result, so the output is a
normal booster. A split that becomes a leaf gets the value that training would have put
there: its base weight times the learning rate.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from xgboost import Booster

from converters.compression.prune import Cut, cut_below
from converters.trees.tree_ensemble import Tree
from converters.trees.xgboost_trees import tree_from_json
from tollgate.errors import ConversionError

_NO_PARENT = 2147483647  # as xgboost writes it
_FIT = 1e-4  # of the largest term: base weights are float32
_LEAST_PARENTS = 4  # three numbers are fitted to their weights


def pruned_booster(
    booster: Booster, *, trees: int | None, depth: int | None
) -> Booster:
    """
    Return a copy with fewer or shallower trees.

    Args:
        booster: The model; trees after an early stop count too.
        trees: Maximum number of trees, in whole rounds of one tree per class. A random
            forest drops single trees instead, and predicts the mean of the rest.
        depth: Maximum number of splits on a path.

    Raises:
        ConversionError: There are fewer trees than one round, or the leaves cannot be
            computed from the base weights.
    """
    document = json.loads(booster.save_raw("json"))
    model = document["learner"]["gradient_booster"]["model"]
    rate = _learning_rate(model["trees"]) if depth is not None else 1.0
    if trees is not None:
        _keep_trees(model, trees=trees)
    if depth is not None:
        model["trees"] = [_shallow(one, depth=depth, rate=rate) for one in _all(model)]
    # Otherwise the best round of an early stop would be cut off a second time.
    document["learner"]["attributes"].pop("best_iteration", None)
    document["learner"]["attributes"].pop("best_score", None)
    smaller = Booster()
    smaller.load_model(bytearray(json.dumps(document).encode()))
    return smaller


def _all(model: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = model["trees"]
    return found


def _keep_trees(model: dict[str, Any], *, trees: int) -> None:
    """Keep whole rounds; of a single round of parallel trees, some of each class."""
    ends = model["iteration_indptr"]
    if trees >= ends[-1]:
        return
    parallel = int(model["gbtree_model_param"]["num_parallel_tree"])
    if len(ends) == 2 and parallel > 1:
        _thin_forest(model, trees=trees, parallel=parallel)
        return
    rounds = sum(end <= trees for end in ends[1:])
    if not rounds:
        raise ConversionError(
            f"{trees} trees are less than one round: this model adds {ends[1]} a round"
        )
    model["trees"] = model["trees"][: ends[rounds]]
    model["tree_info"] = model["tree_info"][: ends[rounds]]
    model["iteration_indptr"] = ends[: rounds + 1]
    model["gbtree_model_param"]["num_trees"] = str(ends[rounds])


def _thin_forest(model: dict[str, Any], *, trees: int, parallel: int) -> None:
    """Keep some parallel trees of each class; leaves hold a share of the mean."""
    of_class = model["tree_info"]
    per_class = trees // (len(of_class) // parallel)
    if not per_class:
        raise ConversionError(
            f"{trees} trees are less than one for each of "
            f"{len(of_class) // parallel} classes"
        )
    left = dict.fromkeys(of_class, per_class)
    chosen = []
    for number, label in enumerate(of_class):
        if left[label]:
            left[label] -= 1
            chosen.append(number)
    model["tree_info"] = [of_class[number] for number in chosen]
    model["trees"] = [
        _scaled(model["trees"][number], parallel / per_class) | {"id": at}
        for at, number in enumerate(chosen)
    ]
    model["iteration_indptr"] = [0, len(chosen)]
    model["gbtree_model_param"] |= {
        "num_trees": str(len(chosen)),
        "num_parallel_tree": str(per_class),
    }


def _scaled(tree: dict[str, Any], factor: float) -> dict[str, Any]:
    values = [
        value if left >= 0 else float(np.float32(value * factor))
        for value, left in zip(
            tree["split_conditions"], tree["left_children"], strict=True
        )
    ]
    return tree | {"split_conditions": values}


def _shallow(tree: dict[str, Any], *, depth: int, rate: float) -> dict[str, Any]:
    source = tree_from_json(tree)
    cut = cut_below(source, depth=depth)
    if not cut.ended:
        return tree
    size = len(tree["left_children"])
    smaller = {
        name: [value[node] for node in cut.nodes]
        if isinstance(value, list)
        and len(value) == size
        and not name.startswith("categories")
        else value
        for name, value in tree.items()
    }
    parents = [_NO_PARENT] * len(cut.nodes)
    for at, (left, right) in enumerate(zip(cut.left, cut.right, strict=True)):
        if left >= 0:
            parents[left] = parents[right] = at
    smaller |= {"left_children": cut.left, "right_children": cut.right}
    smaller |= {"parents": parents} | _categories(source, cut)
    for at in cut.ended:
        value = float(np.float32(tree["base_weights"][cut.nodes[at]] * rate))
        smaller["split_conditions"][at] = value
        smaller["split_indices"][at] = 0
        smaller["split_type"][at] = 0
        smaller["loss_changes"][at] = 0.0
    smaller["tree_param"] = tree["tree_param"] | {"num_nodes": str(len(cut.nodes))}
    return smaller


def _categories(tree: Tree, cut: Cut) -> dict[str, list[int]]:
    """Keep the categories of the remaining splits, under their new numbers."""
    found: dict[str, list[int]] = {
        name: []
        for name in (
            "categories",
            "categories_nodes",
            "categories_segments",
            "categories_sizes",
        )
    }
    for at, node in enumerate(cut.nodes):
        if cut.left[at] >= 0 and node in tree.codes:
            found["categories_nodes"].append(at)
            found["categories_segments"].append(len(found["categories"]))
            found["categories_sizes"].append(len(tree.codes[node]))
            found["categories"] += tree.codes[node]
    return found


def _learning_rate(trees: list[dict[str, Any]]) -> float:
    """
    Compute the learning rate from the trees; model files do not store it.

    Splitting by exact values stores the base weight of a leaf too, and the rate is the
    ratio of leaf value and base weight. The histogram methods store the base weight
    only for splits: with G the sum of gradients and H of hessians, a node's base weight
    is -G / (H + lambda) and a leaf value is that times the rate. G and H of a split are
    the sums of its two leaves, so only rate and lambda must be fitted.

    Raises:
        ConversionError: No rate fits, because of a penalty (reg_alpha), a limit
            (max_delta_step, monotone constraints) or a changing rate.
    """
    parents, totals, ratios = [], [], []
    for tree in trees:
        left = np.asarray(tree["left_children"])
        right = np.asarray(tree["right_children"])
        weight = np.asarray(tree["base_weights"])
        value = np.asarray(tree["split_conditions"])
        mass = np.asarray(tree["sum_hessian"])
        leaf = left < 0
        if len(left) > 1:
            ratios.append((value, weight, leaf & (np.abs(weight) > _FIT)))
        for node in np.flatnonzero(~leaf):
            one, two = left[node], right[node]
            if leaf[one] and leaf[two]:
                parents.append(
                    [weight[node] * mass[node], weight[node], -value[one] - value[two]]
                )
                totals.append(value[one] * mass[one] + value[two] * mass[two])
    if not ratios:
        return 1.0  # trees of one leaf: nothing is cut
    ratio = np.concatenate([value[at] / weight[at] for value, weight, at in ratios])
    if len(ratio) and np.ptp(ratio) < _FIT and abs(ratio[0] - 1) > _FIT:
        return float(np.median(ratio))
    terms, sums = np.asarray(parents), np.asarray(totals)
    (rate, both, penalty), *_ = np.linalg.lstsq(terms, sums, rcond=None)
    off = np.abs(terms @ (rate, both, penalty) - sums).max() / np.abs(sums).max()
    fits = off < _FIT and abs(both - rate * penalty) < 0.01 * max(1.0, abs(both))
    if len(terms) < _LEAST_PARENTS or not fits or rate <= 0:
        raise ConversionError(
            "the learning rate does not show in its trees (reg_alpha, max_delta_step, "
            "monotone constraints, a changing rate or very few splits), so that "
            "levels cannot be cut off: prune whole trees, or train with that max_depth"
        )
    return float(rate)
