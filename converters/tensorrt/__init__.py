"""Build TensorRT plans."""
