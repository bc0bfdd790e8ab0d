"""Machine records of AMD GPUs: grid and block limits, memories, dp4a-like instructions, and LLVM's processor names."""

from __future__ import annotations

from dataclasses import dataclass

from ...codegen.llvm.machine import LlvmRecord
from ...graph.machine_costs import GridCosts
from ...schedule.machine import Axis, DotProduct, Machine, Memory, Rate
from ..gpu.describe import EXCHANGE, warp_axes

_GRID = ((1 << 31) - 1, 65535, 65535)
_BLOCK = 1024


def _dot4(name: str, signs: tuple[str, ...]) -> tuple[DotProduct, ...]:
    return tuple(DotProduct(f"{name}_{s}", 0, 4, (s[0], s[1]), 8, 1, Rate(4, 1)) for s in signs)


@dataclass(frozen=True)
class AmdDescription(Machine):
    """A GPU as schedules see it. Numbers are those of AMD's documents; nothing was measured.

    `wave`: threads that run one instruction together, the lanes of a warp. `any_signs`: whether a product of bytes
    takes a signed factor with an unsigned one.
    """

    gfx: str = "gfx90a"
    wave: int = 64
    shared_bytes: int = 64 << 10
    compute_units: int = 104
    l2_bytes: int = 8 << 20
    any_signs: bool = False

    @property
    def cores(self) -> int:
        """Parts that kernels have: eight for each compute unit."""
        return 8 * self.compute_units

    @property
    def vector_bytes(self) -> int:
        """The longest access of a thread."""
        return 16

    @property
    def vector_registers(self) -> int:
        """What a thread may name in an instruction."""
        return 256

    @property
    def line_bytes(self) -> int:
        return 128

    @property
    def axes(self) -> tuple[Axis, ...]:
        return *warp_axes(_GRID, _BLOCK, self.wave), Axis("lanes", kind="vector")

    @property
    def grid_costs(self) -> GridCosts | None:
        return GridCosts(self.compute_units, 4, (64, 128, 256), far=1000, near=32, begin=1200, kernel=8000)

    @property
    def memories(self) -> tuple[Memory, ...]:
        shared = Memory("shared", self.shared_bytes, shared_by=("block", "warp", "lane"), align=128)
        return Memory("register"), Memory("local"), shared, EXCHANGE

    @property
    def dot_products(self) -> tuple[DotProduct, ...]:
        return _dot4("sudot4", ("ss", "us", "su", "uu")) if self.any_signs else _dot4("dot4", ("ss", "uu"))

    @property
    def llvm(self) -> LlvmRecord:
        """The machine for LLVM: triple and processor."""
        return LlvmRecord("amdgcn-amd-amdhsa", self.gfx)


#: MI200, MI300, Radeon RX 7900, Radeon RX 9070
MACHINES = {
    m.gfx: m
    for m in (
        AmdDescription("gfx90a"),
        AmdDescription("gfx942", compute_units=304, l2_bytes=4 << 20),
        AmdDescription("gfx1100", wave=32, compute_units=96, l2_bytes=6 << 20, any_signs=True),
        AmdDescription("gfx1201", wave=32, compute_units=64, l2_bytes=8 << 20, any_signs=True),
    )
}
