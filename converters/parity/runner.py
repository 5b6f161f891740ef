"""Run an ONNX model as the server's model step would."""

from __future__ import annotations

from typing import Protocol

from converters.model import F32, Floats
from converters.parity.session import RUNTIME, Session, SessionError, in_batches
from tollgate.errors import ConversionError


class Runner(Protocol):
    """A loaded ONNX model that predicts rows, here or in another runtime."""

    @property
    def runtime(self) -> str:
        """Return the runtime's name and version: `onnxruntime 1.19.2`."""

    def __call__(self, rows: Floats) -> F32:
        """Predict rows [N, F] in one run of the model; float32 [N, K]."""

    def batched(self, rows: Floats, *, size: int) -> F32:
        """Predict rows [N, F], N >= 1, `size` rows a run; float32 [N, K]."""


class OnnxRunner:
    """
    A model loaded into our own onnxruntime.

    Raises:
        ConversionError: onnxruntime cannot load it, or its inputs and outputs are
            not those of a model step.
    """

    def __init__(self, model: bytes) -> None:
        try:
            self._session = Session(model)
        except SessionError as error:
            raise ConversionError(str(error)) from error

    @property
    def runtime(self) -> str:
        """Return the runtime's name and version."""
        return RUNTIME

    @property
    def wide(self) -> bool:
        """Return whether its features are float64."""
        return self._session.wide

    def __call__(self, rows: Floats) -> F32:
        """Predict rows [N, F] in one run of the model; float32 [N, K]."""
        try:
            return self._session.run(rows)
        except SessionError as error:
            raise ConversionError(str(error)) from error

    def batched(self, rows: Floats, *, size: int) -> F32:
        """Predict rows [N, F], N >= 1, `size` rows a run; float32 [N, K]."""
        return in_batches(self, rows, size=size)


def onnx_runner(model: bytes) -> OnnxRunner:
    """Load a model as `OnnxRunner` does."""
    return OnnxRunner(model)
