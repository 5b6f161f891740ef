"""Two-class trees give 1 - p and p, without an operator that makes up the first."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from converters.onnx.two_classes import write_first_class
from converters.parity.runner import onnx_runner


def classifier(weights, *, after="NONE", label=False):
    """Write one tree with a split at 0.5: weight of class 1 left, and right."""
    node = helper.make_node(
        "TreeEnsembleClassifier",
        ["features"],
        ["label", "probabilities"],
        domain="ai.onnx.ml",
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_values=[0.5, 0.0, 0.0],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        class_treeids=[0, 0],
        class_nodeids=[1, 2],
        class_ids=[0, 0],
        class_weights=weights,
        classlabels_int64s=[0, 1],
        post_transform=after,
    )
    value = helper.make_tensor_value_info
    outputs = [value("probabilities", TensorProto.FLOAT, ["N", 2])]
    if label:
        outputs.append(value("label", TensorProto.INT64, ["N"]))
    graph = helper.make_graph(
        [node], "tree", [value("features", TensorProto.FLOAT, ["N", 1])], outputs
    )
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("ai.onnx.ml", 1)]
    return helper.make_model(graph, ir_version=8, opset_imports=opsets)


def test_the_first_class_is_a_step_of_the_graph():
    """The leaf's weight is P(1); P(0) is what remains."""
    model = classifier([0.25, 1.0])
    write_first_class(model)
    onnx.checker.check_model(model)
    kinds = [node.op_type for node in model.graph.node]
    assert kinds[1:] == ["TreeEnsembleRegressor", "Sub", "Concat"]
    found = onnx_runner(model.SerializeToString())(np.float32([[0.5], [0.6]]))
    assert found.tolist() == [[0.75, 0.25], [0.0, 1.0]]


@pytest.mark.parametrize(
    ("weights", "after"), [([-0.25, 1.0], "NONE"), ([0.25, 1.0], "LOGISTIC")]
)
def test_other_classifiers_stay_as_they_are(weights, after):
    """Margins are no probabilities: their first class is not 1 - p."""
    model = classifier(weights, after=after)
    before = model.SerializeToString(deterministic=True)
    write_first_class(model)
    assert model.SerializeToString(deterministic=True) == before


def test_a_label_that_is_needed_stays():
    """The classifier goes on giving it."""
    from onnx.reference import ReferenceEvaluator

    model = classifier([0.25, 1.0], label=True)
    write_first_class(model)
    rows = np.float32([[0.5], [0.6]])
    found = ReferenceEvaluator(model).run(
        ["label", "probabilities"], {"features": rows}
    )
    assert found[0].tolist() == [0, 1]
    assert found[1].tolist() == [[0.75, 0.25], [0.0, 1.0]]
