"""
Restore what skl2onnx leaves out of the trees of scikit-learn models.

skl2onnx loses three things: the direction of a missing value (decision trees and
forests), the float64 comparison with a threshold (histogram boosting), and the float64
mean of forests. In float32, a certain prediction sums to 1.0000001, and 7 of 20 trees
to a value other than 0.35.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from converters.onnx.graph import ML_OPSET_OF_DOUBLES, doubled
from converters.trees.sklearn_trees import ensembles
from converters.trees.tree_ensemble import Tree, round_down
from tollgate.repository.models.targets import ML_DOMAIN

_NOTHING, _BELOW_ZERO = 1e-12, -1e-30  # too small to show in a margin


def repair(
    model: onnx.ModelProto, estimator: object, *, exact: object | None = None
) -> None:
    """
    Write thresholds and the direction of missing values into a graph's trees.

    Args:
        model: Graph of the estimator.
        estimator: Estimator with thresholds as they were converted.
        exact: The same estimator with its own thresholds, if the features are
            float64; None if they are float32.
    """
    _let_margins_be_margins(model)
    known = list(ensembles(estimator))
    wide = [] if exact is None else list(ensembles(exact))
    for node in list(model.graph.node):
        if not node.op_type.startswith("TreeEnsemble"):
            continue
        found = {one.name: one for one in node.attribute}
        tree = np.asarray(found["nodes_treeids"].ints)
        at = np.asarray(found["nodes_nodeids"].ints)
        of_column = np.asarray(found["nodes_featureids"].ints)
        limit = np.asarray(found["nodes_values"].floats)
        matches = [
            place
            for place, one in enumerate(known)
            if _same(one.trees, tree=tree, at=at, feature=of_column, limit=limit)
        ]
        if not matches:
            continue  # unknown trees; the proof decides
        place = matches[0]
        ensemble = known.pop(place)
        trees = ensemble.trees
        own = wide.pop(place).trees if wide else None
        size = np.cumsum([0] + [len(one.left) for one in trees])[tree] + at
        split = np.concatenate([one.is_split for one in trees])[size]
        value = round_down(
            np.concatenate([one.threshold for one in own or trees])[size]
        )
        missing_left = np.concatenate([one.missing_left for one in trees])[size] & split
        changed = {
            "nodes_values": np.where(split, value, np.float32(0)).tolist(),
            "nodes_missing_value_tracks_true": missing_left.astype(int).tolist(),
        }
        unchanged = [one for name, one in found.items() if name not in changed]
        del node.attribute[:]
        node.attribute.extend(unchanged)
        for name, values in changed.items():
            node.attribute.append(helper.make_attribute(name, values))
        if own is not None and own[0].wide:
            limits = np.concatenate([one.threshold for one in own])[size]
            _compare_in_double(model, node, limits=np.where(split, limits, 0.0))
            continue
        if own is not None:
            _compare_in_single(model, node)
        if ensemble.averaged and node.op_type == "TreeEnsembleClassifier":
            _in_double(model, node, trees=trees)


def _compare_in_double(
    model: onnx.ModelProto, node: onnx.NodeProto, *, limits: Any
) -> None:
    """Make trees of float64 features compare with float64 thresholds."""
    found = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    changed = doubled(found | {"nodes_values": limits})
    del node.attribute[:]
    node.attribute.extend(
        helper.make_attribute(name, value) for name, value in changed.items()
    )
    _raise_opset(model)


def _compare_in_single(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Round float64 features first, as scikit-learn's own trees do."""
    single = f"{node.output[0]}_single"
    at = list(model.graph.node).index(node)
    cast = helper.make_node("Cast", [node.input[0]], [single], to=TensorProto.FLOAT)
    node.input[0] = single
    model.graph.node.insert(at, cast)


def _let_margins_be_margins(model: onnx.ModelProto) -> None:
    """
    Stop onnxruntime from treating the margin of trees without splits as a probability.

    It does so if no leaf weight is negative: trees that found nothing to split, from
    few rows, have one leaf each, of about 0.
    """
    for node in model.graph.node:
        found = {one.name: one for one in node.attribute}
        weights = found.get("class_weights")
        if weights is None or found["post_transform"].s != b"LOGISTIC":
            continue
        values = list(weights.floats)
        if 0 <= min(values) < _NOTHING:
            del weights.floats[:]
            weights.floats.extend(
                _BELOW_ZERO if value < _NOTHING else value for value in values
            )


def _in_double(
    model: onnx.ModelProto, node: onnx.NodeProto, *, trees: list[Tree]
) -> None:
    """Make a forest sum in float64: double features, thresholds and weights."""
    found = {
        one.name: helper.get_attribute_value(one)
        for one in node.attribute
        if one.name not in ("nodes_values", "class_weights", "nodes_hitrates")
    }
    values = next(one.floats for one in node.attribute if one.name == "nodes_values")
    # For two classes skl2onnx writes only the second, with the number 0.
    second = trees[0].value.shape[1] == 2 and set(found["class_ids"]) == {0}
    weights = [
        trees[tree].value[at, 1 if second else label] / len(trees)
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
    # Clip, because 1 - 1.0000000000000002 is no probability.
    ends = [f"{wide}_{name}" for name in ("least", "most")]
    for name, value in zip(ends, (0, 1), strict=True):
        constant = numpy_helper.from_array(np.asarray(value, dtype=np.float32), name)
        model.graph.initializer.append(constant)
    unclipped = f"{wide}_unclipped"
    clip = helper.make_node("Clip", [unclipped, *ends], [node.output[1]])
    node.output[1] = unclipped
    model.graph.node.insert(at + 1, clip)
    model.graph.node.insert(at, cast)
    _raise_opset(model)


def _raise_opset(model: onnx.ModelProto) -> None:
    for opset in model.opset_import:
        if opset.domain == ML_DOMAIN:
            opset.version = max(opset.version, ML_OPSET_OF_DOUBLES)


def _same(trees: list[Tree], *, tree: Any, at: Any, feature: Any, limit: Any) -> bool:
    """
    Return whether a node's trees have the shape, columns and thresholds of these.

    Boosted stumps differ only in their thresholds.
    """
    sizes = [len(one.left) for one in trees]
    if len(tree) != sum(sizes) or tree.max() >= len(sizes):
        return False
    if (np.bincount(tree, minlength=len(sizes)) != sizes).any():
        return False
    place = np.cumsum([0, *sizes])[tree] + at
    split = np.concatenate([one.is_split for one in trees])[place]
    column = np.concatenate([one.feature for one in trees])[place]
    if (np.where(split, column, 0) != np.where(split, feature, 0)).any():
        return False
    value = np.concatenate([one.threshold for one in trees])[place][split]
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = value.astype(np.float32)
        near = np.isclose(limit[split], rounded, rtol=1e-6, atol=0) | (
            limit[split] == rounded
        )
    return bool(near.all())
