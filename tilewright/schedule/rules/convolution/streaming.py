"""Chains of kernels that run row by row (`tensor.row_chains.Chain`): of what lies between two members only the rows
that the reader still needs exist, in a ring. Each member's row has the schedule that the other rules give it.

    for row of the result:              # a depthwise 3x3 behind a 1x1 convolution, stride 1
      for new in 1:                     # rows of the 1x1's padded result, two rows ahead of the result
        if it is no border: ring[row % 3] = one row of the 1x1
        else:               ring[row % 3] = 0
      if row >= 2: result[row - 2] = one row of the 3x3, from the three rows of the ring

Every row is made once. Loops begin before the first row, so that the rings are filled without another copy of the code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from ....support.sizes import current
from ....tensor.analysis import flat
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, map_loads
from ....tensor.kernel import Kernel, Stage
from ....tensor.row_chains import ZERO, Chain, RowKernel, Window, window
from ...decisions import Decisions
from ...finish import finish
from ...inplace import ROWS
from ...machine import Machine
from ...nest import Alloc, For, If, Nest, Pack, Stmt, Store, loop, seq, substitute_vars, transform, walk_stmts
from ...schedule import Schedule
from .. import tactic

Indices = tuple[Expr, ...]

NAME = "streaming"
PRIORITY = 1


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if not isinstance(kernel, Chain):
        return "it is no chain of kernels"
    s = Schedule(kernel, machine, decisions=decisions)
    s.tactic(NAME)
    return s


def write(s: Schedule, machine: Machine) -> Stmt | str:
    if not isinstance(s.kernel, Chain):
        return "it is no chain of kernels"
    made = _Stream(s.kernel, machine)
    body = made.run()
    s.temporaries.clear()
    s.params.update(made.params)
    s.packs.update(made.packs)
    return body


tactic(NAME, write)


def row_nest(kernel: Kernel, machine: Machine) -> Nest:
    """The finished loop nest of a kernel by the default rules, made once: a planner asks for many chains."""
    from .. import known

    return _row_nest(kernel, machine, (known(), current()))


@lru_cache(maxsize=512)
def _row_nest(kernel: Kernel, machine: Machine, known: object) -> Nest:
    from .. import schedule

    return finish(schedule(kernel, machine).schedule.nest())


@dataclass(frozen=True)
class _Ring:
    """The rows between a member and its reader: row a lies at ``a % rows`` of dimension `dim`."""

    buffer: Buffer
    window: Window
    dim: int

    def at(self, row: Expr, rest: Indices) -> Indices:
        """The place of an element of a row, given its indices in the dimensions before and after the rows'."""
        before, after = rest[: self.dim], rest[self.dim :]
        return (*before, row % self.buffer.shape[self.dim], *after)


