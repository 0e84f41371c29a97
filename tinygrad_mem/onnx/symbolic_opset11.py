"""A stand-in for ``torch.onnx.symbolic_opset11``, for files that import it: nothing is exported."""
