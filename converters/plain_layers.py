"""Rewrite a linear model or network as float32 matrix products, as int8 requires."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from converters.graph import OPSET
from converters.graph_edit import drop_unused
from converters.model import F32
from converters.runner import onnx_runner
from tollgate.errors import ConversionError
from tollgate.schema import MAX_BATCH_ROWS

TOLERANCE = 1e-5  # of a probability
_ROWS = 4096
_LAYERS = {"MatMul", "Gemm"}
_LAST = {"NONE": "Identity", "LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}


def plain_layers(model: bytes, *, samples: F32) -> bytes:
    """
    Rewrite LinearClassifier nodes as MatMul and Add, and float64 as float32.

    Args:
        model: A converted model.
        samples: Rows on which the rewritten model must predict as before, within 1e-5.

    Raises:
        ConversionError: It holds trees or no matrix product, or its predictions change.
    """
    graph = onnx.load_from_string(model)
    kinds = {node.op_type for node in graph.graph.node}
    if any(kind.startswith("TreeEnsemble") for kind in kinds):
        raise ConversionError(
            "trees compare and hold no weights to write as int8: the quantisation of "
            "trees is pruning, or distilling a network that learns from them"
        )
    for node in list(graph.graph.node):
        if node.op_type == "LinearClassifier":
            _matrix(graph.graph, node)
    if not any(node.op_type in _LAYERS for node in graph.graph.node):
        raise ConversionError(
            f"the model is made of {', '.join(sorted(kinds))}: int8 is for linear "
            "models and networks"
        )
    _single(graph)
    drop_unused(graph.graph)
    _one_opset(graph)
    onnx.checker.check_model(graph)
    found = bytes(graph.SerializeToString(deterministic=True))
    _require_same(model, found, samples=samples)
    return found


def join_sums(graph: onnx.GraphProto) -> None:
    """
    Merge every product and the constant added to it into one Gemm, in place.

    onnxruntime does so anyway when it loads a model. After quantisation that merge
    leaves no integer kernel that fits, and each run converts the weights back to
    float32 (a network of 512x512 units then took 307 µs for one row instead of 15).
    """
    constants = {one.name: one for one in graph.initializer}
    for node in [one for one in graph.node if one.op_type == "MatMul"]:
        users = [one for one in graph.node if node.output[0] in one.input]
        if len(users) != 1 or users[0].op_type != "Add":
            continue
        added = [name for name in users[0].input if name != node.output[0]]
        if node.input[1] not in constants or not added or added[0] not in constants:
            continue
        if len(constants[added[0]].dims) != 1:
            continue
        # A separate copy: quantised to integers it has the scale of this layer.
        bias = graph.initializer.add()
        bias.CopyFrom(constants[added[0]])
        bias.name = f"{node.output[0]}_bias"
        made = helper.make_node(
            "Gemm", [*node.input, bias.name], list(users[0].output), name=node.output[0]
        )
        at = list(graph.node).index(node)
        graph.node.remove(users[0])
        graph.node.remove(node)
        graph.node.insert(at, made)
    drop_unused(graph)


def _matrix(graph: onnx.GraphProto, node: onnx.NodeProto) -> None:
    """Replace one LinearClassifier; its label output becomes unused."""
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    weights = np.asarray(found["coefficients"], dtype=np.float32)
    offsets = np.asarray(found["intercepts"], dtype=np.float32)
    labels = found.get("classlabels_ints") or found.get("classlabels_strings") or ()
    transform = found.get("post_transform", b"NONE").decode()
    if transform not in _LAST or len(offsets) != len(labels):
        raise ConversionError(
            f"LinearClassifier: {transform} of {len(offsets)} sums for {len(labels)} "
            "classes is not quantised"
        )
    name = node.output[1]
    nodes: list[onnx.NodeProto] = []

    def constant(role: str, values: Any) -> str:
        array = numpy_helper.from_array(np.ascontiguousarray(values), f"{name}_{role}")
        graph.initializer.append(array)
        return str(array.name)

    def add(kind: str, *inputs: str, output: str, **attributes: Any) -> str:
        made = helper.make_node(kind, list(inputs), [output], name=output, **attributes)
        nodes.append(made)
        return output

    product = add(
        "MatMul",
        node.input[0],
        constant("weights", weights.reshape(len(offsets), -1).T),
        output=f"{name}_product",
    )
    total = add("Add", product, constant("offsets", offsets), output=f"{name}_sum")
    axis = {"axis": 1} if transform == "SOFTMAX" else {}
    add(_LAST[transform], total, output=name, **axis)
    at = list(graph.node).index(node)
    graph.node.remove(node)
    for offset, made in enumerate(nodes):
        graph.node.insert(at + offset, made)


def _single(model: onnx.ModelProto) -> None:
    """Convert float64 computation to float32."""
    graph = model.graph
    for at, constant in enumerate(graph.initializer):
        if constant.data_type == TensorProto.DOUBLE:
            array = numpy_helper.to_array(constant).astype(np.float32)
            graph.initializer[at].CopyFrom(
                numpy_helper.from_array(array, constant.name)
            )
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "to" and attribute.i == TensorProto.DOUBLE:
                attribute.i = TensorProto.FLOAT
    del graph.value_info[:]


def _one_opset(model: onnx.ModelProto) -> None:
    """
    Import the standard operators exactly once; skl2onnx may do so twice, or never.
    """
    versions = {one.domain: one.version for one in model.opset_import}
    versions.setdefault("", OPSET)
    del model.opset_import[:]
    for domain, version in versions.items():
        model.opset_import.append(helper.make_opsetid(domain, version))


def _require_same(model: bytes, rewritten: bytes, *, samples: F32) -> None:
    at = np.linspace(0, len(samples) - 1, min(len(samples), _ROWS)).astype(int)
    first, second = (
        onnx_runner(one).batched(samples[at], size=MAX_BATCH_ROWS)
        for one in (model, rewritten)
    )
    delta = float(np.nan_to_num(np.abs(first - second), nan=0.0).max())
    same_gaps = bool((np.isnan(first) == np.isnan(second)).all())
    if delta > TOLERANCE or not same_gaps:
        raise ConversionError(
            f"written as float32 matrix products the model answers otherwise: a "
            f"probability moves by {delta:.3g}, allowed is {TOLERANCE:g}"
        )
