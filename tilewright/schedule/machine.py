"""The machine record: capabilities and numbers of a machine, typed, for rules, fusion and the driver.

A target's description inherits `Machine` and says what it knows better. Rules and cost functions take their numbers
from here and hold none that belong to one machine; no attribute is probed.

What rules do hold: how many iterations, rows or columns make one form of an algorithm faster than another one, which
part of a quantity of the machine something may take, how far search goes, and how much code may be made.
"""

from __future__ import annotations

from copy import copy
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from typing import Any, TypeVar, cast

from ..graph.machine_costs import GridCosts, ImageCosts, RegionCosts, SumTile, WinogradCosts
from ..support.dtypes import LOOP_TYPES
from ..support.errors import PackageError
from .block_costs import MatrixCosts, Occupancy, ThreadCosts
from .device_costs import DeviceCosts, of_processor
from .machine_instructions import (
    BulkCopy,
    CoalescedAccess,
    DotProduct,
    PairProduct,
    Rate,
    RegisterTrade,
    TileCosts,
    TileProduct,
    WarpFold,
    WarpLoad,
    WarpProduct,
)
from .processor_costs import (
    Blocking,
    FarAccess,
    OperationCycles,
    Prefetch,
    Shuffles,
    VectorAccess,
    WindowCosts,
)

#: for a cache without limit: nothing is too large for it
NO_LIMIT = 1 << 62
M = TypeVar("M", bound="Machine")


@dataclass(frozen=True)
class Axis:
    """A thread axis of a machine, to which loops can be bound (``for i in name(64)``): its threads run at the same
    time. A thread of the axis ``grid`` is a block, one of ``warp`` is a warp.

    `limit`: how many threads there are at most; iteration i runs on thread i. None: iterations are divided among as
    many threads as there are, and it is not known which thread runs which of them. `inside`: the axis each of whose
    threads has these. `barriers`: the names of those at which these threads wait for each other. `dims` ("x", "y"):
    loops are bound to ``name.x`` and ``name.y``, which have `limit` threads together, and each of them at most that of
    `sides`. `kind`: what a loop becomes, where it has no threads of its own ("vector").

    >>> grid = Axis("grid", 1 << 20, dims=("x", "y"), sides=(1 << 16, 1 << 10))
    >>> grid.names, grid.side("grid.y")
    (('grid.x', 'grid.y'), 1024)
    """

    name: str
    limit: int | None = None
    inside: str = ""
    barriers: tuple[str, ...] = ()
    dims: tuple[str, ...] = ()
    sides: tuple[int, ...] = ()
    kind: str = ""

    def side(self, name: str) -> int | None:
        """The threads along ``name.x`` at most; None if all of `limit` may be along it."""
        return self.sides[self.names.index(name)] if self.sides else self.limit

    @property
    def names(self) -> tuple[str, ...]:
        """What loops are bound to."""
        return tuple(f"{self.name}.{d}" for d in self.dims) or (self.name,)


@dataclass(frozen=True)
class Memory:
    """A memory that buffers of a nest can be in: `bytes`, the axes whose threads share one, and what its addresses are
    multiples of. Threads of other axes each have a memory of their own. The name stands in the text of nests: an
    identifier, and no word of Python's (``global``).

    `held_by`: an axis whose thread i holds the elements i of the last dimension in registers: it alone writes them, and
    what another thread reads of them is a shuffle, which all threads of the axis run together (`schedule/shuffles.py`).
    """

    name: str
    bytes: int = NO_LIMIT
    shared_by: tuple[str, ...] = ()
    align: int = 1
    held_by: str = ""


#: costs of a machine of which nothing was measured: made once, as rules ask for them again and again
_FMA, _ACCESS, _SHUFFLES, _OPERATIONS = Rate(4, 2), VectorAccess(), Shuffles(), OperationCycles()
_TILE, _WINDOWS = TileCosts(wide=1.06, outer=1.05), WindowCosts()
_FAR, _PREFETCH, _BLOCKING = FarAccess(), Prefetch(), Blocking()


