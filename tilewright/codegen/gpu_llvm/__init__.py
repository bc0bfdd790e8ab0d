"""Loop nests to LLVM IR for GPUs: what NVPTX and AMDGPU share. Each vendor's own part has a folder."""
