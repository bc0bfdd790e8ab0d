"""The part of the pipeline that is this family's: loop nests to MLIR to objects, by the CPU's code generator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...codegen.kernel_info import call_names, kernel_info
from ...schedule.machine import lanes
from ...schedule.nest import For, Nest, Stmt, children, substitute_vars, with_children
from ...tensor.expr import Const
from ..cpu.cache import KernelCache
from ..cpu.emit import emit
from ..cpu.pool import Job, compile_many


def emit_kernels(state: Any) -> None:
    """Nests -> MLIR text, with what the program needs to know of each kernel."""
    width = lanes(state.description)
    for name, nest in state.nests.items():
        text, scratch = emit(scalar_lanes(nest), width)
        state.emitted[name] = text
        state.infos[name] = replace(kernel_info(nest, scratch), parallel=False)


def scalar_lanes(nest: Nest) -> Nest:
    """Vector loops of one lane as plain statements: a vector of one element is no vector to these machines."""

    def visit(s: Stmt) -> Stmt:
        if isinstance(s, For) and s.kind == "vector" and s.trip == 1:
            return visit(substitute_vars(s.body, {s.var: Const(0, "index")}))
        return with_children(s, tuple(visit(c) for c in children(s)))

    return replace(nest, body=visit(nest.body))


def assemble_kernels(state: Any) -> None:
    """MLIR text -> object code, from the cache or compiled in worker processes."""
    state.names = call_names(state.module)
    jobs = [Job(k, text, state.names.get(k, ())) for k, text in state.emitted.items()]
    cache = KernelCache() if state.options.cache else None
    workers = state.options.job_count
    for done in compile_many(jobs, state.description.code, workers=workers, cache=cache, progress=state.kernel_done):
        state.objects[done.symbol] = done.data
        state.stats[done.symbol] = {k: v for k, v in done.stats.items() if k.endswith("seconds")}
