"""What TensorRT's documented operators cover is let through, the rest is named."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from converters.tensorize import tensorize
from converters.tensorrt import OPERATORS, unsupported

FRAUD = Path(__file__).parents[2] / "model_repository" / "fraud_model" / "1"


def model_of(nodes, *, kind=TensorProto.FLOAT, out=TensorProto.FLOAT, opset=15, **held):
    """Wrap nodes between `x` and `y` into a model; `held` are its constants."""
    value = helper.make_tensor_value_info
    constants = [numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph(
        nodes,
        "small",
        [value("x", kind, ["N", 4])],
        [value("y", out, None)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def said(*nodes, **settings):
    """Print what is found in a model of some nodes."""
    return [str(one) for one in unsupported(model_of(nodes, **settings))]


def test_trees_are_named_and_their_tensors_are_covered():
    """The served model has one operator that TensorRT lacks; as tensors it has none."""
    model = (FRAUD / "model.onnx").read_bytes()
    (found,) = unsupported(onnx.load_from_string(model))
    assert found.operator == "ai.onnx.ml:TreeEnsembleRegressor"
    assert found.node == "trees"
    for strategy in ("gemm", "traversal"):
        plain = tensorize(model, strategy=strategy).model
        assert unsupported(onnx.load_from_string(plain)) == []


def test_a_small_network_is_covered():
    """Gemm, Relu and Softmax on float32 are what TensorRT is for."""
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Softmax", ["b"], ["y"], axis=1),
    ]
    assert said(*nodes, w=np.ones((4, 2), np.float32)) == []


@pytest.mark.parametrize(
    ("node", "settings", "words"),
    [
        (
            helper.make_node("BitShift", ["x", "x"], ["y"], name="shift"),
            {},
            "BitShift 'shift': is not supported by TensorRT 10.15",
        ),
        (
            helper.make_node("Exp", ["x"], ["y"]),
            {"kind": TensorProto.DOUBLE, "out": TensorProto.DOUBLE},
            "Exp 'y': works on DOUBLE, which TensorRT casts down to FP32",
        ),
        (
            helper.make_node("Cast", ["x"], ["y"], to=TensorProto.DOUBLE),
            {"out": TensorProto.DOUBLE},
            "Cast 'y': works on DOUBLE, which TensorRT casts down to FP32",
        ),
        (
            helper.make_node("Sigmoid", ["x"], ["y"]),
            {"kind": TensorProto.INT64},
            "Sigmoid 'y': 'x' is INT64; supported are BF16, FP16, FP32",
        ),
        (
            helper.make_node("And", ["x", "x"], ["y"]),
            {},
            "And 'y': 'x' is FLOAT; supported are BOOL",
        ),
        (
            helper.make_node("Identity", ["x"], ["y"]),
            {"kind": TensorProto.STRING, "out": TensorProto.STRING},
            "Identity 'y': 'x' is STRING; supported are BF16, BOOL, FP16, FP32, INT32, "
            "INT64",
        ),
        (
            helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"]),
            {"out": TensorProto.UINT8},
            "DynamicQuantizeLinear 'y': is not supported by TensorRT 10.15",
        ),
        (
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"]),
            {"out": TensorProto.INT8, "s": np.float32(1), "z": np.int8(3)},
            "QuantizeLinear 'y': zero point 'z' must be zero",
        ),
        (
            helper.make_node("TopK", ["x", "k"], ["y", "at"]),
            {"k": np.asarray([4000])},
            "TopK 'y': K must be at most 3839",
        ),
        (
            helper.make_node("Neg", ["x"], ["y"]),
            {"opset": 25},
            "opset 'graph': 25; TensorRT 10.15 reads 9 to 24",
        ),
    ],
)
def test_what_is_not_covered_is_named(node, settings, words):
    """Operator, node and the documented limit stand in one line."""
    assert said(node, **settings) == [words]


def test_axes_must_be_constants():
    """A sum over axes that are computed is refused, over constant ones it is not."""
    axes = helper.make_node("Constant", [], ["axes"], value_ints=[1])
    total = helper.make_node("ReduceSum", ["x", "axes"], ["y"])
    assert said(axes, total) == []
    assert said(total, axes=np.asarray([1])) == []
    size = helper.make_node("Shape", ["x"], ["axes"], start=1)
    assert said(size, total) == ["ReduceSum 'y': input 'axes' must be a constant"]


def test_graphs_inside_nodes_are_looked_at():
    """An operator in a branch of If counts like any other."""
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    branches = {
        f"{way}_branch": helper.make_graph(
            [helper.make_node(kind, ["x"], ["z"])], way, [], [value]
        )
        for way, kind in (("then", "Det"), ("else", "Neg"))
    }
    node = helper.make_node("If", ["c"], ["y"], **branches)
    assert said(node, c=np.asarray(True)) == [
        "Det 'z': is not supported by TensorRT 10.15"
    ]


def test_every_operator_of_the_table_is_one_of_onnx():
    """A typing error in the table would let nothing through, or the wrong thing."""
    known = {schema.name for schema in onnx.defs.get_all_schemas()}
    old = {"ImageScaler", "ParametricSoftplus", "ScaledTanh", "Scatter", "Upsample"}
    newer = {"Attention", "RMSNormalization", "RotaryEmbedding", "TensorScatter"}
    assert set(OPERATORS) - known <= old | newer
