"""Triton's entry to the onnxruntime backend that is written in Python."""

from tollgate.imports import import_gently

import_gently("numpy", "onnxruntime", "tollgate.server.onnx_backend")

from tollgate.server.onnx_backend import OnnxBackendModel  # noqa: E402


class TritonPythonModel(OnnxBackendModel):
    """What Triton instantiates per model instance."""
