"""Add the nodes of one fitted step to the graph that skl2onnx is writing."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto
from skl2onnx.common.data_types import DoubleTensorType


class StepNodes:
    """Append nodes to the graph that skl2onnx is writing."""

    def __init__(self, scope: Any, container: Any) -> None:
        self._scope = scope
        self._container = container

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its output."""
        output = str(self._scope.get_unique_variable_name(kind.lower()))
        self.put(kind, *inputs, output=output, **attributes)
        return output

    def put(self, kind: str, *inputs: str, output: str, **attributes: Any) -> None:
        """Add a node whose output already has a name."""
        name = self._scope.get_unique_operator_name(kind)
        self._container.add_node(kind, list(inputs), output, name=name, **attributes)

    def constant(self, values: Any) -> str:
        """Add a float32, float64 or int64 constant; return its name."""
        array = np.asarray(values)
        kinds = {
            "float32": TensorProto.FLOAT,
            "float64": TensorProto.DOUBLE,
            "int64": TensorProto.INT64,
        }
        name = str(self._scope.get_unique_variable_name("constant"))
        self._container.add_initializer(
            name, kinds[array.dtype.name], list(array.shape), array.ravel()
        )
        return name

    def joined(self, operator: Any) -> str:
        """Return the step's input; concatenate several."""
        names = [one.full_name for one in operator.inputs]
        return names[0] if len(names) == 1 else self.add("Concat", *names, axis=1)

    def is_wide(self, operator: Any) -> bool:
        """Return whether a step's input is float64."""
        return isinstance(operator.inputs[0].type, DoubleTensorType)

    def cast(self, name: str, dtype: Any) -> str:
        """Cast to float32 or float64."""
        to = TensorProto.DOUBLE if dtype == np.float64 else TensorProto.FLOAT
        return self.add("Cast", name, to=to)
