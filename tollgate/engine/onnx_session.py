"""
Open a model.onnx in onnxruntime, check it against its configuration, run it.

This module knows nothing of Triton but the names in a model configuration. It imports
onnxruntime when a file is opened, so importing this module costs numpy alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import RepositoryError

Tensor = npt.NDArray[Any]

# onnxruntime's type to Triton's and NumPy's; bfloat16 has no NumPy type.
_TYPES: dict[str, tuple[str, np.dtype[Any]]] = {
    "tensor(bool)": ("TYPE_BOOL", np.dtype(np.bool_)),
    "tensor(uint8)": ("TYPE_UINT8", np.dtype(np.uint8)),
    "tensor(uint16)": ("TYPE_UINT16", np.dtype(np.uint16)),
    "tensor(uint32)": ("TYPE_UINT32", np.dtype(np.uint32)),
    "tensor(uint64)": ("TYPE_UINT64", np.dtype(np.uint64)),
    "tensor(int8)": ("TYPE_INT8", np.dtype(np.int8)),
    "tensor(int16)": ("TYPE_INT16", np.dtype(np.int16)),
    "tensor(int32)": ("TYPE_INT32", np.dtype(np.int32)),
    "tensor(int64)": ("TYPE_INT64", np.dtype(np.int64)),
    "tensor(float16)": ("TYPE_FP16", np.dtype(np.float16)),
    "tensor(float)": ("TYPE_FP32", np.dtype(np.float32)),
    "tensor(double)": ("TYPE_FP64", np.dtype(np.float64)),
    "tensor(string)": ("TYPE_STRING", np.dtype(np.object_)),
}


class TensorSpec(msgspec.Struct, frozen=True):
    """One input or output of a model; a free dimension is -1."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class OnnxSession:
    """
    A loaded model.

    Args:
        model: A model.onnx, or its bytes.
        intra_op_threads: Threads inside one operator; 0 lets onnxruntime choose.

    Attributes:
        source: Path of the file, or "model" for bytes.
        inputs: Name to spec; shapes with the batch dimension.
        outputs: Name to spec; only those that Triton can carry.
        refused: Outputs Triton cannot carry (ZipMap), name to onnxruntime's type.

    Raises:
        RepositoryError: The file is missing, or onnxruntime cannot load it.
    """

    def __init__(self, model: Path | bytes, *, intra_op_threads: int) -> None:
        import onnxruntime

        self.source = model if isinstance(model, Path) else "model"
        self.intra_op_threads = intra_op_threads
        self.version: str = onnxruntime.__version__
        if isinstance(model, Path) and not model.is_file():
            raise RepositoryError(model, "no such file")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = intra_op_threads
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(
                str(model) if isinstance(model, Path) else model,
                options,
                providers=["CPUExecutionProvider"],
            )
        except Exception as error:  # onnxruntime's errors share no base
            problem = f"onnxruntime {self.version} cannot load it: {_reason(error)}"
            raise RepositoryError(self.source, problem) from error
        self.inputs = {s.name: s for s in map(_spec, self._session.get_inputs()) if s}
        found = [(node, _spec(node)) for node in self._session.get_outputs()]
        self.outputs = {spec.name: spec for _, spec in found if spec}
        self.refused = {node.name: node.type for node, spec in found if spec is None}

    def run(self, names: Sequence[str], feeds: Mapping[str, Tensor]) -> list[Tensor]:
        """
        Compute outputs in one call: one array per name, in that order.

        Args:
            feeds: Every input, its batch dimension first.
        """
        answer: list[Tensor] = self._session.run(list(names), dict(feeds))
        return answer

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """Map onnxruntime's errors in the block to RepositoryErrors of one line."""
        try:
            yield
        except Exception as error:
            # onnxruntime's errors have no common base; they share a module.
            if not type(error).__module__.startswith("onnxruntime."):
                raise
            problem = f"onnxruntime {self.version}: {' '.join(str(error).split())}"
            raise RepositoryError(self.source, problem) from error


