"""Use an ONNX classifier that another tool exported as a source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from converters.model import F32, F64, Facts, Floats, Probes, plain_classes
from converters.onnx.from_onnx import (
    adopted,
    read_onnx,
    with_classes,
    with_first_class,
)
from converters.onnx.graph import cast_first
from converters.parity.boundaries import boundary_rows, made_rows
from converters.parity.probe_rows import assemble, special_rows
from converters.parity.runner import onnx_runner
from converters.sources.files.onnx_file import check_onnx
from tollgate.errors import ConversionError
from tollgate.explanation import Explanation
from tollgate.explanation.explanation_file import unexplained

_SUM_SLACK = 1e-3  # tolerance for the sum of float32 rows of many classes


class OnnxModel:
    """
    A `TrainedModel` as its exporter wrote it.

    Args:
        columns: Number of features, where the file does not say.

    Raises:
        InputError: It cannot be read safely.
        ConversionError: It is no classifier over float32 rows.
    """

    def __init__(self, path: Path, *, columns: int | None = None) -> None:
        self._model = read_onnx(path)
        labels = check_onnx(self._model)
        normal = adopted(self._model_copy(), columns=columns)
        self._columns = (
            onnx.load_from_string(normal)
            .graph.input[0]
            .type.tensor_type.shape.dim[1]
            .dim_value
        )
        row = np.zeros((1, self._columns), dtype=np.float32)
        answer = onnx_runner(normal)(row)
        if answer.ndim != 2 or answer.shape[1] < 1:
            raise ConversionError(
                f"answers {list(answer.shape)} for one row; needed is a probability "
                "per class, [1, K], or that of class 1 alone, [1, 1]"
            )
        if answer.shape[1] == 1:
            normal = with_first_class(normal)
        self._classes = max(2, answer.shape[1])
        self._labels: tuple[int | str, ...] = tuple(range(self._classes))
        if labels is not None and len(labels) == self._classes:
            self._labels = plain_classes(labels)
        self._normal = with_classes(normal, classes=self._classes)
        self._session = _session(self._model)
        given = made_rows([], columns=self._columns)
        found = self.predict(given)
        outside = ~((found >= 0) & (found <= 1)).all(axis=1)
        if answer.shape[1] == 1 and outside.any():
            raise ConversionError(
                "its one output is no probability: a row answers "
                f"{found[np.argmax(outside), 1]:.4g}; end the graph in a Sigmoid"
            )
        total = found.sum(axis=1)
        if not (np.abs(total - 1) < _SUM_SLACK).all():
            raise ConversionError(
                f"its output is no probability per class: a row adds up to "
                f"{total[np.argmax(np.abs(total - 1))]:.4g}"
            )

    def _model_copy(self) -> onnx.ModelProto:
        copied = onnx.ModelProto()
        copied.CopyFrom(self._model)
        return copied

    @property
    def facts(self) -> Facts:
        producer = self._model.producer_name or "unknown"
        return Facts(
            framework="onnx",
            version=onnx.__version__,
            objective=f"exported by {producer} {self._model.producer_version}".strip(),
            classes=self._labels,
            columns=self._columns,
            names=None,
            trees=0,
            parameters={},
            converter="tollgate",
        )

    def predict(self, rows: Floats) -> F64:
        single = rows.astype(np.float32, copy=False)
        given = {self._session.get_inputs()[0].name: single}
        answers = [_table(one) for one in self._session.run(None, given)]
        first = next(one for one in answers if one is not None)
        found = np.asarray(first, dtype=np.float64)
        return np.hstack([1 - found, found]) if found.shape[1] == 1 else found

    def convert(self, *, wide: bool = False) -> bytes:
        """Return the model with the names and shapes that the server reads."""
        return cast_first(self._normal) if wide else self._normal

    def pruned(self, *, trees: int | None, depth: int | None) -> OnnxModel:
        """Raise ConversionError: a graph does not store the values of its splits."""
        raise ConversionError(
            "an ONNX graph keeps no values of its splits; prune the model it was "
            "exported from, and adopt that"
        )

    def explanation(self) -> Explanation:
        """Return the reason why there is no explanation."""
        facts = self.facts
        return unexplained(
            "an ONNX graph keeps no covers and no reason for its shape; convert the "
            "model it was exported from",
            features=facts.feature_names,
            classes=facts.classes,
        )

    def probes(self, samples: F32 | None) -> Probes:
        """Return sample rows (generated when None), rows around its jumps, extremes."""
        if samples is None:
            samples = made_rows([], columns=self._columns)
        return assemble(
            {
                "sample": samples,
                "boundary": boundary_rows(self.predict, samples),
                "special": special_rows(samples),
            }
        )


def _session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Load the model as its exporter wrote it; raise ConversionError."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        # Each onnxruntime error has its own class, without a common base.
        message = str(error).splitlines()[0][:200]
        raise ConversionError(f"onnxruntime cannot load it: {message}") from error


def _table(answer: Any) -> Any:
    """Convert an output, or a ZipMap's dictionaries, to float rows; None for labels."""
    if isinstance(answer, list):
        return np.asarray([list(row.values()) for row in answer])
    array = np.asarray(answer)
    return array if array.dtype == np.float32 and array.ndim == 2 else None
