"""Level 5 -> 6: compiles the LLVM IR of a kernel to an ELF object for AMD GPUs, which the linker makes a code object
of."""

from __future__ import annotations

from ..gpu_llvm.assemble import optimized
from ..gpu_llvm.emitter import GpuLlvmKernel
from ..llvm.machine import LlvmMachine


def amd_object(emitted: GpuLlvmKernel, machine: LlvmMachine) -> bytes:
    """The object file; CompileError if LLVM does not accept the kernel."""
    module, maker = optimized(emitted.text, machine)
    return bytes(maker.emit_object(module))


def amd_assembly(emitted: GpuLlvmKernel, machine: LlvmMachine) -> str:
    """The same as assembler text, to look at."""
    module, maker = optimized(emitted.text, machine)
    return str(maker.emit_assembly(module))
