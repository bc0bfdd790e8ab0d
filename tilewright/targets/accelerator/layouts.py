"""Layouts of operand tiles in a chip's scratchpads: which part of an operand is there at a time, how it is packed, and
the copy loops that load it.

A tile that is read with strides is a box of the host's buffer where its rows then begin at words, else a row for each
position of a window. All others lie in columns as wide as an instruction takes, one row below the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, prod
from typing import TypeVar

from ...schedule.nest import Pack
from ...tensor.expr import Buffer, Const, Expr, Op, Var, ceildiv, linear, minimum, variables
from .describe import Listing, Operand
from .match import Element, InstructionSelection, MatchedInstruction, columns_of

_L = TypeVar("_L", bound="Layouts")


@dataclass(frozen=True)
class TilePlan:
    """A tiling of a kernel.

    `tiles`: the size of a tile along each loop (loops that are left out are taken whole). `order`: the loops over
    tiles, outer first; it says what stays on the chip. With the loops of sums innermost results stay; one further out
    lets an operand stay instead, and the sums of all tiles inside wait. `slots`: how many tiles of an operand are on
    the chip at a time, by `depth` in some memories. `first`: operands (buffers) that are brought before others.
    `joined`: loops of sums that are one run with the run of the sum, as taps of a window with few channels. `kept`:
    operands all of whose tiles have places on the chip: what would be brought again for each tile of something else is
    brought once, when it is first needed.

    >>> print(TilePlan({"i": 32}, ("i",), depth={"weights": 3}, first=("w",), joined=("r",)))
    tiles i=32; order i; 2 slots, 3 in weights; first w; joined r
    """

    tiles: Mapping[str, int] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    slots: int = 2
    depth: Mapping[str, int] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def slots_in(self, memory: str) -> int:
        return self.depth.get(memory, self.slots)

    def __str__(self) -> str:
        sizes = ", ".join(f"{v}={n}" for v, n in self.tiles.items())
        slots = ", ".join([f"{self.slots} slots", *(f"{n} in {m}" for m, n in self.depth.items())])
        parts = [f"tiles {sizes or 'whole'}", f"order {' '.join(self.order) or 'none'}", slots]
        more = (("first", self.first), ("joined", self.joined), ("kept", self.kept))
        return "; ".join([*parts, *(f"{name} {' '.join(names)}" for name, names in more if names)])


@dataclass(frozen=True)
class TileAxis:
    """A dimension of a tile on the chip: positions `at` (of in-tile positions of loops), and how many there are."""

    size: int
    at: Callable[[Mapping[str, Expr]], Expr]


@dataclass(frozen=True)
class TileLayout:
    """How a tile lies on the chip, and the loops that copy it: (name, extent, what the loop says of in-tile positions).

    `box`: for a tile that is a box of the host's buffer, its first element. `joined`: how many loops before the last
    one go through one run with it.
    """

    axes: tuple[TileAxis, ...]
    walks: tuple[tuple[str, Expr], ...]
    positions: Mapping[str, Expr]
    box: tuple[Expr, ...] = ()
    joined: int = 0

    @cached_property
    def full(self) -> tuple[int, ...]:
        """The extents of the walks for the first tile, which is full."""
        return tuple(in_full_tile(n) for _, n in self.walks)


class Layouts:
    """The tiles of a selection cut by a plan: their sizes, and how they lie on the chip."""

    def __init__(self, selection: InstructionSelection, listing: Listing, plan: TilePlan) -> None:
        self.s, self.listing, self.plan = selection, listing, plan
        self.kernel = selection.kernel
        self.extents = selection.extents
        self.sums = selection.steps[0].sums
        self.params = {p.name: p for p in self.kernel.params}
        self.packs: dict[str, Pack] = {}
        self.spread: dict[str, tuple[str, int]] = {}  # constants that are one number -> the run that takes it
        self.moving: dict[tuple[str, int], set[str]] = {}  # by elements, which the selection has
        self.buffers: dict[str, Buffer] = {}
        self.layouts: dict[str, TileLayout] = {}
        self.written = {s.output.buffer: s for s in selection.steps}
        self.summed_up = selection.steps[0].output.buffer
        self.added = {e.buffer for e in selection.steps[0].operands.values()}
        self.users: dict[
            str, tuple[MatchedInstruction, Operand, Element]
        ] = {}  # what lies on the chip, and who uses it first
        for step in selection.steps:
            for o in step.instruction.operands:
                e = step.operands.get(o.name, step.output)
                self.users.setdefault(e.buffer, (step, o, e))
        self.asks: dict[str, tuple[str, ...]] = {}  # the loops whose tiles a layout depends on
        self.made: dict[tuple[object, ...], TileLayout] = {}  # layouts for sizes of tiles; other plans use them too

    # ---- sizes ----

    def tile(self, v: str) -> int:
        return min(self.plan.tiles.get(v, self.extents[v]), self.extents[v])

    def cut(self, v: str) -> bool:
        """Whether there is a loop over tiles."""
        return self.tile(v) < self.extents[v]

    def start(self, v: str) -> Expr:
        return Var(f"{v}_t") * self.tile(v) if self.cut(v) else Const(0, "index")

    def actual(self, v: str) -> Expr:
        """How many iterations a tile has: the last one may have fewer."""
        t, n = self.tile(v), self.extents[v]
        return minimum(t, n - self.start(v)) if n % t else Const(t, "index")

    def whole(self, at: Mapping[str, Expr]) -> dict[str, Expr]:
        """In-tile positions -> values of the kernel's loops."""
        return {v: self.start(v) + at.get(v, Const(0, "index")) for v in self.extents}

    def width(self, v: str) -> int:
        """How many iterations of a run one instruction takes at most, whichever: results lie in columns so wide."""
        return run_limit(self.s, v)

    def pads(self, step: MatchedInstruction, v: str) -> bool:
        """Whether an instruction takes its full width for the last columns too, on the zeros that constants are padded
        with: rows that follow one another would lie closer there, where a word is shorter than a run."""
        limit = self.width(v)
        rest = self.extents[v] % limit
        dim = next((d for d in step.instruction.dims if v in step.dims[d.name]), None)
        if dim is None or dim.levels or not rest or self.extents[v] < limit or v in step.sums or v in self.s.in_blocks:
            return False
        closer = False
        for o in step.instruction.operands:
            e = step.operands.get(o.name, step.output)
            if dim.name not in o.dims:
                continue
            if not e.constant and e.buffer not in self.written:
                return False  # columns of the host's, which end here
            follow = any(o.dense or not step.instruction.dim(d).levels for d in o.dims[:-1])
            closer |= follow and -(-rest // self.word(o)) != -(-limit // self.word(o))
        return closer

    # ---- loops that are one run ----

    def loops_of(self, step: MatchedInstruction, d: str) -> tuple[str, ...]:
        """The loops of a dimension, with those that are joined with its run."""
        own = step.dims[d]
        return (*self.plan.joined, *own) if self.plan.joined and own == run_of_sums(self.s) else own

    def run_tile(self, v: str) -> int:
        """The size of a tile along a loop with those that are joined with it."""
        return self.tile(v) * prod(self.tile(j) for j in self.joined_with(v))

    def run_actual(self, v: str) -> Expr:
        """How many iterations a tile has along these."""
        found = self.actual(v)
        for j in self.joined_with(v):
            found = self.actual(j) * found
        return found

    def joined_with(self, v: str) -> tuple[str, ...]:
        return self.plan.joined if (v,) == run_of_sums(self.s) else ()

    def parted(self, v: str, at: Expr) -> dict[str, Expr]:
        """A position in a run as positions of the loops that are joined in it."""
        found: dict[str, Expr] = {}
        for name in reversed((*self.joined_with(v), v)):
            found[name] = at if name == (*self.joined_with(v), v)[0] else at % self.tile(name)
            at = at // self.tile(name)
        return found

    # ---- layouts ----

    def word(self, o: Operand) -> int:
        """Elements of a word of the operand's memory."""
        return max(self.listing.memories[o.memory].word // o.numpy.itemsize, 1)

    def depends(self, e: Element) -> set[str]:
        """The loops by which an element moves; those of single iterations do not."""
        key = (e.buffer, id(e))
        if key not in self.moving:
            found = set().union(*[variables(i) for i in e.indices]) if e.indices else set()
            self.moving[key] = {v for v in found if self.extents.get(v, 1) > 1}
        return self.moving[key]

    def layout(self, step: MatchedInstruction, o: Operand, e: Element) -> TileLayout:
        host = e.buffer in self.params and e.buffer not in self.written
        run = self.loops_of(step, o.dims[-1]) if o.dims else ()
        mine = self.depends(e)
        rows = [v for d in o.dims[:-1] for v in self.loops_of(step, d) if v in mine]
        around = [v for v in step.sums if v in mine and v not in run and v not in rows]
        strided = any(step.instruction.dim(d).levels for d in o.dims[:-1]) and not o.dense
        if host and strided and not e.constant:
            box = self.box(step, o, e, run) if len(run) < 2 else None
            if box is not None and prod(a.size for a in box.axes) <= self.row_size(o, around, rows, run):
                return box
            return self.in_rows(o, around, rows, run)
        padded = e.constant and bool(run) and self.pads(step, run[0])
        return self.in_columns(o, mine, around, rows, run, padded)

    def row_size(self, o: Operand, around: Sequence[str], rows: Sequence[str], run: Sequence[str]) -> int:
        return prod(self.tile(v) for v in (*around, *rows)) * self.padded(o, run)

    def padded(self, o: Operand, run: Sequence[str]) -> int:
        n, word = prod(self.tile(v) for v in run), self.word(o)
        return -(-n // word) * word

    def in_rows(self, o: Operand, around: Sequence[str], rows: Sequence[str], run: Sequence[str]) -> TileLayout:
        """A run for each row, padded to whole words: for a convolution, its windows written out."""
        axes = [TileAxis(self.tile(v), _position(v)) for v in (*around, *rows)]
        axes.append(TileAxis(self.padded(o, run), self.in_run(run)))
        names = {v: f"{v}_r" for v in (*around, *rows, *run)}
        walks = tuple((n, self.actual(v)) for v, n in names.items())
        return TileLayout(tuple(axes), walks, {v: Var(n) for v, n in names.items()}, joined=max(len(run) - 1, 0))

    def in_run(self, run: Sequence[str]) -> Callable[[Mapping[str, Expr]], Expr]:
        """The position in a run of one loop or of several; all but the first of these are whole."""

        def at(p: Mapping[str, Expr]) -> Expr:
            found: Expr = p[run[0]] if run else Const(0, "index")
            for v in run[1:]:
                found = found * self.tile(v) + p[v]
            return found

        return at

    def in_columns(
        self,
        o: Operand,
        mine: set[str],
        around: Sequence[str],
        rows: Sequence[str],
        run: Sequence[str],
        padded: bool = False,
    ) -> TileLayout:
        """As many columns as a run has beside each other: one row below the other, with as many rows as there are."""
        limit = self.width(run[0]) if run else 1
        word = self.word(o)
        width = -(-min(limit, self.tile(run[0]) if run else 1) // word) * word
        axes, walks, at = [], [], {}
        # a tile that is the same for all columns is a full one
        columns: Expr = Const(0, "index")
        if run:
            v = run[0]
            columns = self.actual(v) if v in mine else Const(self.tile(v), "index")
            if padded and v in mine:
                columns = ceildiv(columns, limit) * limit
            axes.append(TileAxis(-(-self.tile(v) // limit), _quotient(v, limit)))
            walks += [(f"{v}_q", ceildiv(columns, limit))]
            at[v] = Var(f"{v}_q") * limit + Var(f"{v}_r")
        axes += [TileAxis(self.tile(v), _position(v)) for v in around]
        axes.append(TileAxis(prod(self.tile(v) for v in rows), lambda p: self.row(rows, p)))
        axes.append(TileAxis(width, _remainder(run[0], limit) if run else _zero))
        walks += [(f"{v}_r", self.actual(v)) for v in (*around, *rows)]
        at |= {v: Var(f"{v}_r") for v in (*around, *rows)}
        if run:
            left = columns - Var(f"{run[0]}_q") * limit
            walks.append((f"{run[0]}_r", minimum(limit, left) if self.tile(run[0]) > limit else columns))
        return TileLayout(tuple(axes), tuple(walks), at)

    def row(self, rows: Sequence[str], p: Mapping[str, Expr]) -> Expr:
        """The number of a row among those that the tile has: a last tile has fewer, without gaps."""
        found: Expr = Const(0, "index")
        for v in rows:
            found = _times(found, self.actual(v)) + p[v]
        return found

    def box(self, step: MatchedInstruction, o: Operand, e: Element, run: Sequence[str]) -> TileLayout | None:
        """The part of the host's buffer that a tile reads, as it is there; None where rows would not begin at words."""
        word = self.word(o)
        terms = [linear(i) for i in e.indices]
        inner = {t.name: c for t, c in terms[-1][0].items() if isinstance(t, Var)} if terms else {}
        if run and inner.pop(run[0], None) != 1:
            return None
        if any(c % word for v, c in inner.items() if self.extents[v] > 1):
            return None
        if run and self.tile(run[0]) > self.width(run[0]) and self.width(run[0]) % word:
            return None
        axes, walks, box = [], [], []
        for d, (coefficients, constant) in enumerate(terms):
            names = [(t.name, c) for t, c in coefficients.items() if isinstance(t, Var)]
            if len(names) != len(coefficients) or any(c < 0 for _, c in names):
                return None
            first: Expr = Const(constant, "index")
            size: Expr = Const(1, "index")
            most = 1
            for v, c in names:
                first, size, most = (
                    first + self.start(v) * c,
                    size + (self.actual(v) - 1) * c,
                    most + (self.tile(v) - 1) * c,
                )
            last = d == len(terms) - 1
            axes.append(TileAxis(-(-most // word) * word if last else most, _sum_of(names)))
            walks.append((f"d{d}_r", size))
            box.append(first)
        return TileLayout(tuple(axes), tuple(walks), {}, tuple(box))

    # ---- all of them ----

    def prepare(self) -> None:
        """Decide how tiles lie on the chip, and so what they take of its memories."""
        for step, o, e in self.users.values():
            self.add_tile(step, o, e)

    def planned(self: _L, plan: TilePlan) -> _L:
        """The same kernel cut by another plan: what does not depend on the plan is shared."""
        other = copy(self)
        other.plan, other.buffers, other.layouts = plan, {}, {}
        return other

    def add_tile(self, step: MatchedInstruction, o: Operand, e: Element) -> None:
        if e.buffer not in self.asks:
            if e.constant:
                self.pack(step, o, e)
            run = step.dims[o.dims[-1]] if o.dims else ()
            self.asks[e.buffer] = tuple(v for v in self.extents if v in self.depends(e) or v in run)
        key = (e.buffer, self.plan.joined, *(self.tile(v) for v in self.asks[e.buffer]))
        if key not in self.made:
            self.made[key] = self.layout(step, o, e)
        made = self.layouts[e.buffer] = self.made[key]
        slots = self.plan.slots_in(o.memory) if self.enclosing(e) else 1
        if e.buffer in self.plan.kept:
            slots = prod(self.times(v) for v in self.moved_by(e))
        shape = (slots, *(self.times(v) for v in self.waiting(e)), *(a.size for a in made.axes))
        self.buffers[e.buffer] = Buffer(f"{e.buffer}_s", shape, o.dtype, o.memory)

    def pack(self, step: MatchedInstruction, o: Operand, e: Element) -> None:
        """A constant lies in memory in columns as wide as a run, one after the other, padded with zeros; where it has
        blocks of columns that do not divide into such, in these."""
        b = self.params[e.buffer]
        run = step.dims[o.dims[-1]]
        limit = self.width(run[0]) if run else 1
        found = columns_of(e, run[0], self.extents) if run else None
        if found is None:
            if run and not self.depends(e):  # one number for all columns
                self.spread[e.buffer] = (run[0], limit)
                rank = max(len(b.shape), 1)
                repeats = (*(0,) * (rank - 1), limit - 1)
                self.packs[e.buffer] = Pack(e.buffer, ((),) * rank, tuple(range(rank)), repeats)
                self.params[e.buffer] = replace(b, shape=(*(1,) * (rank - 1), limit))
            return
        at, block = found
        limit = block if block % limit else limit
        rest = [d for d in range(len(b.shape)) if d != at]
        splits = tuple((limit,) if d == at else () for d in range(len(b.shape)))
        order = (at, *(d + (d > at) for d in rest), at + 1)
        self.packs[e.buffer] = Pack(e.buffer, splits, order)
        shape = (-(-b.shape[at] // limit), *(b.shape[d] for d in rest), limit)
        self.params[e.buffer] = replace(b, shape=shape)

    def times(self, v: str) -> int:
        """How many tiles there are along a loop."""
        return -(-self.extents[v] // self.tile(v))

    def enclosing(self, e: Element) -> list[str]:
        """The loops over tiles around the place where a tile is brought or made, outer first."""
        order = [v for v in self.plan.order if self.cut(v)]
        first = next((n for n, v in enumerate(order) if v in self.sums), len(order))
        if e.buffer == self.summed_up:
            return order[:first]
        if e.buffer not in self.added:
            order = [v for v in order if v not in self.sums]
        if e.buffer in self.written:
            return order
        mine = self.depends(e)
        last = max((n for n, v in enumerate(order) if v in mine), default=-1)
        return order[: last + 1]

    def slots(self, wanted: Mapping[str, int]) -> tuple[int, dict[str, int]]:
        """`TilePlan.slots` and `depth` for so many slots by memory, without those that only hold tiles that stay."""
        moving = {o.memory for _, o, e in self.users.values() if self.enclosing(e)}
        depth = {m: n for m, n in wanted.items() if m in moving}
        slots = max(depth.values(), key=lambda n: (list(depth.values()).count(n), n)) if depth else 2
        return slots, {m: n for m, n in depth.items() if n != slots}

    def moved_by(self, e: Element) -> list[str]:
        """Of these loops, those by which it moves: with others, the same tile comes again."""
        return [v for v in self.enclosing(e) if v in self.depends(e)]

    def waiting(self, e: Element) -> list[str]:
        """The loops over tiles inside a loop of sums: the sums of all their tiles are on the chip."""
        if e.buffer != self.summed_up:
            return []
        order = [v for v in self.plan.order if self.cut(v)]
        return [v for v in order if v not in self.sums and v not in self.enclosing(e)]

    def read(self) -> list[Element]:
        """What is copied to the chip, each once, in the order in which it is brought."""
        found: dict[str, Element] = {}
        for step in self.s.steps:
            for e in step.operands.values():
                if e.buffer not in self.written:
                    found.setdefault(e.buffer, e)
        early = [found[b] for b in self.plan.first if b in found]
        return early + [e for b, e in found.items() if b not in self.plan.first]


def run_limit(s: InstructionSelection, v: str) -> int:
    """The fewest iterations of a loop that an instruction takes as a run; of a block of columns, equal parts."""
    limits = [d.limit for step in s.steps for d in step.instruction.dims if not d.levels and v in step.dims[d.name]]
    limit, extent = min(limits, default=1), s.extents[v]
    return ceil(extent / ceil(extent / limit)) if v in s.in_blocks else limit


def run_of_sums(s: InstructionSelection) -> tuple[str, ...]:
    """The loop of sums that the first instruction takes as a run."""
    step = s.steps[0]
    for d in step.instruction.dims:
        own = step.dims[d.name]
        if not d.levels and len(own) == 1 and own[0] in step.sums:
            return own
    return ()


def joinable(s: InstructionSelection) -> tuple[str, ...]:
    """The loops of sums around the first instruction that can be joined with its run, outer first: the operand that
    has the run alone gets a row for each result, in the others these loops are rows."""
    step, run = s.steps[0], run_of_sums(s)
    placed = {v for own in step.dims.values() for v in own}
    around = [v for v in step.sums if v not in placed and s.extents[v] > 1]
    if not run or not around:
        return ()
    for o in step.instruction.operands:
        e = step.operands.get(o.name)
        if e is None:
            continue
        moves = set().union(*map(variables, e.indices)) if e.indices else set()
        inside = any(step.dims[d] == run for d in o.dims)
        if any((v in moves) != inside for v in around):
            return ()
        strided = any(step.instruction.dim(d).levels for d in o.dims[:-1]) and not o.dense
        if inside and step.dims[o.dims[-1]] == run and (e.constant or not strided):
            return ()
    return tuple(around)


def in_full_tile(e: Expr) -> int:
    """An extent in the first tile, which is full."""
    if isinstance(e, Const):
        return int(e.value)
    if isinstance(e, Var):
        return 0
    assert isinstance(e, Op)
    a, b = map(in_full_tile, e.args)
    if e.op == "floordivsi":
        return a // b
    return {"addi": a + b, "muli": a * b, "minsi": min(a, b), "maxsi": max(a, b)}[e.op]


def _position(v: str) -> Callable[[Mapping[str, Expr]], Expr]:
    return lambda p: p[v]


def _quotient(v: str, n: int) -> Callable[[Mapping[str, Expr]], Expr]:
    return lambda p: p[v] // n


def _remainder(v: str, n: int) -> Callable[[Mapping[str, Expr]], Expr]:
    return lambda p: p[v] % n


def _zero(p: Mapping[str, Expr]) -> Expr:
    return Const(0, "index")


def _sum_of(names: Sequence[tuple[str, int]]) -> Callable[[Mapping[str, Expr]], Expr]:
    def at(p: Mapping[str, Expr]) -> Expr:
        found: Expr = Const(0, "index")
        for v, c in names:
            found = found + p.get(v, Const(0, "index")) * c
        return found

    return at


def _times(a: Expr, b: Expr) -> Expr:
    if isinstance(a, Const) and a.value == 0:
        return a
    return a * b
