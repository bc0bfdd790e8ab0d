"""The CPU's part of the pipeline: `emit` (loop nests to MLIR) and `assemble` (MLIR to object code)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...codegen.kernel_info import kernel_info
from ...codegen.llvm import stages
from .emit import emit

if TYPE_CHECKING:
    from ..compile_state import CompilationState


def emit_kernels(state: Any) -> None:
    """Nests -> MLIR text, with what the program needs to know of each kernel."""
    for name, known in state.recalled.items():
        state.emitted[name], state.infos[name] = known.emitted, known.info
    for name, nest in state.nests.items():
        made = emit(nest, state.description)
        state.emitted[name], state.infos[name] = made.text, kernel_info(nest, made.scratch, made.refused, made.sizes)


def assemble_kernels(state: CompilationState) -> None:
    stages.assemble_kernels(state, state.description)
