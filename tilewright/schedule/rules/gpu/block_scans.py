"""Block-wide and warp-wide prefix scans for rules: a block's threads form rows, and each row scans one number a thread,
in shared memory or by shuffles.

    for each few rows, on a block:                          along x of the block, or y, or on warps and their lanes
        for each thread: a[row, thread] = what it has
        scan: prefix[row, thread] = what the threads before it have together; total[row, thread] = what all have
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
from .thread_binding import BLOCK, axis, block_number, blocks_on_grid, grid_of, on, only_if

#: how many partial sums a thread combines in a step of the reduction tree
FAN = 8


@dataclass(frozen=True)
class ShuffleWarps:
    """The axes of warps and their lanes, how many lanes there are, their barrier, and the memory of which each lane
    holds a part."""

    warp: str
    lane: str
    lanes: int
    barrier: str
    memory: str


def warps_of(machine: Machine) -> ShuffleWarps | None:
    """Those of a machine with shuffles."""
    for inner in machine.axes:
        outer = axis(machine, inner.inside)
        memory = next((m.name for m in machine.memories if m.held_by == inner.name), None)
        if outer is None or not outer.barriers or memory is None or not inner.limit:
            continue
        own = [b for b in inner.barriers if b not in outer.barriers]
        if own:
            return ShuffleWarps(outer.name, inner.name, inner.limit, own[0], memory)
    return None


@dataclass(frozen=True)
class Scanned:
    """A value to scan, one number a thread: its name and dtype, the operation that combines two, and its neutral
    element."""

    name: str
    dtype: str
    combine: Callable[[Expr, Expr], Expr]
    nothing: Const

    def together(self, parts: Sequence[Expr]) -> Expr:
        """Combines partial results, in order."""
        return reduce(self.combine, parts)


class BlockRows:
    """`rows` rows of `threads` threads (a power of two) a block, in `blocks` blocks; `along`: neighbouring threads
    belong to one row, else to neighbouring rows."""

    def __init__(self, machine: Machine, blocks: int, rows: int, threads: int, along: bool) -> None:
        self.rows, self.threads, self.along = rows, threads, along
        self.grid = grid_of(blocks, machine)
        found = warps_of(machine) if along else None
        self.warps = found if found is not None and threads % found.lanes == 0 else None
        self.buffers: list[Buffer] = []
        self.loops = 0
        self.warp: Expr = index(0)
        self.row: Expr = Var("row_of_block") if rows > 1 else index(0)
        if self.warps is not None and rows * self.warps_of_row > 1:
            self.warp = Var("warp_of_block")
            self.row = self.warp // self.warps_of_row if rows > 1 else index(0)

    @property
    def warps_of_row(self) -> int:
        return self.threads // self.warps.lanes if self.warps else 1

    @property
    def number(self) -> Expr:
        """The index of a row among those of all blocks."""
        return block_number(self.grid, "block") * self.rows + self.row

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1]

    # ---- memory

    def new(self, name: str, shape: tuple[int, ...], dtype: str, scope: str) -> Buffer:
        self.buffers.append(Buffer(name, shape, dtype, scope))
        return self.buffers[-1]

    def own(self, name: str, dtype: str, *more: int) -> Buffer:
        """A register array of each thread, at ``(row, thread, ...)``."""
        return self.new(name, (self.rows, self.threads, *more), dtype, "register")

    def shared(self, name: str, count: int, dtype: str) -> Buffer:
        """A shared-memory array of each row, at ``(row, i)``."""
        return self.new(name, (self.rows, count), dtype, "shared")

    def kept(self, name: str, count: int, dtype: str) -> Buffer:
        """`shared`, allocated once for each name."""
        return next((b for b in self.buffers if b.name == name), None) or self.shared(name, count, dtype)

    # ---- statements

    def nest(self, body: Stmt) -> Stmt:
        """What blocks do, all their rows together, with the memory that they need: `body` is for one row."""
        return self.around(body, self.buffers)

    def around(self, body: Stmt, buffers: Sequence[Buffer] = ()) -> Stmt:
        """The loops over blocks and rows around what is done for one row."""
        if self.warps is not None:
            count = self.rows * self.warps_of_row
            body = on(self.warps.warp, "warp_of_block", count, body) if count > 1 else body
        elif self.rows > 1:
            body = on("block.y" if self.along else "block.x", "row_of_block", self.rows, body)
        for b in reversed(buffers):
            body = Alloc(b, body)
        return blocks_on_grid(self.grid, "block", body)

    def each(self, body: Callable[[Expr], Stmt]) -> Stmt:
        """What each thread of a row does, by its number."""
        self.loops += 1
        var = Var(f"unit_{self.loops}")
        if self.warps is not None:
            lanes, w = self.warps.lanes, self.warps_of_row
            thread = (self.warp % w) * lanes + var if w > 1 else var
            return on(self.warps.lane, var.name, lanes, body(thread))
        if self.threads == 1:
            return body(index(0))
        return on("block.x" if self.along else "block.y", var.name, self.threads, body(var))

    def barrier(self) -> list[Stmt]:
        """A barrier of the threads of a row, where it has more than one."""
        own = self.warps.barrier if self.warps is not None and self.warps_of_row == 1 else BLOCK
        return [Barrier(own)] if self.threads > 1 else []

    def meet(self) -> list[Stmt]:
        """A barrier of all threads of the block."""
        return [Barrier(BLOCK)] if self.rows * self.threads > 1 else []

    # ---- scans

    def scan(self, values: Sequence[tuple[Scanned, Buffer]], prefix: Sequence[Buffer], total: Sequence[Buffer]) -> Stmt:
        """Exclusive prefix scan over the threads of a row: `values` are registers, `prefix` gets what the threads
        before combine to, and `total`, if given, what all do."""
        if self.threads == 1:

            def alone(x: Expr) -> Stmt:
                wholes = self.into(total, values, x, [self.of(mine, x) for _, mine in values]) if total else None
                return seq(self.into(prefix, values, x, [s.nothing for s, _ in values]), wholes)

            return self.each(alone)
        return self.by_warps(values, prefix, total) if self.warps else self.in_shared(values, prefix, total)

    def total(self, values: Sequence[tuple[Scanned, Buffer]], total: Sequence[Buffer]) -> Stmt:
        """Reduction over the threads of a row: registers `total` get what all threads' `values` combine to. Its shared
        memory may be written again at once, by another call or in the next iteration of a loop."""
        if self.threads == 1:
            return self.each(lambda x: self.into(total, values, x, [self.of(mine, x) for _, mine in values]))
        return self.total_by_warps(values, total) if self.warps else self.total_in_shared(values, total)

    def into(
        self, targets: Sequence[Buffer], values: Sequence[tuple[Scanned, Buffer]], at: Expr, found: Sequence[Expr]
    ) -> Stmt:
        """Store a number for each of the values, at ``(row, at)``."""
        stores = zip(targets, values, found, strict=True)
        return seq(*(store(b.name, (self.row, at), e, f"all_{s.name}_{b.name}") for b, (s, _), e in stores))

    def total_in_shared(self, values: Sequence[tuple[Scanned, Buffer]], total: Sequence[Buffer]) -> Stmt:
        """Tree reduction in shared memory, `FAN` partial sums in each step."""
        arrays = [self.kept(f"{s.name}_parts", self.threads, s.dtype) for s, _ in values]
        steps = [self.each(lambda x: self.into(arrays, values, x, [self.of(mine, x) for _, mine in values]))]
        left = self.threads

        def fold(source: Sequence[Buffer], targets: Sequence[Buffer], x: Expr, apart: int, count: int) -> Stmt:
            parts = zip(source, values, strict=True)
            found = [s.together([self.of(b, x + i * apart) for i in range(count)]) for b, (s, _) in parts]
            return self.into(targets, values, x, found)

        while left > FAN:
            left //= FAN
            smaller = [self.kept(f"{s.name}_{left}", left, s.dtype) for s, _ in values]

            def step(x: Expr, a: Sequence[Buffer] = arrays, b: Sequence[Buffer] = smaller, n: int = left) -> Stmt:
                return only_if(_less(x, n), fold(a, b, x, n, FAN))

            steps += [*self.barrier(), self.each(step)]
            arrays = smaller

        def whole(x: Expr) -> Stmt:
            parts = zip(arrays, values, strict=True)
            found = [s.together([self.of(b, index(i)) for i in range(left)]) for b, (s, _) in parts]
            return self.into(total, values, x, found)

        steps += [*self.barrier(), self.each(whole), *(self.barrier() if left == self.threads else [])]
        return seq(*steps)

    def total_by_warps(self, values: Sequence[tuple[Scanned, Buffer]], total: Sequence[Buffer]) -> Stmt:
        """Reduction by warp shuffles; the sums of whole warps are combined in shared memory."""
        assert self.warps is not None
        lanes, w = self.warps.lanes, self.warps_of_row
        arrays = [[self.held(f"{s.name}_{i}", s.dtype) for i in "ab"] for s, _ in values]
        turn, apart = 0, lanes // 2
        steps = [self.each(lambda x: self.give([a[0] for a in arrays], x, [self.of(mine, x) for _, mine in values]))]
        while apart:

            def step(x: Expr, d: int = apart, t: int = turn) -> Stmt:
                lane, made = self.lane(x), []
                for a, (s, _) in zip(arrays, values, strict=True):
                    other = Op("xori", (lane, index(d)), "index")
                    made.append(s.combine(self.of_lane(a[t], lane), self.of_lane(a[t], other)))
                return self.into(total, values, x, made) if d == 1 else self.give([a[1 - t] for a in arrays], x, made)

            steps += [Barrier(self.warps.barrier), self.each(step)]
            apart, turn = apart // 2, 1 - turn
        if w == 1:
            return seq(*steps, Barrier(self.warps.barrier))
        parts = [self.kept(f"{s.name}_warps", w, s.dtype) for s, _ in values]

        def put(x: Expr) -> Stmt:
            first = Op("cmpi.eq", (self.lane(x), index(0)), "i1")
            return only_if(first, self.into(parts, values, self.warp % w, [self.of(t, x) for t in total]))

        def whole(x: Expr) -> Stmt:
            pairs = zip(parts, values, strict=True)
            found = [s.together([self.of(p, index(i)) for i in range(w)]) for p, (s, _) in pairs]
            return self.into(total, values, x, found)

        return seq(*steps, self.each(put), Barrier(BLOCK), self.each(whole), Barrier(BLOCK))

    # ---- lanes

    def lane(self, x: Expr) -> Expr:
        """The lane index of a thread of a row."""
        assert self.warps is not None
        w = self.warps_of_row
        return x if w == 1 else x - (self.warp % w) * self.warps.lanes

    def held(self, name: str, dtype: str) -> Buffer:
        """Arrays that lanes read from each other by shuffles, allocated once for each name."""
        assert self.warps is not None
        shape = (self.rows * self.warps_of_row, self.warps.lanes)
        known = next((b for b in self.buffers if b.name == name), None)
        return known or self.new(name, shape, dtype, self.warps.memory)

    def of_lane(self, b: Buffer, lane: Expr) -> Load:
        return Load(b.name, (self.warp, lane), b.dtype)

    def give(self, arrays: Sequence[Buffer], x: Expr, values: Sequence[Expr]) -> Stmt:
        """Makes a value of each lane available to the others, for each of some arrays."""
        pairs = zip(arrays, values, strict=True)
        return seq(*(store(b.name, (self.warp, self.lane(x)), v, f"give_{b.name}") for b, v in pairs))

    def of(self, b: Buffer, thread: Expr) -> Load:
        return Load(b.name, (self.row, thread), b.dtype)

    def in_shared(
        self, values: Sequence[tuple[Scanned, Buffer]], prefix: Sequence[Buffer], total: Sequence[Buffer]
    ) -> Stmt:
        """Prefix scan in shared memory (Hillis-Steele): each step adds what is twice as far before, from one array to
        the other."""
        arrays = [[self.kept(f"{s.name}_{i}", self.threads, s.dtype) for i in "ab"] for s, _ in values]
        own = [mine for _, mine in values]
        steps = [self.each(lambda x: self.into([a[0] for a in arrays], values, x, [self.of(m, x) for m in own]))]
        apart, turn = 1, 0
        while apart < self.threads:

            def step(x: Expr, d: int = apart, t: int = turn) -> Stmt:
                made = []
                for a, (s, _) in zip(arrays, values, strict=True):
                    mine = self.of(a[t], x)
                    both = s.combine(self.of(a[t], x - d), mine)
                    made.append(Op("guard", (_at_least(x, d), both, mine), s.dtype))
                return self.into([a[1 - t] for a in arrays], values, x, made)

            steps += [*self.barrier(), self.each(step)]
            apart, turn = 2 * apart, 1 - turn
        scanned = [a[turn] for a in arrays]

        def found(x: Expr) -> Stmt:
            pairs = list(zip(scanned, values, strict=True))
            before = [Op("guard", (_at_least(x, 1), self.of(b, x - 1), s.nothing), s.dtype) for b, (s, _) in pairs]
            whole = [self.of(b, index(self.threads - 1)) for b, _ in pairs]
            wholes = self.into(total, values, x, whole) if total else None
            return seq(self.into(prefix, values, x, before), wholes)

        return seq(*steps, *self.barrier(), self.each(found))

    def by_warps(
        self, values: Sequence[tuple[Scanned, Buffer]], prefix: Sequence[Buffer], total: Sequence[Buffer]
    ) -> Stmt:
        """Prefix scan by warp shuffles; the totals of whole warps lie in shared memory, and each thread adds those
        before its own warp."""
        assert self.warps is not None
        lanes, w = self.warps.lanes, self.warps_of_row
        mine_of_row = self.warp % w if w > 1 else index(0)
        arrays = [[self.held(f"{s.name}_{i}", s.dtype) for i in "ab"] for s, _ in values]
        steps = [self.each(lambda x: self.give([a[0] for a in arrays], x, [self.of(mine, x) for _, mine in values]))]
        turn = 0
        for i in range(lanes.bit_length() - 1):

            def step(x: Expr, d: int = 1 << i, t: int = turn) -> Stmt:
                lane, made = self.lane(x), []
                for a, (s, _) in zip(arrays, values, strict=True):
                    own, other = self.of_lane(a[t], lane), self.of_lane(a[t], _maximum(lane - d))
                    made.append(select(_at_least(lane, d), s.combine(other, own), own))
                return self.give([a[1 - t] for a in arrays], x, made)

            steps += [Barrier(self.warps.barrier), self.each(step)]
            turn = 1 - turn
        scanned = [a[turn] for a in arrays]
        if w == 1:
            steps.append(Barrier(self.warps.barrier))
        else:
            parts = [self.kept(f"{s.name}_warps", w, s.dtype) for s, _ in values]

            def last(x: Expr) -> Stmt:
                lane = self.lane(x)
                puts = self.into(parts, values, mine_of_row, [self.of_lane(a, lane) for a in scanned])
                return only_if(Op("cmpi.eq", (lane, index(lanes - 1)), "i1"), puts)

            steps += [self.each(last), Barrier(BLOCK)]

        def found(x: Expr) -> Stmt:
            lane = self.lane(x)
            before: list[Expr] = []
            whole: list[Expr] = []
            for i, (s, _) in enumerate(values):
                left = self.of_lane(scanned[i], _maximum(lane - 1))
                inside = select(_at_least(lane, 1), left, s.nothing)
                if w == 1:
                    before.append(inside)
                    whole.append(self.of_lane(scanned[i], index(lanes - 1)))
                    continue
                each: list[Expr] = [self.of(parts[i], index(j)) for j in range(w)]
                begun: Expr = s.nothing
                for j in range(w - 1):
                    begun = select(_at_least(mine_of_row, j + 1), s.combine(begun, each[j]), begun)
                before.append(s.combine(begun, inside))
                whole.append(s.together(each))
            wholes = self.into(total, values, x, whole) if total else None
            return seq(self.into(prefix, values, x, before), wholes)

        return seq(*steps, self.each(found))


def meeting(threads: int, along: bool, machine: Machine) -> float:
    """The cost of a scan, in operations of a thread."""
    if threads == 1:
        return 0.0
    found, costs = warps_of(machine) if along else None, machine.thread_costs
    if found is None or threads % found.lanes:
        return (costs.barrier + 2) * (log2(threads) + 1)
    across = costs.barrier + threads // found.lanes if threads > found.lanes else 0
    return 2 * costs.shuffle * log2(found.lanes) + across


def _at_least(a: Expr, b: int) -> Expr:
    return Op("cmpi.sge", (a, index(b)), "i1")


def _less(a: Expr, b: int) -> Expr:
    return Op("cmpi.slt", (a, index(b)), "i1")


def _maximum(a: Expr) -> Expr:
    """An index, or 0 if it is negative."""
    return Op("maxsi", (a, index(0)), "index")


__all__ = ["Scanned", "BlockRows", "ShuffleWarps", "meeting", "warps_of"]
