"""Load the onnxruntime backend written in Python from the file that Triton expects."""

from tollgate.imports import import_gently

import_gently("numpy", "onnxruntime", "tollgate.server.triton.onnx_backend")

from tollgate.server.triton.onnx_backend import OnnxBackendModel  # noqa: E402


class TritonPythonModel(OnnxBackendModel):
    """Serve one model instance: the class that Triton instantiates."""
