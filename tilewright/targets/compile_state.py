"""What the pipeline stages of targets read and write of a compilation: a protocol of the driver's state, and the part
of it that is one target's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..codegen.kernel_info import KernelInfo
    from ..ir.graph import Graph
    from ..schedule.nest import Nest
    from ..support.options import Options
    from ..tensor.kernel import Kernel
    from .base import Target


class CompilationState(Protocol):
    """Kernels by symbol, as each stage leaves them. `description` is the target's own record of the machine,
    `schedules` are its own where it schedules kernels itself."""

    options: Options
    target: Any
    description: Any
    kernels: dict[str, Kernel]
    schedules: dict[str, Any]
    nests: dict[str, Nest]
    emitted: dict[str, str]
    infos: dict[str, KernelInfo]
    objects: dict[str, bytes]
    stats: dict[str, Any]

    @property
    def module(self) -> Graph: ...

    def kernel_done(self, done: int, count: int, symbol: str = "") -> None: ...


#: what a compilation has of each kernel, by symbol
TABLES = ("kernels", "schedules", "nests", "emitted", "infos", "objects", "stats")


def part(state: Any, target: Target, own: Callable[[str], bool], **more: Any) -> Any:
    """The state of a compilation as one of its targets sees it, with `own` kernels only; `add` brings back what is made
    of them."""
    tables = {t: {n: v for n, v in getattr(state, t).items() if own(n)} for t in TABLES}
    return replace(state, target=target, description=target.describe(), **tables, **more)


def add(state: Any, part: Any) -> None:
    """What was made of some kernels, into the tables of all."""
    for t in TABLES:
        getattr(state, t).update(getattr(part, t))