def open_model(directory: Path, config: Mapping[str, Any]) -> OnnxSession:
    """
    Open the model of a version as its configuration says, and check it against that.

    Args:
        directory: The version.
        config: Triton's model configuration, in its JSON form.

    Raises:
        RepositoryError: The file cannot be loaded, or the configuration does not fit.
    """
    path = directory / (config.get("default_model_filename") or "model.onnx")
    threads = _intra_op_threads(config, path=path)
    session = OnnxSession(path, intra_op_threads=threads)
    check_wiring(session, config)
    return session


def _intra_op_threads(config: Mapping[str, Any], *, path: Path) -> int:
    """Read `intra_op_thread_count`; 0, NVIDIA's default, lets onnxruntime choose."""
    parameter = config.get("parameters", {}).get("intra_op_thread_count", {})
    text = parameter.get("string_value", "0")
    if not text.isdigit():
        raise RepositoryError(
            path,
            f'intra_op_thread_count "{text}" in config.pbtxt is not a whole number',
        )
    return int(text)


def check_wiring(session: OnnxSession, config: Mapping[str, Any]) -> None:
    """
    Fail if a configuration differs from the model in names, types or shapes of tensors.

    Args:
        config: Triton's model configuration, in its JSON form.

    Raises:
        RepositoryError: Names the file, the tensor and both sides.
    """
    batched = int(config.get("max_batch_size", 0)) > 0
    for part, specs in (("input", session.inputs), ("output", session.outputs)):
        for tensor in config.get(part, []):
            _check_tensor(session, tensor, part=part, specs=specs, batched=batched)
    configured = {tensor["name"] for tensor in config.get("input", [])}
    missing = sorted(set(session.inputs) - configured)
    if missing:
        raise RepositoryError(
            session.source, f"config.pbtxt lacks the model's input {missing[0]}"
        )


def _check_tensor(
    session: OnnxSession,
    tensor: Mapping[str, Any],
    *,
    part: str,
    specs: Mapping[str, TensorSpec],
    batched: bool,
) -> None:
    name = tensor["name"]
    spec = specs.get(name)
    if spec is None:
        kind = session.refused.get(name)
        problem = f"has no {part} {name}; it has " + ", ".join(sorted(specs))
        if part == "output" and kind:
            problem = f"output {name} is {kind}: convert the model with zipmap=False"
        raise RepositoryError(session.source, problem)
    wanted = tensor.get("data_type", "")
    present = triton_type(spec.dtype)
    if wanted != present:
        raise RepositoryError(
            session.source, f"{part} {name} is {present}, config.pbtxt says {wanted}"
        )
    reshape = tensor.get("reshape") or {}
    dims = [int(size) for size in reshape.get("shape", tensor.get("dims", []))]
    shape = [-1, *dims] if batched else dims
    if not _compatible(spec.shape, shape):
        raise RepositoryError(
            session.source,
            f"{part} {name} has shape {list(spec.shape)}, config.pbtxt says {shape}"
            + (" with the batch dimension" if batched else ""),
        )


def _compatible(model: Sequence[int], config: Sequence[int]) -> bool:
    return len(model) == len(config) and all(
        a == b or -1 in (a, b) for a, b in zip(model, config, strict=True)
    )


def triton_type(dtype: np.dtype[Any]) -> str:
    """Return Triton's name of a type."""
    return next(triton for triton, numpy in _TYPES.values() if numpy == dtype)


def _spec(node: Any) -> TensorSpec | None:
    if node.type not in _TYPES:
        return None
    shape = tuple(size if isinstance(size, int) else -1 for size in node.shape)
    return TensorSpec(name=node.name, dtype=_TYPES[node.type][1], shape=shape)


def _reason(error: Exception) -> str:
    """Cut onnxruntime's "[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : …failed:" off."""
    text = " ".join(str(error).split())
    return text.rsplit("failed:", 1)[-1].rsplit(" : ", 1)[-1].strip().rstrip(".")
