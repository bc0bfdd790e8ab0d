"""Runs LLVM's optimization passes on a GPU kernel, the same for all vendors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...support.errors import CompileError
from ..llvm.assemble import STAGE, target_machine
from ..llvm.machine import LlvmMachine

if TYPE_CHECKING:
    import llvmlite.binding as llvm


def optimized(text: str, machine: LlvmMachine) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """LLVM's module of a kernel after optimization, and what makes code of it; CompileError if LLVM does not accept
    it."""
    from llvmlite import binding as llvm

    maker = target_machine(machine)
    try:
        module = llvm.parse_assembly(text, context=llvm.create_context())
        module.triple, module.data_layout = machine.triple, str(maker.target_data)
        module.verify()
    except RuntimeError as e:
        raise CompileError(f"LLVM does not accept the kernel: {str(e).strip()}", stage=STAGE) from None
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    # what is to be unrolled or vectorized is so already
    options.loop_vectorization = options.slp_vectorization = False
    options.loop_interleaving = options.loop_unrolling = False
    builder = llvm.create_pass_builder(maker, options)
    builder.getModulePassManager().run(module, builder)
    return module, maker
