"""Pipeline stages of the target ``cuda``: loop nests to LLVM IR, and to PTX with launch parameters."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from ...codegen.gpu.open_launch import LaunchAt, OpenLaunch
from ...codegen.llvm.machine import LlvmMachine
from ...codegen.llvm.pool import Job
from ...codegen.nvptx.assemble import ptx, shared_at_launch
from ...codegen.nvptx.bulk import TensorMap
from ...codegen.nvptx.emitter import NvptxKernel, emit
from ..gpu import llvm_stages

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

    from ..compile_state import CompilationState
    from ..gpu.device import BufferSlice

MAKE = f"{__name__}:make"


@dataclass(frozen=True)
class CudaKernel:
    """A kernel as a package has it: its name in the PTX, blocks, threads of a block, bytes of shared memory beside
    those that the PTX declares, and the tensor maps that it takes behind its arguments."""

    name: str
    ptx: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    maps: tuple[TensorMap, ...] = ()
    open: OpenLaunch | None = None

    @property
    def variants(self) -> tuple[CudaKernel, ...]:
        """See `tilewright.targets.gpu.device.DeviceKernel`."""
        return (self,)

    def at(self, launch: LaunchAt) -> CudaKernel:
        """See `tilewright.targets.gpu.device.DeviceKernel`."""
        return replace(self, grid=launch.grid)

    @property
    def scratch_bytes(self) -> int:
        """Local memory is the driver's."""
        return 0

    def placed(self, arguments: Sequence[BufferSlice]) -> tuple[CudaKernel, tuple[BufferSlice, ...]]:
        """One kernel serves all calls."""
        return self, tuple(arguments)

    def to_json(self) -> dict[str, object]:
        """All but the PTX."""
        maps = {"maps": [asdict(m) for m in self.maps]} if self.maps else {}
        return {"grid": self.grid, "block": self.block, "shared": self.shared, **maps}

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        found = json.loads(data)
        maps = tuple(map(TensorMap.from_json, found["maps"]))
        grid, block = tuple(found["grid"]), tuple(found["block"])
        opened = OpenLaunch.from_json(found["open"])
        return cls(found["name"], found["ptx"], grid, block, found["shared"], maps, opened)


def job(name: str, emitted: NvptxKernel, nodes: tuple[str, ...] = ()) -> Job:
    """The work of a process that makes PTX of a kernel."""
    return llvm_stages.job(name, emitted, MAKE, nodes)


def make(text: str, machine: LlvmMachine) -> tuple[CudaKernel, bytes, dict[str, object]]:
    """What such a process does; see `codegen.llvm.pool.Job`."""
    start = time.perf_counter()
    emitted = NvptxKernel.from_json(json.loads(text))
    launch = emitted.launch
    shared = shared_at_launch(emitted)
    made = CudaKernel(
        emitted.name, ptx(emitted, machine), launch.grid, launch.block, shared, emitted.maps, emitted.open
    )
    data = made.to_bytes()
    return made, data, {"llvm_seconds": time.perf_counter() - start, "bytes": len(data)}


def emit_kernels(state: CompilationState) -> None:
    """Nests -> LLVM IR."""
    llvm_stages.emit_kernels(state, emit)


def assemble_kernels(state: CompilationState) -> None:
    """LLVM IR -> PTX."""
    llvm_stages.assemble_kernels(state, MAKE)


def ptx_text(state: CompilationState) -> str:
    return "\n".join(CudaKernel.from_bytes(data).ptx for data in state.objects.values())
