"""
Remove trees, or levels of trees, from a scikit-learn model.

A split that becomes a leaf gets the value that scikit-learn stores for it: the class
shares of a decision tree or forest, the unshrunk step of histogram boosting. Gradient
boosting stores none for splits, since only leaves get a Newton step. There the value is
the mean of the leaves below, weighted by training rows.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
)
from sklearn.ensemble._forest import ForestClassifier
from sklearn.pipeline import Pipeline
from sklearn.tree import DecisionTreeClassifier
from sklearn.tree._tree import Tree

from converters.compression.prune import cut_below
from converters.trees.sklearn_trees import tree_from_histogram, tree_from_sklearn
from tollgate.errors import ConversionError


def pruned_estimator(estimator: Any, *, trees: int | None, depth: int | None) -> Any:
    """
    Return a copy with fewer or shallower trees; a pipeline's last step is pruned.

    Args:
        trees: Maximum number of trees; boosting over three classes or more drops whole
            rounds of one tree per class. A forest takes the mean of the remaining
            trees.
        depth: Maximum number of splits on a path.

    Raises:
        ConversionError: It has no trees, or other models are fitted to its predictions.
    """
    smaller = copy.deepcopy(estimator)
    last = smaller
    while isinstance(last, Pipeline):
        last = last.steps[-1][1]
    if isinstance(last, DecisionTreeClassifier):
        if depth is not None:
            last.tree_ = _shallow(last.tree_, depth=depth, mean=False)
    elif isinstance(last, ForestClassifier):
        _forest(last, trees=trees, depth=depth)
    elif isinstance(last, GradientBoostingClassifier):
        _boosting(last, trees=trees, depth=depth)
    elif isinstance(last, HistGradientBoostingClassifier):
        _histograms(last, trees=trees, depth=depth)
    else:
        raise ConversionError(
            f"a {type(last).__name__} cannot be pruned: needed are trees whose answers "
            "are added up; prune the model inside it and train the rest again"
        )
    return smaller


def _forest(forest: Any, *, trees: int | None, depth: int | None) -> None:
    if trees is not None:
        forest.estimators_ = forest.estimators_[:trees]
        forest.n_estimators = len(forest.estimators_)
    if depth is not None:
        for one in forest.estimators_:
            one.tree_ = _shallow(one.tree_, depth=depth, mean=False)


def _boosting(model: Any, *, trees: int | None, depth: int | None) -> None:
    rounds = _rounds(trees, of_round=model.estimators_.shape[1])
    model.estimators_ = model.estimators_[:rounds]
    model.n_estimators = model.n_estimators_ = len(model.estimators_)
    if depth is not None:
        for one in model.estimators_.ravel():
            one.tree_ = _shallow(one.tree_, depth=depth, mean=True)


def _histograms(model: Any, *, trees: int | None, depth: int | None) -> None:
    rounds = _rounds(trees, of_round=model.n_trees_per_iteration_)
    model._predictors = model._predictors[:rounds]
    model.max_iter = len(model._predictors)
    if depth is None:
        return
    for tree in (tree for of_round in model._predictors for tree in of_round):
        nodes = tree.nodes
        cut = cut_below(tree_from_histogram(nodes), depth=depth)
        remaining = nodes[cut.nodes].copy()
        leaf = np.asarray(cut.left) < 0
        remaining["left"] = np.where(leaf, 0, cut.left)
        remaining["right"] = np.where(leaf, 0, cut.right)
        remaining["is_leaf"] = leaf
        remaining["value"][cut.ended] *= model.learning_rate
        tree.nodes = remaining


def _rounds(trees: int | None, *, of_round: int) -> int | None:
    if trees is None:
        return None
    if trees < of_round:
        raise ConversionError(
            f"{trees} trees are less than one round: this model adds {of_round} a round"
        )
    return trees // of_round


def _shallow(tree: Any, *, depth: int, mean: bool) -> Any:
    """Cut one tree; `mean` gives new leaves the mean of the leaves below."""
    cut = cut_below(tree_from_sklearn(tree), depth=depth)
    if not cut.ended:
        return tree
    state = tree.__getstate__()
    value = _means(tree) if mean else state["values"]
    nodes = state["nodes"][cut.nodes].copy()
    nodes["left_child"], nodes["right_child"] = cut.left, cut.right
    leaf = np.asarray(cut.left) < 0
    nodes["feature"][leaf], nodes["threshold"][leaf] = -2, -2.0  # scikit-learn's marks
    smaller = Tree(
        tree.n_features,
        np.asarray(tree.n_classes, dtype=np.intp),
        tree.n_outputs,
    )
    smaller.__setstate__(
        state
        | {
            "max_depth": depth,
            "node_count": len(nodes),
            "nodes": nodes,
            "values": np.ascontiguousarray(value[cut.nodes]),
        }
    )
    return smaller


def _means(tree: Any) -> Any:
    """Return for every node the mean of the leaves below it, by training rows."""
    value, mass = tree.value.copy(), tree.weighted_n_node_samples
    for node in reversed(range(tree.node_count)):  # children come after parents
        left, right = tree.children_left[node], tree.children_right[node]
        if left >= 0:
            whole = mass[left] * value[left] + mass[right] * value[right]
            value[node] = whole / (mass[left] + mass[right])
    return value
