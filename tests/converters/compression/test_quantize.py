"""An int8 model is near the one it was made from, and says how near."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from converters.compression.compression_cost import Judge, require
from converters.compression.quantize import int8, join_sums, plain_layers, quantize
from converters.onnx.graph import finish
from converters.parity.runner import onnx_runner
from converters.sources.worker import model_of
from tollgate.errors import ConversionError, InputError, TradeError
from tollgate.repository.models.artifact_file import Gate
from tollgate.schema import FEATURES, PROBABILITIES

HOW = ("dynamic", "static")


@pytest.fixture(scope="module")
def data():
    """Rows, labels of two classes, and of three."""
    random = np.random.default_rng(0)
    rows = (random.normal(size=(2000, 6)) * [1, 1, 1, 5, 20, 100]).astype(np.float32)
    margin = rows[:, 0] + rows[:, 1] * rows[:, 2] + random.normal(size=len(rows)) / 2
    label = (margin > 0.5).astype(int)
    return rows, label, label + (rows[:, 3] > 2)


@pytest.fixture(scope="module")
def network(data):
    """A pipeline with a network of 64 and 32 units."""
    layers = MLPClassifier((64, 32), random_state=0, early_stopping=True)
    return make_pipeline(StandardScaler(), layers).fit(data[0], data[1])


def kinds(model):
    """Name the operators of a graph."""
    return [node.op_type for node in onnx.load_from_string(model).graph.node]


@pytest.mark.parametrize("how", HOW)
def test_a_network_gets_smaller_and_answers_nearly_the_same(data, network, how):
    """Three quarters of the bytes or less, 5 % of probability, one decision in 100."""
    whole = model_of(network).convert()
    judge = Judge(rows=data[0], label=data[1], thresholds=(0.5,))
    found = quantize(whole, how, judge=judge, samples=data[0])
    assert len(found.model) < len(whole) * 0.75
    scores = onnx_runner(found.model).batched(data[0], size=32)[:, 1]
    wanted = network.predict_proba(data[0])[:, 1]
    delta = np.abs(scores - wanted).max()
    assert 0 < delta < 0.05
    assert found.trade.max_delta == pytest.approx(delta, abs=1e-6)
    assert found.trade.flips <= len(data[0]) / 100
    assert found.trade.after.size_bytes == len(found.model)
    assert found.trade.detail == f"int8, {how}"


@pytest.mark.parametrize("how", HOW)
def test_scores_do_not_depend_on_the_batch(data, network, how):
    """Dynamic scales are taken over each row: alone, batched and among giants."""
    whole = model_of(network).convert()
    judge = Judge(rows=data[0][:300], label=None, thresholds=(0.5,))
    found = quantize(whole, how, judge=judge, samples=data[0])
    assert found.trade.batch_delta < 1e-6
    runner = onnx_runner(found.model)
    company = data[0][:32].copy()
    company[1:] *= 1000
    alone = runner(company[:1])
    np.testing.assert_allclose(runner(company)[:1], alone, atol=1e-6)


def test_dynamic_scales_are_those_of_each_row():
    """One layer worked by hand: 127 levels on either side of zero, by row."""
    random = np.random.default_rng(3)
    rows = (random.normal(size=(40, 5)) * np.tile([[1], [50]], (20, 1))).astype(
        np.float32
    )
    weights = random.normal(size=(5, 3)).astype(np.float32) / 20
    nodes = [
        helper.make_node("MatMul", [FEATURES, "weights"], ["sums"], name="product"),
        helper.make_node("Softmax", ["sums"], [PROBABILITIES], name="last", axis=1),
    ]
    constants = [numpy_helper.from_array(weights, "weights")]
    graph = finish(nodes, name="layer", columns=5, classes=3, constants=constants)
    small = int8(graph, "dynamic", samples=rows)
    held = {
        one.name: numpy_helper.to_array(one)
        for one in onnx.load_from_string(small).graph.initializer
    }
    whole = held["weights_quantized"].astype(int) - held["weights_zero_point"]
    scale = np.abs(rows).max(axis=1, keepdims=True) / np.float32(127)
    sums = np.round(rows / scale).astype(int) @ whole * scale * held["weights_scale"]
    power = np.exp(sums - sums.max(axis=1, keepdims=True))
    wanted = power / power.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(onnx_runner(small)(rows), wanted, atol=1e-5)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("classes", [2, 3])
def test_linear_models_are_quantised_in_the_precision_of_int8(data, how, classes):
    """Trained in float64, of two classes and three; scaled, so that 8 bits reach."""
    rows = data[0]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    model.fit(rows.astype(np.float64), data[classes - 1])
    small = int8(model_of(model).convert(), how, samples=rows)
    found = onnx_runner(small).batched(rows, size=32)
    np.testing.assert_allclose(found, model.predict_proba(rows), atol=0.04)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("how", HOW)
def test_weights_are_unsigned_and_use_all_their_bits(data, network, how):
    """Signed ones saturate on processors without VNNI; 7 bits are half as fine."""
    graph = onnx.load_from_string(
        int8(model_of(network).convert(), how, samples=data[0])
    ).graph
    held = [numpy_helper.to_array(one) for one in graph.initializer]
    small = [one for one in held if one.dtype.itemsize == 1]
    assert {one.dtype for one in small} == {np.dtype(np.uint8)}
    weights = [one for one in small if one.ndim == 2]
    assert len(weights) == 3
    for one in weights:
        assert int(one.max()) - int(one.min()) > 200


def test_the_largest_unsigned_products_are_summed_exactly():
    """2,072,640 by hand; a sum of two signed products stops at 32,767."""
    rows = np.full((8, 64), 255, np.uint8)
    weights = np.full((64, 16), 255, np.uint8)  # 127 above their zero point
    inputs = ["rows", "weights", "rows_zero", "weights_zero"]
    constants = [
        numpy_helper.from_array(weights, "weights"),
        numpy_helper.from_array(np.uint8(0), "rows_zero"),
        numpy_helper.from_array(np.uint8(128), "weights_zero"),
    ]
    kind = onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", inputs, ["sums"])],
        "product",
        [helper.make_tensor_value_info("rows", kind.UINT8, [None, 64])],
        [helper.make_tensor_value_info("sums", kind.INT32, [None, 16])],
        constants,
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (sums,) = session.run(None, {"rows": rows})
    assert (sums == 64 * 255 * 127).all()


def test_the_static_graph_runs_on_integer_kernels(data, network, tmp_path):
    """onnxruntime makes one QGemm of each layer; no weight is turned back to float."""
    small = int8(model_of(network).convert(), "static", samples=data[0])
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "run.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(small, options, providers=["CPUExecutionProvider"])
    run = [node.op_type for node in onnx.load(tmp_path / "run.onnx").graph.node]
    assert run.count("QGemm") == 3
    assert not {"Gemm", "MatMul", "DequantizeLinear"} & set(run)


@pytest.mark.parametrize("how", HOW)
def test_the_int8_graph_uses_standard_operators_of_the_same_opset(data, network, how):
    """What the server's onnxruntime reads, without what the tool notes down."""
    whole = onnx.load_from_string(model_of(network).convert())
    small = onnx.load_from_string(int8(whole.SerializeToString(), how, samples=data[0]))
    versions = {one.domain: one.version for one in whole.opset_import}
    assert {one.domain for one in small.opset_import} <= {"", "ai.onnx.ml"}
    assert all(one.version == versions[one.domain] for one in small.opset_import)
    assert small.ir_version <= whole.ir_version
    assert not small.metadata_props
    assert small.producer_name == "tollgate"


