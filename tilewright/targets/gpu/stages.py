"""The part of the pipeline that targets with a dialect of C share: loop nests to texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...codegen.clike.dialect import Dialect
from ...codegen.clike.printer import emit
from ...codegen.kernel_info import kernel_info
from ...support.errors import UsageError
from ..base import TargetStage
from .kernels import kernel


def stages(dialect: Dialect) -> tuple[TargetStage, ...]:
    """Those of a target whose driver compiles this dialect."""

    def run(state: Any) -> None:
        emit_kernels(state, dialect)

    return (TargetStage("emit", 5, f"loop nests to {dialect.name}", run, emitted_text),)


def emit_kernels(state: Any, dialect: Dialect) -> None:
    """Nests -> texts, with what the program needs to know of each kernel."""
    if state.nests and not state.kernels:
        raise UsageError("this target continues from the levels before scheduling only", stage="emit")
    for name, nest in state.nests.items():
        made = kernel(emit(nest, dialect, state.kernels[name].constants), dialect)
        # scratch memory is the context's, for all units; parameters never share memory: dialects rely on it
        state.infos[name] = replace(kernel_info(nest, scratch=0), parallel=False, inplace=())
        state.emitted[name] = made.text
        state.objects[name] = made.pack()


def emitted_text(state: Any) -> str:
    return "\n".join(state.emitted.values())
