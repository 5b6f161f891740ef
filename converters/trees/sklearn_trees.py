"""Read the trees of fitted scikit-learn models, and prepare copies for skl2onnx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from sklearn.ensemble import (
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
)
from sklearn.ensemble._forest import BaseForest
from sklearn.tree import BaseDecisionTree

from converters.model import F64
from converters.trees.tree_ensemble import AT_MOST, Tree, comparisons, round_down
from tollgate.errors import ConversionError


class Ensemble(msgspec.Struct, frozen=True, eq=False):
    """
    The trees of one fitted model, round by round.

    Attributes:
        trees: At least one.
        averaged: True if a prediction is the mean of the trees, as in a forest.
    """

    trees: list[Tree]
    averaged: bool = False


def ensembles(estimator: object) -> Iterator[Ensemble]:
    """
    Yield the trees inside a fitted model, ensemble by ensemble.

    The values of a node are those that scikit-learn stores: class shares in decision
    trees and forests, unshrunk steps in gradient boosting, shrunk ones in histogram
    boosting.
    """
    if not _is_fitted(estimator):
        return
    if isinstance(estimator, BaseDecisionTree):
        yield Ensemble([tree_from_sklearn(estimator.tree_)])
    elif isinstance(estimator, BaseForest):
        trees = [tree_from_sklearn(one.tree_) for one in estimator.estimators_]
        yield Ensemble(trees, averaged=True)
    elif isinstance(estimator, IsolationForest):
        yield Ensemble(isolation_trees(estimator))
    elif isinstance(estimator, (GradientBoostingClassifier, GradientBoostingRegressor)):
        yield Ensemble(
            [tree_from_sklearn(one.tree_) for one in estimator.estimators_.ravel()]
        )
    elif isinstance(
        estimator, (HistGradientBoostingClassifier, HistGradientBoostingRegressor)
    ):
        if estimator.is_categorical_ is not None and estimator.is_categorical_.any():
            raise ConversionError(
                f"{type(estimator).__name__}: categorical_features are not "
                "converted; encode them (OneHotEncoder) in front of it"
            )
        yield Ensemble(
            [
                tree_from_histogram(tree.nodes)
                for of_round in estimator._predictors
                for tree in of_round
            ]
        )
    else:
        for child in children(estimator):
            yield from ensembles(child)


def tree_from_sklearn(tree: Any) -> Tree:
    """Read the `tree_` of a decision tree."""
    left = np.asarray(tree.children_left, dtype=np.int64)
    return Tree(
        left=left,
        right=np.asarray(tree.children_right, dtype=np.int64),
        comparison=comparisons(left, AT_MOST),
        feature=np.asarray(tree.feature, dtype=np.int64),
        threshold=np.asarray(tree.threshold, dtype=np.float64),
        missing_left=np.asarray(tree.missing_go_to_left, dtype=bool),
        value=np.asarray(tree.value[:, 0], dtype=np.float64),
        cover=np.asarray(tree.weighted_n_node_samples, dtype=np.float64),
        output=-1 if tree.value.shape[2] > 1 else 0,
    )


def tree_from_histogram(nodes: Any) -> Tree:
    """Read the `nodes` of a tree of histogram boosting."""
    leaf = nodes["is_leaf"].astype(bool)
    left = np.where(leaf, -1, nodes["left"].astype(np.int64))
    return Tree(
        left=left,
        right=np.where(leaf, -1, nodes["right"].astype(np.int64)),
        comparison=comparisons(left, AT_MOST),
        feature=nodes["feature_idx"].astype(np.int64),
        threshold=nodes["num_threshold"].astype(np.float64),
        missing_left=nodes["missing_go_to_left"].astype(bool),
        value=nodes["value"].astype(np.float64)[:, None],
        cover=nodes["count"].astype(np.float64),
        wide=True,
    )


def isolation_trees(forest: IsolationForest) -> list[Tree]:
    """
    Read the trees of an isolation forest: a leaf adds the path length to it.

    The path length is the number of splits on the way, and the mean depth that a tree
    of the leaf's training rows would still have (Liu, Ting and Zhou, 2008).
    """
    return [
        _with_paths(tree_from_sklearn(one.tree_), one.tree_, columns=columns)
        for one, columns in zip(
            forest.estimators_, forest.estimators_features_, strict=True
        )
    ]


def _with_paths(tree: Tree, fitted: Any, *, columns: Any) -> Tree:
    """Replace the values of a tree by path lengths, its columns by the forest's."""
    depth = np.zeros(len(tree.left))
    for node in np.flatnonzero(tree.is_split):  # parents come before their children
        depth[[tree.left[node], tree.right[node]]] = depth[node] + 1
    length = depth + mean_path(fitted.n_node_samples)
    feature = np.asarray(columns)[np.where(tree.is_split, tree.feature, 0)]
    return msgspec.structs.replace(
        tree, value=length[:, None], feature=feature, output=0
    )


