"""
Read an ONNX file field by field, before onnxruntime reads it.

protobuf silently passes on fields that it does not know, and onnxruntime trusts the
lists of a tree operator. This module checks both, and requires the class labels to be
in the order in which libraries sort them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import helper

from converters.sources.files.format_fields import ONNX
from converters.sources.files.xgboost_file import BadField
from tollgate.errors import ConversionError
from tollgate.repository.models.targets import ML_DOMAIN

# Check that the lists of an ONNX tree operator form trees.

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
    """Refuse attributes with which onnxruntime deviates from the definition."""
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


_LABELS = ("classlabels_int64s", "classlabels_strings", "classlabels_ints")
# Operators that keep the order of columns, between a classifier and its ZipMap.
_SAME_ORDER = ("Normalizer", "Cast", "Identity")
_USES = {one.path: one for one in ONNX}


def check_onnx(model: onnx.ModelProto) -> tuple[int | str, ...] | None:
    """
    Check a model for unknown fields and contradictions.

    Returns:
        The class labels of its probabilities, if it names them.

    Raises:
        ConversionError: It has an unknown field, operator or attribute, or contradicts
            itself; the error names the place.
    """
    try:
        for path, problem in _unread(model, ""):
            raise BadField(path, problem)
        _check_versions(model)
        for path, node in _nodes(model.graph, "graph"):
            _check_attributes(model, node, path)
            if node.op_type.startswith("TreeEnsemble"):
                check_trees(node, path)
            elif node.op_type == "LinearClassifier":
                _check_linear(node, path)
        return _labels(model.graph)
    except BadField as error:
        raise ConversionError(str(error)) from error


def _unread(message: Message, path: str) -> Iterator[tuple[str, str]]:
    """Yield the fields that are unknown or refused, with the reason."""
    for found in UnknownFieldSet(message):
        yield (
            path or "the file",
            f"has field {found.field_number} of {type(message).__name__}, which onnx "
            f"{onnx.__version__} does not know: written by a newer exporter; export "
            "it again for an older file format",
        )
    for field, value in message.ListFields():
        at = f"{path}.{field.name}" if path else field.name
        use = _USES.get(f"{type(message).__name__}.{field.name}")
        if use is None or use.use == "refused":
            why = "is a field that this version does not know" if use is None else ""
            yield at, why or use.why  # type: ignore[union-attr]
        if field.message_type is None:
            continue
        several = value if field.is_repeated else [value]
        for number, one in enumerate(several):
            yield from _unread(one, f"{at}[{number}]" if field.is_repeated else at)


def _check_versions(model: onnx.ModelProto) -> None:
    seen: dict[str, int] = {}
    for one in model.opset_import:
        domain = "" if one.domain == "ai.onnx" else one.domain
        if seen.setdefault(domain, one.version) != one.version:
            raise BadField(
                "opset_import",
                f"names {domain or 'ai.onnx'} as {seen[domain]} and {one.version}",
            )


def _nodes(graph: onnx.GraphProto, path: str) -> Iterator[tuple[str, onnx.NodeProto]]:
    for number, node in enumerate(graph.node):
        at = f"{path}.node[{number}] ({node.op_type})"
        yield at, node
        for attribute in node.attribute:
            for inner in (*attribute.graphs, attribute.g):
                yield from _nodes(inner, f"{at}.{attribute.name}")


def _check_attributes(model: onnx.ModelProto, node: onnx.NodeProto, path: str) -> None:
    """Raise unless the operator exists and has each attribute at most once."""
    domain = "" if node.domain == "ai.onnx" else node.domain
    if any(
        (one.domain, one.name) == (node.domain, node.op_type) for one in model.functions
    ):
        return
    version = next(
        (
            one.version
            for one in model.opset_import
            if ("" if one.domain == "ai.onnx" else one.domain) == domain
        ),
        None,
    )
    if version is None:
        raise BadField(path, f"is of {domain or 'ai.onnx'}, which opset_import lacks")
    try:
        schema = onnx.defs.get_schema(node.op_type, version, domain)
    except onnx.defs.SchemaError as error:
        raise BadField(
            path, f"is no operator of opset {version} of {domain or 'ai.onnx'}"
        ) from error
    names = [one.name for one in node.attribute]
    for name in names:
        if name not in schema.attributes:
            raise BadField(path, f"has the attribute {name!r}, which it does not know")
        if names.count(name) > 1:
            raise BadField(path, f"has the attribute {name!r} twice")


def _check_linear(node: onnx.NodeProto, path: str) -> None:
    """Raise unless each class has a row of coefficients, an intercept and a label."""
    found = {one.name: helper.get_attribute_value(one) for one in node.attribute}
    factors = list(found.get("coefficients", ()))
    shift = list(found.get("intercepts", ()))
    labels = len(_own_labels(node) or ())
    if len(shift) not in (labels, 1 if labels == 2 else labels) or not shift:
        raise BadField(f"{path}.intercepts", f"has {len(shift)} for {labels} classes")
    if not factors or len(factors) % len(shift):
        raise BadField(
            f"{path}.coefficients", f"has {len(factors)} for {len(shift)} intercepts"
        )
    for name, values in (("coefficients", factors), ("intercepts", shift)):
        if not np.isfinite(values).all():
            raise BadField(f"{path}.{name}", "has a number that is not finite")


def _labels(graph: onnx.GraphProto) -> tuple[int | str, ...] | None:
    """Read the class labels of the probabilities; they must be sorted."""
    made_by = {name: node for node in graph.node for name in node.output}
    listed = [(node, _own_labels(node)) for node in graph.node]
    for node, labels in listed:
        if labels is not None and list(labels) != sorted(set(labels), key=_order):
            raise BadField(
                f"{node.op_type}.classlabels",
                f"are {labels}, not sorted: libraries sort classes, and the score of a "
                "product is the probability of the second",
            )
    for node, labels in listed:
        if node.op_type != "ZipMap" or labels is None:
            continue
        above = made_by.get(node.input[0])
        while above is not None and above.op_type in _SAME_ORDER:
            above = made_by.get(above.input[0])
        own = None if above is None else _own_labels(above)
        if own is not None and own != labels:
            raise BadField(
                "ZipMap.classlabels", f"are {labels}, the classifier's {own}"
            )
    last = [labels for node, labels in listed if labels is not None]
    return last[-1] if last else None


def _own_labels(node: onnx.NodeProto) -> tuple[int | str, ...] | None:
    for attribute in node.attribute:
        if attribute.name in _LABELS and node.domain == ML_DOMAIN:
            values = helper.get_attribute_value(attribute)
            return tuple(
                one.decode(errors="replace") if isinstance(one, bytes) else int(one)
                for one in values
            )
    return None


def _order(label: Any) -> Any:
    return np.asarray(label).item()
