"""Loop nests to LLVM IR with AMDGCN intrinsics for AMD GPUs, and LLVM IR to object files."""
