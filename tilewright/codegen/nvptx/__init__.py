"""Loop nests to LLVM IR with NVVM intrinsics for NVIDIA GPUs, and LLVM IR to PTX."""
