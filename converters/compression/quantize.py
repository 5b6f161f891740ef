"""
Quantise the weights of a linear model or network to int8 with onnxruntime.

Static quantisation fixes every scale in advance, on sample rows. Dynamic quantisation
computes the scale of each layer's input at run time, separately for each row, so that a
score does not depend on the other rows of its batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from converters.compression.compression_cost import Judge, weigh
from converters.model import F32
from converters.onnx.graph import OPSET, drop_unused
from converters.parity.runner import onnx_runner
from tollgate.errors import ArgumentError, ConversionError
from tollgate.repository.models.artifact_file import Trade
from tollgate.schema import FEATURES, MAX_BATCH_ROWS

# Rewrite a linear model or network as float32 matrix products, as int8 requires.

TOLERANCE = 1e-5  # of a probability
_ROWS = 4096
_PLAIN_LAYERS = {"MatMul", "Gemm"}
_LAST = {"NONE": "Identity", "LOGISTIC": "Sigmoid", "SOFTMAX": "Softmax"}


def plain_layers(model: bytes, *, samples: F32) -> bytes:
    """
    Rewrite LinearClassifier nodes as MatMul and Add, and float64 as float32.

    Args:
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
    if not any(node.op_type in _PLAIN_LAYERS for node in graph.graph.node):
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
    """Import the standard operators once; skl2onnx may do so twice, or never."""
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


# Compute the scale of a dynamically quantised layer per row, not per batch.
#
# ONNX's DynamicQuantizeLinear takes the smallest and largest value of all rows in the
# batch. The same row then gets another score in another batch, and no decision could be
# replayed. Here each row is divided by its own largest value.

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


How = Literal["dynamic", "static"]
CALIBRATION_ROWS = 4096
_LAYERS = ("MatMul", "Gemm")
_INTEGER = {"MatMulInteger", "QuantizeLinear"}
# onnxruntime's option that leaves a product's sum in float32: with 256 levels of
# log-odds, many rows get the same score (AUC 0.857 instead of 0.870 on the fraud
# model).
_KEEP_SUMS = "OpTypesToExcludeOutputQuantization"


class Quantized(msgspec.Struct, frozen=True, eq=False):
    """An int8 model and its cost."""

    model: bytes
    trade: Trade


def quantize(model: bytes, how: How, *, judge: Judge, samples: F32) -> Quantized:
    """
    Quantise a converted model and measure it.

    Args:
        model: Converted model that passed its proof.
        how: `dynamic` or `static`.
        samples: Rows to calibrate on; float32 [N, F].

    Raises:
        ConversionError: It is no linear model or network.
        InputError: There are no rows.
    """
    small = int8(model, how, samples=samples)
    trade = weigh(model, small, kind="quantize", detail=f"int8, {how}", judge=judge)
    return Quantized(model=small, trade=trade)


def int8(model: bytes, how: How, *, samples: F32) -> bytes:
    """
    Return a converted model with int8 weights; see `quantize` for args and errors.

    Weights get a scale per column. Both sides of a product are unsigned: with signed
    weights and unsigned inputs, sums of two products saturate at 16 bits on processors
    with AVX2 or AVX-512 and no VNNI, so the same model would predict differently there.
    """
    if not len(samples):
        raise ArgumentError("sample", "holds no rows to quantise with")
    ready = onnx.load_from_string(plain_layers(model, samples=samples))
    # Mark the model as prepared, which onnxruntime recommends: these graphs have shapes
    # and need no folding.
    ready.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
    with tempfile.TemporaryDirectory(prefix="tollgate-") as folder:
        path = Path(folder) / "int8.onnx"
        if how == "dynamic":
            _write_dynamic(ready, path)
            made = onnx.load(path)
            scale_by_row(made)
        else:
            _write_static(ready, path, samples=samples)
            made = onnx.load(path)
            _make_unsigned(made)
    return _finished(made)


def _write_dynamic(model: onnx.ModelProto, path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        model,
        path,
        op_types_to_quantize=list(_LAYERS),
        per_channel=True,
        weight_type=QuantType.QUInt8,
    )


def _write_static(model: onnx.ModelProto, path: Path, *, samples: F32) -> None:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    join_sums(model.graph)
    quantize_static(
        model,
        path,
        _Rows(samples),
        quant_format=QuantFormat.QDQ,
        # Calibrate Softmax but do not quantise it: onnxruntime 1.19 needs its range.
        op_types_to_quantize=[*_LAYERS, "Softmax"],
        nodes_to_exclude=[n.name for n in model.graph.node if n.op_type == "Softmax"],
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QUInt8,
        extra_options={_KEEP_SUMS: list(_LAYERS)},
    )


def _make_unsigned(model: onnx.ModelProto) -> None:
    """
    Convert signed weights and their zero points to unsigned ones, 128 higher.

    onnxruntime's static quantiser writes signed weights where each column has a scale,
    whatever `weight_type` says.
    """
    for one in model.graph.initializer:
        if one.data_type == onnx.TensorProto.INT8:
            signed = numpy_helper.to_array(one).astype(np.int16)
            raised = (signed + 128).astype(np.uint8)
            one.CopyFrom(numpy_helper.from_array(raised, one.name))


class _Rows:
    """Supply rows to the calibration, a batch at a time."""

    def __init__(self, samples: F32) -> None:
        count = min(len(samples), CALIBRATION_ROWS)
        at = np.linspace(0, len(samples) - 1, count).astype(int)
        self._batches = _batches(samples[at])

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch; None after the last."""
        return next(self._batches, None)


def _batches(rows: F32) -> Iterator[dict[str, Any]]:
    for start in range(0, len(rows), MAX_BATCH_ROWS):
        yield {FEATURES: rows[start : start + MAX_BATCH_ROWS]}


def _finished(model: onnx.ModelProto) -> bytes:
    """Remove onnxruntime's metadata; set our producer name."""
    del model.metadata_props[:]
    used = {node.domain for node in model.graph.node}
    needed = [one for one in model.opset_import if one.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(needed)
    model.producer_name, model.producer_version = "tollgate", ""
    if not _INTEGER & {node.op_type for node in model.graph.node}:
        raise ConversionError("nothing in the model could be quantised")
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString(deterministic=True))
