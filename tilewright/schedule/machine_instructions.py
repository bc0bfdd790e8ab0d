"""Records of a machine's special instructions (fields of `machine.Machine`): dot products of pairs and bytes, tile and
tensor core products, warp-level instructions, bulk copies."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ..support.dtypes import TYPES


@dataclass(frozen=True)
class Rate:
    """How fast an instruction is: `latency` cycles until its result can be used, `per_cycle` of them begin in a cycle.

    >>> Rate(4, 2).cycles(20), Rate(4, 2).cycles(3), Rate(4, 2).in_flight
    (10.0, 4.0, 8)
    """

    latency: float
    per_cycle: float

    def cycles(self, count: float) -> float:
        """The least cycles of a step with so many independent instructions, each of which needs its own result of the
        last step."""
        return max(count / self.per_cycle, float(self.latency))

    @property
    def in_flight(self) -> int:
        """How many are under way so that none waits for the one before."""
        return ceil(self.latency * self.per_cycle)


@dataclass(frozen=True)
class TileCosts:
    """Cycles of a tile of sums beside its multiply-adds and its loads from the first-level cache.

    `step`: around a step of the reduction; `row`: for a row of it; `panel`: for a vector of a panel in the first-level,
    the second-level cache and beyond; `store`: for a vector of sums that leaves in whole rows of the result, and in
    pieces of rows; `around`: around the tile; `cut_windows`: for a tile of windows that is cut off. `wide` and `outer`:
    how many times as long tiles take of several rows and more than `wide_vectors` vectors (measured: 1.02 to 1.1), and
    of two rows of windows."""

    step: float = 0.15
    row: float = 0.05
    panel: tuple[float, float, float] = (0.1, 0.5, 1.0)
    store: tuple[float, float] = (2.0, 4.0)
    around: float = 0.0
    cut_windows: float = 4.0
    wide: float = 1.0
    wide_vectors: int = 4
    outer: float = 1.0


@dataclass(frozen=True)
class PairProduct:
    """An instruction that adds products of neighbours to f32 sums: ``acc[l] += x[l, 0] * w[l, 0] + x[l, 1] * w[l, 1]``.

    `lanes` sums at once, of factors of a dtype (bf16).
    """

    name: str
    dtype: str
    lanes: int
    rate: Rate
    costs: TileCosts = TileCosts(panel=(0.1, 0.3, 0.3))


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
    costs: TileCosts = TileCosts(0.2, 0.0, (0.0, 0.0, 0.0), (4.0, 4.0), 8.0)


@dataclass(frozen=True)
class TileProduct:
    """An instruction on registers that hold matrices: ``acc[m, n] += sum of x[m, k] * w[k, n]`` in f32 or i32.

    Each of the `registers` holds up to `rows` rows of `row_bytes` bytes. Factors are `dtype` (bf16 or i8), `signs`
    those of x and w ("u", "s"; "f" for floats). A product takes `row_cycles` for every row of x, of which `short_part`
    is saved by registers that are not full. `line_cycles`: for a row that is loaded, beside the load; `end_cycles` and
    `sum_row_cycles`: around a tile, whose sums pass through memory, and for each row of them. Of these costs nothing
    was measured. In w as many numbers of the reduction as make 4 bytes, its `group`, are neighbours:
    ``w[k // group, n, k % group]``.
    """

    name: str
    dtype: str
    signs: tuple[str, str]
    rows: int = 16
    row_bytes: int = 64
    registers: int = 8
    row_cycles: float = 1.0
    short_part: float = 0.5
    line_cycles: float = 0.25
    end_cycles: float = 60.0
    sum_row_cycles: float = 4.0

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
class WarpProduct:
    """An instruction that the threads of an axis run together, on matrices of which each thread holds a part:
    ``acc[m, n] += sum of x[m, k] * w[k, n]`` in f32 or i32.

    Factors are `dtype`. The sums are a buffer in `memory`, the factors in `operands`, which the threads share, or the
    first factor in `first`, where that is given; they have `rows` x `columns`, `rows` x `depth` and `depth` x `columns`
    elements, or multiples of that, of which one instruction takes one block.
    """

    name: str
    dtype: str
    sums: str = "f32"
    rows: int = 16
    columns: int = 8
    depth: int = 16
    memory: str = "fragment"
    operands: str = "fragment"
    first: str = ""
    rate: Rate = Rate(32, 1 / 8)

    @property
    def extends(self) -> str:
        """What makes a summand's type of a factor's."""
        return "extf" if self.sums == "f32" else "extsi"


@dataclass(frozen=True)
class WarpLoad:
    """An instruction with which the threads of an axis bring blocks of 8 rows of `row_bytes` from memory `source` to
    `memory`, where each then holds a part."""

    name: str
    source: str = "shared"
    memory: str = "fragment"
    row_bytes: int = 16


@dataclass(frozen=True)
class WarpFold:
    """Row reductions of fragments, matrices of sums that threads hold in parts in `memory`: the sum or maximum of each
    row, ``r[m] = r[m] + x[m, n]``, or the larger one, for all n. All threads that hold parts of a row then have its
    r."""

    name: str
    memory: str = "fragment"


@dataclass(frozen=True)
class BulkCopy:
    """A copy of a box of a parameter to `memory` by a copy engine (TMA): one thread begins it, and all that share the
    memory wait until its bytes are there.

    A box has up to `dims` dimensions of up to `side` elements, which lie in memory one after the other, from a multiple
    of `align` bytes on. The innermost dimension takes a multiple of `unit` bytes, and so does a step along each other
    one of the parameter. Rows of one of `swizzles` bytes may be swizzled by pieces of `unit` bytes: piece p of the
    line of 128 bytes with number r lies at ``p xor r``. Elements beyond the parameter are zero.
    """

    name: str
    memory: str = "shared"
    dims: int = 5
    side: int = 256
    unit: int = 16
    align: int = 128
    swizzles: tuple[int, ...] = (128, 64, 32)


@dataclass(frozen=True)
class RegisterTrade:
    """Register reallocation between warpgroups (``setmaxnreg``), of `threads` threads each: a block has `total`
    registers, at first the same multiple of `step` for each thread. Then a thread of a warpgroup may have `least` to
    `most`.

    >>> RegisterTrade(65536, 128).each(384)
    168
    """

    total: int
    threads: int
    step: int = 8
    least: int = 40
    most: int = 240

    def each(self, threads: int) -> int:
        """Registers of each of so many threads at first."""
        return self.total // threads // self.step * self.step


@dataclass(frozen=True)
class CoalescedAccess:
    """How threads of a warp access memory. `together` threads run one access; memory moves whole sectors, and the
    longest access of a thread has `access_bytes`. Memories named in `shared` have banks, each of which serves one word
    at a time, to all threads that ask for it."""

    together: int = 32
    sector_bytes: int = 32
    access_bytes: int = 16
    shared: tuple[str, ...] = ("shared",)
    banks: int = 32
    bank_bytes: int = 4


__all__ = [
    "BulkCopy",
    "DotProduct",
    "PairProduct",
    "Rate",
    "RegisterTrade",
    "TileCosts",
    "TileProduct",
    "CoalescedAccess",
    "WarpFold",
    "WarpLoad",
    "WarpProduct",
]
