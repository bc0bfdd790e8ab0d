"""Chooses the mapping of a row-wise reduction: threads for each row, rows for each block, and whether a row stays in
registers, in shared memory, or is read again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import log

import numpy as np

from ....support.dtypes import LOOP_TYPES
from ....support.sizes import highest, is_open, typical
from ....tensor.analysis import flat
from ....tensor.evaluate import evaluate
from ....tensor.expr import Expr, Load, walk
from ...block_costs import ThreadCosts
from ...machine import Machine, lanes
from ...schedule import Schedule
from .row_values import AT, ROW, RowwiseKernel
from .thread_binding import BLOCK, axis, grid_of, shared

#: of how many parts of a sum a thread makes one in a step of the tree: what is tried
FANS = (4, 2, 8)
#: up to so many parts of a sum are combined by all who read it
FEW_PARTS = 8


@dataclass(frozen=True)
class Keep:
    """A value of each position of a row that is needed at several levels: a parameter's element, or an elementwise
    stage's; `level`: where it is read or computed."""

    name: str
    leaf: Load
    value: Expr
    size: int
    level: int


@dataclass(frozen=True)
class Reads:
    """What is kept, and how often global memory is accessed for a position: with that, and without."""

    keeps: tuple[Keep, ...]
    once: int
    again: int

    @property
    def size(self) -> int:
        return max((k.size for k in self.keeps), default=0)


