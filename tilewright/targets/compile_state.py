"""What the pipeline stages of targets read and write of a compilation: a protocol of the driver's state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ..codegen.kernel_info import KernelInfo
    from ..ir.graph import Graph
    from ..schedule.nest import Nest
    from ..support.options import Options
    from ..tensor.kernel import Kernel


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
    names: dict[str, tuple[str, ...]]
    objects: dict[str, bytes]
    stats: dict[str, Any]

    @property
    def module(self) -> Graph: ...

    def kernel_done(self, done: int, count: int, symbol: str = "") -> None: ...
