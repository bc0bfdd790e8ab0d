"""Pipeline stages of GPU targets with a C-like kernel language: loop nests to source."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from ...codegen.clike.dialect import Dialect
from ...codegen.clike.printer import emit
from ...codegen.kernel_info import kernel_info
from ...codegen.vector.open_sizes import leaked
from ...schedule.inplace import in_place
from ...schedule.nest import Nest
from ...support.errors import CompileError, UsageError
from ..base import TargetStage
from ..compile_state import CompilationState
from .in_place import pairs_of, read_states, subsets
from .kernels import GpuKernel, kernel


def stages(dialect: Dialect) -> tuple[TargetStage, ...]:
    """Those of a target whose driver compiles this dialect."""

    def made(nest: Nest, constants: frozenset[str]) -> GpuKernel:
        return kernel(emit(nest, dialect, constants), dialect)

    def run(state: CompilationState) -> None:
        emit_kernels(state, made)

    return (TargetStage("emit", 5, f"loop nests to {dialect.name}", run, emitted_text),)


def emit_kernels(state: CompilationState, made: Callable[[Nest, frozenset[str]], GpuKernel]) -> None:
    """Nests -> texts and objects, with what the program needs to know of each kernel; `made` makes one of a nest and
    the names of its constants."""
    if state.nests and not state.kernels:
        raise UsageError("this target continues from the levels before scheduling only", stage="emit")
    states = read_states(state)
    for name, nest in state.nests.items():
        pairs, constants = pairs_of(nest, states.get(name, set())), state.kernels[name].constants
        # scratch memory is the context's, for all threads
        state.infos[name] = replace(kernel_info(nest, scratch=0), parallel=False, inplace=pairs)
        done, names = made(nest, constants), [p.name for p in nest.params]
        others = []
        for some in subsets(pairs):
            other = made(in_place(nest, [(names[o], names[i]) for o, i in some]), constants)
            others.append((some, other))
        done = replace(done, in_place=tuple(others))
        check_known(done.text, name)
        state.emitted[name], state.objects[name] = done.text, done.pack()


def check_known(text: str, name: str) -> None:
    """CompileError if a kernel's text has a number that stands for an open dimension."""
    if (leak := leaked(re.sub(r"(?<=\d)(f|u?ll|[ul])\b", "", text).splitlines())) is not None:
        why = f"the code computes with an open dimension as a known one: {leak}"
        raise CompileError(why, stage="emit", operator=name)


def emitted_text(state: CompilationState) -> str:
    return "\n".join(state.emitted.values())
