"""
Parse the files of a model, model.onnx and TensorRT plan, and check that they fit.

A plan fits one TensorRT and one kind of GPU, so it is built on the machine that serves
it. It is no part of a version: releases do not name it, publishing does not copy it.
Its record ties it to the version: the record names the model.onnx.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.engine.onnx_session import OnnxSession, TensorSpec, triton_type
from tollgate.errors import RepositoryError
from tollgate.repository.findings import Finding, collecting
from tollgate.repository.hashes import PLAN_FILE, SHORT_DIGITS, hash_file, plan_record
from tollgate.repository.models.artifact_file import TOLERANCE
from tollgate.repository.wires import Tensor, tensors_of

MODEL_FILE = "model.onnx"

# The part of onnx.proto that servers read; they do not have the onnx package
# (docs/adr/0019-onnx-without-its-package.md). By message: each field's name, number and
# type. Messages are all declared as repeated, so a second copy of one hides nothing.
_SCHEMA: dict[str, dict[str, tuple[int, str]]] = {
    "Model": {
        "ir_version": (1, "int64"),
        "graph": (7, "Graph"),
        "opset_import": (8, "OperatorSet"),
        "training_info": (20, "TrainingInfo"),
        "functions": (25, "Function"),
    },
    "OperatorSet": {"domain": (1, "string"), "version": (2, "int64")},
    "TrainingInfo": {"initialization": (1, "Graph"), "algorithm": (2, "Graph")},
    "Function": {"node": (7, "Node"), "attribute_proto": (11, "Attribute")},
    "Graph": {
        "node": (1, "Node"),
        "initializer": (5, "Tensor"),
        "sparse_initializer": (15, "SparseTensor"),
    },
    "Node": {"op_type": (4, "string"), "attribute": (5, "Attribute")},
    "Attribute": {
        "t": (5, "Tensor"),
        "g": (6, "Graph"),
        "tensors": (10, "Tensor"),
        "graphs": (11, "Graph"),
        "sparse_tensor": (22, "SparseTensor"),
        "sparse_tensors": (23, "SparseTensor"),
    },
    "SparseTensor": {"values": (1, "Tensor"), "indices": (2, "Tensor")},
    "Tensor": {"external_data": (13, "Entry")},
    "Entry": {"key": (1, "bytes"), "value": (2, "bytes")},
}
_MAX_BYTES = 2**31 - 1  # protobuf's own limit of one message


def parse_onnx(model: Path) -> Any:
    """
    Parse a model.onnx: format, operator sets, operators, references to other files.

    Returns:
        A message with the fields of onnx.proto's ModelProto that servers read.

    Raises:
        RepositoryError: It cannot be read, or is no ONNX file.
    """
    parsed = _message_class()()
    try:
        if model.stat().st_size > _MAX_BYTES:
            raise RepositoryError(model, "is over 2 GiB, which no ONNX file can be")
        parsed.ParseFromString(model.read_bytes())
    except OSError as exc:
        raise RepositoryError(model, f"cannot be read: {exc.strerror}") from exc
    except DecodeError as exc:
        problem = "is not an ONNX model, or only a part of one"
        raise RepositoryError(model, problem) from exc
    return parsed


def onnx_parts(message: Any, kind: str) -> Iterator[Any]:
    """Yield the messages of one kind in a parsed model, at any depth."""
    for field, values in message.ListFields():
        if field.message_type is not None:
            for one in values:
                if field.message_type.name == kind:
                    yield one
                yield from onnx_parts(one, kind)


def require_whole(model: Path) -> None:
    """
    Check that a model is one file, before onnxruntime opens anything.

    ONNX may name any path for weights, also outside of the folder, and no checksum
    covers those files.

    Raises:
        RepositoryError: It cannot be read, is no ONNX file, or names other files.
    """
    for tensor in onnx_parts(parse_onnx(model), "Tensor"):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if place := entries.get(b"location", b"").decode("utf-8", "replace"):
            raise RepositoryError(
                model,
                f"keeps weights in another file ({place}), which no checksum covers; "
                "save it as one file",
            )


@cache
def _message_class() -> Any:
    kinds = descriptor_pb2.FieldDescriptorProto
    numbers = {
        "int64": kinds.TYPE_INT64,
        "string": kinds.TYPE_STRING,
        "bytes": kinds.TYPE_BYTES,
    }
    file = descriptor_pb2.FileDescriptorProto(
        name="part_of_onnx.proto", package="part_of_onnx", syntax="proto3"
    )
    for kind, fields in _SCHEMA.items():
        message = file.message_type.add(name=kind)
        for name, (number, type_name) in fields.items():
            field = message.field.add(name=name, number=number)
            if type_name in numbers:
                field.label, field.type = kinds.LABEL_OPTIONAL, numbers[type_name]
            else:
                field.label, field.type = kinds.LABEL_REPEATED, kinds.TYPE_MESSAGE
                field.type_name = f".{file.package}.{type_name}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName(f"{file.package}.Model")
    return message_factory.GetMessageClass(found)


def onnx_findings(path: Path, config: ModelConfig) -> list[Finding]:
    """
    Load a model and compare its inputs and outputs with a configuration.

    Without onnxruntime the model cannot be loaded, and the result is empty; the hashes
    of artifact and release still guard the file.
    """
    try:
        session = OnnxSession(path, intra_op_threads=1)
    except ImportError:
        return []
    except RepositoryError as error:
        found = Finding(code="TG313", file=str(path), where="", problem=error.problem)
        return [found]
    taken = tensors_of(config.input, origin="config.pbtxt")
    given = tensors_of(config.output, origin="config.pbtxt")
    breaks = [
        *_breaks(session.inputs, taken, side="input"),
        *_breaks(session.outputs, given, side="output", refused=session.refused),
    ]
    breaks += [
        (f"input {name}", "config.pbtxt does not have it")
        for name in session.inputs
        if name not in taken
    ]
    return [
        Finding(code="TG313", file=str(path), where=where, problem=problem)
        for where, problem in breaks
    ]


def _breaks(
    specs: Mapping[str, TensorSpec],
    declared: dict[str, Tensor],
    *,
    side: str,
    refused: Mapping[str, str] = {},
) -> Iterator[tuple[str, str]]:
    """Compare one side of the model with the same side of the configuration."""
    for name, tensor in declared.items():
        where = f"{side} {name}"
        if name in refused:
            yield where, f"is {refused[name]}: convert the model with zipmap=False"
            continue
        if name not in specs:
            names = ", ".join([*specs, *refused])
            yield where, f"the model has no such {side}; it has {names}"
            continue
        kind, shape = triton_type(specs[name].dtype), specs[name].shape
        if not shape or shape[0] != -1:
            problem = f"{kind} {list(shape)} has no free first dimension for the batch"
            yield where, problem
            continue
        row = Tensor(kind=kind, dims=shape[1:], optional=False, origin="model")
        if not row.agrees(tensor):
            yield where, f"{row} does not fit {tensor}"


PLATFORM = "tensorrt_plan"


class PlanRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The record of how a plan was built.

    Attributes:
        onnx_sha256: Hash of the model it was built from.
        tensorrt: Version of the library that built it; only that one runs it.
        gpu: Name of the GPU it was built on.
        precision: "fp32", "fp16" or "int8".
        profiles: Rows that each optimization profile takes: least, tuned for, most.
        created: Time of the build, RFC 3339 in UTC.
    """

    plan_sha256: str
    onnx_sha256: str
    tensorrt: str
    gpu: str
    precision: str
    profiles: tuple[tuple[int, int, int], ...]
    created: str


