"""Writes the nest of a row-wise reduction kernel (`row_values`) for the threads of blocks, or of warps.

    for each few rows, on a block:
        for each level:
            each thread takes every so many of a row's positions: it adds up sums, computes what is kept, writes results
            sums are combined in shared memory by a tree, whose last step every thread that reads them does for itself,
            or by the shuffles of each warp, and in shared memory those of several warps

A row that is kept lies in the registers of its threads, or in shared memory; a thread reads only what it wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

from ....support.sizes import highest
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, loads, rebuild, transform
from ...nest import Alloc, Barrier, For, Stmt, Store, loop, seq, store
from ...schedule import Schedule
from .row_mapping import FEW_PARTS, Keep, RowTeam
from .row_values import AT, ROW, RowSum, RowwiseKernel, Write
from .thread_binding import BLOCK, all_of, block_number, blocks_on_grid, on, only_if, within

_ZERO = Const(0, "index")
_LANE = Var("lane_of_vector")
_T = TypeVar("_T")


@dataclass(frozen=True)
class Spot:
    """The position of a thread: its number, its step, the position along the row, and what is kept of it by now, by
    text."""

    thread: Expr
    step: Expr
    at: Expr
    kept: dict[str, Load]


class RowWriter:
    """Writes the nest of rows with a team of threads."""

    def __init__(self, s: Schedule, rows: RowwiseKernel, keeps: Sequence[Keep], team: RowTeam) -> None:
        self.s, self.rows, self.team = s, rows, team
        self.keeps = list(keeps) if team.keep != "again" else []
        self.params = {p.name for p in rows.kernel.params}
        self.loops = 0
        self.y: Expr = Var("row") if team.rows > 1 else _ZERO
        self.warps = team.rows * team.warps_of_row // team.rows_of_warp  # of a block, where rows are those of warps
        self.warp: Expr = Var("row") if self.warps > 1 else _ZERO
        self.shared_out = team.warps_of_row > 1 or team.rows_of_warp > 1  # a row is not the lanes of one warp
        if self.shared_out:
            self.warp = Var("warp_of_block") if self.warps > 1 else _ZERO
            self.y = self.warp // team.warps_of_row if team.rows > 1 else _ZERO
        self.at_row(self.y)
        self.buffers: list[Buffer] = []
        self.sums: dict[str, Buffer] = {}  # sums of threads
        self.parts: dict[str, tuple[Buffer, int]] = {}  # the same in shared memory, and how many are left to combine
        self.numbers: dict[str, Buffer] = {}  # what is one number a row, in registers of each thread
        self.given: dict[str, list[Buffer]] = {}  # what lanes show each other
        self.variables: dict[Expr, Var] = {}  # of loops over the lanes of warps, by the thread's number in a row
        self.here: Expr = _ZERO  # the index of the thread at hand
        self.held = {(str(k.leaf), k.size): self.hold(k) for k in self.keeps}

    def at_row(self, y: Expr) -> None:
        """What is written from here on is for this row of the block."""
        t, count = self.team, self.rows.count
        self.y, self.row = y, block_number(t.grid, "rows") * t.rows + y
        whole = t.grid[0] * t.grid[1] * t.rows
        self.inside = None if whole == count else within(self.row, count, whole)

    def nest(self) -> Stmt:
        t = self.team
        body = seq(*(self.level(i) for i in range(self.rows.levels)))
        if self.shared_out:
            body = on(t.row_axis, "warp_of_block", self.warps, body) if self.warps > 1 else body
        elif t.rows > 1:
            body = on(t.row_axis, "row", t.rows, body)
        for b in reversed(self.buffers):
            body = Alloc(b, body)
        return blocks_on_grid(t.grid, "rows", body)

    # ---- memory

    def new(self, name: str, shape: tuple[int, ...], dtype: str, scope: str) -> Buffer:
        self.buffers.append(Buffer(self.s.fresh(name), shape, dtype, scope))
        return self.buffers[-1]

    def own(self, name: str, dtype: str) -> Buffer:
        """A register array of each thread."""
        return self.new(name, (self.team.rows, self.team.threads), dtype, "register")

    def hold(self, k: Keep) -> Buffer:
        """The array in which a value of each position is kept."""
        t = self.team
        if t.keep == "registers":
            return self.new(f"{k.name}_row", (t.rows, t.threads, t.steps(k.size)), k.leaf.dtype, "register")
        return self.new(f"{k.name}_row", self.together(t.rows, highest(k.size)), k.leaf.dtype, "shared")

    def together(self, row: _T, at: _T) -> tuple[_T, _T]:
        """A row, and where in it, as they lie in shared memory: so that neighbouring threads access neighbouring
        words."""
        return (row, at) if self.team.along else (at, row)

    # ---- levels

    def level(self, number: int) -> Stmt:
        roots = self.rows.roots(number)
        single = [x for x in roots if isinstance(x, Write) and x.size == 1]
        roots = [x for x in roots if x not in single]
        sums = [x for x in roots if isinstance(x, RowSum)]
        self.here = x = self.thread()
        work: list[Stmt] = [self.begin(s, x) for s in sums]
        if roots:
            work += self.once(roots, x)
            for n in sorted({r.size for r in roots}, reverse=True):
                work += self.along([r for r in roots if r.size == n], x)
        if self.team.threads > 1:
            work += [self.put(s, x) for s in sums]
        steps: list[Stmt] = [self.on_threads(x, self.team.threads, seq(*work))] if work else []
        if self.team.exchange and sums:
            steps += self.shuffled(sums)
        elif self.team.threads > 1 and sums:
            steps += self.tree(sums)
        if single:
            steps.append(self.by_first(single))
        return seq(*steps)

    def by_first(self, single: Sequence[Write]) -> Stmt:
        """A store that only the first thread of a row executes."""
        if not self.team.exchange:
            return only_if(self.inside, seq(*(self.write([w]) for w in single)))
        self.here = x = self.thread()
        cond = all_of([self.inside, Op("cmpi.eq", (x, _ZERO), "i1")])
        return self.on_threads(x, self.team.threads, only_if(cond, seq(*(self.write([w]) for w in single))))

    def thread(self) -> Expr:
        """The number of a thread of a row in a new loop over them; where a warp has several rows, it says which one."""
        self.loops += 1
        t = self.team
        if t.threads == 1:
            return _ZERO
        var = Var(f"unit_{self.loops}")
        if not self.shared_out:
            return var
        number = var % t.threads if t.rows_of_warp > 1 else (self.warp % t.warps_of_row) * t.lanes + var
        self.variables[number] = var
        if t.rows_of_warp > 1:
            self.at_row(self.warp * t.rows_of_warp + var // t.threads)
        return number

    def on_threads(self, x: Expr, count: int, body: Stmt) -> Stmt:
        """A loop over the threads of a row, or of its warps over their lanes."""
        var = self.variables.get(x, x)
        if self.shared_out:
            count = self.team.lanes
        return on(self.team.thread_axis, var.name, count, body) if isinstance(var, Var) else body

    def begin(self, s: RowSum, x: Expr) -> Stmt:
        self.sums[s.buffer] = made = self.own(f"{s.buffer}_u", s.dtype)
        return store(made.name, (self.y, x), s.start, f"{s.stage.name}_0")

    def put(self, s: RowSum, x: Expr) -> Stmt:
        t = self.team
        if t.exchange:
            return self.give(s, x, Load(self.sums[s.buffer].name, (self.y, x), s.dtype))
        part = self.new(f"{s.buffer}_part", self.together(t.rows, t.threads), s.dtype, "shared")
        self.parts[s.buffer] = part, t.threads
        mine = Load(self.sums[s.buffer].name, (self.y, x), s.dtype)
        return store(part.name, self.together(self.y, x), mine, f"{s.stage.name}_part")

    def tree(self, sums: Sequence[RowSum]) -> list[Stmt]:
        """Tree reduction of the threads' partial sums in shared memory, until one thread can add what is left."""
        steps: list[Stmt] = [Barrier(self.team.barrier)]
        left = self.team.threads
        while left > 2 * self.team.fan:
            left //= self.team.fan
            x, level = self.thread(), []
            for s in sums:
                part = self.parts[s.buffer][0].name
                read = [Load(part, self.together(self.y, x + i * left), s.dtype) for i in range(self.team.fan)]
                level.append(store(part, self.together(self.y, x), _combined(s, read), f"{s.stage.name}_tree_{left}"))
            steps += [self.on_threads(x, left, seq(*level)), Barrier(self.team.barrier)]
        for s in sums:
            self.parts[s.buffer] = self.parts[s.buffer][0], left
        return steps

    # ---- shuffles

    def give(self, s: RowSum, x: Expr, mine: Expr) -> Stmt:
        """Where the lanes of a warp see what a thread has of a sum: twice, so that steps go from one to the other."""
        shape = (self.warps, self.team.lanes)
        if s.buffer not in self.given:
            self.given[s.buffer] = [self.new(f"{s.buffer}_{i}", shape, s.dtype, self.team.exchange) for i in "ab"]
        return store(self.given[s.buffer][0].name, (self.warp, self.variables.get(x, x)), mine, f"{s.stage.name}_give")

    def shuffled(self, sums: Sequence[RowSum]) -> list[Stmt]:
        """Combine what the lanes of each warp have added up: all of them then have the sum, in the register where each
        had its own. Several warps of a row give theirs to each other in shared memory."""
        w, lanes = self.team.warps_of_row, self.team.lanes
        steps = self.butterflies(sums, min(lanes, self.team.threads))
        if w == 1:
            return steps
        x, puts = self.thread(), []
        first = Op("cmpi.eq", (self.variables[x], _ZERO), "i1")
        for s in sums:
            part = self.new(f"{s.buffer}_part", (self.team.rows, w), s.dtype, "shared")
            mine = Load(self.sums[s.buffer].name, (self.y, x), s.dtype)
            puts.append(store(part.name, (self.y, self.warp % w), mine, f"{s.stage.name}_part"))
            self.parts[s.buffer] = part, w
        steps += [self.on_threads(x, self.team.threads, only_if(first, seq(*puts))), Barrier(BLOCK)]
        if w > FEW_PARTS:
            x, gives = self.thread(), []
            for s in sums:
                part, _ = self.parts.pop(s.buffer)
                theirs = Load(part.name, (self.y, self.variables[x] % w), s.dtype)
                gives.append(self.give(s, x, theirs))
            steps += [self.on_threads(x, self.team.threads, seq(*gives)), *self.butterflies(sums, w)]
        return steps

    def butterflies(self, sums: Sequence[RowSum], count: int) -> list[Stmt]:
        """Butterfly reduction by shuffles: lanes that are count / 2 apart combine their values, then those half as far
        apart, and so on."""
        steps: list[Stmt] = []
        apart, turn = count // 2, 0
        while apart:
            x, level = self.thread(), []
            lane = self.variables.get(x, x)
            for s in sums:
                source, target = (self.given[s.buffer][(turn + i) % 2].name for i in (0, 1))
                other = Op("xori", (lane, Const(apart, "index")), "index")
                value = _combined(s, [Load(source, (self.warp, i), s.dtype) for i in (lane, other)])
                place = (target, (self.warp, lane)) if apart > 1 else (self.sums[s.buffer].name, (self.y, x))
                level.append(store(*place, value, f"{s.stage.name}_shuffle_{apart}"))
            steps += [Barrier(self.team.barrier), self.on_threads(x, self.team.threads, seq(*level))]
            apart, turn = apart // 2, turn + 1
        return steps

    # ---- along a row

    def along(self, roots: Sequence[RowSum | Write], x: Expr) -> list[Stmt]:
        """The part of a row that is a thread's: whole steps of all threads, and what is left."""
        t, size = self.team, roots[0].size
        full, rest = divmod(-(-size // t.vector), t.threads)
        laid_out = t.keep == "registers" and any(k.size == size for k in self.keeps)
        steps: list[Stmt] = []
        if full:
            step = Var(f"step_{self.loops}_{size}")
            body = self.element(roots, step, x, self.inside)
            steps.append(loop(step.name, full, body, "unroll" if laid_out else "serial"))
        if rest:
            cond = all_of([self.inside, within(x, rest, t.threads)])
            steps.append(self.element(roots, Const(full, "index"), x, cond))
        return steps

    def element(self, roots: Sequence[RowSum | Write], step: Expr, x: Expr, cond: Expr | None) -> Stmt:
        """What a thread does at one position, or at neighbours, if the condition holds. Registers that live on are set
        in any case: a driver (PoCL 3.1) mixes up those that are not."""
        t, size, level = self.team, roots[0].size, roots[0].level
        lane, vector = (_LANE, t.vector) if size > 1 and t.vector > 1 else (_ZERO, 1)
        at = (step * t.threads + x) * vector + lane
        spot = Spot(x, step * vector + lane, at, {})
        first: list[Stmt] = []
        made: list[Stmt] = []
        for k in self.keeps:
            if k.size != size or k.level > level:
                continue
            held = self.held[str(k.leaf), k.size]
            place = (self.y, x, spot.step) if held.scope == "register" else self.together(self.y, at)
            if k.level == level and cond is not None and held.scope == "register":
                first.append(store(held.name, place, _zero(k.leaf.dtype), f"keep_{held.name}_0"))
            if k.level == level:
                made.append(store(held.name, place, self.value(k.value, spot), f"keep_{held.name}"))
            spot.kept[str(k.leaf)] = Load(held.name, place, k.leaf.dtype)
        made += [self.add(r, spot) for r in roots if isinstance(r, RowSum)]
        if writes := [r for r in roots if isinstance(r, Write)]:
            made.append(self.write(writes, spot))
        return seq(*(_vector(m, vector) for m in first), only_if(cond, seq(*(_vector(m, vector) for m in made))))

    def add(self, s: RowSum, spot: Spot) -> Stmt:
        mine = Load(self.sums[s.buffer].name, (self.y, spot.thread), s.dtype)
        added = Op(s.combiner, (mine, self.value(s.value, spot)), s.dtype)
        return store(mine.buffer, mine.indices, added, s.stage.name)

    def write(self, writes: Sequence[Write], spot: Spot | None = None) -> Stmt:
        """Results of one position; what several are made of is computed once."""
        same: dict[Expr, Expr] = {}
        targets = []
        for w in writes:
            place = tuple(self.value(i, spot) for i in w.target.indices)
            targets.append(Target(w.target.buffer, place, _shared(self.value(w.value, spot), same)))
        return Store(tuple(targets), writes[0].name)

    # ---- numbers of a row

    def once(self, roots: Sequence[RowSum | Write], x: Expr) -> list[Stmt]:
        """Registers for values that are one number a row, and are read along it from this level on."""
        made: list[Stmt] = []
        values = [r.value for r in roots] + [k.value for k in self.keeps if k.level == roots[0].level]
        seen: set[str] = set()
        while values:
            for text, (leaf, always) in self.rows.leaves(values.pop()).items():
                node = self.rows.nodes.get(leaf.buffer)
                if text in seen or not always or (node is None and leaf.buffer not in self.rows.sums):
                    continue
                seen.add(text)
                if node is not None and self.rows.along(leaf):
                    values += [] if any(text == t for t, _ in self.held) else [node.value]
                elif text not in self.numbers:
                    number = self.own(f"{leaf.buffer.replace('%', '_')}_n", leaf.dtype)
                    value = self.value(leaf)
                    set_it: Stmt = store(number.name, (self.y, x), value, f"once_{number.name}")
                    if self.inside is not None and any(y.buffer in self.params for y in loads(value)):
                        made.append(store(number.name, (self.y, x), _zero(leaf.dtype), f"once_{number.name}_0"))
                        set_it = only_if(self.inside, set_it)
                    made.append(set_it)
                    self.numbers[text] = number
        return made

    def total(self, s: RowSum) -> Expr:
        """A row's sum, from the partial sums that the tree has left."""
        if s.buffer in self.parts:
            part, left = self.parts[s.buffer]
            found = _combined(
                s, [Load(part.name, self.together(self.y, Const(i, "index")), s.dtype) for i in range(left)]
            )
        else:
            found = Load(self.sums[s.buffer].name, (self.y, self.here), s.dtype)
        return found if s.init is None else Op(s.combiner, (self.value(s.init), found), s.dtype)

    def value(self, e: Expr, spot: Spot | None = None) -> Expr:
        """A value of the row, or where a thread is: there it has what is kept, and numbers of the row, at hand."""
        known = {ROW.name: self.row} | ({AT.name: spot.at} if spot is not None else {})

        def visit(x: Expr, args: tuple[Expr, ...]) -> Expr:
            if isinstance(x, Var):
                return known.get(x.name, x)
            if not isinstance(x, Load):
                return rebuild(x, args)
            text = str(x)
            if spot is not None and text in spot.kept:
                return spot.kept[text]
            if spot is not None and text in self.numbers:
                return Load(self.numbers[text].name, (self.y, spot.thread), x.dtype)
            if x.buffer in self.rows.sums:
                return self.total(self.rows.sums[x.buffer])
            if x.buffer in self.rows.nodes:
                return transform(self.rows.nodes[x.buffer].value, visit, memo)
            return rebuild(x, args)

        memo: dict[Expr, Expr] = {}
        return transform(e, visit, memo)


def _combined(s: RowSum, parts: Sequence[Expr]) -> Expr:
    return reduce(lambda a, b: Op(s.combiner, (a, b), s.dtype), parts)


def _shared(e: Expr, same: dict[Expr, Expr]) -> Expr:
    """An expression whose parts are those in `same` that are equal to them."""

    def visit(x: Expr, args: tuple[Expr, ...]) -> Expr:
        made = rebuild(x, args)
        return same.setdefault(made, made)

    return transform(e, visit)


def _zero(dtype: str) -> Const:
    return Const(0.0 if "f" in dtype else 0, dtype)


def _vector(s: Stmt, lanes: int) -> Stmt:
    return s if lanes == 1 else For(_LANE.name, Const(lanes, "index"), s, "vector", lanes)


__all__ = ["RowWriter"]
