"""A foreign graph that is newer than our server is made to fit, or refused in words."""

import numpy as np
import onnx
import pytest
from skl2onnx import to_onnx
from sklearn.linear_model import LogisticRegression

from converters.parity.proof import prove
from converters.parity.runner import onnx_runner
from converters.sources.opening import open_source
from tollgate.errors import ConversionError, TollgateError
from tollgate.repository.models.targets import ML_DOMAIN, OURS, TARGETS


def exported(rows, path, *, ir=8, domain="", version=15):
    """Write a classifier as an exporter would, with these versions stamped on it."""
    fitted = LogisticRegression(max_iter=10_000).fit(*rows)
    model = to_onnx(fitted, rows[0][:1], target_opset=15)
    model.ir_version = ir
    opsets = {one.domain: one.version for one in model.opset_import}
    opsets[domain] = version
    del model.opset_import[:]
    for name, number in opsets.items():
        model.opset_import.append(onnx.helper.make_opsetid(name, number))
    path.write_bytes(model.SerializeToString())
    return path


def test_a_newer_file_format_is_written_as_one_that_is_read(rows, tmp_path):
    """The newest exporters stamp a format that our onnxruntime refuses unread."""
    newest = max(one.ir for one in TARGETS.values())
    assert newest > OURS.ir
    path = exported(rows, tmp_path / "model.onnx", ir=newest)
    with open_source(path) as source:
        proven = prove(source, samples=rows[0][:50], thresholds=(0.5,))
    proven.report.check()
    assert onnx.load_from_string(proven.model).ir_version == OURS.ir


@pytest.mark.parametrize(
    ("domain", "name", "newest"),
    [("", "ai.onnx", OURS.opset), (ML_DOMAIN, ML_DOMAIN, OURS.ml_opset)],
)
def test_newer_operators_are_refused_with_what_is_read(
    rows, tmp_path, domain, name, newest
):
    """The newest of the table passes, the next one is named."""
    path = exported(rows, tmp_path / "model.onnx", domain=domain, version=newest)
    with open_source(path) as source:
        assert source.predict(np.zeros((1, 15), np.float32)).shape == (1, 2)
    exported(rows, path, domain=domain, version=newest + 1)
    with pytest.raises(TollgateError) as caught, open_source(path):
        pass
    assert str(caught.value).endswith(
        f"has opset {newest + 1} of {name}; onnxruntime {OURS.onnxruntime} reads "
        f"{newest}: export it again for that"
    )


@pytest.mark.parametrize("ir", [3, 7])
def test_constants_among_the_inputs_are_no_features(tmp_path, ir):
    """Old exporters had to list them; here they stand in front of the features."""
    value, make = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    weights = np.random.default_rng(0).normal(size=(4, 2)).astype(np.float32)
    graph = onnx.helper.make_graph(
        [make("MatMul", ["x", "w"], ["m"]), make("Softmax", ["m"], ["p"], axis=1)],
        "g",
        [value("w", 1, [4, 2]), value("x", 1, ["N", 4])],
        [value("p", 1, ["N", 2])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opset = [onnx.helper.make_opsetid("", 13)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=ir)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    with open_source(path) as source:
        assert source.facts.columns == 4
        proven = prove(source, samples=None, thresholds=(0.5,))
    proven.check()
    found = onnx.load_from_string(proven.model)
    assert [one.name for one in found.graph.input] == ["features"]


def linear(path, *, last="Sigmoid", output="p"):
    """Write a graph from x [N, 4] to one column; return its weights."""
    value, make = onnx.helper.make_tensor_value_info, onnx.helper.make_node
    weights = np.random.default_rng(0).normal(size=(4, 1)).astype(np.float32)
    graph = onnx.helper.make_graph(
        [make("MatMul", ["x", "w"], ["m"]), make(last, ["m"], [output])],
        "g",
        [value("x", 1, ["N", 4])],
        [value(output, 1, ["N", 1])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )
    opset = [onnx.helper.make_opsetid("", 13)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    path.write_bytes(model.SerializeToString())
    return weights


@pytest.mark.parametrize("output", ["p", "probabilities"])
def test_one_sigmoid_is_the_probability_of_class_1(tmp_path, output):
    """Networks of other libraries end in one column; class 0 is what is left."""
    path = tmp_path / "model.onnx"
    weights = linear(path, output=output)
    with open_source(path) as source:
        assert source.facts.classes == (0, 1)
        proven = prove(source, samples=None, thresholds=(0.5,))
    proven.check()
    rows = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    expected = 1 / (1 + np.exp(-(rows.astype(np.float64) @ weights)))
    found = onnx_runner(proven.model)(rows)
    np.testing.assert_allclose(found, np.hstack([1 - expected, expected]), atol=1e-6)


def test_one_column_that_is_no_probability_is_refused(tmp_path):
    """A margin without its sigmoid would be served as a score."""
    path = tmp_path / "model.onnx"
    linear(path, last="Identity")
    with (
        pytest.raises(
            ConversionError, match=r"its one output is no probability: a row"
        ),
        open_source(path),
    ):
        pass


@pytest.mark.parametrize(("left", "refused"), [(-0.2, False), (0.0, True), (0.2, True)])
def test_a_logistic_of_weights_that_are_never_negative_is_refused(
    tmp_path, left, refused
):
    """
    onnxruntime takes such sums for probabilities, and applies no logistic to them.

    By the operator's definition the tree's second class is 1 / (1 + exp(-weight)).
    """
    node = onnx.helper.make_node(
        "TreeEnsembleClassifier",
        ["x"],
        ["label", "probabilities"],
        domain=ML_DOMAIN,
        nodes_treeids=[0, 0, 0],
        nodes_nodeids=[0, 1, 2],
        nodes_featureids=[0, 0, 0],
        nodes_values=[0.5, 0.0, 0.0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"],
        nodes_truenodeids=[1, 0, 0],
        nodes_falsenodeids=[2, 0, 0],
        class_treeids=[0, 0],
        class_nodeids=[1, 2],
        class_ids=[0, 0],
        class_weights=[left, 1.5],
        classlabels_int64s=[0, 1],
        post_transform="LOGISTIC",
    )
    kind = onnx.TensorProto
    graph = onnx.helper.make_graph(
        [node],
        "tree",
        [onnx.helper.make_tensor_value_info("x", kind.FLOAT, [None, 1])],
        [
            onnx.helper.make_tensor_value_info("label", kind.INT64, [None]),
            onnx.helper.make_tensor_value_info("probabilities", kind.FLOAT, [None, 2]),
        ],
    )
    opsets = [onnx.helper.make_opsetid("", 15), onnx.helper.make_opsetid(ML_DOMAIN, 1)]
    path = tmp_path / "tree.onnx"
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    path.write_bytes(model.SerializeToString())
    if refused:
        with (
            pytest.raises(ConversionError, match="takes for probabilities"),
            open_source(path),
        ):
            pass
        return
    given = np.array([[0.0], [1.0]], np.float32)
    with open_source(path) as source:
        proven = prove(source, samples=None, thresholds=(0.5,))
        found = onnx_runner(proven.model).batched(given, size=2)
    wanted = 1 / (1 + np.exp(-np.array([left, 1.5])))
    np.testing.assert_allclose(found[:, 1], wanted, atol=1e-6)
