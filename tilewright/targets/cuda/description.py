"""Machine records of NVIDIA GPUs: grid and block limits, memories, tensor core shapes, and asynchronous copies, by
compute capability."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from ...codegen.llvm.machine import LlvmRecord
from ...graph.machine_costs import GridCosts, SumTile
from ...schedule.device_costs import DeviceCosts, of_device
from ...schedule.machine import (
    Axis,
    BulkCopy,
    DotProduct,
    Machine,
    Memory,
    Rate,
    RegisterTrade,
    WarpFold,
    WarpLoad,
    WarpProduct,
)
from ...schedule.machine_instructions import CoalescedAccess
from ..gpu.describe import EXCHANGE, warp_axes

#: blocks along x, y and z
_GRID = ((1 << 31) - 1, 65535, 65535)
_BLOCK = 1024
#: versions of PTX that know a GPU
_PTX = {"sm_80": "ptx80", "sm_90a": "ptx80", "sm_100": "ptx86"}
_WARP = 32
#: operations a second in f32, in halves and in bytes, and bytes of memory a second
_PEAKS = {
    "sm_80": (19.5e12, 312e12, 624e12, 1.55e12),
    "sm_90a": (67e12, 989e12, 1979e12, 3.35e12),
    "sm_100": (80e12, 2250e12, 4500e12, 8e12),
}
#: threads of a multiprocessor that keep it busy, each with several operations under way
_BUSY = 256
_DP4A = tuple(
    DotProduct(f"dp4a_{x}{w}", 0, 4, (x, w), 8, 1, Rate(4, 1))
    for x, w in (("s", "s"), ("u", "s"), ("s", "u"), ("u", "u"))
)
_MMA = (
    WarpProduct("mma_f16", "f16"),
    WarpProduct("mma_bf16", "bf16"),
    WarpProduct("mma_s8", "i8", sums="i32", depth=32),
)
#: of four warps together, on factors in shared memory
_WGMMA = tuple(
    WarpProduct(f"wgmma_{dtype}_n{n}", dtype, rows=64, columns=n, memory="sums", operands="shared")
    for dtype in ("f16", "bf16")
    for n in (64, 128, 256)
)
#: the same with a first factor that the threads hold as they hold sums
_WGMMA += tuple(replace(p, name=f"{p.name}_held", first="sums") for p in _WGMMA)
_GROUPS = ("sm_90a",)
#: blocks of a cluster, which run at the same time: every GPU that has them takes so many
_CLUSTER = 8
#: of boxes of arrays, by the engine that NVIDIA calls the tensor memory accelerator
_TENSOR_COPY = BulkCopy("tensor")
_BULK = ("sm_90a", "sm_100")
#: products as instructions of single warps have them
_COSTS = {
    "sm_80": partial(GridCosts, beside=3, products=(64, 1024, 2048), far=1100, near=48, begin=1000, kernel=2500),
    "sm_90a": partial(GridCosts, beside=3, products=(128, 1024, 2048), far=1900, near=48, begin=1200, kernel=3000),
    "sm_100": partial(GridCosts, beside=3, products=(128, 1024, 2048), far=4200, near=48, begin=1200, kernel=3000),
}


@dataclass(frozen=True)
class CudaDescription(Machine):
    """A GPU as schedules see it. Numbers are those of NVIDIA's documents; nothing was measured. `flight_bytes`: what
    the memory gives in the time of one access, for each multiprocessor, twice.

    Blocks of a ``cluster`` run at the same time (sm_90a, sm_100). Threads of a block are bound to ``block.x``, ``.y``,
    ``.z``, or lanes of warps, or members of groups of four warps (sm_90a): a nest uses one of these.
    """

    sm: str = "sm_80"
    shared_bytes: int = 163 << 10
    multiprocessors: int = 108
    registers: int = 65536
    l2_bytes: int = 40 << 20
    flight_bytes: int = 24 << 10

    @property
    def vector_bytes(self) -> int:
        """The longest access of a thread."""
        return 16

    @property
    def vector_registers(self) -> int:
        """What a thread may have at most."""
        return 255

    @property
    def line_bytes(self) -> int:
        return 128

    @property
    def cores(self) -> int:
        """Parts that kernels have: eight for each multiprocessor."""
        return 8 * self.multiprocessors

    @property
    def axes(self) -> tuple[Axis, ...]:
        groups = (
            Axis("group", _BLOCK // (4 * _WARP), inside="grid", barriers=("block",)),
            Axis("member", 4 * _WARP, inside="group", barriers=("block",)),
        )
        return (
            *self._in_clusters((*warp_axes(_GRID, _BLOCK, _WARP), *(groups if self.sm in _GROUPS else ()))),
            Axis("lanes", kind="vector"),
        )

    def _in_clusters(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """The axes with those of clusters, whose threads are blocks, between grid and block where the GPU has them."""
        if self.sm not in _BULK:
            return axes
        grid, *others = axes
        cluster = Axis("cluster", _CLUSTER, inside="grid")
        return grid, cluster, *(replace(a, inside="cluster") if a.inside == "grid" else a for a in others)

    @property
    def split_sums(self) -> SumTile | None:
        """Reductions to a few numbers, in slices; for products there are `grid_costs`."""
        return SumTile(lanes=32, vectors=0, rows=0, in_flight=1, slices=16)

    @property
    def coalesced_access(self) -> CoalescedAccess | None:
        return CoalescedAccess()

    @property
    def grid_costs(self) -> GridCosts | None:
        return _COSTS[self.sm](self.multiprocessors)

    def device_costs(self, threads: int) -> DeviceCosts:
        f32, halves, i8, memory = _PEAKS[self.sm]
        threads = _BUSY * self.multiprocessors
        return of_device(f32, memory, threads, 3e-6, 1e-5, 2e10, bf16=halves, f16=halves, i8=i8)

    @property
    def memories(self) -> tuple[Memory, ...]:
        return (
            Memory("register"),
            Memory("local"),
            Memory("shared", self.shared_bytes, shared_by=("block", "warp", "lane", "group", "member"), align=128),
            Memory("fragment", shared_by=("lane",)),
            EXCHANGE,
            *((Memory("sums", shared_by=("member",)),) if self.sm in _GROUPS else ()),
        )

    @property
    def dot_products(self) -> tuple[DotProduct, ...]:
        return _DP4A

    @property
    def warp_products(self) -> tuple[WarpProduct, ...]:
        return (*_MMA, *(_WGMMA if self.sm in _GROUPS else ()))

    @property
    def warp_loads(self) -> tuple[WarpLoad, ...]:
        return (WarpLoad("ldmatrix"),)

    @property
    def warp_folds(self) -> tuple[WarpFold, ...]:
        return (WarpFold("fold"), *((WarpFold("fold_sums", "sums"),) if self.sm in _GROUPS else ()))

    @property
    def bulk(self) -> BulkCopy | None:
        return _TENSOR_COPY if self.sm in _BULK else None

    @property
    def register_trade(self) -> RegisterTrade | None:
        return RegisterTrade(self.registers, 4 * _WARP) if self.sm in _GROUPS else None

    @property
    def llvm(self) -> LlvmRecord:
        """The machine for LLVM: triple and processor."""
        return LlvmRecord("nvptx64-nvidia-cuda", self.sm, (_PTX[self.sm],))


SM_80 = CudaDescription()
SM_90A = CudaDescription(
    "sm_90a", shared_bytes=227 << 10, multiprocessors=132, l2_bytes=50 << 20, flight_bytes=48 << 10
)
SM_100 = CudaDescription(
    "sm_100", shared_bytes=227 << 10, multiprocessors=148, l2_bytes=126 << 20, flight_bytes=64 << 10
)
MACHINES = {m.sm: m for m in (SM_80, SM_90A, SM_100)}
