"""Models in ONNX files, computed by ONNX Runtime."""
