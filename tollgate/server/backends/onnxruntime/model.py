"""Triton's entry to the onnxruntime backend that is written in Python."""

from tollgate.server.onnx_backend import OnnxBackendModel


class TritonPythonModel(OnnxBackendModel):
    """What Triton instantiates per model instance."""
