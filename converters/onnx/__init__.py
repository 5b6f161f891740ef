"""Convert trained models to ONNX."""
