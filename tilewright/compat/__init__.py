"""Adapters: Tilewright as an ONNX Runtime session, an ONNX backend and a `torch.compile` backend."""
