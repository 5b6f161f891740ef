"""
Rewrite two-class tree classifiers so that every onnxruntime gives the same output.

For two classes exporters write only the second one, and the operator derives the first:
1 - p when no weight is negative, as in forests and decision trees. onnxruntime 1.26 and
1.27 return -p instead (onnxruntime issue 28557). A regressor gives the same sum, and
the graph computes 1 - p in a separate node.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

_SIDES = ("treeids", "nodeids", "ids", "weights", "weights_as_tensor")


def write_first_class(model: onnx.ModelProto) -> None:
    """Replace, in place, the classifiers that derive their first class as 1 - p."""
    for node in list(model.graph.node):
        if node.op_type == "TreeEnsembleClassifier" and _makes_up_first(node):
            _replace(model.graph, node)


def _makes_up_first(node: onnx.NodeProto) -> bool:
    """Return whether a node has the weights of one class only, and none negative."""
    found = {one.name: one for one in node.attribute}
    classes = [
        len(found[name].ints or found[name].strings)
        for name in ("classlabels_int64s", "classlabels_strings")
        if name in found
    ]
    after = found["post_transform"].s if "post_transform" in found else b"NONE"
    based = any(name.startswith("base_values") for name in found)
    if classes != [2] or after != b"NONE" or based or len(node.output) < 2:
        return False
    if "class_weights_as_tensor" in found:
        weights = numpy_helper.to_array(found["class_weights_as_tensor"].t)
    else:
        weights = np.asarray(found["class_weights"].floats)
    return len(set(found["class_ids"].ints)) == 1 and bool((weights >= 0).all())


def _replace(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """Add a regressor that returns p; the classifier then returns only its label."""
    probabilities = node.output[1]
    second, first, one = (
        f"{probabilities}_{part}" for part in ("second", "first", "one")
    )
    found = {
        one.name: helper.get_attribute_value(one)
        for one in node.attribute
        if one.name.startswith("nodes_") or one.name[6:] in _SIDES
    }
    trees = {
        name.replace("class_", "target_"): value
        for name, value in found.items()
        if name != "class_ids"
    }
    made = [
        helper.make_node(
            "TreeEnsembleRegressor",
            [node.input[0]],
            [second],
            domain=node.domain,
            n_targets=1,
            target_ids=[0] * len(found["class_ids"]),
            **trees,
        ),
        helper.make_node("Sub", [one, second], [first]),
        helper.make_node("Concat", [first, second], [probabilities], axis=1),
    ]
    graph.initializer.append(numpy_helper.from_array(np.ones(1, dtype=np.float32), one))
    at = list(graph.node).index(node) + 1
    node.output[1] = f"{probabilities}_unused"
    for position, new in enumerate(made):
        graph.node.insert(at + position, new)