def read_plan_record(plan: Path) -> PlanRecord:
    """
    Read the record that lies next to a plan.

    Raises:
        RepositoryError: It is missing, or is no such record.
    """
    path = plan_record(plan)
    try:
        return msgspec.json.decode(path.read_bytes(), type=PlanRecord)
    except OSError as exc:
        raise RepositoryError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise RepositoryError(path, str(exc)) from exc


def plan_findings(version: Path, config: ModelConfig) -> list[Finding]:
    """Find why the plan of a version, if it runs one, does not belong to its model."""
    if config.platform != PLATFORM:
        return []
    path = version / (config.default_model_filename or PLAN_FILE)
    if not path.is_file():
        problem = (
            "is missing: build it on the machine that serves it, "
            f"tollgate engine {version / MODEL_FILE} --out {path}"
        )
        return [Finding(code="TG316", file=str(path), where="", problem=problem)]
    findings: list[Finding] = []
    with collecting(findings, code="TG316"):
        record = read_plan_record(path)
        file = str(plan_record(path))
        findings += [
            Finding(code="TG316", file=file, where=where, problem=problem)
            for where, problem in _plan_breaks(record, path, model=version / MODEL_FILE)
        ]
    return findings


def _plan_breaks(
    record: PlanRecord, plan: Path, *, model: Path
) -> Iterator[tuple[str, str]]:
    """Yield where the record differs from the two files."""
    for where, named, path in (
        ("plan_sha256", record.plan_sha256, plan),
        ("onnx_sha256", record.onnx_sha256, model),
    ):
        found = hash_file(path)
        if found != named:
            short, other = named[:SHORT_DIGITS], found[:SHORT_DIGITS]
            yield (
                where,
                f"{path.name} is another: record {short}…, file {other}…; "
                "build the plan again",
            )