class Machine:
    """What may be asked of a machine, with the answers of one that has nothing special: scalar, one thread.

    A target's description is a frozen dataclass that inherits this, and gives fields (with defaults) or properties of
    these names. Sizes are in bytes; what was measured on no such machine stays off.

    >>> @dataclass(frozen=True)
    ... class Board(Machine):
    ...     vector_bytes: int = 16
    >>> lanes(Board()), Board().cores, Board().to_json()
    (4, 1, {'vector_bytes': 16})
    """

    # ---- vectors and their instructions

    @property
    def vector_bytes(self) -> int:
        """A vector register; 4 for a machine without vectors."""
        return 4

    @property
    def vector_registers(self) -> int:
        """How many vectors (without vectors: numbers) a loop may keep in registers."""
        return 16

    @property
    def fma(self) -> Rate:
        """Multiply-adds of f32 vectors."""
        return _FMA

    @property
    def access(self) -> VectorAccess:
        return _ACCESS

    @property
    def shuffles(self) -> Shuffles:
        return _SHUFFLES

    @property
    def operations(self) -> OperationCycles:
        return _OPERATIONS

    @property
    def tile(self) -> TileCosts:
        """Of multiply-adds of f32 vectors."""
        return _TILE

    @property
    def windows(self) -> WindowCosts:
        return _WINDOWS

    @property
    def chains(self) -> int:
        """Chains of vector operations that run beside each other so that none waits: accumulators of a sum along a row,
        vectors of a function."""
        return 4

    @property
    def load_chains(self) -> int:
        """The same for chains of loads of which each needs the one before."""
        return 8

    @property
    def seen_vectors(self) -> int:
        """Vectors of a row up to which a processor sees the work on several rows at once, and takes it out of order."""
        return 8

    @property
    def many_registers(self) -> bool:
        """Whether registers hold the sums, or the steps of functions, of several vectors with all that they need."""
        return self.vector_registers >= 32

    @property
    def unrolled_registers(self) -> int:
        """Registers for the sums of a tile all of whose steps are unrolled: the others hold what its columns need."""
        return min(self.vector_registers, 15)

    @property
    def short_loop_registers(self) -> int:
        """Registers for the sums of a tile whose loops over the reduction are all short: tiles that take more are 10 to
        30% slower (measured), for LLVM keeps more alive than the sums."""
        return min(self.vector_registers, 18)

    @property
    def pairs(self) -> PairProduct | None:
        """The instruction for products of pairs of bf16."""
        return None

    @property
    def dot_products(self) -> tuple[DotProduct, ...]:
        """The instructions for sums of products of bytes, the best first."""
        return ()

    @property
    def tiles(self) -> tuple[TileProduct, ...]:
        """The instructions on registers that hold matrices."""
        return ()

    @property
    def paired_dtypes(self) -> frozenset[str]:
        """Element types of operands of which an instruction multiplies neighbours along a sum, and adds the products:
        such operands have to lie along the sum."""
        bf16 = {"bf16"} if self.pairs is not None else set()
        return frozenset(bf16 | ({"i8", "ui8"} if self.dot_products else set()))

    @property
    def warp_products(self) -> tuple[WarpProduct, ...]:
        """The instructions on matrices that several threads hold in parts."""
        return ()

    @property
    def warp_loads(self) -> tuple[WarpLoad, ...]:
        """Those that bring such matrices from memory."""
        return ()

    @property
    def warp_folds(self) -> tuple[WarpFold, ...]:
        """How rows of such matrices are summed up."""
        return ()

    @property
    def bulk(self) -> BulkCopy | None:
        """The engine that copies boxes."""
        return None

    @property
    def register_trade(self) -> RegisterTrade | None:
        """How teams of threads hand registers to each other."""
        return None

    # ---- caches

    @property
    def l1_bytes(self) -> int:
        return 32 << 10

    @property
    def l2_bytes(self) -> int:
        return 512 << 10

    @property
    def l3_bytes(self) -> int:
        """The last cache before memory."""
        return NO_LIMIT

    @property
    def line_bytes(self) -> int:
        """A cache line."""
        return 64

    @property
    def same_set_bytes(self) -> int:
        """What lies a multiple of this apart shares a set of the first-level cache, which has as many places as this
        fits into the cache."""
        return 4096

    @property
    def aligned_rows(self) -> int:
        """Rows that lie powers of two apart and stay in the caches beside each other, at most."""
        return 10

    @property
    def far(self) -> FarAccess:
        return _FAR

    @property
    def flight_bytes(self) -> int:
        """Of memory that the threads of a processor read at full speed: what has to be on its way to them."""
        return 16 << 10

    @property
    def coalesced_access(self) -> CoalescedAccess | None:
        """How threads reach memory together (`schedule/coalescing.py`), where a machine has neighbouring threads."""
        return None

    @property
    def prefetch(self) -> Prefetch:
        return _PREFETCH

    @property
    def blocking(self) -> Blocking:
        return _BLOCKING

    # ---- blocks of threads (`block_costs`)

    @property
    def thread_costs(self) -> ThreadCosts:
        return ThreadCosts()

    @property
    def matrix_costs(self) -> MatrixCosts:
        return MatrixCosts()

    @property
    def occupancy(self) -> Occupancy:
        return Occupancy()

    @property
    def threads_in_turn(self) -> bool:
        """Whether the threads of a block run one after the other, as a processor runs them: what they exchange costs
        more than a sum that is shared saves."""
        return False

    # ---- threads

    @property
    def cores(self) -> int:
        """The threads that a program may use."""
        return 1

    @property
    def thread_work(self) -> int:
        """Elements of work from which on it is worth waking other threads."""
        return 1 << 13

    @property
    def axes(self) -> tuple[Axis, ...]:
        """What `Schedule.bind` binds loops to, outer axes first."""
        return ()

    # ---- memory

    @property
    def memories(self) -> tuple[Memory, ...]:
        """Where a kernel's own buffers can be."""
        return (Memory("local"), Memory("register"))

    @property
    def arena_align(self) -> int:
        """The alignment of buffers."""
        return 64

    @property
    def minimize_memory(self) -> bool:
        """Whether kernels run in the order that needs the least memory."""
        return False

    @property
    def stream_rows(self) -> bool:
        """Whether kernels may run row by row where that makes the arena smaller (`driver/choose_streaming.py`)."""
        return False

    # ---- what is known to be faster here

    @property
    def activations(self) -> str:
        """How 8-bit tensors of a quantized model are kept ("i8", "ui8"): as instructions want their first factor."""
        return "i8"

    @property
    def halves(self) -> str:
        """Where exact halves are found when sums become bytes ("operands", "product"): see `ops.integer.Requantize`."""
        return "operands"

    @property
    def byte_factors(self) -> str:
        """Products of which bytes stay products of bytes: one factor is "constant", or "any" two tensors."""
        return "constant"

    @property
    def row_piece(self) -> int:
        """Rows of a result that go to several places (`tensor/fuse.py`) go there in pieces of multiples of so many
        elements, which are whole vectors."""
        return 16

    @property
    def winograd(self) -> bool:
        """Whether Winograd's method may be chosen."""
        return False

    @property
    def reduced_time(self) -> float:
        """The time of a direct convolution in reduced precision, over that in f32."""
        return 0.5

    @property
    def winograd_costs(self) -> WinogradCosts:
        """Measured with AVX-512."""
        return WinogradCosts(transform=16, weight=16)

    @property
    def image_lanes(self) -> int:
        """The f32 of a vector if convolutions may keep their channels first (`graph/layout_choice.py`), else 0."""
        return 0

    @property
    def image_costs(self) -> ImageCosts:
        """Measured with AVX-512."""
        return ImageCosts(
            transposed=0.3, padded_last=0.4, padded_first=6.0, per_cycle=2.0, result=2.0,
            read_across=1.05, along_sums=1.2, long_sum=96, sliding=1.05, striding=1.15, merged=1.1,
            last_product=0.6, last_beside=3.0, last_far_product=0.9, last_far_beside=8.0,
            first_product=0.55, first_beside=2.0, first_far_product=0.8, first_far_beside=8.5,
        )  # fmt: skip

    @property
    def split_sums(self) -> SumTile | None:
        """What a thread's registers hold if long sums with few results are taken in slices (`graph/split_sums.py`)."""
        return None

    @property
    def split_scans(self) -> int:
        """How many blocks of threads work at the same time, if few long running sums are taken in slices for them
        (`graph/split_scans.py`); else 0."""
        return self.grid_costs.processors if self.grid_costs is not None else 0

    @property
    def grid_costs(self) -> GridCosts | None:
        """What a grid of blocks costs, where the machine has one: sums are then taken in parts for all of its
        processors (`graph/split_products.py`, `graph/split_attention.py`)."""
        return None

    @property
    def split_windows(self) -> RegionCosts | None:
        """The costs of regions if dilated convolutions are divided into such (`graph/clip_windows.py`)."""
        return None

    @property
    def row_chains(self) -> bool:
        """Whether depthwise convolutions may run row by row with those around them
        (`rules/convolution/depthwise_chain.py`)."""
        return False

    # ---- among several devices of a program

    def device_costs(self, threads: int) -> DeviceCosts:
        """What kernels and copies cost here, with so many threads of the host: unless it says so, a processor that
        works in the host's memory."""
        return of_processor(self, threads)

    # ---- as data

    def to_json(self) -> dict[str, object]:
        """The description in a package, a cache key, a request to another process."""
        return asdict(cast(Any, self))

    @classmethod
    def from_json(cls: type[M], data: dict[str, Any]) -> M:
        """The inverse of `to_json`; PackageError for fields of another version."""
        try:
            return cls(**data)
        except TypeError:
            raise PackageError("the package describes no machine that this version knows", stage="load") from None


