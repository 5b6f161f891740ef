"""Check that a model.onnx fits the configuration of the step that runs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.repository.findings import Finding
from tollgate.repository.wires import Tensor, tensors_of

MODEL_FILE = "model.onnx"

# onnxruntime's name of a type -> Triton's, for the types of a classifier.
_KINDS = {
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(float16)": "TYPE_FP16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(string)": "TYPE_STRING",
}


def onnx_findings(path: Path, config: ModelConfig) -> list[Finding]:
    """
    Load a model and compare its inputs and outputs with a configuration.

    Without onnxruntime the model cannot be loaded, and the result is empty; the hashes
    of artifact and release still guard the file.

    Args:
        path: The model.onnx.
        config: Configuration of the step.
    """
    try:
        import onnxruntime
    except ImportError:
        return []
    try:
        session = onnxruntime.InferenceSession(
            str(path), providers=["CPUExecutionProvider"]
        )
    except Exception as exc:
        # onnxruntime's errors have no common base; they share a module.
        if not type(exc).__module__.startswith("onnxruntime."):
            raise
        problem = f"onnxruntime {onnxruntime.__version__} cannot load it: {_cause(exc)}"
        return [Finding(code="TG313", file=str(path), where="", problem=problem)]
    taken = tensors_of(config.input, origin="config.pbtxt")
    given = tensors_of(config.output, origin="config.pbtxt")
    breaks = [
        *_breaks(session.get_inputs(), taken, side="input"),
        *_breaks(session.get_outputs(), given, side="output"),
    ]
    breaks += [
        (f"input {value.name}", "config.pbtxt does not have it")
        for value in session.get_inputs()
        if value.name not in taken
    ]
    return [
        Finding(code="TG313", file=str(path), where=where, problem=problem)
        for where, problem in breaks
    ]


def _cause(exc: Exception) -> str:
    """Extract the sentence of an onnxruntime message, without its codes and paths."""
    message = " ".join(str(exc).split())
    return message.rpartition(" failed:")[2] or message


def _breaks(
    values: Sequence[Any], declared: dict[str, Tensor], *, side: str
) -> Iterator[tuple[str, str]]:
    """Compare one side of the model with the same side of the configuration."""
    by_name = {value.name: value for value in values}
    for name, tensor in declared.items():
        where = f"{side} {name}"
        if name not in by_name:
            names = ", ".join(by_name)
            yield where, f"the model has no such {side}; it has {names}"
            continue
        value = by_name[name]
        kind = _KINDS.get(value.type, value.type)
        shape = [size if isinstance(size, int) else -1 for size in value.shape or []]
        if not shape or shape[0] != -1:
            problem = f"{kind} {shape} has no free first dimension for the batch"
            yield where, problem
            continue
        row = Tensor(kind=kind, dims=tuple(shape[1:]), optional=False, origin="model")
        if not row.agrees(tensor):
            yield where, f"{row} does not fit {tensor}"