# Classify a model's operators: does the same row give the same bits everywhere?
#
# Trees compare and add in one order, so they give the same bits. A function of single
# numbers, such as Exp, gives the same bits in the same onnxruntime on the same kind of
# processor, whatever else is in the batch. Products of matrices are summed in an order
# that depends on the batch, so their results are only close to each other.

_TREES = "TreeEnsemble"
# Operators that move or compare numbers, or do one operation with one rounding by IEEE
# 754.
_EXACT = frozenset(
    [
        *("Abs", "Add", "And", "ArgMax", "ArrayFeatureExtractor", "Binarizer", "Cast"),
        *("Clip", "Concat", "Constant", "ConstantOfShape", "Div", "Equal", "Expand"),
        *("Flatten", "Floor", "Gather", "GatherElements", "Greater", "GreaterOrEqual"),
        *("Identity", "IsNaN", "LabelEncoder", "Less", "LessOrEqual", "Max", "Min"),
        *("Mul", "Neg", "Not", "OneHot", "OneHotEncoder", "Or", "Relu", "Reshape"),
        *("ReduceMax", "ReduceMin", "Shape", "Slice", "Split", "Squeeze", "Sub"),
        *("Transpose", "Unsqueeze", "Where", "ZipMap"),
    ]
)
# Operators on each number, or on each row, alone.
_ALONE = frozenset(
    [
        *("Erf", "Exp", "Imputer", "Log", "Normalizer", "Pow", "Reciprocal", "Scaler"),
        *("Sigmoid", "Softmax", "Sqrt", "Tanh"),
    ]
)


class Arithmetic(msgspec.Struct, frozen=True):
    """The operators that a graph computes with: the types of its nodes, sorted."""

    operators: tuple[str, ...]

    @property
    def loose(self) -> tuple[str, ...]:
        """Operators whose last bits may depend on the batch."""
        return tuple(
            one
            for one in self.operators
            if not one.startswith(_TREES) and one not in _EXACT | _ALONE
        )

    @property
    def tolerance(self) -> float:
        """Maximum difference of a probability from the one served; 0: bit for bit."""
        return TOLERANCE if self.loose else 0.0

    def __str__(self) -> str:
        """Describe what is promised, and why."""
        if self.loose:
            return f"within {self.tolerance:g}: {', '.join(self.loose)}"
        alone = [one for one in self.operators if one in _ALONE]
        if alone:
            return f"bit for bit on one kind of processor: {', '.join(alone)}"
        return "bit for bit"


def arithmetic_of(model: Path) -> Arithmetic:
    """
    Read the operators of a model.onnx.

    Raises:
        RepositoryError: It cannot be read, or is no ONNX file.
    """
    nodes = onnx_parts(parse_onnx(model), "Node")
    return Arithmetic(tuple(sorted({str(node.op_type) for node in nodes})))
