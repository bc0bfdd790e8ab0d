"""Loop nests on the units of an AMD GPU to LLVM IR with AMDGCN intrinsics, and to objects."""
