"""The part of the pipeline that targets with a dialect of C share: loop nests to texts."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...codegen.clike.dialect import Dialect
from ...codegen.clike.printer import emit
from ...codegen.kernel_info import kernel_info
from ...codegen.vector.open_sizes import leaked
from ...schedule.nest import Nest
from ...support.errors import CompileError, UsageError
from ..base import TargetStage
from .kernels import kernel


def stages(dialect: Dialect) -> tuple[TargetStage, ...]:
    """Those of a target whose driver compiles this dialect."""

    def made(nest: Nest, constants: frozenset[str]) -> tuple[str, bytes]:
        done = kernel(emit(nest, dialect, constants), dialect)
        return done.text, done.pack()

    def run(state: Any) -> None:
        emit_kernels(state, made)

    return (TargetStage("emit", 5, f"loop nests to {dialect.name}", run, emitted_text),)


def emit_kernels(state: Any, made: Callable[[Nest, frozenset[str]], tuple[str, bytes]]) -> None:
    """Nests -> texts and objects, with what the program needs to know of each kernel; `made` makes both of a nest and
    the names of its constants."""
    if state.nests and not state.kernels:
        raise UsageError("this target continues from the levels before scheduling only", stage="emit")
    for name, nest in state.nests.items():
        # scratch memory is the context's, for all units; parameters never share memory: dialects rely on it
        state.infos[name] = replace(kernel_info(nest, scratch=0), parallel=False, inplace=())
        state.emitted[name], state.objects[name] = made(nest, state.kernels[name].constants)
        check_known(state.emitted[name], name)


def check_known(text: str, name: str) -> None:
    """CompileError if a kernel's text has a number that stands for an open dimension."""
    if (leak := leaked(re.sub(r"(?<=\d)(f|u?ll|[ul])\b", "", text).splitlines())) is not None:
        why = f"the code computes with an open dimension as a known one: {leak}"
        raise CompileError(why, stage="emit", operator=name)


def emitted_text(state: Any) -> str:
    return "\n".join(state.emitted.values())
