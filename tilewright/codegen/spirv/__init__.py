"""Loop nests on the units of a GPU to MLIR's `spirv` dialect, and to SPIR-V."""
