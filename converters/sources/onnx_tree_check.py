"""Check that the lists of an ONNX tree operator form trees."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from converters.sources.xgboost_fields import BadField

_NODE = ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids")
_MODES = {b"BRANCH_LEQ", b"BRANCH_LT", b"BRANCH_GTE", b"BRANCH_GT", b"BRANCH_EQ"}
_MODES |= {b"BRANCH_NEQ", b"LEAF"}


def check_trees(node: onnx.NodeProto, path: str) -> None:
    """Raise BadField if a list contradicts another, or a number is not finite."""
    found = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    if node.op_type == "TreeEnsemble":
        raise BadField(
            path, "is the tree operator of ai.onnx.ml 5; export it for version 3"
        )
    for name in found:
        if name.endswith("_as_tensor"):
            raise BadField(
                f"{path}.{name}",
                "holds float64, and features are float32: export it "
                "for float32 features",
            )
    size = len(found.get("nodes_nodeids", ()))
    lists = {name: list(found.get(f"nodes_{name}", ())) for name in _NODE}
    lists["falsenodeids"] = list(found.get("nodes_falsenodeids", ()))
    for name in ("missing_value_tracks_true", "hitrates"):
        if f"nodes_{name}" in found:
            lists[name] = list(found[f"nodes_{name}"])
    for name, values in lists.items():
        if len(values) != size or not size:
            raise BadField(
                f"{path}.nodes_{name}", f"has {len(values)} entries, nodeids {size}"
            )
    _check_numbers(lists, path)
    leaves = _check_shape(lists, path)
    _check_weights(node, found, leaves=leaves, path=path)


def _check_numbers(lists: dict[str, list[Any]], path: str) -> None:
    for name, bad in (
        ("modes", [one not in _MODES for one in lists["modes"]]),
        ("values", np.isnan(lists["values"]).tolist()),
        ("featureids", [one < 0 for one in lists["featureids"]]),
        (
            "missing_value_tracks_true",
            [one not in (0, 1) for one in lists.get("missing_value_tracks_true", ())],
        ),
    ):
        if any(bad):
            at = bad.index(True)
            raise BadField(f"{path}.nodes_{name}[{at}]", f"is {lists[name][at]!r}")


def _check_shape(lists: dict[str, list[Any]], path: str) -> set[tuple[int, int]]:
    """Raise unless each node except a tree's first has exactly one parent."""
    keys = list(zip(lists["treeids"], lists["nodeids"], strict=True))
    place = {key: at for at, key in enumerate(keys)}
    if len(place) != len(keys):
        raise BadField(f"{path}.nodes_nodeids", "has a node twice")
    first: dict[int, int] = {}
    for at, (tree, _) in enumerate(keys):
        if tree in first and keys[at - 1][0] != tree:
            raise BadField(f"{path}.nodes_treeids[{at}]", f"comes back to tree {tree}")
        first.setdefault(tree, at)
    leaves, seen = set(), 0
    for tree, root in first.items():
        pending, own = [root], set()
        while pending:
            at = pending.pop()
            if at in own:
                raise BadField(
                    f"{path}.nodes_nodeids[{at}]",
                    "is reached by two ways",
                )
            own.add(at)
            if lists["modes"][at] == b"LEAF":
                leaves.add(keys[at])
                continue
            for side in ("truenodeids", "falsenodeids"):
                child = place.get((tree, lists[side][at]))
                if child is None:
                    raise BadField(
                        f"{path}.nodes_{side}[{at}]",
                        f"is {lists[side][at]}, no node of tree {tree}",
                    )
                pending.append(child)
        seen += len(own)
    if seen != len(keys):
        raise BadField(f"{path}.nodes_nodeids", "has nodes that no row reaches")
    return leaves


def _check_weights(
    node: onnx.NodeProto,
    found: dict[str, Any],
    *,
    leaves: set[tuple[int, int]],
    path: str,
) -> None:
    side = "class" if node.op_type == "TreeEnsembleClassifier" else "target"
    parts = {
        name: list(found.get(f"{side}_{name}", ()))
        for name in ("treeids", "nodeids", "ids", "weights")
    }
    if len({len(one) for one in parts.values()}) > 1:
        sizes = {name: len(one) for name, one in parts.items()}
        raise BadField(f"{path}.{side}_weights", f"lists differ in length: {sizes}")
    if side == "class":
        outputs = len(
            found.get("classlabels_int64s") or found.get("classlabels_strings") or ()
        )
    else:
        outputs = int(found.get("n_targets", 1))
    given: set[tuple[int, int, int]] = set()
    for at, (tree, leaf, output, weight) in enumerate(
        zip(*parts.values(), strict=True)
    ):
        if (tree, leaf) not in leaves:
            raise BadField(f"{path}.{side}_nodeids[{at}]", f"is {leaf}, no leaf")
        if not 0 <= output < outputs:
            raise BadField(f"{path}.{side}_ids[{at}]", f"is {output} of {outputs}")
        if not np.isfinite(weight):
            raise BadField(f"{path}.{side}_weights[{at}]", f"is {weight}")
        if (tree, leaf, output) in given:
            raise BadField(f"{path}.{side}_ids[{at}]", "stands twice for its leaf")
        given.add((tree, leaf, output))
    base = list(found.get("base_values", ()))
    if len(base) not in (0, outputs, 1 if outputs == 2 else 0):
        raise BadField(f"{path}.base_values", f"has {len(base)} for {outputs}")
    if not np.isfinite(base).all():
        raise BadField(f"{path}.base_values", f"is {base}")
    _check_scores(node, found, outputs=outputs, path=path)


def _check_scores(
    node: onnx.NodeProto, found: dict[str, Any], *, outputs: int, path: str
) -> None:
    """
    Refuse attributes for which onnxruntime deviates from the operator's definition.
    """
    after = found.get("post_transform", b"NONE")
    if after == b"LOGISTIC" and set(found["nodes_modes"]) == {b"LEAF"}:
        raise BadField(
            f"{path}.post_transform",
            "is LOGISTIC on single leaves, which onnxruntime leaves out (issue 27533): "
            "export the margin and put a Sigmoid behind it",
        )
    weights = found.get("class_weights", ())
    alone = outputs == 2 and len(set(found.get("class_ids", ()))) == 1
    if after == b"LOGISTIC" and alone and min(weights, default=0) >= 0:
        raise BadField(
            f"{path}.post_transform",
            "is LOGISTIC of one class whose weights are never negative, which "
            "onnxruntime takes for probabilities: export the margin and put a Sigmoid "
            "behind it",
        )
