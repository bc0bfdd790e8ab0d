"""What a machine is to rules, fusion and the driver: a typed record of capabilities and numbers.

A target's description inherits `Machine` and says what it knows better. Rules and cost functions take their numbers
from here and hold none that belong to one machine; no attribute is probed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any, TypeVar, cast

from ..support.dtypes import LOOP_TYPES, TYPES

#: for a cache without limit: nothing is too large for it
NO_LIMIT = 1 << 62
M = TypeVar("M", bound="Machine")


@dataclass(frozen=True)
class Rate:
    """How fast an instruction is: `latency` cycles until its result can be used, `per_cycle` of them begin in a cycle.

    >>> Rate(4, 2).cycles(20), Rate(4, 2).cycles(3), Rate(4, 2).in_flight
    (10.0, 4.0, 8)
    """

    latency: float
    per_cycle: float

    def cycles(self, count: float) -> float:
        """The least cycles of a step with so many that do not need each other, where each needs its own of the last
        step."""
        return max(count / self.per_cycle, float(self.latency))

    @property
    def in_flight(self) -> int:
        """How many are under way so that none waits for the one before."""
        return ceil(self.latency * self.per_cycle)


@dataclass(frozen=True)
class VectorAccess:
    """Cycles that a vector takes from and to the first-level cache: in the best case, and where it lies across two
    cache lines."""

    load: float = 0.5
    split_load: float = 1.0
    store: float = 1.0
    split_store: float = 1.4


@dataclass(frozen=True)
class PairProduct:
    """An instruction that adds products of neighbours to f32 sums: ``acc[l] += x[l, 0] * w[l, 0] + x[l, 1] * w[l, 1]``.

    `lanes` sums at once, of factors of a dtype (bf16).
    """

    name: str
    dtype: str
    lanes: int
    rate: Rate


@dataclass(frozen=True)
class DotProduct:
    """An instruction that adds products of bytes to i32 sums: ``acc[l] += sum of x[q] * w[l, q] for q < depth``.

    `lanes` sums at once, 0 for one in a scalar register; `signs` of x and w ("u" or "s"); `rows` and `columns` are the
    tile of sums that fits the registers, rows of x by (vectors of) columns of w.
    """

    name: str
    lanes: int
    depth: int
    signs: tuple[str, str]
    rows: int
    columns: int
    rate: Rate = Rate(4, 2)


@dataclass(frozen=True)
class TileProduct:
    """An instruction on registers that hold matrices: ``acc[m, n] += sum of x[m, k] * w[k, n]`` in f32 or i32.

    Each of the `registers` holds up to `rows` rows of `row_bytes` bytes. Factors are `dtype` (bf16 or i8), `signs`
    those of x and w ("u", "s"; "f" for floats). A product takes `row_cycles` for every row of x. In w as many numbers
    of the reduction as make 4 bytes, its `group`, are neighbours: ``w[k // group, n, k % group]``.
    """

    name: str
    dtype: str
    signs: tuple[str, str]
    rows: int = 16
    row_bytes: int = 64
    registers: int = 8
    row_cycles: float = 1.0

    @property
    def size(self) -> int:
        """Bytes of a factor."""
        return TYPES[self.dtype].nbytes

    @property
    def group(self) -> int:
        return 4 // self.size

    @property
    def depth(self) -> int:
        """How much of the reduction a row holds."""
        return self.row_bytes // self.size

    @property
    def columns(self) -> int:
        """How many sums a row holds."""
        return self.row_bytes // 4


@dataclass(frozen=True)
class Axis:
    """Units of a machine that run at the same time, to which loops can be bound (``for i in name(64)``).

    `limit`: how many units there are at most; iteration i runs on unit i. None: iterations are shared out among as many
    units as there are, and it is not known which of them run on one unit. `inside`: the axis whose units each have
    these. `barriers`: the names of those at which these units wait for each other. `dims` ("x", "y"): loops are bound
    to ``name.x`` and ``name.y``, which have `limit` units together. `kind`: what a loop becomes, where it is no loop of
    units of their own ("vector").

    >>> Axis("grid", 1 << 16, dims=("x", "y")).names
    ('grid.x', 'grid.y')
    """

    name: str
    limit: int | None = None
    inside: str = ""
    barriers: tuple[str, ...] = ()
    dims: tuple[str, ...] = ()
    kind: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """What loops are bound to."""
        return tuple(f"{self.name}.{d}" for d in self.dims) or (self.name,)


@dataclass(frozen=True)
class Memory:
    """A memory that buffers of a nest can be in: `bytes`, the axes whose units share one, and what its addresses are
    multiples of. Units of other axes each have a memory of their own. The name stands in the text of nests: an
    identifier, and no word of Python's (``global``)."""

    name: str
    bytes: int = NO_LIMIT
    shared_by: tuple[str, ...] = ()
    align: int = 1


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
        return Rate(4, 2)

    @property
    def access(self) -> VectorAccess:
        return VectorAccess()

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

    # ---- threads

    @property
    def cores(self) -> int:
        """The threads that a program may use."""
        return 1

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
    def winograd(self) -> bool:
        """Whether Winograd's method may be chosen."""
        return False

    @property
    def image_lanes(self) -> int:
        """The f32 of a vector if convolutions may keep their channels first (`graph/layout_choice.py`), else 0."""
        return 0

    @property
    def split_sums(self) -> bool:
        """Whether long sums with few results are taken in slices (`graph/split_sums.py`)."""
        return False

    @property
    def split_windows(self) -> bool:
        """Whether dilated convolutions are divided into regions (`graph/clip_windows.py`)."""
        return False

    @property
    def row_chains(self) -> bool:
        """Whether depthwise convolutions may run row by row with those around them
        (`rules/convolution/depthwise_chain.py`)."""
        return False

    # ---- as data

    def to_json(self) -> dict[str, Any]:
        """The description in a package, a cache key, a request to another process."""
        return asdict(cast(Any, self))

    @classmethod
    def from_json(cls: type[M], data: dict[str, Any]) -> M:
        """The inverse of `to_json`."""
        return cls(**data)


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
    return machine if machine.cores == 1 else cast(Machine, replace(cast(Any, machine), cores=1))


def lanes(machine: Machine, dtype: str = "f32") -> int:
    """Vector lanes of a dtype; types of less than 32 bits are computed in lanes of 32."""
    return max(machine.vector_bytes // max(LOOP_TYPES[dtype].nbytes, 4), 1)