_THREADS = Axis("thread")


def find_axis(machine: Machine, kind: str) -> Axis | None:
    """The axis that loops of a kind are bound to. Those of threads are known to all machines: where there are none, one
    thread runs all iterations."""
    found = next((a for a in machine.axes if kind in a.names and not a.kind), None)
    return found or (_THREADS if kind == _THREADS.name else None)


def axis_names(machine: Machine) -> list[str]:
    """What loops can be bound to."""
    return list(dict.fromkeys(n for a in (*machine.axes, _THREADS) if not a.kind for n in a.names))


def barriers(machine: Machine) -> list[str]:
    """The barriers of a machine."""
    return list(dict.fromkeys(b for a in machine.axes for b in a.barriers))


def one_thread(machine: Machine) -> Machine:
    """The machine as one of its threads sees it: for a kernel that a thread runs as a part of another one."""
    if machine.cores == 1:
        return machine
    if any(f.name == "cores" for f in fields(cast(Any, machine))):
        return cast(Machine, replace(cast(Any, machine), cores=1))
    alone = copy(machine)
    object.__setattr__(alone, "__class__", _of_one_thread(cast(Any, type(machine))))
    return alone


@lru_cache(maxsize=64)
def _of_one_thread(kind: Any) -> Any:
    """The same kind of machine where `cores` follows from its other numbers."""
    return type(kind.__name__, (kind,), {"cores": 1})


def lanes(machine: Machine, dtype: str = "f32") -> int:
    """Vector lanes of a dtype; types of less than 32 bits are computed in lanes of 32."""
    return max(machine.vector_bytes // max(LOOP_TYPES[dtype].nbytes, 4), 1)


__all__ = [
    "Axis",
    "Blocking",
    "BulkCopy",
    "DotProduct",
    "FarAccess",
    "Machine",
    "Memory",
    "NO_LIMIT",
    "OperationCycles",
    "PairProduct",
    "Prefetch",
    "Rate",
    "RegisterTrade",
    "Shuffles",
    "TileCosts",
    "TileProduct",
    "VectorAccess",
    "WarpFold",
    "WarpLoad",
    "WarpProduct",
    "WindowCosts",
    "axis_names",
    "barriers",
    "find_axis",
    "lanes",
    "one_thread",
]