def mean_path(rows: Any) -> F64:
    """Return the mean depth of a tree that isolates so many rows; float64 [M]."""
    count = np.asarray(rows, np.float64)
    found: F64 = np.where(count == 2, 1.0, 0.0)
    many = count > 2
    left = count[many] - 1
    found[many] = 2 * (np.log(left) + np.euler_gamma) - 2 * left / count[many]
    return found


def round_histograms(estimator: object) -> None:
    """Round the thresholds of histogram boosting down to float32, in place."""
    if isinstance(estimator, HistGradientBoostingClassifier):
        for of_round in estimator._predictors if _is_fitted(estimator) else ():
            for tree in of_round:
                # skl2onnx would round to nearest, and fails on 1e300, which
                # scikit-learn writes for "all but missing".
                nodes = tree.nodes.copy()
                nodes["num_threshold"] = round_down(nodes["num_threshold"])
                tree.nodes = nodes
    elif not isinstance(estimator, (BaseDecisionTree, BaseForest)):
        for child in children(estimator):
            round_histograms(child)


def cap_thresholds(estimator: object) -> None:
    """
    Make the infinite thresholds of decision trees and forests finite, in place.

    A tree that was trained with missing values has an infinite threshold where a split
    only separates them. skl2onnx searches for the next number for ever.
    """
    if isinstance(estimator, BaseDecisionTree):
        if _is_fitted(estimator):
            thresholds = estimator.tree_.threshold
            most = float(np.finfo(np.float32).max) / 2
            np.clip(thresholds, -most, most, out=thresholds)
    elif isinstance(estimator, BaseForest):
        for tree in estimator.estimators_ if _is_fitted(estimator) else ():
            cap_thresholds(tree)
    else:
        for child in children(estimator):
            cap_thresholds(child)


def forget_rows(estimator: object) -> None:
    """
    Remove the record of each tree's training rows from forests, in place.

    skl2onnx reads every attribute eight times, and `estimators_samples_` draws the rows
    of each tree again each time.
    """
    if isinstance(estimator, BaseForest):
        estimator.bootstrap = False
        estimator._n_samples = 0
    else:
        for child in children(estimator):
            forget_rows(child)


def _is_fitted(estimator: object) -> bool:
    return hasattr(estimator, "steps") or any(
        name.endswith("_") for name in vars(estimator)
    )


def children(estimator: object) -> Iterator[Any]:
    """Yield the fitted models inside a model."""
    for name, value in vars(estimator).items() if hasattr(estimator, "fit") else ():
        if not (name.endswith("_") or name in ("steps", "estimator")):
            continue
        for one in value if isinstance(value, (list, tuple)) else [value]:
            for part in one if isinstance(one, tuple) else [one]:
                if hasattr(part, "fit"):
                    yield part
                elif type(part).__name__ == "_CalibratedClassifier":
                    yield part.estimator
