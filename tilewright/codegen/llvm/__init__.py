"""MLIR and LLVM text to object code, for every LLVM target: passes, optimization, worker processes, what is kept."""
