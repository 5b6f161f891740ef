"""
Compute the scale of a dynamically quantised layer per row, not per batch.

ONNX's DynamicQuantizeLinear takes the smallest and largest value of all rows in the
batch. The same row then gets another score in another batch, and no decision could be
replayed. Here each row is divided by its own largest value.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_AXES_ARE_AN_INPUT = 18  # of ReduceMax, which takes axes as an input since this opset
_LEVELS = 127  # on either side of zero
_ZERO = 128  # zero point: a uint8's middle
_SMALLEST = float(np.finfo(np.float32).tiny)


def scale_by_row(model: onnx.ModelProto) -> None:
    """Replace every DynamicQuantizeLinear, in place; scales become [N, 1]."""
    graph = model.graph
    version = next(one.version for one in model.opset_import if not one.domain)
    found = [one for one in graph.node if one.op_type == "DynamicQuantizeLinear"]
    if not found:
        return
    for name, value in (
        ("row_levels", np.float32(_LEVELS)),
        ("row_middle", np.float32(_ZERO)),
        ("row_zero", np.uint8(_ZERO)),
        ("row_smallest", np.float32(_SMALLEST)),
        ("row_axis", np.array([1], dtype=np.int64)),
    ):
        if name != "row_axis" or version >= _AXES_ARE_AN_INPUT:
            graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    for node in found:
        _scale_weights_first(graph, node.output[1])
        at = list(graph.node).index(node)
        graph.node.remove(node)
        for offset, made in enumerate(_by_row(node, version=version)):
            graph.node.insert(at + offset, made)
        for user in graph.node:
            for place, name in enumerate(user.input):
                if name == node.output[2]:
                    user.input[place] = "row_zero"


def _scale_weights_first(graph: onnx.GraphProto, scale: str) -> None:
    """
    Write (sum * weights' scale) * rows' scale, instead of sum * (product of scales).

    onnxruntime 1.19 fuses the latter with the product and treats the rows' scale as one
    number: the probabilities are wrong by up to 0.86, without an error.
    """
    for both in [one for one in graph.node if scale in one.input]:
        if both.op_type != "Mul":
            continue
        (weights,) = (name for name in both.input if name != scale)
        for user in [one for one in graph.node if both.output[0] in one.input]:
            (total,) = (name for name in user.input if name != both.output[0])
            half, at = f"{user.output[0]}_half", list(graph.node).index(user)
            graph.node.insert(at, helper.make_node("Mul", [total, weights], [half]))
            user.input[0], user.input[1] = half, scale
        graph.node.remove(both)


def _by_row(node: onnx.NodeProto, *, version: int) -> list[onnx.NodeProto]:
    """Write round(x / scale) + 128 with scale = max |x| / 127 of each row."""
    given, (quantised, scale, _) = node.input[0], node.output

    def step(kind: str, *inputs: str, output: str, **how: Any) -> onnx.NodeProto:
        return helper.make_node(kind, list(inputs), [output], name=output, **how)

    name = f"{quantised}_row"
    axis: tuple[str, ...] = ()
    how: dict[str, Any] = {"keepdims": 1}
    if version >= _AXES_ARE_AN_INPUT:
        axis = ("row_axis",)
    else:
        how["axes"] = [1]
    return [
        step("Abs", given, output=f"{name}_size"),
        step("ReduceMax", f"{name}_size", *axis, output=f"{name}_most", **how),
        step("Max", f"{name}_most", "row_smallest", output=f"{name}_safe"),
        step("Div", f"{name}_safe", "row_levels", output=scale),
        step("Div", given, scale, output=f"{name}_levels"),
        step("Round", f"{name}_levels", output=f"{name}_whole"),
        step("Add", f"{name}_whole", "row_middle", output=f"{name}_moved"),
        step("Cast", f"{name}_moved", output=quantised, to=TensorProto.UINT8),
    ]