class _Stream:
    def __init__(self, kernel: Chain, machine: Machine) -> None:
        self.kernel, self.machine = kernel, machine
        self.params: dict[str, Buffer] = {}
        self.packs: dict[str, Pack] = {}
        self.rings: list[_Ring] = []
        for i, (maker, reader) in enumerate(zip(kernel.members, kernel.members[1:], strict=False)):
            link = kernel.links[i + 1]
            assert link is not None
            found = window(maker, reader, link)
            assert isinstance(found, Window), found
            rows = min(found.rows, maker.total)
            shape = maker.result.shape
            dim = 0 if maker.contiguous else maker.dim
            kept = (rows, maker.size) if maker.contiguous else (*shape[:dim], rows, *shape[dim + 1 :])
            self.rings.append(_Ring(Buffer(f"x{i}", kept, maker.result.dtype, "local"), found, dim))
        #: rows before the first that a member is asked for, to fill the rings before it
        self.early: list[int] = []
        for i, m in enumerate(kernel.members):
            before = 0
            if i:
                w = self.rings[i - 1].window
                before = max(-(-(w.rows - w.step + self.early[i - 1]) // w.step), 0)
            self.early.append(max(before - m.first, 0))

    def run(self) -> Stmt:
        last = len(self.kernel.members) - 1
        early = self.early[last]
        body: Stmt = self.produce(last, Var("row") - early, -early)
        body = replace(loop("row", self.kernel.members[last].total + early, body), notes=((ROWS, True),))
        for ring in self.rings:
            body = Alloc(ring.buffer, body)
        return body

    def produce(self, i: int, row: Expr, lowest: int) -> Stmt:
        """Make row `row` of member i's result, or only what later rows need, if it is before the first; `lowest` is the
        lowest that it can be. Beyond the last row nothing is asked for."""
        m = self.kernel.members[i]
        r, below = row - m.first, m.first + m.count < m.total
        parts: list[Stmt] = []
        if i:
            w = self.rings[i - 1].window
            new, ahead = f"new{i - 1}", w.rows - w.step
            more = self.produce(i - 1, r * w.step + ahead + Var(new), (lowest - m.first) * w.step + ahead)
            pull: Stmt = loop(new, w.step, more)
            parts.append(If(less(r, m.count), pull) if below else pull)
        fill = None if m.border is None else self.fill(i, row)
        if fill is not None and lowest < 0:
            fill = If(at_least(row, 0), fill)
        tests = [at_least(r, 0)] if lowest < m.first else []
        tests += [less(r, m.count)] if below else []
        body = self.compute(i, r)
        if tests:
            body = If(tests[0] if len(tests) == 1 else Op("andi", tuple(tests), "i1"), body, fill)
        return seq(*parts, body)

    # ---- a row of a member ----

    def fill(self, i: int, row: Expr) -> Stmt:
        """A row of the border."""
        m = self.kernel.members[i]
        assert m.border is not None
        shape = tuple(1 if d == m.dim else n for d, n in enumerate(m.result.shape))
        names = [f"f{d}" for d in range(len(shape))]
        index = tuple(ZERO if n == 1 else Var(v) for v, n in zip(names, shape, strict=True))
        dims = tuple((v, n) for v, n in zip(names, shape, strict=True) if n != 1)
        out = Buffer("p0", shape, m.result.dtype)
        stage = Stage("border", dims, (Target("p0", index, m.border),))
        nest = row_nest(Kernel("border", (out,), ("p0",), (), (stage,)), self.machine)

        def where(name: str, indices: Indices) -> tuple[str, Indices]:
            assert name == "p0"
            return self.written(i, row, indices)

        return placed(nest, f"f{i}", where)

    def compute(self, i: int, r: Expr) -> Stmt:
        """A row of the inside: the member's own nest, moved to row `r`."""
        m, names, link = self.kernel.members[i], self.kernel.names[i], self.kernel.links[i]
        nest = row_nest(m.kernel, self.machine)
        params = {p.name: p for p in nest.params}
        self.params.update({names[n]: replace(p, name=names[n]) for n, p in params.items() if names[n][0] == "p"})
        self.packs.update({names[n]: replace(p, source=names[n]) for n, p in nest.packs.items()})

        def where(name: str, indices: Indices) -> tuple[str, Indices]:
            if name == m.result.name:
                return self.written(i, r + m.first, indices)
            if name == link:
                return self.taken(i, r, params[name], indices)
            if name in params:
                if name in nest.packs:
                    return names[name], indices
                moves = m.steps.get(name, (0,) * len(indices))
                return names[name], tuple(e + r * n if n else e for e, n in zip(indices, moves, strict=True))
            return f"{name}_{i}", indices

        return placed(nest, f"{i}", where)

    def written(self, i: int, row: Expr, indices: Indices) -> tuple[str, Indices]:
        """Where an element of a row of member i's result goes: into the ring behind it, or the chain's result."""
        m: RowKernel = self.kernel.members[i]
        if i + 1 == len(self.kernel.members):
            return self.kernel.names[i][m.result.name], _replaced(indices, m.dim, row)
        ring = self.rings[i]
        return ring.buffer.name, ring.at(row, self.rest(i, m.result, m.dim, indices))

    def taken(self, i: int, r: Expr, b: Buffer, indices: Indices) -> tuple[str, Indices]:
        """Where an element of the window of row `r` lies in the ring before member i."""
        ring, w = self.rings[i - 1], self.rings[i - 1].window
        row = r * w.step + (ZERO if w.dim is None else indices[w.dim])
        return ring.buffer.name, ring.at(row, self.rest(i - 1, b, w.dim, indices))

    def rest(self, i: int, b: Buffer, dim: int | None, indices: Indices) -> Indices:
        """The indices of an element within its row, as the ring behind member i has them."""
        inside = indices if dim is None else _replaced(indices, dim, ZERO)
        if self.kernel.members[i].contiguous:
            return (flat(b, inside),)
        assert dim is not None
        return (*indices[:dim], *indices[dim + 1 :])


def _replaced(indices: Indices, dim: int, value: Expr) -> Indices:
    return (*indices[:dim], value, *indices[dim + 1 :])


def placed(nest: Nest, mark: str, where: Callable[[str, Indices], tuple[str, Indices]]) -> Stmt:
    """The body of a nest with its own names for loops and blocks, and other places for its buffers:
    ``where(buffer, indices)`` -> (buffer, indices)."""
    values: dict[str, Expr] = {s.var: Var(f"{s.var}_{mark}") for s in walk_stmts(nest.body) if isinstance(s, For)}

    def read(x: Load) -> Expr:
        name, indices = where(x.buffer, x.indices)
        return Load(name, indices, x.dtype)

    def expr(e: Expr) -> Expr:
        return map_loads(e, read)

    def visit(s: Stmt) -> Stmt:
        if isinstance(s, For):
            kind = "serial" if s.bound else s.kind
            return replace(s, kind=kind, prefetch=())
        if isinstance(s, If):
            return replace(s, cond=expr(s.cond))
        if isinstance(s, Alloc):
            return replace(s, buffer=replace(s.buffer, name=where(s.buffer.name, ())[0]))
        if not isinstance(s, Store):
            return s
        targets = []
        for t in s.targets:
            name, indices = where(t.buffer, t.indices)
            targets.append(Target(name, indices, expr(t.value), None if t.init is None else expr(t.init)))
        return replace(s, targets=tuple(targets), block=f"{s.block}_{mark}")

    body = transform(nest.body, visit)
    assert body is not None
    body = substitute_vars(body, values)

    def rename(s: Stmt) -> Stmt:
        return replace(s, var=values[s.var].name) if isinstance(s, For) and s.var in values else s  # type: ignore

    renamed = transform(body, rename)
    assert renamed is not None
    return renamed


def at_least(e: Expr, n: int) -> Expr:
    return Op("cmpi.sge", (e, Const(n, "index")), "i1")


def less(e: Expr, n: int) -> Expr:
    return Op("cmpi.slt", (e, Const(n, "index")), "i1")
