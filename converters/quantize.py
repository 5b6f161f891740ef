"""
Quantise the weights of a linear model or network to int8 with onnxruntime.

Static quantisation fixes every scale in advance, on sample rows. Dynamic quantisation
computes the scale of each layer's input at run time, separately for each row, so that a
score does not depend on the other rows of its batch (`converters.row_scales`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from converters.model import F32
from converters.plain_layers import join_sums, plain_layers
from converters.row_scales import scale_by_row
from converters.trade import Judge, Trade
from converters.weighing import weigh
from tollgate.errors import ArgumentError, ConversionError
from tollgate.schema import FEATURES, MAX_BATCH_ROWS

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
        judge: Rows to measure on.
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
