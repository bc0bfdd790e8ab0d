"""Pipeline stages of GPU targets that use LLVM: loop nests to LLVM IR, and to object code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace

from ...codegen.gpu_llvm.emitter import GpuLlvmKernel
from ...codegen.kernel_info import call_names, kernel_info
from ...codegen.llvm.pool import Job, compile_many
from ...schedule.machine import Machine
from ...schedule.nest import Nest
from ...support.errors import UsageError
from ..compile_state import CompilationState
from .stages import check_known

ALONE = "all of its work is done by one thread: no loop is bound to grid, block, warp or lane"

Emit = Callable[[Nest, Machine], GpuLlvmKernel]


def emit_kernels(state: CompilationState, emit: Emit) -> None:
    """Nests -> LLVM IR, with what the program needs to know of each kernel."""
    if state.nests and not state.kernels:
        raise UsageError("this target continues from the levels before scheduling only", stage="emit")
    for name, nest in state.nests.items():
        made = emit(nest, state.description)
        state.emitted[name] = made.text
        check_known(made.text, name)
        unmet = (ALONE,) if made.launch.all_threads == 1 else ()
        state.infos[name] = replace(kernel_info(nest, 0, unmet), parallel=False, pieces=False)
        state.objects[name] = json.dumps(asdict(made)).encode()  # until it is assembled


def emitted_text(state: CompilationState) -> str:
    return "\n".join(state.emitted.values())


def job(name: str, emitted: GpuLlvmKernel, make: str, nodes: tuple[str, ...] = ()) -> Job:
    """The work of a process that makes an object of a kernel, by the function ``module:name``."""
    return Job(name, json.dumps(asdict(emitted)), nodes, make)


def assemble_kernels(state: CompilationState, make: str) -> None:
    """LLVM IR -> objects, in processes that LLVM may end."""
    names = call_names(state.module)
    jobs = [Job(k, data.decode(), names.get(k, ()), make) for k, data in state.objects.items()]
    workers = state.options.job_count
    for done in compile_many(jobs, state.description.llvm, workers=workers, progress=state.kernel_done):
        state.objects[done.symbol] = done.data
        state.stats[done.symbol] = {k: v for k, v in done.stats.items() if k.endswith("seconds")}
