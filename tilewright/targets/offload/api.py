"""The public function `tw.offload`: registers a target whose operators are computed by a user-supplied function."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from ...support.errors import UsageError
from ..base import Target, add_attachable
from .operation import Operation

if TYPE_CHECKING:
    from .target import OffloadWithHost

#: what a builder makes: called with NumPy arrays, the operands in order and then the results, which it fills
Code = Callable[..., None]
Takes = Callable[[Operation], bool]
Build = Callable[[Operation], Code]


@dataclass(frozen=True)
class Offload:
    """Something that can stand beside a host: what it takes, and how its code is made."""

    name: str
    takes: Takes
    build: Build

    def attached_to(self, host: Target) -> OffloadWithHost:
        from .target import OffloadWithHost

        return OffloadWithHost(self, host)


@overload
def offload(name: str, takes: Takes, build: Build) -> Offload: ...


@overload
def offload(name: str, takes: Takes) -> Callable[[Build], Build]: ...


def offload(name: str, takes: Takes, build: Build | None = None) -> Any:
    """Let ``target="cpu+NAME"`` compute the operations that `takes` chooses with code that `build` makes.

    `takes` is asked about every operation of the model when all passes of level 2 are done: its name, attributes,
    shapes and dtypes (see `Operation`); those with elements of less than a byte it is not asked about. What it takes
    stays whole, in a kernel of its own. `build` is called for each of them when the program is loaded, with its
    constants as NumPy arrays, and returns the code: a function that every run calls with views of the program's memory,
    all operands in order (None for an absent one) and then all results. It must write the results in place; operands
    cannot be written. The rest of the model runs on the host.

    A saved package holds what was taken, not the code: where it is loaded, ``offload`` of the same name must have run
    before. The same name again replaces what it stood for. Without `build` this is a decorator.

    The code may run in several threads at once if the model does. Errors in `takes`, `build` and the code end in one
    UsageError that names the operation. UsageError if the name is no identifier, or that of a target.

    >>> import tilewright as tw
    >>> @tw.offload("doubles", takes=lambda op: op.name == "matmul" and op.operands[1].constant)
    ... def build(op):
    ...     w = op.operands[1].value.astype("f8")
    ...     def code(x, _, y):
    ...         y[...] = x @ w
    ...     return code
    >>> tw.compile("model.onnx", target="cpu+doubles")  # doctest: +SKIP
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        raise UsageError(f"{name!r} is no name for what stands beside a host", hint="letters, digits and _")
    if build is None:

        def decorate(build: Build) -> Build:
            add_attachable(Offload(name, takes, build))
            return build

        return decorate
    made = Offload(name, takes, build)
    add_attachable(made)
    return made


__all__ = ["Code", "Offload", "Operation", "offload"]
