"""Pipeline stages of the target ``wasm``: loop nests to MLIR to object files, by the shared code generators."""

from __future__ import annotations

from ...codegen.kernel_info import kernel_info
from ...codegen.llvm import stages
from ...codegen.vector.emitter import emit
from ...codegen.vector.part import VectorMachine
from ...schedule.machine import lanes
from ...support.errors import UnsupportedError
from ..compile_state import CompilationState
from ..instructions import known_dot_products


def emit_kernels(state: CompilationState) -> None:
    """Nests -> MLIR text, with what the program needs to know of each kernel."""
    d = state.description
    vectors = VectorMachine(lanes(d), dot_products=known_dot_products(), chains=d.chains, load_shuffles=d.access.load)
    for name, nest in state.nests.items():
        made = emit(nest, vectors)
        if "bf16" in made.text:
            raise UnsupportedError(
                f"kernel {name} computes with bf16, which LLVM has not for WebAssembly",
                stage="emit",
                hint="compile the model in f32, or in f16",
            )
        state.emitted[name], state.infos[name] = made.text, kernel_info(nest, made.scratch, made.refused)


def assemble_kernels(state: CompilationState) -> None:
    stages.assemble_kernels(state, state.description)
