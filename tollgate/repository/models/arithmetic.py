"""
Classify a model's operators: does the same row give the same bits everywhere?

Trees compare and add in one order, so they give the same bits. A function of single
numbers, such as Exp, gives the same bits in the same onnxruntime on the same kind of
processor, whatever else is in the batch. Products of matrices are summed in an order
that depends on the batch, so their results are only close to each other.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tollgate.repository.models.artifact_file import TOLERANCE
from tollgate.repository.models.model_files import onnx_parts, parse_onnx

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
    nodes = onnx_parts(parse_onnx(model), "Node")
    return Arithmetic(tuple(sorted({str(node.op_type) for node in nodes})))
