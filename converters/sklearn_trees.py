"""Read the trees of fitted scikit-learn models, and prepare copies for skl2onnx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
)
from sklearn.ensemble._forest import BaseForest
from sklearn.tree import BaseDecisionTree

from converters.model import F32
from converters.probes import Tree
from tollgate.errors import ConversionError


class Nodes:
    """
    One tree as scikit-learn stores it; leaves have `left` -1.

    Args:
        left: Child if the feature is at most the threshold; [nodes].
        right: Child otherwise.
        feature: Column that a node tests.
        threshold: float64 [nodes].
        missing_left: True if a missing value goes left.
        share: Contribution of each node to a forest's probabilities; float64 [nodes,
            K], None for other models.
        histogram: True if the tree is of histogram boosting, which compares float64
            numbers; other trees round them to float32 first.
    """

    def __init__(
        self,
        left: Any,
        *,
        right: Any,
        feature: Any,
        threshold: Any,
        missing_left: Any,
        share: Any = None,
        histogram: bool = False,
    ) -> None:
        self.share = share
        self.histogram = histogram
        self.left = np.asarray(left, dtype=np.int64)
        self.right = np.asarray(right, dtype=np.int64)
        self.feature = np.asarray(feature, dtype=np.int64)
        self.threshold = np.asarray(threshold, dtype=np.float64)
        self.missing_left = np.asarray(missing_left, dtype=bool)

    @property
    def split(self) -> Any:
        """Return which nodes are no leaves; bool [nodes]."""
        return self.left >= 0


def ensembles(estimator: object) -> Iterator[list[Nodes]]:
    """Yield the trees inside a fitted model, ensemble by ensemble."""
    if not _is_fitted(estimator):
        return
    if isinstance(estimator, BaseDecisionTree):
        yield [_of_tree(estimator.tree_)]
    elif isinstance(estimator, BaseForest):
        trees = [one.tree_ for one in estimator.estimators_]
        yield [_of_tree(one, share=one.value[:, 0] / len(trees)) for one in trees]
    elif isinstance(estimator, GradientBoostingClassifier):
        yield [_of_tree(one.tree_) for one in estimator.estimators_.ravel()]
    elif isinstance(estimator, HistGradientBoostingClassifier):
        if estimator.is_categorical_ is not None and estimator.is_categorical_.any():
            raise ConversionError(
                "HistGradientBoostingClassifier: categorical_features are not "
                "converted; encode them (OneHotEncoder) in front of it"
            )
        yield [
            _of_histogram(tree.nodes)
            for of_round in estimator._predictors
            for tree in of_round
        ]
    else:
        for child in children(estimator):
            yield from ensembles(child)


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


def _of_tree(tree: Any, *, share: Any = None) -> Nodes:
    return Nodes(
        tree.children_left,
        right=tree.children_right,
        feature=tree.feature,
        threshold=tree.threshold,
        missing_left=tree.missing_go_to_left,
        share=share,
    )


def _of_histogram(nodes: Any) -> Nodes:
    leaf = nodes["is_leaf"].astype(bool)
    return Nodes(
        np.where(leaf, -1, nodes["left"].astype(np.int64)),
        right=nodes["right"].astype(np.int64),
        feature=nodes["feature_idx"],
        threshold=nodes["num_threshold"],
        missing_left=nodes["missing_go_to_left"],
        histogram=True,
    )


def round_down(threshold: Any) -> F32:
    """Return the largest float32 numbers not above the given ones; [N]."""
    with np.errstate(over="ignore"):
        nearest = np.asarray(threshold).astype(np.float32)
        below = np.nextafter(nearest, np.float32(-np.inf))
    found: F32 = np.where(nearest > threshold, below, nearest).astype(np.float32)
    return found


def probe_trees(trees: list[Nodes]) -> list[Tree]:
    """Convert trees to the form that probes read."""
    made = []
    for tree in trees:
        with np.errstate(over="ignore"):
            above = np.nextafter(round_down(tree.threshold), np.float32(np.inf))
        made.append(
            Tree(
                left=tree.left.tolist(),
                right=tree.right.tolist(),
                feature=tree.feature.tolist(),
                threshold=above,
                inclusive=True,
            )
        )
    return made
