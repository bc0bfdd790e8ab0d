"""Loop nests for chips: tiles of operands copied to the chip, instructions on them, results copied back.

A nest does what the kernel does (the interpreter runs it), and says in notes which loops are an instruction:

    for i_t in serial(4):                                  tiles of the result
        with async_copy(x): ...                            an operand's tile, into one of its slots
        wait(x)
        for i in serial(32, notes={'chip': 'mma acc=acc_s x=x_s w=w_s', 'dim': 'm'}):
            for o in serial(32, notes={'dim': 'n'}): ...

A tile lies on the chip as its operand wants it (`Layout`); copies bring it there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod

from ...schedule.nest import Alloc, AsyncCopy, For, Nest, Pack, Stmt, Store, Wait, loop, seq, store
from ...tensor.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    Target,
    Var,
    ceildiv,
    linear,
    minimum,
    neutral,
    simplify,
    variables,
)
from .describe import ACCUMULATE, Listing, Operand
from .match import Element, Selection, Step
from .meaning import Reduce, parts, with_parts
from .unify import put_in

#: the notes of loops: the instruction (with its operands and fields), and the dimension that a loop is
CHIP, DIM = "chip", "dim"


@dataclass(frozen=True)
class Plan:
    """How a kernel is cut: the size of a tile along each loop (loops that are left out are taken whole), the order of
    the loops over tiles, outer first, and how many tiles of an operand are on the chip at a time (`slots`)."""

    tiles: Mapping[str, int] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    slots: int = 2

    def __str__(self) -> str:
        sizes = ", ".join(f"{v}={n}" for v, n in self.tiles.items())
        return f"tiles {sizes or 'whole'}; order {' '.join(self.order) or 'none'}; {self.slots} slots"


@dataclass(frozen=True)
class Axis:
    """A dimension of a tile on the chip: positions `at` (of in-tile positions of loops), and how many there are."""

    size: int
    at: Callable[[Mapping[str, Expr]], Expr]


@dataclass(frozen=True)
class Layout:
    """How a tile lies on the chip, and the loops that copy it: (name, extent, what the loop says of in-tile positions).

    `box`: for a tile that is a box of the host's buffer, its first element.
    """

    axes: tuple[Axis, ...]
    walks: tuple[tuple[str, Expr], ...]
    positions: Mapping[str, Expr]
    box: tuple[Expr, ...] = ()


class Tiles:
    """Builds the nest of a selection cut by a plan."""

    def __init__(self, selection: Selection, listing: Listing, plan: Plan) -> None:
        self.s, self.listing, self.plan = selection, listing, plan
        self.kernel = selection.kernel
        self.extents = selection.extents
        self.sums = selection.steps[0].sums
        self.params = {p.name: p for p in self.kernel.params}
        self.packs: dict[str, Pack] = {}
        self.spread: dict[str, tuple[str, int]] = {}  # constants that are one number -> the run that takes it
        self.moving: dict[Element, set[str]] = {}
        self.buffers: dict[str, Buffer] = {}
        self.layouts: dict[str, Layout] = {}
        self.written = {s.output.buffer: s for s in selection.steps}

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

    # ---- layouts ----

    def word(self, o: Operand) -> int:
        """Elements of a word of the operand's memory."""
        return max(self.listing.memories[o.memory].word // o.numpy.itemsize, 1)

    def depends(self, e: Element) -> set[str]:
        """The loops by which an element moves; those of single iterations do not."""
        if e not in self.moving:
            found = set().union(*[variables(i) for i in e.indices]) if e.indices else set()
            self.moving[e] = {v for v in found if self.extents.get(v, 1) > 1}
        return self.moving[e]

    def layout(self, step: Step, o: Operand, e: Element) -> Layout:
        host = e.buffer in self.params and e.buffer not in self.written
        run = step.dims[o.dims[-1]] if o.dims else ()
        mine = self.depends(e)
        rows = [v for d in o.dims[:-1] for v in step.dims[d] if v in mine]
        around = [v for v in step.sums if v in mine and v not in run and v not in rows]
        strided = any(step.instruction.dim(d).levels for d in o.dims[:-1]) and not o.dense
        if host and strided and not e.constant:
            box = self.box(step, o, e, run)
            if box is not None and prod(a.size for a in box.axes) <= self.row_size(o, around, rows, run):
                return box
            return self.in_rows(o, around, rows, run)
        return self.in_columns(step, o, mine, around, rows, run)

    def row_size(self, o: Operand, around: Sequence[str], rows: Sequence[str], run: Sequence[str]) -> int:
        return prod(self.tile(v) for v in (*around, *rows)) * self.padded(o, run)

    def padded(self, o: Operand, run: Sequence[str]) -> int:
        n, word = prod(self.tile(v) for v in run), self.word(o)
        return -(-n // word) * word

    def in_rows(self, o: Operand, around: Sequence[str], rows: Sequence[str], run: Sequence[str]) -> Layout:
        """A run for each row, padded to whole words: for a convolution, its windows written out."""
        axes = [Axis(self.tile(v), _position(v)) for v in (*around, *rows)]
        axes.append(Axis(self.padded(o, run), _position(run[0]) if run else _zero))
        names = {v: f"{v}_r" for v in (*around, *rows, *run)}
        walks = tuple((n, self.actual(v)) for v, n in names.items())
        return Layout(tuple(axes), walks, {v: Var(n) for v, n in names.items()})

    def in_columns(
        self,
        step: Step,
        o: Operand,
        mine: set[str],
        around: Sequence[str],
        rows: Sequence[str],
        run: Sequence[str],
    ) -> Layout:
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
            axes.append(Axis(-(-self.tile(v) // limit), _quotient(v, limit)))
            walks += [(f"{v}_q", ceildiv(columns, limit))]
            at[v] = Var(f"{v}_q") * limit + Var(f"{v}_r")
        axes += [Axis(self.tile(v), _position(v)) for v in around]
        axes.append(Axis(prod(self.tile(v) for v in rows), lambda p: self.row(rows, p)))
        axes.append(Axis(width, _remainder(run[0], limit) if run else _zero))
        walks += [(f"{v}_r", self.actual(v)) for v in (*around, *rows)]
        at |= {v: Var(f"{v}_r") for v in (*around, *rows)}
        if run:
            left = columns - Var(f"{run[0]}_q") * limit
            walks.append((f"{run[0]}_r", minimum(limit, left) if self.tile(run[0]) > limit else columns))
        return Layout(tuple(axes), tuple(walks), at)

    def row(self, rows: Sequence[str], p: Mapping[str, Expr]) -> Expr:
        """The number of a row among those that the tile has: a last tile has fewer, without gaps."""
        found: Expr = Const(0, "index")
        for v in rows:
            found = _times(found, self.actual(v)) + p[v]
        return found

    def box(self, step: Step, o: Operand, e: Element, run: Sequence[str]) -> Layout | None:
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
            axes.append(Axis(-(-most // word) * word if last else most, _sum_of(names)))
            walks.append((f"d{d}_r", size))
            box.append(first)
        return Layout(tuple(axes), tuple(walks), {}, tuple(box))

    # ---- the nest ----

    def prepare(self) -> None:
        """Decide how tiles lie on the chip, and so what they take of its memories."""
        for step in self.s.steps:
            for o in step.instruction.operands:
                e = step.operands.get(o.name, step.output)
                if e.buffer not in self.layouts:
                    self.add_tile(step, o, e)

    def ordered(self, plan: Plan) -> Tiles:
        """The same tiles in another order: they lie on the chip alike."""
        other = copy(self)
        other.plan = plan
        return other

    def build(self) -> Nest:
        self.prepare()
        body = self.level([v for v in self.plan.order if self.cut(v)])
        body = seq(*[self.filled(n) for n in range(len(self.s.fills))], body)
        for b in reversed(self.buffers.values()):
            body = Alloc(b, body)
        params = tuple(self.params[p.name] for p in self.kernel.params)
        return Nest(self.kernel.name, params, self.kernel.outputs, body, self.packs)

    def add_tile(self, step: Step, o: Operand, e: Element) -> None:
        if e.constant and e.buffer not in self.packs:
            self.pack(step, o, e)
        made = self.layouts[e.buffer] = self.layout(step, o, e)
        shape = (self.plan.slots if self.enclosing(e) else 1, *(a.size for a in made.axes))
        self.buffers[e.buffer] = Buffer(f"{e.buffer}_s", shape, o.dtype, o.memory)

    def pack(self, step: Step, o: Operand, e: Element) -> None:
        """A constant lies in memory in columns as wide as a run, one after the other, padded with zeros."""
        b = self.params[e.buffer]
        run = step.dims[o.dims[-1]]
        limit = self.width(run[0]) if run else 1
        at = next((d for d, i in enumerate(e.indices) if run and i == Var(run[0])), None)
        if at is None:
            if run and not self.depends(e):  # one number for all columns
                self.spread[e.buffer] = (run[0], limit)
                self.packs[e.buffer] = Pack(e.buffer, ((),), (0,), (limit - 1,))
                self.params[e.buffer] = replace(b, shape=(limit,))
            return
        rest = [d for d in range(len(b.shape)) if d != at]
        splits = tuple((limit,) if d == at else () for d in range(len(b.shape)))
        order = (at, *(d + (d > at) for d in rest), at + 1)
        self.packs[e.buffer] = Pack(e.buffer, splits, order)
        shape = (-(-b.shape[at] // limit), *(b.shape[d] for d in rest), limit)
        self.params[e.buffer] = replace(b, shape=shape)

    def enclosing(self, e: Element) -> list[str]:
        """The loops over tiles around the place where a tile is brought or made, outer first."""
        order = [v for v in self.plan.order if self.cut(v)]
        if e.buffer in self.written:
            return [v for v in order if v not in self.sums]
        mine = self.depends(e)
        last = max((n for n, v in enumerate(order) if v in mine), default=-1)
        return order[: last + 1]

    def level(self, order: list[str], outside: tuple[str, ...] = ()) -> Stmt:
        """The loops over tiles from here on, with what happens at each level."""
        here = [c for e in self.read() if tuple(self.enclosing(e)) == outside for c in self.brought(e)]
        if order and order[0] not in self.sums:
            v = order[0]
            inside = self.level(order[1:], (*outside, v))
            return seq(*here, self.over_tiles(v, inside))
        first, *others = self.s.steps
        return seq(*here, self.summed(order, outside, first), *map(self.computed, others), self.stored())

    def summed(self, order: list[str], outside: tuple[str, ...], step: Step) -> Stmt:
        if not order:
            return self.computed(step)
        inside = (*outside, order[0])
        here = [c for e in self.read() if tuple(self.enclosing(e)) == inside for c in self.brought(e)]
        return self.over_tiles(order[0], seq(*here, self.summed(order[1:], inside, step)))

    def over_tiles(self, v: str, body: Stmt) -> Stmt:
        return loop(f"{v}_t", -(-self.extents[v] // self.tile(v)), body)

    def read(self) -> list[Element]:
        """What is copied to the chip, each once."""
        found: dict[str, Element] = {}
        for step in self.s.steps:
            for e in step.operands.values():
                if e.buffer not in self.written:
                    found.setdefault(e.buffer, e)
        return list(found.values())

    def slot(self, e: Element) -> Expr:
        """Tiles take turns with the slots of their buffer."""
        b = self.buffers[e.buffer]
        count: Expr = Const(0, "index")
        for v in self.enclosing(e):
            count = count * -(-self.extents[v] // self.tile(v)) + Var(f"{v}_t")
        return count % b.shape[0]

    def on_chip(self, e: Element, at: Mapping[str, Expr]) -> tuple[Expr, ...]:
        return (self.slot(e), *(a.at(at) for a in self.layouts[e.buffer].axes))

    def in_host(self, e: Element, at: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """The element in the parameter, packed or not."""
        indices = tuple(put_in(i, self.whole(at)) for i in e.indices)
        pack = self.packs.get(e.buffer)
        if pack is None:
            return indices
        if e.buffer in self.spread:
            run, limit = self.spread[e.buffer]
            return (at[run] % limit,)
        d = next(n for n, s in enumerate(pack.splits) if s)
        (limit,) = pack.splits[d]
        rest = (i for n, i in enumerate(indices) if n != d)
        return (indices[d] // limit, *rest, indices[d] % limit)

    # ---- statements ----

    def brought(self, e: Element) -> list[Stmt]:
        made, b = self.layouts[e.buffer], self.buffers[e.buffer]
        if made.box:
            walk = tuple(Var(n) for n, _ in made.walks)
            there: tuple[Expr, ...] = tuple(f + w for f, w in zip(made.box, walk, strict=True))
            here: tuple[Expr, ...] = (self.slot(e), *walk)
        else:
            there, here = self.in_host(e, made.positions), self.on_chip(e, made.positions)
        value = Load(e.buffer, there, b.dtype)
        body = self.loops(made.walks, store(b.name, here, value, f"{b.name}_in"))
        return [AsyncCopy(f"{b.name}_t", body), Wait(f"{b.name}_t")]

    def stored(self) -> Stmt:
        last, e = self.s.steps[-1].output, self.s.stored
        made, b = self.layouts[last.buffer], self.buffers[last.buffer]
        value = Load(b.name, self.on_chip(last, made.positions), b.dtype)
        body = self.loops(made.walks, store(e.buffer, self.in_host(e, made.positions), value, f"{e.buffer}_out"))
        return seq(AsyncCopy(f"{e.buffer}_t", body), Wait(f"{e.buffer}_t"))

    def filled(self, number: int) -> Stmt:
        f = self.s.fills[number]
        b = self.params[f.buffer]
        value = f.value - 256 if b.dtype == "i8" and f.value > 127 else f.value
        number_: float | int = float(value) if b.dtype.startswith(("f", "b")) else value
        body = store(f.buffer, f.indices, Const(number_, b.dtype), f"fill{number}")
        walks = tuple((v, Const(n, "index")) for v, n in f.loops)
        return self.loops(walks, body)

    def loops(self, walks: Sequence[tuple[str, Expr]], body: Stmt) -> Stmt:
        for v, extent in reversed(walks):
            body = For(v, self.simple(extent), body)
        return body

    def simple(self, e: Expr) -> Expr:
        ranges = {f"{v}_t": (0, -(-n // self.tile(v)) - 1) for v, n in self.extents.items()}
        return simplify(e, ranges)

    # ---- instructions ----

    def chunks(self, step: Step) -> dict[str, int]:
        """How many iterations of each loop one instruction takes."""
        found = {}
        for d in step.instruction.dims:
            left = d.limit if d.levels else min(map(self.width, step.dims[d.name]), default=1)
            for v in reversed(step.dims[d.name]):
                found[v] = min(self.tile(v), left)
                left = max(left // found[v], 1)
        return found

    def computed(self, step: Step) -> Stmt:
        """Loops around an instruction, and those that it is."""
        chunk = self.chunks(step)
        around = [v for v in step.sums if v not in chunk and self.extents[v] > 1]
        several = [v for v in chunk if self.tile(v) > chunk[v]]
        outer: list[tuple[str, Expr]] = [
            (f"{v}_c", ceildiv(self.actual(v), chunk[v])) for v in several if v not in self.sums
        ]
        outer += [(v, self.actual(v)) for v in around]
        outer += [(f"{v}_c", ceildiv(self.actual(v), chunk[v])) for v in several if v in self.sums]
        at: dict[str, Expr] = {v: Var(v) for v in around}
        inner: dict[str, Expr] = {}
        for v, c in chunk.items():
            cut = v in several
            at[v] = Var(f"{v}_c") * c + Var(v) if cut else Var(v)
            inner[v] = minimum(c, self.actual(v) - Var(f"{v}_c") * c) if cut else self.actual(v)
        return self.loops(outer, self.instruction(step, at, inner))

    def instruction(self, step: Step, at: dict[str, Expr], inner: dict[str, Expr]) -> Stmt:
        i = step.instruction
        names = {o.name: self.buffers[step.operands.get(o.name, step.output).buffer].name for o in i.operands}
        said = " ".join([i.name, *(f"{k}={v}" for k, v in {**names, **step.fields}.items())])
        dims = [(d.name, v) for d in i.dims for v in step.dims[d.name]]
        results = [(d, v) for d, v in dims if v not in step.sums]
        whole = [(d, v) for d, v in results if v in step.again.values()]
        before: list[Stmt] = []
        value = self.value(step, step.expr, at, inner, before)
        body: Stmt = self.target(step, value, at)
        for d, v in reversed([x for x in dims if x in whole or x[1] in step.sums or not whole]):
            body = For(v, self.simple(inner[v]), body, notes=((DIM, d),))
        body = seq(*before, body)
        if whole:
            for d, v in reversed([x for x in results if x not in whole]):
                body = For(v, self.simple(inner[v]), body, notes=((DIM, d),))
        for b in self.held:
            body = Alloc(b, body)
        if not isinstance(body, For):
            body = For(f"{i.name}_once", Const(1, "index"), body)
        return replace(body, notes=tuple(sorted({**dict(body.notes), CHIP: said}.items())))

    def target(self, step: Step, value: Expr, at: Mapping[str, Expr]) -> Store:
        """Where an instruction writes; a sum goes on from what is there."""
        out, b = step.output, self.buffers[step.output.buffer]
        place = self.on_chip(out, at)
        if step.result.access != ACCUMULATE:
            return Store((Target(b.name, place, value),), f"{b.name}_{step.instruction.name}")
        over = tuple(f"{v}_t" for v in step.sums if self.cut(v))
        over += tuple(n for v in step.sums for n in (f"{v}_c", v) if n in self.running(step, v))
        total = Op(step.combiner, (Load(b.name, place, b.dtype), value), b.dtype)
        target = Target(b.name, place, total, neutral(step.combiner, b.dtype))
        return Store((target,), f"{b.name}_{step.instruction.name}", over)

    def running(self, step: Step, v: str) -> set[str]:
        """The loops within a tile that a loop of the kernel became."""
        chunk = self.chunks(step)
        if v not in chunk:
            return {v} if self.extents[v] > 1 else set()
        return {v, f"{v}_c"} if self.tile(v) > chunk[v] else {v}

    def value(self, step: Step, e: Expr, at: Mapping[str, Expr], inner: Mapping[str, Expr], before: list[Stmt]) -> Expr:
        """An expression of the kernel's elements as one of what is on the chip; sums in it are computed `before`."""
        self.held: list[Buffer] = []
        made: dict[Expr, Expr] = {}

        def visit(x: Expr, at: Mapping[str, Expr]) -> Expr:
            if isinstance(x, Load):
                plain = tuple(put_in(i, {v: Var(loop) for v, loop in step.again.items()}) for i in x.indices)
                element = next(o for o in step.operands.values() if (o.buffer, o.indices) == (x.buffer, plain))
                moved = {
                    **at,
                    **{loop: at[v] for v, loop in step.again.items() if v in set().union(*map(variables, x.indices))},
                }
                return Load(self.buffers[element.buffer].name, self.on_chip(element, moved), x.dtype)
            if not isinstance(x, Reduce):
                return with_parts(x, tuple(visit(p, at) for p in parts(x)))
            if x not in made:
                (v,) = x.over
                loop_ = step.again[v]
                body = visit(x.body, {**at, v: put_in(at[loop_], {loop_: Var(v)})})
                b = Buffer(f"r{len(self.held)}", (), x.dtype, "register")
                self.held.append(b)
                total = Op(x.combiner, (Load(b.name, (), b.dtype), body), b.dtype)
                s = Store((Target(b.name, (), total, neutral(x.combiner, b.dtype)),), b.name, (v,))
                before.append(For(v, self.simple(inner[loop_]), s, notes=((DIM, self.dim_of(step, loop_)),)))
                made[x] = Load(b.name, (), b.dtype)
            return made[x]

        return visit(e, at)

    @staticmethod
    def dim_of(step: Step, v: str) -> str:
        return next(d for d, loops in step.dims.items() if v in loops)


def run_limit(s: Selection, v: str) -> int:
    """The fewest iterations of a loop that an instruction takes as a run."""
    limits = [d.limit for step in s.steps for d in step.instruction.dims if not d.levels and v in step.dims[d.name]]
    return min(limits, default=1)


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
