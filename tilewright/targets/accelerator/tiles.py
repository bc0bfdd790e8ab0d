"""Writes tiled loop nests for an accelerator: operand tiles copied to scratchpads, instructions on them, results copied
back.

A nest does what the kernel does (the interpreter runs it), and says in notes which loops are an instruction:

    for i_t in serial(4):                                  tiles of the result
        with async_copy(x): ...                            an operand's tile, into one of its slots
        wait(x)
        for i in serial(32, notes={'chip': 'mma acc=acc_s x=x_s w=w_s', 'dim': 'm'}):
            for o in serial(32, notes={'dim': 'n'}): ...

With a loop of sums further out than one of the result, the sums of all tiles of the latter wait on the chip, and what
comes after them is in loops of its own. A tile lies on the chip as its operand wants it (`layouts.TileLayout`); copies
bring it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...schedule.nest import Alloc, AsyncCopy, For, If, Nest, Stmt, Store, Wait, loop, seq, store
from ...tensor.expr import (
    Buffer,
    Const,
    Expr,
    Load,
    Op,
    Target,
    Var,
    ceildiv,
    minimum,
    neutral,
    simplify,
    variables,
)
from .layouts import Layouts
from .match import Element, MatchedInstruction
from .semantics import Reduce, parts, with_parts
from .unify import put_in

#: the notes of loops: the instruction (with its operands and fields), and the dimension that a loop is
CHIP, DIM = "chip", "dim"


class TiledNest(Layouts):
    """Builds the nest of a selection cut by a plan."""

    def build(self) -> Nest:
        self.prepare()
        body = self.level([v for v in self.plan.order if self.cut(v)])
        body = seq(*[self.filled(n) for n in range(len(self.s.fills))], body)
        for b in reversed(self.buffers.values()):
            body = Alloc(b, body)
        params = tuple(self.params[p.name] for p in self.kernel.params)
        return Nest(self.kernel.name, params, self.kernel.outputs, body, self.packs)

    def level(self, order: list[str], outside: tuple[str, ...] = ()) -> Stmt:
        """The loops over tiles from here on, with what happens at each level."""
        here = self.copies(outside, self.read())
        if order and order[0] not in self.sums:
            v = order[0]
            return seq(*here, self.over_tiles(v, self.level(order[1:], (*outside, v))))
        held = [v for v in order if v not in self.sums]
        first = self.s.steps[0]
        return seq(*here, self.summed(order, outside, first), self.finished(held, outside))

    def summed(self, order: list[str], outside: tuple[str, ...], step: MatchedInstruction) -> Stmt:
        """The first instruction, in the loops of sums and those inside them."""
        if not order:
            return self.computed(step)
        inside = (*outside, order[0])
        here = self.copies(inside, [e for e in self.read() if e.buffer in self.added])
        return self.over_tiles(order[0], seq(*here, self.summed(order[1:], inside, step)))

    def finished(self, held: list[str], outside: tuple[str, ...]) -> Stmt:
        """The other instructions, for all tiles whose sums are there."""
        if not held:
            return seq(*map(self.computed, self.s.steps[1:]), self.stored())
        inside = (*outside, held[0])
        here = self.copies(inside, [e for e in self.read() if e.buffer not in self.added])
        return self.over_tiles(held[0], seq(*here, self.finished(held[1:], inside)))

    def copies(self, outside: tuple[str, ...], read: Sequence[Element]) -> list[Stmt]:
        """What is brought inside of just these loops over tiles."""
        return [c for e in read if tuple(self.enclosing(e)) == outside for c in self.brought(e)]

    def over_tiles(self, v: str, body: Stmt) -> Stmt:
        return loop(f"{v}_t", self.times(v), body)

    def slot(self, e: Element) -> Expr:
        """Tiles take turns with the slots of their buffer, or have one each."""
        b = self.buffers[e.buffer]
        count: Expr = Const(0, "index")
        for v in self.moved_by(e) if e.buffer in self.plan.kept else self.enclosing(e):
            count = count * self.times(v) + Var(f"{v}_t")
        return count % b.shape[0]

    def on_chip(self, e: Element, at: Mapping[str, Expr]) -> tuple[Expr, ...]:
        held = (Var(f"{v}_t") for v in self.waiting(e))
        return (self.slot(e), *held, *(a.at(at) for a in self.layouts[e.buffer].axes))

    def in_host(self, e: Element, at: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """The element in the parameter, packed or not."""
        indices = tuple(put_in(i, self.whole(at)) for i in e.indices)
        pack = self.packs.get(e.buffer)
        if pack is None:
            return indices
        if e.buffer in self.spread:
            run, limit = self.spread[e.buffer]
            return (*indices[:-1], at[run] % limit)
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
        if e.buffer in self.plan.kept:
            for v in (v for v in self.enclosing(e) if v not in self.depends(e)):
                body = If(Op("cmpi.eq", (Var(f"{v}_t"), Const(0, "index")), "i1"), body)
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
        ranges = {f"{v}_t": (0, self.times(v) - 1) for v in self.extents}
        return simplify(e, ranges)

    # ---- instructions ----

    def chunks(self, step: MatchedInstruction) -> dict[str, int]:
        """How many iterations of each loop one instruction takes."""
        found = {}
        for d in step.instruction.dims:
            left = d.limit if d.levels else min(map(self.width, step.dims[d.name]), default=1)
            for v in reversed(step.dims[d.name]):
                found[v] = min(self.run_tile(v), left)
                left = max(left // found[v], 1)
        return found

    def around(self, step: MatchedInstruction) -> list[str]:
        """The loops of sums around an instruction."""
        inside = {*self.chunks(step), *self.plan.joined}
        return [v for v in step.sums if v not in inside and self.extents[v] > 1]

    def computed(self, step: MatchedInstruction) -> Stmt:
        """Loops around an instruction, and those that it is."""
        chunk, around = self.chunks(step), self.around(step)
        several = [v for v in chunk if self.run_tile(v) > chunk[v]]
        outer: list[tuple[str, Expr]] = [
            (f"{v}_c", ceildiv(self.run_actual(v), chunk[v])) for v in several if v not in self.sums
        ]
        outer += [(v, self.actual(v)) for v in around]
        outer += [(f"{v}_c", ceildiv(self.run_actual(v), chunk[v])) for v in several if v in self.sums]
        at: dict[str, Expr] = {v: Var(v) for v in around}
        inner: dict[str, Expr] = {}
        for v, c in chunk.items():
            cut = v in several
            place = Var(f"{v}_c") * c + Var(v) if cut else Var(v)
            at |= self.parted(v, place) if self.joined_with(v) else {v: place}
            left = self.run_actual(v) - Var(f"{v}_c") * c if cut else self.run_actual(v)
            inner[v] = Const(c, "index") if self.pads(step, v) else minimum(c, left) if cut else left
        return self.loops(outer, self.instruction(step, at, inner))

    def instruction(self, step: MatchedInstruction, at: dict[str, Expr], inner: dict[str, Expr]) -> Stmt:
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

    def target(self, step: MatchedInstruction, value: Expr, at: Mapping[str, Expr]) -> Store:
        """Where an instruction writes; a sum goes on from what is there."""
        out, b = step.output, self.buffers[step.output.buffer]
        place = self.on_chip(out, at)
        if not step.combiner:
            return Store((Target(b.name, place, value),), f"{b.name}_{step.instruction.name}")
        over = tuple(f"{v}_t" for v in step.sums if self.cut(v))
        over += tuple(n for v in step.sums for n in (f"{v}_c", v) if n in self.running(step, v))
        total = Op(step.combiner, (Load(b.name, place, b.dtype), value), b.dtype)
        target = Target(b.name, place, total, neutral(step.combiner, b.dtype))
        return Store((target,), f"{b.name}_{step.instruction.name}", over)

    def running(self, step: MatchedInstruction, v: str) -> set[str]:
        """The loops within a tile that a loop of the kernel became."""
        chunk = self.chunks(step)
        if v not in chunk:
            return {v} if v in self.around(step) else set()
        return {v, f"{v}_c"} if self.run_tile(v) > chunk[v] else {v}

    def value(
        self, step: MatchedInstruction, e: Expr, at: Mapping[str, Expr], inner: Mapping[str, Expr], before: list[Stmt]
    ) -> Expr:
        """An expression of the kernel's elements as one of what is on the chip; sums in it are computed `before`."""
        self.held: list[Buffer] = []
        made: dict[Expr, Expr] = {}

        def visit(x: Expr, at: Mapping[str, Expr]) -> Expr:
            if isinstance(x, Load):
                plain = tuple(put_in(i, {v: Var(loop) for v, loop in step.again.items()}) for i in x.indices)
                element = next(o for o in step.operands.values() if (o.buffer, o.indices) == (x.buffer, plain))
                moved = {
                    **at,
                    **{
                        loop: at[v]
                        for v, loop in step.again.items()
                        if v in at and any(v in variables(n) for n in x.indices)
                    },
                }
                return Load(self.buffers[element.buffer].name, self.on_chip(element, moved), x.dtype)
            if not isinstance(x, Reduce):
                return with_parts(x, tuple(visit(p, at) for p in parts(x)))
            (v,) = x.over
            if self.extents[v] == 1:
                return visit(x.body, at)
            if x not in made:
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
    def dim_of(step: MatchedInstruction, v: str) -> str:
        return next(d for d, loops in step.dims.items() if v in loops)
