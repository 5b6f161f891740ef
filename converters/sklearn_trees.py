"""
Read the trees of scikit-learn models, and put right what skl2onnx leaves out of them.

Lost on the way are where a missing value goes (decision trees and forests), that a
threshold is compared in float64 (histogram boosting), and that forests take their mean
in float64: in float32 a sure answer sums up to 1.0000001, and 7 of 20 trees to
something else than 0.35.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
)
from sklearn.ensemble._forest import BaseForest
from sklearn.tree import BaseDecisionTree

from converters.model import F32
from converters.probes import Tree
from tollgate.errors import ConversionError
from tollgate.repository.targets import ML_DOMAIN

ML_OPSET_OF_DOUBLES = 3


class Nodes:
    """
    One tree as scikit-learn holds it; leaves have `left` -1.

    Args:
        left: Child when the feature is at most the threshold; [nodes].
        right: Child otherwise.
        feature: Column that a node tests.
        threshold: float64 [nodes].
        missing_left: A missing value goes left.
        share: What each node adds to the probabilities of a forest; float64
            [nodes, K], None for other models.
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
    ) -> None:
        self.share = share
        self.left = np.asarray(left, dtype=np.int64)
        self.right = np.asarray(right, dtype=np.int64)
        self.feature = np.asarray(feature, dtype=np.int64)
        self.threshold = np.asarray(threshold, dtype=np.float64)
        self.missing_left = np.asarray(missing_left, dtype=bool)

    @property
    def split(self) -> Any:
        """Which nodes are no leaves; bool [nodes]."""
        return self.left >= 0


def ensembles(estimator: object) -> Iterator[list[Nodes]]:
    """
    Find the trees inside a fitted model, ensemble by ensemble.

    Raises:
        ConversionError: Histogram boosting splits by category.
    """
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
        for child in _children(estimator):
            yield from ensembles(child)


def round_histograms(estimator: object) -> None:
    """Round the thresholds of histogram boosting down to float32, in place."""
    if isinstance(estimator, HistGradientBoostingClassifier):
        for of_round in estimator._predictors if _is_fitted(estimator) else ():
            for tree in of_round:
                # skl2onnx would round to nearest, and fails where "all but missing"
                # is written as 1e300.
                nodes = tree.nodes.copy()
                nodes["num_threshold"] = round_down(nodes["num_threshold"])
                tree.nodes = nodes
    elif not isinstance(estimator, (BaseDecisionTree, BaseForest)):
        for child in _children(estimator):
            round_histograms(child)


def _is_fitted(estimator: object) -> bool:
    return hasattr(estimator, "steps") or any(
        name.endswith("_") for name in vars(estimator)
    )


def _children(estimator: object) -> Iterator[object]:
    """Yield the fitted models that another is made of."""
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
    )


def round_down(threshold: Any) -> F32:
    """Return the largest float32 numbers that are not above; [N]."""
    with np.errstate(over="ignore"):
        nearest = np.asarray(threshold).astype(np.float32)
        below = np.nextafter(nearest, np.float32(-np.inf))
    found: F32 = np.where(nearest > threshold, below, nearest).astype(np.float32)
    return found


def probe_trees(trees: list[Nodes]) -> list[Tree]:
    """Return the trees as probes read them."""
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


def repair(model: onnx.ModelProto, estimator: object) -> None:
    """Write thresholds and ways of missing values into the trees of a graph."""
    waiting = list(ensembles(estimator))
    for node in list(model.graph.node):
        if not node.op_type.startswith("TreeEnsemble"):
            continue
        found = {one.name: one for one in node.attribute}
        tree = np.asarray(found["nodes_treeids"].ints)
        at = np.asarray(found["nodes_nodeids"].ints)
        of_column = np.asarray(found["nodes_featureids"].ints)
        for trees in waiting:
            if _same(trees, tree=tree, at=at, feature=of_column):
                break
        else:
            continue  # not one of ours to repair; parity decides
        waiting.remove(trees)
        size = np.cumsum([0] + [len(one.left) for one in trees])[tree] + at
        split = np.concatenate([one.split for one in trees])[size]
        value = round_down(np.concatenate([one.threshold for one in trees])[size])
        ways = np.concatenate([one.missing_left for one in trees])[size] & split
        changed = {
            "nodes_values": np.where(split, value, np.float32(0)).tolist(),
            "nodes_missing_value_tracks_true": ways.astype(int).tolist(),
        }
        kept = [one for name, one in found.items() if name not in changed]
        del node.attribute[:]
        node.attribute.extend(kept)
        for name, values in changed.items():
            node.attribute.append(helper.make_attribute(name, values))
        if trees[0].share is not None and node.op_type == "TreeEnsembleClassifier":
            _in_double(model, node, trees=trees)


def _in_double(
    model: onnx.ModelProto, node: onnx.NodeProto, *, trees: list[Nodes]
) -> None:
    """Let a forest sum in float64: double features, thresholds and weights."""
    found = {
        one.name: helper.get_attribute_value(one)
        for one in node.attribute
        if one.name not in ("nodes_values", "class_weights", "nodes_hitrates")
    }
    values = next(one.floats for one in node.attribute if one.name == "nodes_values")
    # Of two classes skl2onnx writes the second alone, under the number 0.
    second = trees[0].share.shape[1] == 2 and set(found["class_ids"]) == {0}
    weights = [
        trees[tree].share[at, 1 if second else label]
        for tree, at, label in zip(
            found["class_treeids"],
            found["class_nodeids"],
            found["class_ids"],
            strict=True,
        )
    ]
    for name, numbers in (("nodes_values", values), ("class_weights", weights)):
        array = np.asarray(numbers, dtype=np.float64)
        found[f"{name}_as_tensor"] = numpy_helper.from_array(array, name)
    del node.attribute[:]
    node.attribute.extend(
        helper.make_attribute(name, value) for name, value in found.items()
    )
    wide = f"{node.output[1]}_features"
    at = list(model.graph.node).index(node)
    cast = helper.make_node("Cast", [node.input[0]], [wide], to=TensorProto.DOUBLE)
    node.input[0] = wide
    # 1 - 1.0000000000000002 is no probability.
    ends = [f"{wide}_{name}" for name in ("least", "most")]
    for name, value in zip(ends, (0, 1), strict=True):
        constant = numpy_helper.from_array(np.asarray(value, dtype=np.float32), name)
        model.graph.initializer.append(constant)
    unclipped = f"{wide}_unclipped"
    clip = helper.make_node("Clip", [unclipped, *ends], [node.output[1]])
    node.output[1] = unclipped
    model.graph.node.insert(at + 1, clip)
    model.graph.node.insert(at, cast)
    for opset in model.opset_import:
        if opset.domain == ML_DOMAIN:
            opset.version = max(opset.version, ML_OPSET_OF_DOUBLES)


def _same(trees: list[Nodes], *, tree: Any, at: Any, feature: Any) -> bool:
    """Tell whether a node's trees have the shape and columns of these."""
    sizes = [len(one.left) for one in trees]
    if len(tree) != sum(sizes) or tree.max() >= len(sizes):
        return False
    if (np.bincount(tree, minlength=len(sizes)) != sizes).any():
        return False
    place = np.cumsum([0, *sizes])[tree] + at
    split = np.concatenate([one.split for one in trees])[place]
    column = np.concatenate([one.feature for one in trees])[place]
    return bool((np.where(split, column, 0) == np.where(split, feature, 0)).all())
