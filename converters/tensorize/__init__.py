"""Write trees as plain ONNX operators."""
