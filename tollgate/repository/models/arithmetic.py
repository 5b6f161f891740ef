"""
Classify a model's operators: does the same row give the same bits everywhere?

Trees compare and add in one order, so they give the same bits. A function of single
numbers, such as Exp, gives the same bits in the same onnxruntime on the same kind of
processor, whatever else is in the batch. Products of matrices are summed in an order
that depends on the batch, so their results are only close to each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from tollgate.errors import RepositoryError
from tollgate.repository.models.parity_record import TOLERANCE

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
        *(
            "Shape",
            "Slice",
            "Squeeze",
            "Sub",
            "Transpose",
            "Unsqueeze",
            "Where",
            "ZipMap",
        ),
    ]
)
# Operators on each number, or on each row, alone.
_ALONE = frozenset(
    [
        *("Erf", "Exp", "Imputer", "Log", "Normalizer", "Pow", "Reciprocal", "Scaler"),
        *("Sigmoid", "Softmax", "Sqrt", "Tanh"),
    ]
)

# Field numbers of onnx.proto on every path from a model to a node's type.
_WAYS = {
    "Model": {7: "Graph", 25: "Function"},
    "Function": {7: "Node"},
    "Graph": {1: "Node"},
    "Node": {5: "Attribute"},
    "Attribute": {6: "Graph", 11: "Graph"},
}
_OPERATOR = 4  # field number of the operator type in a Node


class Arithmetic(msgspec.Struct, frozen=True):
    """
    The operators that a graph computes with.

    Attributes:
        operators: Types of its nodes, sorted.
    """

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
    parsed = _message_class()()
    try:
        parsed.ParseFromString(model.read_bytes())
    except OSError as exc:
        raise RepositoryError(model, f"cannot be read: {exc.strerror}") from exc
    except DecodeError as exc:
        raise RepositoryError(model, "is not an ONNX model") from exc
    return Arithmetic(tuple(sorted(set(_operators(parsed, kind="Model")))))


def _operators(message: Any, *, kind: str) -> Iterator[str]:
    if kind == "Node":
        yield str(message.operator)
    for number, inner in _WAYS[kind].items():
        for one in getattr(message, f"field_{number}"):
            yield from _operators(one, kind=inner)


@cache
def _message_class() -> Any:
    """Declare the required part of onnx.proto; the onnx package is not needed."""
    file = descriptor_pb2.FileDescriptorProto(
        name="operators.proto", package="operators", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for kind, ways in _WAYS.items():
        message = file.message_type.add(name=kind)
        for number, inner in ways.items():
            message.field.add(
                name=f"field_{number}",
                number=number,
                label=kinds.LABEL_REPEATED,
                type=kinds.TYPE_MESSAGE,
                type_name=f".operators.{inner}",
            )
        if kind == "Node":
            message.field.add(
                name="operator",
                number=_OPERATOR,
                label=kinds.LABEL_OPTIONAL,
                type=kinds.TYPE_STRING,
            )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("operators.Model")
    return message_factory.GetMessageClass(found)
