"""Pipeline stages of microcontroller targets: loop nests to MLIR to object files, by the shared code generators."""

from __future__ import annotations

from dataclasses import replace

from ...codegen.kernel_info import kernel_info
from ...codegen.llvm import stages
from ...codegen.vector.emitter import emit
from ...codegen.vector.part import VectorMachine
from ...schedule.machine import lanes
from ...schedule.nest import For, Nest, Stmt, children, substitute_vars, with_children
from ...tensor.expr import Const
from ..compile_state import CompilationState
from ..instructions import known_dot_products


def emit_kernels(state: CompilationState) -> None:
    """Nests -> MLIR text, with what the program needs to know of each kernel."""
    d = state.description
    vectors = VectorMachine(lanes(d), dot_products=known_dot_products(), chains=d.chains, load_shuffles=d.access.load)
    for name, nest in state.nests.items():
        made = emit(scalar_lanes(nest), vectors)
        state.emitted[name] = made.text
        state.infos[name] = replace(kernel_info(nest, made.scratch, made.refused), parallel=False)


def scalar_lanes(nest: Nest) -> Nest:
    """Vector loops of one lane as plain statements: a vector of one element is no vector to these machines."""

    def visit(s: Stmt) -> Stmt:
        if isinstance(s, For) and s.kind == "vector" and s.trip == 1:
            return visit(substitute_vars(s.body, {s.var: Const(0, "index")}))
        return with_children(s, tuple(visit(c) for c in children(s)))

    return replace(nest, body=visit(nest.body))


def assemble_kernels(state: CompilationState) -> None:
    stages.assemble_kernels(state, state.description.code)
