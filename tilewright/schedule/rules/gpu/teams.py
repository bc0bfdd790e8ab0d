"""Units of a block in rows of as many: each row works on something of its own, and its units learn what those before
them have (a scan of one number a unit, in shared memory or by shuffles).

    for each few rows, on a block:                          along x of the block, or y, or on warps and their lanes
        for each unit: a[row, unit] = what it has
        scan: prefix[row, unit] = what the units before it have together; total[row, unit] = what all have
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import log2

from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var
from ...machine import Machine
from ...nest import Alloc, Barrier, Stmt, seq, store
from ..custom.nests import index, select
from .units import BLOCK, GRID, axis, block_number, blocks_on_grid, grid_of, on, only_if

#: what a barrier takes, and a shuffle, in operations of a unit
BARRIER, SHUFFLE = 8, 2


@dataclass(frozen=True)
class Warps:
    """The axes of warps and their lanes, how many lanes there are, the lanes' barrier, and the memory of which each lane
    holds a part."""

    warp: str
    lane: str
    lanes: int
    barrier: str
    memory: str


def warps_of(machine: Machine) -> Warps | None:
    """Those of a machine with shuffles."""
    for inner in machine.axes:
        outer = axis(machine, inner.inside)
        memory = next((m.name for m in machine.memories if m.held_by == inner.name), None)
        if outer is None or outer.inside != GRID or memory is None or not inner.limit:
            continue
        own = [b for b in inner.barriers if b not in outer.barriers]
        if own:
            return Warps(outer.name, inner.name, inner.limit, own[0], memory)
    return None


@dataclass(frozen=True)
class Scanned:
    """A number that each unit has: its name and dtype, how two are combined, and what combines to nothing."""

    name: str
    dtype: str
    combine: Callable[[Expr, Expr], Expr]
    nothing: Const


class Team:
    """`rows` rows of `units` units (a power of two) a block, in `blocks` blocks; `along`: neighbouring units are those
    of a row, else those of neighbouring rows. `fresh` gives names that are free."""

    def __init__(
        self, machine: Machine, blocks: int, rows: int, units: int, along: bool, fresh: Callable[[str], str] = str
    ) -> None:
        self.rows, self.units, self.along, self.fresh = rows, units, along, fresh
        self.grid = grid_of(blocks, machine)
        found = warps_of(machine) if along else None
        self.warps = found if found is not None and units % found.lanes == 0 else None
        self.buffers: list[Buffer] = []
        self.loops = 0
        self.warp: Expr = index(0)
        self.row: Expr = Var("row_of_block") if rows > 1 else index(0)
        if self.warps is not None and rows * self.warps_of_row > 1:
            self.warp = Var("warp_of_block")
            self.row = self.warp // self.warps_of_row if rows > 1 else index(0)

    @property
    def warps_of_row(self) -> int:
        return self.units // self.warps.lanes if self.warps else 1

    @property
    def number(self) -> Expr:
        """The number of a row among those of all blocks."""
        return block_number(self.grid, "block") * self.rows + self.row

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1]

    # ---- memory

    def new(self, name: str, shape: tuple[int, ...], dtype: str, scope: str) -> Buffer:
        self.buffers.append(Buffer(self.fresh(name), shape, dtype, scope))
        return self.buffers[-1]

    def own(self, name: str, dtype: str, *more: int) -> Buffer:
        """Registers of each unit, at ``(row, unit, ...)``."""
        return self.new(name, (self.rows, self.units, *more), dtype, "register")

    def shared(self, name: str, count: int, dtype: str) -> Buffer:
        """An array that the units of a row share, at ``(row, i)``."""
        return self.new(name, (self.rows, count), dtype, "shared")

    # ---- statements

    def nest(self, body: Stmt) -> Stmt:
        """What blocks do, all their rows together: `body` is for one row."""
        if self.warps is not None:
            count = self.rows * self.warps_of_row
            body = on(self.warps.warp, "warp_of_block", count, body) if count > 1 else body
        elif self.rows > 1:
            body = on("block.y" if self.along else "block.x", "row_of_block", self.rows, body)
        for b in reversed(self.buffers):
            body = Alloc(b, body)
        return blocks_on_grid(self.grid, "block", body)

    def each(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """What each unit of a row does, by its number."""
        self.loops += 1
        var = Var(f"unit_{self.loops}")
        if self.warps is not None:
            lanes, w = self.warps.lanes, self.warps_of_row
            unit = (self.warp % w) * lanes + var if w > 1 else var
            return on(self.warps.lane, var.name, lanes, body(unit))
        if self.units == 1:
            return body(index(0))
        return on("block.x" if self.along else "block.y", var.name, self.units, body(var))

    def barrier(self) -> list[Stmt]:
        """All units of a block wait for each other, where a row has more than one."""
        return [Barrier(BLOCK)] if self.units > 1 else []

    # ---- scans

    def scan(self, values: Sequence[tuple[Scanned, Buffer]], prefix: Sequence[Buffer], total: Sequence[Buffer]) -> Stmt:
        """Of what each unit has in a register of `values`: in `prefix` what those before it have, in `total` what all
        have, if it is given (registers too)."""
        if self.units == 1:
            steps = []
            for (s, mine), p, t in zip(values, prefix, [*total, *[None] * len(values)], strict=False):
                steps.append(store(p.name, (self.row, index(0)), s.nothing, f"{s.name}_prefix"))
                if t is not None:
                    steps.append(store(t.name, (self.row, index(0)), self.of(mine, index(0)), f"{s.name}_total"))
            return self.each(lambda x: seq(*steps))
        return self.by_warps(values, prefix, total) if self.warps else self.in_shared(values, prefix, total)

    def of(self, b: Buffer, unit: Expr) -> Load:
        return Load(b.name, (self.row, unit), b.dtype)

    def in_shared(
        self, values: Sequence[tuple[Scanned, Buffer]], prefix: Sequence[Buffer], total: Sequence[Buffer]
    ) -> Stmt:
        """Each unit adds what the one so far before it has, twice as far in each step, from one array to the other."""
        arrays = [[self.shared(f"{s.name}_{i}", self.units, s.dtype) for i in "ab"] for s, _ in values]
        steps = [self.each(lambda x: seq(*(self.put(a[0], x, self.of(mine, x)) for a, (_, mine) in zip(arrays, values, strict=True))))]
        apart, turn = 1, 0
        while apart < self.units:
            steps += [*self.barrier(), self.each(lambda x, d=apart, t=turn: seq(*(self.step(a, s, x, d, t) for a, (s, _) in zip(arrays, values, strict=True))))]  # fmt: skip
            apart, turn = 2 * apart, 1 - turn
        steps += self.barrier()

        def found(x: Expr) -> Stmt:
            made = []
            for i, (s, _) in enumerate(values):
                last = arrays[i][turn]
                before = Op("guard", (_at_least(x, 1), self.of(last, x - 1), s.nothing), s.dtype)
                made.append(store(prefix[i].name, (self.row, x), before, f"{s.name}_prefix"))
                if total:
                    all_ = self.of(last, index(self.units - 1))
                    made.append(store(total[i].name, (self.row, x), all_, f"{s.name}_total"))
            return seq(*made)

        return seq(*steps, self.each(found))

    def put(self, b: Buffer, unit: Expr, value: Expr) -> Stmt:
        return store(b.name, (self.row, unit), value, f"put_{b.name}")

    def step(self, arrays: Sequence[Buffer], s: Scanned, x: Expr, apart: int, turn: int) -> Stmt:
        source, target = arrays[turn], arrays[1 - turn]
        mine = self.of(source, x)
        both = s.combine(self.of(source, x - apart), mine)
        return self.put(target, x, Op("guard", (_at_least(x, apart), both, mine), s.dtype))

    def by_warps(
        self, values: Sequence[tuple[Scanned, Buffer]], prefix: Sequence[Buffer], total: Sequence[Buffer]
    ) -> Stmt:
        """The same by shuffles among the lanes of each warp; what whole warps have lies in shared memory, and each unit
        goes through that."""
        assert self.warps is not None
        lanes, w = self.warps.lanes, self.warps_of_row
        mine_of_row = self.warp % w if w > 1 else index(0)
        shape = (self.rows * w, lanes)
        arrays = [[self.new(f"{s.name}_{i}", shape, s.dtype, self.warps.memory) for i in "ab"] for s, _ in values]

        def lane(x: Expr) -> Expr:
            return x if w == 1 else x - mine_of_row * lanes

        def held(b: Buffer, at: Expr) -> Load:
            return Load(b.name, (self.warp, at), b.dtype)

        def give(x: Expr) -> Stmt:
            pairs = zip(arrays, values, strict=True)
            return seq(*(store(a[0].name, (self.warp, lane(x)), self.of(v, x), f"give_{s.name}") for a, (s, v) in pairs))

        steps = [self.each(give)]
        turn = 0
        for i in range(lanes.bit_length() - 1):

            def step(x: Expr, d: int = 1 << i, t: int = turn) -> Stmt:
                made = []
                for a, (s, _) in zip(arrays, values, strict=True):
                    at = lane(x)
                    own, other = held(a[t], at), held(a[t], Op("maxsi", (at - d, index(0)), "index"))
                    value = select(_at_least(at, d), s.combine(other, own), own)
                    made.append(store(a[1 - t].name, (self.warp, at), value, f"scan_{s.name}_{d}"))
                return seq(*made)

            steps += [Barrier(self.warps.barrier), self.each(step)]
            turn = 1 - turn
        parts = [self.shared(f"{s.name}_part", w, s.dtype) for s, _ in values] if w > 1 else []
        if w > 1:

            def last(x: Expr) -> Stmt:
                pairs = zip(parts, arrays, strict=True)
                puts = [self.put(p, mine_of_row, held(a[turn], lane(x))) for p, a in pairs]
                return only_if(Op("cmpi.eq", (lane(x), index(lanes - 1)), "i1"), seq(*puts))

            steps += [self.each(last), Barrier(BLOCK)]
        else:
            steps.append(Barrier(self.warps.barrier))

        def found(x: Expr) -> Stmt:
            made = []
            for i, (s, _) in enumerate(values):
                at, a = lane(x), arrays[i][turn]
                before = held(a, Op("maxsi", (at - 1, index(0)), "index"))
                inside = select(_at_least(at, 1), before, s.nothing)
                if w == 1:
                    made.append(store(prefix[i].name, (self.row, x), inside, f"{s.name}_prefix"))
                    whole: Expr = held(a, index(lanes - 1))
                else:
                    each = [self.of(parts[i], index(j)) for j in range(w)]
                    whole = reduce(s.combine, each)
                    begun: Expr = s.nothing
                    for j in range(w - 1):
                        begun = select(_at_least(mine_of_row, j + 1), s.combine(begun, each[j]), begun)
                    made.append(store(prefix[i].name, (self.row, x), s.combine(begun, inside), f"{s.name}_prefix"))
                if total:
                    made.append(store(total[i].name, (self.row, x), whole, f"{s.name}_total"))
            return seq(*made)

        return seq(*steps, self.each(found))


def meeting(units: int, along: bool, machine: Machine) -> float:
    """What a scan takes of each unit, in operations."""
    if units == 1:
        return 0.0
    found = warps_of(machine) if along else None
    if found is None or units % found.lanes:
        return (BARRIER + 2) * (log2(units) + 1)
    return 2 * SHUFFLE * log2(found.lanes) + (BARRIER + units // found.lanes if units > found.lanes else 0)


def _at_least(a: Expr, b: int) -> Expr:
    return Op("cmpi.sge", (a, index(b)), "i1")


__all__ = ["Scanned", "Team", "Warps", "meeting", "warps_of"]
