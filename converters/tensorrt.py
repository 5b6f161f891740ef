"""
Build a TensorRT plan from an ONNX model, on the machine and GPU that will run it.

Everything before the builder runs here without a GPU: reading the model, checking the
operators, choosing the precision. This project's tests have never run the builder
itself: docs/conversion.md says so.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import onnx
from onnx import TensorProto, numpy_helper

from converters.onnx.from_onnx import read_onnx
from converters.sources.files.formats import format_of
from tollgate.errors import (
    ConversionError,
    DeviceError,
    InputError,
    part_remedy,
)
from tollgate.repository.atomic import replace_file
from tollgate.repository.hashes import plan_record
from tollgate.repository.models.model_files import PlanRecord
from tollgate.schema import FEATURES, MAX_BATCH_ROWS

# List the ONNX operators that TensorRT's parser supports, and check graphs against it.
#
# The table is that of `docs/operators.md` in the repository onnx/onnx-tensorrt. The
# parser supports no operator of ai.onnx.ml: trees must be rewritten as plain operators
# first.

SOURCE = "onnx/onnx-tensorrt, docs/operators.md"
TENSORRT = "10.15"
OPSETS = range(9, 25)

_FLOATS = "FP32 FP16 BF16"
_NUMBERS = f"{_FLOATS} INT32 INT64"
_ALL = f"{_NUMBERS} BOOL"
_QUANTIZED = "FP8 FP4 INT4"
# Element types -> the operators that support them.
_BY_TYPES = {
    _FLOATS: """
        Acos Acosh Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Celu Clip
        Conv ConvTranspose Cos Cosh CumSum Dropout Einsum Elu Erf Exp Floor Gemm
        GlobalAveragePool GlobalLpPool GlobalMaxPool GroupNormalization GRU HardSigmoid
        HardSwish Hardmax ImageScaler InstanceNormalization IsInf LayerNormalization
        LeakyRelu Log LogSoftmax LRN LSTM LpNormalization LpPool MatMul MaxPool
        MeanVarianceNormalization ParametricSoftplus PRelu QuantizeLinear RandomNormal
        RandomNormalLike RandomUniform RandomUniformLike Reciprocal Resize
        RMSNormalization RNN RotaryEmbedding Round ScaledTanh Scan Selu Sigmoid Sin
        Sinh Softmax Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Upsample
    """,
    _NUMBERS: """
        Abs Add ArgMax ArgMin DepthToSpace Div Equal Greater GreaterOrEqual IsNaN Less
        LessOrEqual Max Min Mod Mul Neg Pad Pow Range ReduceL1 ReduceL2 ReduceLogSum
        ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
        ReduceSumSquare Relu Scatter ScatterElements ScatterND Shrink Sign SpaceToDepth
        Sub Sum TopK
    """,
    _ALL: """
        Concat Expand EyeLike Flatten Gather GatherElements GatherND Identity If Loop
        OneHot Reshape ReverseSequence Shape Size Slice Split Squeeze Tile Transpose
        Trilu Unsqueeze Where
    """,
    f"{_ALL} UINT8": "Cast CastLike",
    f"{_ALL} {_QUANTIZED}": "Constant ConstantOfShape",
    f"{_NUMBERS} INT8": "Gelu",
    f"{_NUMBERS} FP8": "Mean",
    f"{_FLOATS} INT8 FP8": "Attention",
    f"{_FLOATS} INT32": "TensorScatter",
    "INT8 FP8 FP4 INT4": "DequantizeLinear",
    "FP32 FP16": """
        BlackmanWindow DeformConv GridSample HammingWindow HannWindow Mish
        NonMaxSuppression NonZero RoiAlign
    """,
    "FP32": "STFT",
    "BOOL": "And Not Or Xor",
}
OPERATORS: dict[str, frozenset[str]] = {
    operator: frozenset(types.split())
    for types, operators in _BY_TYPES.items()
    for operator in operators.split()
}
"""Operator to the element types it takes; what is not here is not supported."""

_KINDS: dict[int, str] = {
    TensorProto.FLOAT: "FP32",
    TensorProto.FLOAT16: "FP16",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.INT8: "INT8",
    TensorProto.UINT8: "UINT8",
    TensorProto.BOOL: "BOOL",
}
# Position of an input that must be a constant.
_CONSTANT_INPUT = {
    "CumSum": 1,
    "OneHot": 1,
    "Squeeze": 1,
    "Unsqueeze": 1,
    **{name: 1 for name in OPERATORS if name.startswith("Reduce")},
}
_ZERO_POINT = {"QuantizeLinear": 2, "DequantizeLinear": 2}
_LARGEST_K = 3839


class Unsupported(msgspec.Struct, frozen=True):
    """
    A node that TensorRT's parser would refuse or interpret differently.

    Attributes:
        operator: Operator type, with its domain if that is not the default one.
        node: Name of the node, or its first output if it has no name.
    """

    operator: str
    node: str
    problem: str

    def __str__(self) -> str:
        """Format it as `operator node: problem`."""
        return f"{self.operator} {self.node!r}: {self.problem}"


def unsupported(model: onnx.ModelProto) -> list[Unsupported]:
    """
    List the nodes that TensorRT's documented operators do not cover.

    Args:
        model: The graph; the graphs inside its nodes (If, Loop) are checked too.

    Returns:
        One entry per node and problem, in the order of the graph. It is empty when all
        is documented, which does not guarantee that the builder finds a kernel.
    """
    found = [
        Unsupported(
            "opset",
            "graph",
            f"{one.version}; TensorRT {TENSORRT} reads "
            f"{OPSETS.start} to {OPSETS.stop - 1}",
        )
        for one in model.opset_import
        if one.domain in ("", "ai.onnx") and one.version not in OPSETS
    ]
    inferred = onnx.shape_inference.infer_shapes(model)
    return found + list(_of_graph(inferred.graph, outer={}))


def _of_graph(
    graph: onnx.GraphProto, *, outer: dict[str, int]
) -> Iterator[Unsupported]:
    values = (*graph.input, *graph.value_info, *graph.output)
    kinds = outer | {one.name: one.type.tensor_type.elem_type for one in values}
    kinds |= {one.name: one.data_type for one in graph.initializer}
    constants = {one.name: one for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            for one in node.attribute:
                constants[node.output[0]] = one.t
                kinds.setdefault(node.output[0], one.t.data_type)
    for node in graph.node:
        domain = "" if node.domain in ("", "ai.onnx") else f"{node.domain}:"
        for problem in _problems(node, domain, kinds=kinds, constants=constants):
            name = node.name or (node.output[0] if node.output else "")
            yield Unsupported(f"{domain}{node.op_type}", name, problem)
        for attribute in node.attribute:
            inner = [*attribute.graphs]
            if attribute.type == onnx.AttributeProto.GRAPH:
                inner.append(attribute.g)
            for one in inner:
                yield from _of_graph(one, outer=kinds)


def _problems(
    node: onnx.NodeProto,
    domain: str,
    *,
    kinds: dict[str, int],
    constants: dict[str, onnx.TensorProto],
) -> Iterator[str]:
    """Yield the reasons why one node is not covered."""
    if domain:
        yield f"TensorRT has no operators of {domain[:-1]}"
        return
    taken = OPERATORS.get(node.op_type)
    if taken is None:
        yield f"is not supported by TensorRT {TENSORRT}"
        return
    name = _data_tensor(node)
    kind = kinds.get(name, TensorProto.UNDEFINED)
    if kind == TensorProto.DOUBLE or TensorProto.DOUBLE in (
        kinds.get(one) for one in node.output
    ):
        yield "works on DOUBLE, which TensorRT casts down to FP32"
    elif kind != TensorProto.UNDEFINED and _KINDS.get(kind) not in taken:
        found = TensorProto.DataType.Name(kind)
        yield f"{name!r} is {found}; supported are {', '.join(sorted(taken))}"
    at = _CONSTANT_INPUT.get(node.op_type)
    if at and len(node.input) > at and node.input[at] not in {"", *constants}:
        yield f"input {node.input[at]!r} must be a constant"
    at = _ZERO_POINT.get(node.op_type)
    if at and len(node.input) > at and node.input[at]:
        tensor = constants.get(node.input[at])
        if tensor is None or numpy_helper.to_array(tensor).any():
            yield f"zero point {node.input[at]!r} must be zero"
    if node.op_type == "TopK" and len(node.input) > 1:
        tensor = constants.get(node.input[1])
        if tensor is not None and int(numpy_helper.to_array(tensor).max()) > _LARGEST_K:
            yield f"K must be at most {_LARGEST_K}"


def _data_tensor(node: onnx.NodeProto) -> str:
    """Return the tensor whose element type the table refers to."""
    if node.op_type == "Where":
        return str(node.input[1])  # the first is the condition
    return str(node.input[0] if node.input else node.output[0])


PRECISIONS = ("fp32", "fp16", "int8")
# Rows of each optimization profile: minimum, optimum, maximum. The first accepts every
# batch, because Triton uses only that one if a configuration names none.
PROFILES = ((1, MAX_BATCH_ROWS, MAX_BATCH_ROWS), (1, 8, 8), (1, 1, 1))
_SHOWN = 3  # operators that an error names
_WORKSPACE_BYTES = 1 << 30


def engine_from_onnx(
    path: Path,
    out: Path,
    *,
    precision: str = "fp32",
    timing_cache: Path | None = None,
) -> PlanRecord:
    """
    Build a plan with the profiles of `PROFILES`, and write it with its record.

    Args:
        path: The model: `features` float32 [N, F] to `probabilities`, N free.
        out: Path of the plan to write; its record is written next to it.
        precision: "fp32"; "fp16", which rounds features too, so a value may cross a
            tree's threshold; "int8", for a graph that was quantised (with
            QuantizeLinear nodes).
        timing_cache: File that stores the builder's measurements, for the next build on
            the same GPU; it is created if it does not exist.

    Raises:
        InputError: The model cannot be read, or a file cannot be written.
        ConversionError: TensorRT does not support it; the error names the operators.
        DeviceError: This machine has no GPU or no TensorRT.
    """
    if format_of(path) != "onnx":
        raise InputError(path, "is no ONNX file")
    model = read_onnx(path)
    columns = _require_buildable(model, precision=precision)
    trt, gpu = require_device()
    serialized = model.SerializeToString()
    plan = _built(
        trt, serialized, columns=columns, precision=precision, cache=timing_cache
    )
    record = PlanRecord(
        plan_sha256=hashlib.sha256(plan).hexdigest(),
        onnx_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        tensorrt=str(trt.__version__),
        gpu=gpu,
        precision=precision,
        profiles=PROFILES,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    try:
        replace_file(out, plan)
        text = msgspec.json.format(msgspec.json.encode(record), indent=2)
        replace_file(plan_record(out), text + b"\n")
    except OSError as error:
        raise InputError(out, f"cannot be written: {error.strerror}") from error
    return record


def _require_buildable(model: onnx.ModelProto, *, precision: str) -> int:
    """Refuse what TensorRT would not build correctly; return the number of features."""
    if precision not in PRECISIONS:
        raise ConversionError(
            f"precision is {precision!r}; there are {', '.join(PRECISIONS)}"
        )
    found = unsupported(model)
    if found:
        shown = "; ".join(map(str, found[:_SHOWN]))
        more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        trees = any("TreeEnsemble" in one.operator for one in found)
        hint = ": convert it to plain operators (tensorize)" if trees else ""
        raise ConversionError(f"TensorRT does not take this model: {shown}{more}{hint}")
    kinds = {node.op_type for node in model.graph.node}
    if precision == "int8" and "QuantizeLinear" not in kinds:
        raise ConversionError(
            "int8 needs a graph with QuantizeLinear nodes, which say the ranges; "
            "convert it with static quantization"
        )
    inputs = [(one.name, one.type.tensor_type.shape.dim) for one in model.graph.input]
    if len(inputs) == 1 and inputs[0][0] == FEATURES and len(inputs[0][1]) == 2:
        free, columns = inputs[0][1]
        if columns.dim_value and not free.dim_value:
            return int(columns.dim_value)
    raise ConversionError(f"the model does not read {FEATURES} [N, F] alone, N free")


def require_device(devices: Path = Path("/dev")) -> tuple[Any, str]:
    """
    Find TensorRT and a GPU.

    Args:
        devices: Folder where the machine lists its GPUs.

    Returns:
        The library's module, and the name of the first GPU.

    Raises:
        DeviceError: TensorRT or a GPU is missing.
    """
    if not any(devices.glob("nvidia[0-9]*")):
        raise DeviceError(
            "this machine shows no NVIDIA GPU, and a TensorRT plan fits only the kind "
            "of GPU that it was built on",
            remedy="build it on the machine that will serve it",
        )
    try:
        trt = importlib.import_module("tensorrt")
    except ImportError as error:
        raise DeviceError(
            f"TensorRT cannot be imported ({error})",
            remedy=part_remedy("tollgate_converters", "converters", extra="tensorrt"),
        ) from error
    return trt, _gpu_name(Path("/proc/driver/nvidia/gpus"))


def _gpu_name(folder: Path) -> str:
    """Read the name of the first GPU from its driver."""
    for path in sorted(folder.glob("*/information")):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "Model":
                return value.strip()
    return "unknown"


def _built(
    trt: Any, model: bytes, *, columns: int, precision: str, cache: Path | None
) -> bytes:
    """Parse and build; return the serialized plan."""
    builder = trt.Builder(trt.Logger(trt.Logger.WARNING))
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.WARNING))
    if not parser.parse(model):
        said = [parser.get_error(at).desc() for at in range(parser.num_errors)]
        raise ConversionError(f"TensorRT cannot read the model: {'; '.join(said)}")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, _WORKSPACE_BYTES)
    # TF32, on by default, keeps 10 bits of a factor: leaf values would lose the rest.
    config.clear_flag(trt.BuilderFlag.TF32)
    if precision != "fp32":
        config.set_flag(getattr(trt.BuilderFlag, precision.upper()))
    _add_profiles(builder, config, columns=columns, profiles=PROFILES)
    if cache is not None:
        stored = cache.read_bytes() if cache.exists() else b""
        timings = config.create_timing_cache(stored)
        config.set_timing_cache(timings, ignore_mismatch=False)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ConversionError("TensorRT built no plan; what it said stands above")
    if cache is not None:
        replace_file(cache, bytes(config.get_timing_cache().serialize()))
    return bytes(plan)


def _add_profiles(
    builder: Any,
    config: Any,
    *,
    columns: int,
    profiles: Sequence[tuple[int, int, int]],
) -> None:
    for rows in profiles:
        profile = builder.create_optimization_profile()
        least, tuned, most = ((one, columns) for one in rows)
        profile.set_shape(FEATURES, least, tuned, most)
        config.add_optimization_profile(profile)