@dataclass(frozen=True)
class RowTeam:
    """`threads` of each of the `rows` of a block; `grid`: blocks along x and y. `vector` neighbours are a thread's.
    Threads that are neighbours of each other take neighbours of a row (`along`), or else rows side by side.

    `keep`: "registers", "shared", or "again" for rows that are read at each level. `warps`: the axes of warps and their
    lanes, and the lanes' own barrier, where the threads of a row are the lanes of one warp, or a part of these or of
    several warps that combine sums by shuffles, in the memory `exchange`.
    """

    rows: int
    threads: int
    grid: tuple[int, int]
    along: bool
    keep: str = "again"
    fan: int = FANS[0]
    vector: int = 1
    warps: tuple[str, str, str] | None = None
    lanes: int = 1
    exchange: str = ""

    @property
    def warps_of_row(self) -> int:
        return max(self.threads // self.lanes, 1) if self.warps else 1

    @property
    def rows_of_warp(self) -> int:
        """Rows that share a warp."""
        return max(self.lanes // self.threads, 1) if self.warps else 1

    @property
    def row_axis(self) -> str:
        return self.warps[0] if self.warps else "block.y" if self.along else "block.x"

    @property
    def thread_axis(self) -> str:
        return self.warps[1] if self.warps else "block.x" if self.along else "block.y"

    @property
    def barrier(self) -> str:
        return self.warps[2] if self.warps else BLOCK

    def steps(self, size: int) -> int:
        """Positions of a row that a thread takes."""
        return -(-size // (self.threads * self.vector)) * self.vector

    def __str__(self) -> str:
        kept = {"again": "read at each level", "shared": "kept in shared memory", "registers": "kept in registers"}
        warps = "a warp" if self.warps_of_row == 1 else "warps"  # or some of its lanes
        who = f"a row on {self.threads} {f'lanes of {warps}' if self.warps else 'threads'}"
        return f"{who}, {self.rows} in a block, {kept[self.keep]}"


# ---- what is needed ------------------------------------------------------------------------------------------------


def reads(rows: RowwiseKernel) -> Reads:
    """What of a row is worth keeping: what several levels need, and what is costly or needs no sum."""
    with_keeps, without = _Uses(rows), _Uses(rows)
    with_keeps.follow(keep=True)
    without.follow(keep=False)
    keeps = sorted(with_keeps.keeps, key=lambda k: k.level)  # a value may be made of others of its level
    return Reads(tuple(keeps), with_keeps.far(), without.far())


class _Uses:
    """At which levels values along a row are needed."""

    def __init__(self, rows: RowwiseKernel) -> None:
        self.rows = rows
        self.levels: dict[tuple[str, int], set[int]] = {}
        self.leaf: dict[tuple[str, int], Load] = {}
        self.always: set[tuple[str, int]] = set()
        self.keeps: list[Keep] = []

    def note(self, e: Expr, size: int, levels: set[int], always: bool) -> None:
        for text, (leaf, plain) in self.rows.leaves(e).items():
            if self.rows.along(leaf):
                key = text, size
                self.leaf[key] = leaf
                self.levels.setdefault(key, set()).update(levels)
                self.always |= {key} if plain and always else set()

    def follow(self, keep: bool) -> None:
        """From results and sums to what they are made of."""
        rows = self.rows
        for level in range(rows.levels):
            for r in rows.roots(level):
                if r.size > 1:
                    self.note(r.value, r.size, {level}, True)
        for name, node in reversed(rows.nodes.items()):  # those of which others are made come first in it
            for key in [k for k, x in self.leaf.items() if x.buffer == name]:
                worth = not node.sums or rows.costly(node.value)
                kept = keep and worth and self.kept(key, node.value)
                first = {min(self.levels[key])}
                self.note(node.value, node.size, first if kept else self.levels[key], key in self.always)
        for key, x in self.leaf.items() if keep else ():
            if x.buffer not in rows.nodes:
                self.kept(key, x)

    def kept(self, key: tuple[str, int], value: Expr) -> bool:
        if len(self.levels[key]) < 2 or key not in self.always:
            return False
        name = self.leaf[key].buffer.partition("%")[0] + (f"_{len(self.keeps)}" if self.keeps else "")
        self.keeps.insert(0, Keep(name, self.leaf[key], value, key[1], min(self.levels[key])))
        return True

    def far(self) -> int:
        """Elements of global memory that are accessed for a position."""
        kept = {(str(k.leaf), k.size) for k in self.keeps}
        params = [k for k, x in self.leaf.items() if x.buffer not in self.rows.nodes]
        writes = sum(w.size > 1 for w in self.rows.writes)
        return writes + sum(1 if k in kept else len(self.levels[k]) for k in params)


def runs_along(rows: RowwiseKernel) -> bool:
    """Whether most accesses are contiguous along a row, rather than across rows."""
    votes = 0
    for x in _far(rows):
        try:
            here, next_at, next_row = (_position(rows, x, r, a) for r, a in ((0, 0), (0, 1), (1, 0)))
        except KeyError:  # it depends on what is in memory
            continue
        size = rows.buffer(x.buffer).size
        votes += size * ((next_at - here == 1) - (rows.count > 1 and next_row - here == 1))
    return votes >= 0


def _far(rows: RowwiseKernel) -> list[Load]:
    """The elements of global memory that positions of a row access."""
    found = [Load(w.target.buffer, w.target.indices, "") for w in rows.writes if w.size > 1]
    values = [x.value for x in rows.nodes.values()] + [x.value for x in rows.sums.values()]
    for e in (*values, *(w.value for w in rows.writes)):
        own = [x for x in walk(e) if isinstance(x, Load) and x.buffer not in rows.nodes and x.buffer not in rows.sums]
        found += [x for x in own if rows.along(x)]
    return list({str(x): x for x in found}.values())


def _position(rows: RowwiseKernel, x: Load, row: int, at: int) -> int:
    place = flat(rows.buffer(x.buffer), x.indices)
    if any(isinstance(y, Load) for y in walk(place)):
        raise KeyError(x.buffer)
    return int(evaluate(place, {ROW.name: np.asarray(row), AT.name: np.asarray(at)}))


# ---- choosing ------------------------------------------------------------------------------------------------------


def choose(s: Schedule, rows: RowwiseKernel, needs: Reads, machine: Machine) -> RowTeam | str:
    """The team; what a tuner may change is a decision of the schedule."""
    along = runs_along(rows)
    teams = _teams(rows, needs, machine, along)
    if not teams:
        return "no team of threads fits the machine"
    best = min(teams, key=lambda t: cost(t, rows, needs, machine))
    alone = best.threads == 1 and len(rows.sums) == 1 and all(w.size == 1 for w in rows.writes)
    if alone and not s.fixed_decisions:
        return "one thread for each row is as fast"
    numbers = list(dict.fromkeys((t.rows, t.threads) for t in teams))
    chosen = s.sample_choice("team", numbers, (best.rows, best.threads))
    fits = [t for t in teams if (t.rows, t.threads) == chosen]
    team = min(fits, key=lambda t: cost(t, rows, needs, machine))
    keep = s.sample_choice("keep", [t.keep for t in fits], team.keep)
    team = next(t for t in fits if t.keep == keep)
    if team.warps is not None and not s.sample_choice("warps", (True, False), True):
        team = replace(team, warps=None, exchange="")
    if team.exchange and team.threads == team.lanes and not s.sample_choice("shuffles", (True, False), True):
        team = replace(team, exchange="")
    if team.threads > FANS[0] and not team.exchange:
        team = replace(team, fan=s.sample_choice("fan", FANS, FANS[0]))
    return team


def _teams(rows: RowwiseKernel, needs: Reads, machine: Machine, along: bool) -> list[RowTeam]:
    """All mappings that fit the machine."""
    block, memory = axis(machine, BLOCK), shared(machine)
    assert block is not None and memory is not None
    vector = _vector(rows, machine) if along else 1
    found = []
    for threads in _powers(min(block.limit or 1, typical(-(-rows.longest // vector)))):
        for together in _powers(min((block.limit or 1) // threads, typical(rows.count))):
            team = RowTeam(together, threads, grid_of(-(-rows.count // together), machine), along, vector=vector)
            team = _on_warps(machine, team)
            held = sum(team.steps(k.size) for k in needs.keeps)
            fits = ["registers"] if needs.keeps and not is_open(held) and held <= machine.vector_registers else []
            fits += ["shared"] if needs.keeps else []
            teams = [replace(team, keep=keep) for keep in (*fits, "again")]
            found += [t for t in teams if shared_bytes(t, rows, needs) <= memory.bytes]
    return found


def shared_bytes(t: RowTeam, rows: RowwiseKernel, needs: Reads) -> int:
    """Bytes of shared memory of a block, at the largest sizes."""
    each = t.warps_of_row if t.exchange else t.threads
    parts = t.rows * each * sum(_bytes(s.dtype) for s in rows.sums.values()) if each > 1 else 0
    kept = sum(highest(k.size) * _bytes(k.leaf.dtype) for k in needs.keeps) if t.keep == "shared" else 0
    return parts + t.rows * kept


def _vector(rows: RowwiseKernel, machine: Machine) -> int:
    """The vector width of a thread's accesses: the machine's longest, if all rows are a multiple of it."""
    wide = lanes(machine)
    sizes = rows.sizes - {1}
    return wide if sizes and all(n % wide == 0 for n in sizes) else 1


def _powers(limit: int) -> list[int]:
    """Powers of two up to the first that is no less than a limit.

    >>> _powers(1), _powers(5), _powers(8)
    ([1], [1, 2, 4, 8], [1, 2, 4, 8])
    """
    return [1 << i for i in range((max(limit, 1) - 1).bit_length() + 1)]


def _bytes(dtype: str) -> int:
    return LOOP_TYPES[dtype].nbytes


def cost(t: RowTeam, rows: RowwiseKernel, needs: Reads, machine: Machine) -> float:
    """The time of a team, in operations of a thread: of all of them, so many at a time, and of one after all.

    Neighbours that share no line of memory load one each, unless a row is no longer than a line; what they write of
    short rows goes there a sector each, for nothing waits for the others of it. What is kept in shared memory is
    touched there at each level; registers and shared memory that are full leave room for fewer threads.
    """
    block, memory, costs = axis(machine, BLOCK), shared(machine), machine.thread_costs
    assert block is not None and memory is not None
    line, limit = machine.line_bytes / 4, block.limit or 1
    beside = (t.threads if t.along else t.rows) * t.vector
    spread = max(line / beside, 1.0) if rows.longest > line else 1.0
    far = costs.far * spread * (needs.again if t.keep == "again" else needs.once)
    if t.along and spread == 1.0 and (how := machine.coalesced_access) is not None:
        alone = min(typical(rows.longest), how.sector_bytes // 4)
        far += costs.far * max(alone / beside - 1, 0) * sum(w.size > 1 for w in rows.writes)
    near = rows.levels * len(needs.keeps) if t.keep == "shared" else 0
    held = sum(typical(t.steps(k.size)) for k in needs.keeps) if t.keep == "registers" else 0
    meetings = _meeting(t, costs) * len({s.level for s in rows.sums.values()}) if t.threads > 1 else 0.0
    one = typical(t.steps(rows.longest)) * (rows.levels + far + near) + meetings
    resident = t.rows * t.threads * memory.bytes / max(shared_bytes(t, rows, needs), 1)
    crowded = (1 + (held / machine.vector_registers) ** 2 / 4) * max(limit / resident, 1.0)
    everyone = typical(t.grid[0] * t.grid[1]) * max(t.rows * t.threads, limit / costs.small_block)
    return one * crowded * everyone / at_once(machine) + one


def at_once(machine: Machine) -> int:
    """Threads that the machine runs at the same time, according to its record."""
    block = axis(machine, BLOCK)
    return max(machine.cores, (block.limit if block is not None else None) or 1)


def _meeting(t: RowTeam, costs: ThreadCosts) -> float:
    """The cost of combining the partial sums of a row's threads."""
    if not t.exchange:
        return (costs.warp_barrier if t.warps else costs.barrier) * (1 + log(t.threads, t.fan))
    within, others = costs.shuffle * log(min(t.threads, t.lanes), 2), t.warps_of_row
    if others == 1:
        return within
    return within + costs.barrier + (others if others <= FEW_PARTS else costs.shuffle * log(others, 2))


def _on_warps(machine: Machine, t: RowTeam) -> RowTeam:
    """The team with the axes of warps and of their lanes, where a row's threads are just the lanes of one warp, or of
    several, if lanes exchange what they have."""
    for inner in machine.axes:
        outer = axis(machine, inner.inside)
        if outer is None or not outer.barriers or inner.kind or not inner.limit or not t.along:
            continue
        own = [b for b in inner.barriers if b not in outer.barriers]
        exchange = next((m.name for m in machine.memories if m.held_by == inner.name), "")
        whole = t.threads == inner.limit or (bool(exchange) and t.threads % inner.limit == 0)
        part = bool(exchange) and 1 < t.threads < inner.limit and t.rows * t.threads % inner.limit == 0
        if own and (whole or part) and t.rows * t.threads // inner.limit <= (outer.limit or 1):
            return replace(t, warps=(outer.name, inner.name, own[0]), lanes=inner.limit, exchange=exchange)
    return t


__all__ = ["Keep", "Reads", "RowTeam", "choose", "cost", "reads", "runs_along"]
