"""Loop nests to MLIR's `spirv` dialect, and to SPIR-V binaries, for Vulkan compute shaders."""
