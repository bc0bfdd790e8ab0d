"""Loop nests on the units of an NVIDIA GPU to LLVM IR with NVVM intrinsics, and to PTX."""
