"""ONNX: the two towers of a trained method as graphs that run without this package and without torch."""
