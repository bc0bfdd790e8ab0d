"""Machine record of a GPU, as scheduling rules see it: a grid of thread blocks with shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ...graph.machine_costs import MIDDLING, GridCosts, SumTile
from ...schedule.device_costs import DeviceCosts, of_device
from ...schedule.machine import Axis, DotProduct, Machine, Memory, Rate
from ...schedule.machine_instructions import CoalescedAccess

_DOT4 = tuple(DotProduct(f"dot4_{s}", 0, 4, (s[0], s[1]), 8, 1, Rate(4, 1)) for s in ("ss", "uu"))

#: what the lanes of a warp hold of arrays with an element for each of them, where a GPU has shuffles
EXCHANGE = Memory("exchange", shared_by=("lane",), held_by="lane")


def warp_axes(grid: tuple[int, int, int], block: int, lanes: int) -> tuple[Axis, ...]:
    """Of a GPU whose blocks are warps of so many lanes: blocks along the axes of a grid, threads of a block at most."""
    return (
        Axis("grid", prod(grid), dims=("x", "y", "z"), sides=grid),
        Axis("block", block, inside="grid", barriers=("block",), dims=("x", "y", "z")),
        Axis("warp", block // lanes, inside="grid", barriers=("block",)),
        Axis("lane", lanes, inside="warp", barriers=("block", "warp")),
    )


@dataclass(frozen=True)
class GpuDescription(Machine):
    """A GPU of which only that is known which every implementation of Vulkan, WebGPU and OpenCL has.

    `block_threads`: threads of a block, at most; `grid_side`: blocks along an axis of the grid; `shared_bytes`: of the
    memory that the threads of a block share; `vector_bytes`: of a thread's longest access; `byte_products`: whether
    there are sums of four products of bytes; `vector_registers`: sums that a thread keeps in registers (drivers take
    long over large kernels). `cores` is how many parts kernels have whose iterations are shared out. `arena_align`:
    what a part of a buffer begins at a multiple of. `split_scans`: blocks that work at the same time.
    """

    block_threads: int = 256
    grid_side: int = 65535
    shared_bytes: int = 16 << 10
    vector_bytes: int = 16
    byte_products: bool = False
    vector_registers: int = 16
    l1_bytes: int = 16 << 10
    l2_bytes: int = 256 << 10
    cores: int = 1024
    thread_work: int = 64
    arena_align: int = 256
    split_scans: int = 32
    threads_in_turn: bool = False

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (
            Axis("grid", self.grid_side**3, dims=("x", "y", "z"), sides=(self.grid_side,) * 3),
            Axis("block", self.block_threads, inside="grid", barriers=("block",), dims=("x", "y", "z")),
            Axis("thread"),
        )

    @property
    def dot_products(self) -> tuple[DotProduct, ...]:
        """Of two signed, or two unsigned factors."""
        return _DOT4 if self.byte_products else ()

    @property
    def split_sums(self) -> SumTile | None:
        """Reductions to a few numbers, in slices; for products there are `grid_costs`."""
        return SumTile(lanes=32, vectors=0, rows=0, in_flight=1, slices=16)

    @property
    def coalesced_access(self) -> CoalescedAccess | None:
        """As most GPUs have it."""
        return CoalescedAccess()

    @property
    def grid_costs(self) -> GridCosts | None:
        return MIDDLING

    def device_costs(self, threads: int) -> DeviceCosts:
        """Those of a small GPU beside a processor: a guess, until the ceilings of the device are measured."""
        return of_device(2e12, 1e11, threads=4 * self.cores, launch=8e-6, copy=3e-5, copy_bytes=6e9)

    @property
    def memories(self) -> tuple[Memory, ...]:
        return Memory("register"), Memory("local"), Memory("shared", self.shared_bytes, shared_by=("block",))