@pytest.mark.parametrize("classes", [2, 3])
def test_a_linear_classifier_is_rewritten_as_a_product(data, classes):
    """The rewritten graph answers as before, to 1e-6."""
    rows, label = data[0], data[classes - 1]
    model = LogisticRegression(max_iter=50).fit(rows / 100, label)
    two = classes == 2  # skl2onnx then writes a sum for each
    weights = np.concatenate([-model.coef_, model.coef_]) if two else model.coef_
    offsets = [-model.intercept_[0], model.intercept_[0]] if two else model.intercept_
    node = helper.make_node(
        "LinearClassifier",
        [FEATURES],
        ["label", PROBABILITIES],
        domain="ai.onnx.ml",
        coefficients=(weights / 100).ravel().tolist(),
        intercepts=[float(one) for one in offsets],
        classlabels_ints=list(range(classes)),
        multi_class=0,
        post_transform="LOGISTIC" if two else "SOFTMAX",
    )
    graph = finish([node], name="linear", columns=6, classes=classes, constants=())
    plain = plain_layers(graph, samples=rows)
    assert "LinearClassifier" not in kinds(plain)
    assert kinds(plain)[:2] == ["MatMul", "Add"]
    found = onnx_runner(plain)(rows)
    np.testing.assert_allclose(found, onnx_runner(graph)(rows), atol=1e-6)
    np.testing.assert_allclose(found, model.predict_proba(rows / 100), atol=1e-5)


def test_columns_of_unlike_size_fail_the_gate(data):
    """Without a scaler in front, all inputs share one scale: the small ones vanish."""
    rows, label, _ = data
    model = LogisticRegression(max_iter=2000).fit(rows, label)
    judge = Judge(rows=rows, label=label, thresholds=(0.5,))
    graph = model_of(model).convert()
    found = quantize(graph, "static", judge=judge, samples=rows)
    with pytest.raises(TradeError, match="decisions change"):
        require(found.trade, Gate())


def test_sums_are_joined_to_their_products(data, network):
    """MatMul and Add become Gemm, with the same answers."""
    model = onnx.load_from_string(
        plain_layers(model_of(network).convert(), samples=data[0])
    )
    before = onnx_runner(model.SerializeToString())(data[0])
    join_sums(model.graph)
    joined = [node.op_type for node in model.graph.node]
    assert joined.count("Gemm") == 3
    assert "MatMul" not in joined
    after = onnx_runner(model.SerializeToString())(data[0])
    np.testing.assert_allclose(after, before, atol=1e-6)


def test_trees_are_told_what_their_quantisation_is(data):
    """One sentence that names the two ways there are."""
    model = RandomForestClassifier(3, random_state=0).fit(data[0], data[1])
    with pytest.raises(ConversionError, match="is pruning, or distilling"):
        int8(model_of(model).convert(), "static", samples=data[0])


def test_nothing_is_calibrated_on_no_rows(data, network):
    """One line that names the argument."""
    with pytest.raises(InputError, match=r"^sample: holds no rows"):
        int8(model_of(network).convert(), "static", samples=data[0][:0])
