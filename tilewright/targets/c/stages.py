"""Pipeline stages of the target ``c``: loop nests to C functions."""

from __future__ import annotations

import re
from dataclasses import replace

from ...codegen.clike.c99 import C99
from ...codegen.clike.printer import emit
from ...codegen.kernel_info import kernel_info
from ...codegen.vector.open_sizes import leaked
from ...support.errors import CompileError, UsageError
from ..compile_state import CompilationState
from .packed import pack_function


def emit_kernels(state: CompilationState) -> None:
    """Nests -> C functions, with what the program needs to know of each kernel."""
    if state.nests and not state.kernels:
        raise UsageError("this target continues from the levels before scheduling only", stage="emit")
    for name, nest in state.nests.items():
        function = emit(nest, C99, state.kernels[name].constants)
        info = kernel_info(nest, function.scratch, sizes=bool(function.sizes))
        state.infos[name] = replace(info, parallel=False)
        text = function.text(C99, aliased=bool(info.inplace))
        if (leak := leaked(re.sub(r"(?<=\d)(f|u?ll|u)\b", "", text).splitlines())) is not None:
            raise CompileError(f"the code computes with an open dimension as a known one: {leak}", stage="emit")
        state.emitted[name] = text
        state.objects[name] = pack_function(function)


def emitted_text(state: CompilationState) -> str:
    return "\n".join(state.emitted.values())
