"""
List the ONNX operators that TensorRT's parser supports, and check graphs against it.

The table is that of `docs/operators.md` in the repository onnx/onnx-tensorrt. The
parser supports no operator of ai.onnx.ml: trees must be rewritten as plain operators
first.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import onnx
from onnx import TensorProto, numpy_helper

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
        problem: Reason.
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
