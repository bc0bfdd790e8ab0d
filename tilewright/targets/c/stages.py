"""The part of the pipeline that is this target's: loop nests to C functions."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ...codegen.clike.c99 import C99
from ...codegen.clike.printer import Function, emit
from ...codegen.kernel_info import kernel_info
from ...support.errors import UsageError

#: what stands between the facts of a kernel and its text in a package
_MARK = "/* --- */\n"


def emit_kernels(state: Any) -> None:
    """Nests -> C functions, with what the program needs to know of each kernel."""
    if not state.kernels:
        raise UsageError("this target continues from the levels before scheduling only", stage="emit")
    for name, nest in state.nests.items():
        function = emit(nest, C99, state.kernels[name].constants)
        info = kernel_info(nest, function.scratch)
        state.infos[name] = replace(info, parallel=False)
        state.emitted[name] = function.text(C99, aliased=bool(info.inplace))
        state.objects[name] = pack_function(function)


def emitted_text(state: Any) -> str:
    return "\n".join(state.emitted.values())


def pack_function(f: Function) -> bytes:
    """A kernel as it lies in a package."""
    head = [f.name, str(f.scratch), str(int(f.needs_math)), " ".join(f.helpers)]
    head += [f"{name}:{kind}:{int(written)}" for name, kind, written in f.params]
    return ("\n".join(head) + "\n" + _MARK + f.body).encode()


def unpack_function(data: bytes) -> Function:
    """The inverse of `pack_function`; ValueError if the text is another."""
    head, mark, body = data.decode().partition(_MARK)
    name, scratch, needs_math, helpers, *params = head.splitlines()
    if not mark or not re.fullmatch(r"\w+", name):
        raise ValueError("not a kernel in C")
    parsed = [p.split(":") for p in params]
    return Function(
        name,
        tuple((n, kind, written == "1") for n, kind, written in parsed),
        body,
        int(scratch),
        tuple(helpers.split()),
        needs_math == "1",
    )
