"""A small ONNX model: twice its input, and the sum of it."""

from __future__ import annotations

import numpy as np


def doubling_onnx() -> bytes:
    """Return the file."""
    from onnx import TensorProto, helper, numpy_helper

    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "two"], ["y"]),
            helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=1),
        ],
        "doubling",
        [value("x", TensorProto.FLOAT, ["n", 2])],
        [
            value("y", TensorProto.FLOAT, ["n", 2]),
            value("sum", TensorProto.FLOAT, ["n", 1]),
        ],
        [
            numpy_helper.from_array(np.float32([2.0]), "two"),
            numpy_helper.from_array(np.int64([1]), "axis"),
        ],
    )
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    content: bytes = model.SerializeToString()
    return content
