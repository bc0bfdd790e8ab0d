"""`Product`: what a sum of products is, without how it runs: its loops M (rows), N (columns) and K (the reduction), how
far its operands move along them, and the instruction that multiplies. The same for sums of a single operand.

Columns are contiguous in the result. Rows move the other operand alone. What moves both is a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

from ...support.sizes import gcd, is_open, typical
from ...tensor.analysis import is_contraction
from ...tensor.expr import Expr, Load, Op, Var, simplify, variables, walk
from ...tensor.kernel import Stage
from ..machine import Machine, lanes
from ..primitives.memory import keeps_order, packed_shape
from ..region import all_ranges
from ..rules.common import coefficient, load_positions, reads, store_stride
from ..schedule import Schedule
from .instructions import Instruction, Tile, vectors

#: sums of one operand with columns of at least so many need no other rows beside them (measured)
ENOUGH_COLUMNS = 128
#: lanes of operands may lie so many elements apart: targets load whole vectors, and pick
MAX_LANE_STEP = 4
#: sides of windows up to this one are unrolled: what neighbouring windows share is then loaded once (measured: twice as
#: fast for a window of 5)
MAX_WINDOW = 8
#: columns that may be peeled, and whole vectors beside them, at most
MAX_PEELED, MAX_VECTORS_PEELED = 6, 4
#: rows share vectors beside so many whole ones at most (of more, what is left is too little to gain by), of so many
#: lanes at least (of shorter ones nothing was measured), in sums of so many products at least, of rows that lie so many
#: numbers apart (measured: 2 to 5 are 0.8 to 1.3 times as fast as in tiles that are unrolled whole)
MAX_VECTORS_SHARED, MIN_SHARED_LANES, MIN_SHARED = 8, 8, 6


@dataclass(frozen=True, eq=False)
class Operand:
    """A load of a sum: the numbers in its buffer, whether the sum itself reads it (not what was inlined), whether it
    may be packed or copied, how far it moves along each loop (None: not known), its indices without what reshapes
    leave."""

    load: Load
    dtype: str
    shape: tuple[int, ...]
    own: bool
    constant: bool
    variable: bool
    reads: int
    steps: Mapping[str, int | None]
    indices: tuple[Expr, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def plain(self) -> bool:
        """Whether each index is a loop, or none."""
        return all(isinstance(i, Var) or not variables(i) for i in self.load.indices)

    def along(self, v: str) -> bool:
        """Whether a loop alone is one of the indices."""
        return Var(v) in self.load.indices


class AlongK(NamedTuple):
    """The loop of the reduction along which lanes run, the two loops of a tile of results, each of which moves one
    operand alone (there may be one, or none), and the constants to pack for that."""

    k: str
    loops: list[str]
    packed: list[Operand]


class Peeled(NamedTuple):
    """The columns in whole vectors, those beyond, the loop of the reduction along which lanes run for the latter, and
    the operand that is transposed for that."""

    whole: int
    left: int
    k: str
    w: Load | None


class Across(NamedTuple):
    """An operand that lies across the lanes: its buffer, and the dimension along which they run."""

    buffer: str
    lane: int


class Layout(NamedTuple):
    """How a constant is packed; see `Schedule.pack`."""

    buffer: str
    splits: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, eq=False)
class Product:
    """A sum. `run` is the loop of the reduction of which the instruction takes neighbours, `alone` hides what is around
    a kernel (other threads, where its operands come from), for plans that are compared by their registers. With
    `swapped` rows and columns have changed places. A tile takes part of the innermost `tile_rows` rows. `live` are the
    loops that the nest has. With `open_rows` it is not known how many rows there are, and extents are typical; all
    loops of unknown extents stand in `divides` with what surely divides these. `layouts_before`: see `Kernel.layouts`.

    >>> p = sized([64], 100, 32, Instruction(lanes=8))
    >>> p.spans, p.extents[p.columns], p.steps, p.others
    ([64], 100, 32, 1)
    """

    instruction: Instruction
    extents: Mapping[str, int]
    columns: str
    rows: tuple[str, ...]
    parallel: tuple[str, ...]
    reduction: tuple[str, ...]
    operands: tuple[Operand, ...] = ()
    contraction: bool = True
    guarded: bool = False
    dtype: str = "f32"
    result: int = 0
    run: str = ""
    alone: bool = True
    swapped: bool = False
    tile_rows: int = 2
    sliding: tuple[int, int] | None = None
    live: frozenset[str] = field(default_factory=frozenset)
    open_rows: bool = False
    divides: Mapping[str, int] = field(default_factory=dict)
    layouts_before: Mapping[str, tuple[object, object]] = field(default_factory=dict)

    # ---- sizes

    @cached_property
    def width(self) -> int:
        return self.instruction.lanes

    @cached_property
    def spans(self) -> list[int]:
        """The extents of the rows that a tile takes part of, innermost first."""
        return [self.extents[m] for m in self.rows[: self.tile_rows]]

    @cached_property
    def n(self) -> int:
        """How many columns."""
        return self.extents[self.columns]

    def fits(self, vectors: int) -> bool:
        """Whether a tile may have so many vectors of columns: how many the last one has decides what is laid out, so it
        has to be known, or one."""
        known = self.divides.get(self.columns)
        return vectors == 1 or known is None or known % (vectors * self.width) == 0

    def tiles(self, registers: int | None = None) -> list[Tile]:
        """The instruction's tiles that may be had."""
        found = [t for t in self.instruction.tiles(self.spans, self.n, registers) if self.fits(t[2])]
        return [t for t in found if self.packed_before(t[2])] or found

    def packed_before(self, vectors: int) -> bool:
        """Whether tiles of so many vectors pack constants as another program has packed them, or find them so: those
        that are stacked in tiles."""
        known, stacked = self.layouts_before, self.open_rows and self.stacked
        made = self.layouts(self.columns, vectors * self.width) if known or stacked else []
        shapes = {x.load.buffer: x.shape for x in self.operands}
        return bool(made) and all(
            known.get(x.buffer) == (x.splits, x.order) or (stacked and keeps_order(shapes[x.buffer], x.splits, x.order))
            for x in made
        )

    @cached_property
    def repeats_layout(self) -> bool:
        """Whether there are tiles that do."""
        return any(self.packed_before(t[2]) for t in self.tiles())

    def trips(self, v: str) -> int:
        """Steps along a loop of the reduction."""
        return -(-self.extents[v] // self.instruction.group) if v == self.run else self.extents[v]

    @cached_property
    def steps(self) -> int:
        """How many steps of the instruction the reduction has."""
        return prod(self.trips(v) for v in self.reduction)

    @cached_property
    def others(self) -> int:
        """How often a sum over rows, columns and the reduction comes."""
        return prod(self.extents[v] for v in self.parallel if v not in (self.columns, *self.rows[: self.tile_rows]))

    @cached_property
    def outer(self) -> list[str]:
        """Loops over results that are neither rows nor columns."""
        return [v for v in self.parallel if v not in (self.columns, *self.rows)]

    @cached_property
    def batch(self) -> list[str]:
        """Those of them that move all operands; of a swapped product all."""
        return self.outer if self.swapped else [v for v in self.outer if all(x.steps[v] for x in self.operands)]

    # ---- operands

    @property
    def moved(self) -> list[Operand]:
        """What depends on the columns."""
        return [x for x in self.operands if x.steps[self.columns] != 0]

    @property
    def still(self) -> list[Operand]:
        """What does not."""
        return [x for x in self.operands if x.steps[self.columns] == 0]

    def nbytes(self, operands: Sequence[Operand]) -> int:
        return sum(x.size for x in operands) * self.instruction.factor_bytes

    def across(self, n: str, near: int) -> list[Across]:
        """Operands that are no constants, whose elements for neighbouring lanes of loop `n` lie more than `near` apart,
        and for neighbouring steps of a loop of the reduction side by side."""
        found: list[Across] = []
        for x in () if self.guarded else self.operands:
            step, along = x.steps[n], [x.steps[v] for v in self.reduction]
            again = {str(y.load) for y in self.operands if y.load.buffer == x.load.buffer and y.steps[n] != 0}
            own = [d for d, i in enumerate(x.indices) if n in variables(i)]
            plain = len(own) == 1 and coefficient(x.indices[own[0]], n) == 1 and None not in along
            if step is not None and step > near and 1 in along and plain and x.variable and len(again) == 1:
                found.append(Across(x.load.buffer, own[0]))
        return found

    @property
    def transposed(self) -> list[Across]:
        """Operands to copy with their columns last."""
        return self.across(self.columns, 1 if self.swapped else MAX_LANE_STEP)

    @cached_property
    def window(self) -> tuple[int, int] | None:
        """(step, size) of the window that slides along the first row loop if no operand is shared by the lanes (a
        depthwise convolution); else None."""
        if not self.rows or not self.contraction or self.swapped or self.sliding:
            return self.sliding
        moving = [x for x in self.operands if x.steps[self.rows[0]] != 0]
        reductions = [v for v in self.reduction if v in self.live]
        if len(moving) != 1 or not reductions or moving[0].steps[self.columns] == 0:
            return None
        step, inner = moving[0].steps[self.rows[0]], moving[0].steps[reductions[-1]]
        if not inner or step is None or step % inner:
            return None
        return step // inner, self.extents[reductions[-1]]

    # ---- forms

    @cached_property
    def two(self) -> tuple[Operand, Operand] | None:
        """The operands of the columns and of the rows of a product in f32."""
        moved, still = self.moved, self.still
        if not self.contraction or self.guarded or not self.rows or len(moved) != 1 or len(still) != 1:
            return None
        return (moved[0], still[0]) if {self.dtype, moved[0].dtype, still[0].dtype} == {"f32"} else None

    @cached_property
    def along_k(self) -> AlongK | None:
        """How lanes may run along the reduction, None if not: every operand must lie along it, or be packed so."""
        if not self.contraction or self.guarded or len(self.operands) != 2 or self.width == 1:
            return None
        if any(d != "f32" for d in (self.dtype, *(x.dtype for x in self.operands))):
            return None
        for k in reversed(self.reduction):
            packed = [x for x in self.operands if x.steps[k] != 1]
            if self.extents[k] >= self.width and all(x.constant and x.plain and x.along(k) for x in packed):
                alone = [
                    [v for v in self.parallel if x.steps[v] != 0 and y.steps[v] == 0]
                    for x, y in (self.operands, self.operands[::-1])
                ]
                longest = [sorted(loops, key=lambda v: self.extents[v])[-1] for loops in alone if loops]
                return AlongK(k, longest, packed)
        return None

    @cached_property
    def peeled(self) -> Peeled | None:
        """How columns beyond whole vectors may be summed by lanes along the reduction: few of them, beside few vectors,
        with rows that lie along it."""
        left = self.n % self.width
        if self.two is None or not 0 < left <= MAX_PEELED or not 0 < self.n - left <= MAX_VECTORS_PEELED * self.width:
            return None
        w, x = self.two
        for k in reversed(self.reduction):
            if self.extents[k] >= self.width and x.steps[k] == 1 and w.plain and w.steps[k] is not None and w.along(k):
                return Peeled(self.n - left, left, k, None if w.steps[k] == 1 else w.load)
        return None

    @cached_property
    def shared(self) -> int:
        """How many rows may have a vector together for the columns beyond whole vectors; 1 if none."""
        if self.open_rows:  # how many are together in the last tile decides what is laid out there
            return 1
        n, width, left = self.n, self.width, self.n % self.width
        if self.two is None or width < MIN_SHARED_LANES or self.steps < MIN_SHARED or self.extents[self.rows[0]] < 2:
            return 1
        if not 0 < left <= width // 2 or not width < n <= (MAX_VECTORS_SHARED + 1) * width:
            return 1
        w, x = self.two
        apart = x.steps[self.rows[0]]
        if (w.steps[self.columns] != 1 and not self.packable(self.columns)) or apart is None or apart < MIN_SHARED:
            return 1
        return 4 if left * 4 <= width else 2

    # ---- where operands come from

    @cached_property
    def lane_loads(self) -> float:
        """How many loads a vector of an operand takes whose window slides along the lanes (a convolution with its
        channels first): its vectors begin anywhere in a cache line. 0 for other operands."""
        n, reduced, access = self.columns, set(self.reduction), self.instruction.access
        slides = [
            x.steps[n]
            for x in self.moved
            if x.steps[n] and any(n in (v := variables(i)) and v & reduced for i in x.load.indices)
        ]
        return 0.0 if not slides else access.split_load / access.load if slides == [1] else access.scattered_loads

    def max_rows(self, machine: Machine) -> int | None:
        """How many rows of the other operand the first-level cache holds side by side, if few because of their
        distance.

        Rows that are `same_set_bytes` apart fall into one set of the cache, which has as many places as these fit into
        it, those half as far apart into two (measured: 14 rows in 12 places take up to a third longer once other data
        pass)."""
        way = machine.same_set_bytes
        steps = [x.steps[self.rows[0]] for x in self.still if self.rows and x.dtype == "f32"]
        apart = [gcd(c * 4, way) for c in steps if c]
        return (machine.l1_bytes // way - 2) * (way // max(apart)) if apart else None

    def rows_shared(self, machine: Machine) -> bool:
        """Whether threads should share the rows of a result and not its columns.

        With columns of its own a thread reads all rows and its part of the weights; with rows of its own all weights,
        and of the rows its part alone, much of which it has made itself and has at hand. So where the weights are less
        (and stay in the second-level cache); measured in models: 1 to 5% of 1x1 convolutions. Not where the result is
        far larger than the rows: then it matters more who reads it, and depthwise convolutions share columns."""
        if self.window is not None or self.batch or self.swapped or not self.one_weight:
            return False
        rows = sum({x.load.buffer: x.size for x in self.still}.values()) * 4
        weights = sum({x.load.buffer: x.size for x in self.moved}.values()) * 4
        return weights < rows and weights <= machine.l2_bytes // 2 and self.result <= rows

    def columns_shared(self, machine: Machine) -> bool:
        """Whether threads take columns each, of a result without a batch."""
        return (
            machine.cores > 1
            and bool(self.operands)
            and not self.batch
            and not self.lane_loads
            and not self.rows_shared(machine)
        )

    def rows_from_afar(self, machine: Machine) -> bool:
        """Whether the rows do not stay in the second-level cache until the next panel (of two vectors) is its turn, and
        panels do not stay in the first-level cache in any case."""
        return self.nbytes(self.still) > machine.l2_bytes and self.steps * 2 * self.width * 4 > machine.l1_bytes

    # ---- constants

    @cached_property
    def stacked(self) -> bool:
        """Whether a constant to pack has a matrix for each step of other loops (which the rows do not follow)."""
        own = {self.columns, *self.reduction}
        return any(not variables(i) <= own for x, _ in self.packable(self.columns) for i in x.load.indices)

    def packable(self, n: str) -> list[tuple[Operand, int]]:
        """Constant operands that depend on `n` in one dimension, and that dimension."""
        found = []
        for x in self.operands:
            indices = x.load.indices
            where = [d for d, i in enumerate(indices) if n in variables(i)]
            single = len(where) == 1 and isinstance(indices[where[0]], Var)
            if x.own and x.constant and x.reads == 1 and single and all(len(variables(i)) <= 1 for i in indices):
                found.append((x, where[0]))
        return found

    def layouts(self, n: str, block: int) -> list[Layout]:
        """Constant operands that depend on `n`, in tiles of `block` columns first, the reduction in order, columns
        last, and after them the numbers of the reduction that the instruction takes together."""
        found = []
        for x, d in self.packable(n):
            indices, group = x.load.indices, self.instruction.neighbours
            if group > 1 and Var(self.run) not in indices:
                continue
            p = indices.index(Var(self.run)) if group > 1 else -1
            splits = tuple((block,) if i == d else (group,) if i == p else () for i in range(len(indices)))
            found_in = [variables(i) for i in indices]
            reduced = [i for i, v in enumerate(found_in) if i != d and v <= set(self.reduction) and (v or group == 1)]
            kept = [i for i in range(len(indices)) if i != d and i not in reduced]
            # positions after splitting: a dimension that is split is followed by its part, those behind it move up
            place = {i: i + (i > d) + (i > p >= 0) for i in range(len(indices))}
            order = [*kept, d, *sorted(reduced, key=lambda i: self._rank(indices[i]))]
            last = [place[d] + 1, *([place[p] + 1] if p >= 0 else [])]
            at = (*[place[i] for i in order], *last)
            found.append(Layout(x.load.buffer, splits, at, packed_shape(x.shape, splits, at)))
        return found

    def _rank(self, index: Expr) -> int:
        names = variables(index)
        return next((i for i, v in enumerate(self.reduction) if v in names), -1)

    @cached_property
    def one_weight(self) -> bool:
        """Whether products are summed in f32 with one operand to pack, which depends on the columns and the reduction
        alone."""
        found = self.packable(self.columns)
        if not self.contraction or len(found) != 1 or self.dtype != "f32":
            return False
        return {v for i in found[0][0].load.indices for v in variables(i)} <= {self.columns, *self.reduction}

    # ---- other views

    def with_lanes(self, width: int) -> Product:
        return self if width == self.width else replace(self, instruction=replace(self.instruction, lanes=width))

    @cached_property
    def _turned(self) -> dict[int, Product]:
        return {}

    def along_rows(self, widest: int) -> Product:
        """With rows as columns: made once, as the estimate of each plan asks for it."""
        if widest not in self._turned:
            turned = replace(self.with_lanes(widest), columns=self.rows[0], rows=(self.columns,), swapped=True)
            self._turned[widest] = turned
        return self._turned[widest]

    @property
    def again(self) -> set[str]:
        """Loops of the reduction along which rows see what their neighbours see."""
        x, row = self.still[0], self.rows[0]
        step, n = x.steps[row], self.extents[row]
        return {k for k in self.reduction if step and (c := x.steps[k]) and c % step == 0 and c // step < n}

    @cached_property
    def compared(self) -> Product:
        """As forms are compared: alone, by the innermost rows."""
        return replace(self, tile_rows=1, alone=True)


def sized(
    rows: Sequence[int],
    columns: int,
    depth: int,
    instruction: Instruction,
    *,
    alone: bool = True,
    window: tuple[int, int] | None = None,
) -> Product:
    """A product of such sizes, without operands: for loop nests that are built by hand."""
    names = tuple(f"m{i}" for i in range(len(rows)))
    extents = {**dict(zip(names, map(typical, rows), strict=True)), "n": typical(columns), "k": typical(depth)}
    return Product(instruction, extents, "n", names, (*names, "n"), ("k",), alone=alone, sliding=window)


def operands_of(s: Schedule, anchor: Stage) -> tuple[Operand, ...]:
    """What a sum loads."""
    store, ranges = s.store(anchor.name), all_ranges(s.body)
    own = set(walk(anchor.targets[0].value))
    loops = [v for v, _ in anchor.dims]
    found = []
    for x, position in load_positions(s, store):
        buffer, constant = s.buffer(x.buffer), x.buffer in s.kernel.constants
        variable = x.buffer in s.params and not constant and x.buffer not in s.kernel.outputs
        indices = tuple(simplify(i, ranges) for i in x.indices)
        steps = {v: None if (c := coefficient(position, v)) is None else typical(c) for v in loops}
        shape = tuple(map(typical, buffer.shape))
        mine, count = x in own, reads(s, x.buffer)
        found.append(Operand(x, buffer.dtype, shape, mine, constant, variable, count, steps, indices))
    return tuple(found)


def product_of(s: Schedule, anchor: Stage, machine: Machine) -> Product | str:
    """The sum of a stage in f32 vectors (or of another type, without an instruction for it); or why it is none."""
    store, extents = s.store(anchor.name), {v: typical(n) for v, n in anchor.extents.items()}
    parallel, operands = tuple(v for v, _ in anchor.parallel), operands_of(s, anchor)
    contiguous = [v for v in parallel if store_stride(s, store, v) == 1]
    if not contiguous:
        return "no loop is contiguous in the result"
    n = min(contiguous, key=lambda v: sum(x.steps[v] not in (0, 1) for x in operands))
    rows = _row_loops(operands, parallel, n)
    if not rows and not is_contraction(s.stages[anchor.name]) and extents[n] < ENOUGH_COLUMNS:
        rows = [v for v in reversed(parallel) if v != n][:1]  # more sums that need not wait for each other
    guarded = any(isinstance(x, Op) and x.op == "guard" for x in walk(store.targets[0].value))
    dtype = s.buffer(anchor.buffer).dtype
    found = Product(
        vectors(machine, lanes(machine, dtype)), extents, n, tuple(rows), parallel, tuple(anchor.reduction), operands,
        is_contraction(anchor), guarded, dtype, typical(s.buffer(anchor.buffer).size), alone=False,
        live=frozenset(s.loops()), open_rows=is_open(*(anchor.extents[v] for v in rows)),
        divides={v: gcd(d) for v, d in anchor.extents.items() if is_open(d)},
        layouts_before=s.kernel.layouts,
    )  # fmt: skip
    far = any((c := x.steps[n]) is None or not 0 <= c <= MAX_LANE_STEP for x in operands)
    if far and rows and found.transposed:  # what lies across is transposed once for all rows
        far = not all(x.steps[n] == 0 or x.steps[rows[0]] == 0 for x in operands)
    if not found.contraction and (far or extents[n] < 4):
        return "its operand is not contiguous along the result"
    return found


def _row_loops(operands: Sequence[Operand], parallel: Sequence[str], n: str) -> list[str]:
    """Loops along which an operand that depends on `n` stays the same, innermost first."""
    return [
        v
        for v in reversed(parallel)
        if v != n and any(x.steps[v] == 0 and x.steps[n] != 0 for x in operands) and any(x.steps[v] for x in operands)
    ]


__all__ = ["Across", "Layout", "Operand", "Product", "operands_of", "product_of", "sized"]
