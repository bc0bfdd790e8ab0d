"""Front ends: importers of ONNX, PyTorch, JAX and MLIR to a `Graph` of level 2 or 3; `protocol` defines one."""
