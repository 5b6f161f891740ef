"""
Write the graph of a scikit-learn estimator that answers one number a row.

skl2onnx converts the steps in front of the estimator. The nodes of the estimator
itself compute in float64: its number has no fixed range, and a float32 sum of large
parts would be off by more than the number is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.pipeline import Pipeline

from converters.onnx.from_sklearn import transformer_graph
from converters.onnx.graph import (
    IR_VERSION,
    ML_OPSET,
    ML_OPSET_OF_DOUBLES,
    OPSET,
    doubled,
)
from converters.trees.exact_sums import split_targets
from converters.trees.onnx_trees import tree_operator
from converters.trees.tree_ensemble import Tree, round_down
from tollgate.errors import ConversionError
from tollgate.repository.models.targets import ML_DOMAIN
from tollgate.schema import FEATURES

_PREFIX = "own_"  # no name of skl2onnx begins so
_ACTIVATIONS = {"relu": "Relu", "tanh": "Tanh", "logistic": "Sigmoid"}


class EstimatorGraph:
    """
    A graph from features to one column, in the making.

    Args:
        steps: Fitted steps in front of the estimator; empty for none.
        columns: F, the number of features.
        wide: True if the features are float64; else float32.

    Attributes:
        given: Name of the tensor that the estimator reads.

    Raises:
        ConversionError: A step is not supported.
    """

    def __init__(self, steps: Sequence[Any], *, columns: int, wide: bool) -> None:
        self._columns, self._wide = columns, wide
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self.given = FEATURES
        if steps:
            named = [(f"step_{at}", one) for at, one in enumerate(steps)]
            before = transformer_graph(Pipeline(named), wide=wide).graph
            self._nodes += before.node
            self._constants += before.initializer
            self.given = str(before.output[0].name)

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        output = f"{_PREFIX}{kind.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def constant(self, values: Any) -> str:
        """Add a constant; return its name."""
        name = f"{_PREFIX}constant_{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def number(self, value: float) -> str:
        """Add a float64 constant."""
        return self.constant(np.asarray([value], np.float64))

    def cast(self, name: str, dtype: Any) -> str:
        """Cast to float32 or float64."""
        wide = np.dtype(dtype) == np.float64
        to = TensorProto.DOUBLE if wide else TensorProto.FLOAT
        return self.add("Cast", name, to=to)

    def tree_sum(self, trees: Sequence[Tree]) -> str:
        """
        Add trees that read `given`; return their sum, float64 [N, 1].

        Args:
            trees: Trees with thresholds as their library has them.
        """
        exact = trees[0].wide and self._wide
        if not exact:
            trees = [_rounded(tree) for tree in trees]
        found, parts = split_targets(tree_operator(trees))
        given = self.cast(self.given, np.float64 if exact else np.float32)
        sums = self.add(
            "TreeEnsembleRegressor",
            given,
            domain=ML_DOMAIN,
            n_targets=parts,
            **(doubled(found) if exact else found),
        )
        return self.joined(self.cast(sums, np.float64), parts=parts)

    def joined(self, sums: str, *, parts: int) -> str:
        """Add up the columns of sums, the finest first; [N, parts] to [N, 1]."""
        columns = [
            self.add("Gather", sums, self.constant(np.array([at], np.int64)), axis=1)
            for at in range(parts)
        ]
        total = columns.pop()
        while columns:
            total = self.add("Add", total, columns.pop())
        return total

    def product(self, name: str, matrix: Any, *, dtype: Any = np.float64) -> str:
        """Multiply rows by a matrix [F, K]."""
        return self.add("MatMul", name, self.constant(np.asarray(matrix, dtype)))

    def sums(self, name: str) -> str:
        """Return the sum of each row, [N, 1]."""
        return self.add("ReduceSum", name, self.constant(np.array([1], np.int64)))

    def network(self, step: Any) -> str:
        """Add the layers of an MLPRegressor; return its output [N, K]."""
        dtype = step.coefs_[0].dtype
        last = self.cast(self.given, dtype)
        for layer, weights in enumerate(step.coefs_):
            last = self.product(last, weights, dtype=dtype)
            shift = np.asarray(step.intercepts_[layer], dtype)
            last = self.add("Add", last, self.constant(shift))
            if layer + 1 < len(step.coefs_) and step.activation != "identity":
                last = self.add(_ACTIVATIONS[step.activation], last)
        return last

    def finish(self, output: str, *, name: str, dtype: Any) -> bytes:
        """
        Return the serialized graph.

        Args:
            output: Tensor [N, 1] to return.
            name: Name of the output.
            dtype: Its type, float32 or float64.
        """
        double = np.dtype(dtype) == np.float64
        kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
        self._nodes.append(helper.make_node("Cast", [output], [name], to=kind))
        given = TensorProto.DOUBLE if self._wide else TensorProto.FLOAT
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            self._nodes,
            "scikit-learn",
            [value(FEATURES, given, ["N", self._columns])],
            [value(name, kind, ["N", 1])],
            self._constants,
        )
        version = ML_OPSET_OF_DOUBLES if self._wide else ML_OPSET
        model = helper.make_model(
            graph,
            producer_name="tollgate",
            ir_version=IR_VERSION,
            opset_imports=[
                helper.make_opsetid("", OPSET),
                helper.make_opsetid(ML_DOMAIN, version),
            ],
        )
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError as error:
            raise ConversionError(f"the graph is not valid: {error}") from error
        return bytes(model.SerializeToString(deterministic=True))


def _rounded(tree: Tree) -> Tree:
    """Round thresholds down to float32, which changes the path of no float32 row."""
    return msgspec.structs.replace(tree, threshold=round_down(tree.threshold))
