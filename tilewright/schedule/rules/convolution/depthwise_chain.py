"""A depthwise convolution with the convolutions around it (`tensor.chains`), row by row: of what lies between two
members only the rows exist that the reader still needs, in a ring that stays in cache.

    for image, band of rows in parallel:           # expand (1x1), depthwise 3x3, project (1x1)
      for row of the band, from two before it:
        ring[(row + 2) % 3] = row of the expansion, or of the border
        if row is in the band:
          line = row of the depthwise convolution, from the three rows of the ring
          result[row] = row of the projection, from line

Each member's row has the schedule that the other rules give it. Every band makes the rows around it once more.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import gcd, prod
from typing import TYPE_CHECKING, Any, cast

from ....support.sizes import current, is_open
from ....tensor.chains import Columns, RowChain, first_columns, row_chain
from ....tensor.expr import Buffer, Expr, Load, Op, Target, Var, map_loads, minimum
from ....tensor.kernel import Kernel, Stage
from ....tensor.row_chains import ZERO, RowKernel
from ...decisions import Decision, Decisions, freeze
from ...executed import TOO_MUCH
from ...finish import finish
from ...machine import Machine, lanes, one_thread
from ...nest import Alloc, For, If, Nest, Pack, Stmt, loop, seq
from ...schedule import Schedule, ScheduleError
from .. import tactic
from ..convolution.streaming import Indices, at_least, less, placed
from ..custom.nests import index
from ..elementwise import general

if TYPE_CHECKING:
    from .. import Scheduled

NAME = "depthwise_chain"
PRIORITY = 14
#: rows that are made at once; more were measured and bring nothing
MAX_ROWS = 8
#: but single rows are faster where what lies between the members then takes no more than this many first-level caches
#: (measured: 5%)
SINGLE_ROW_L1_TIMES = 1.25
#: vectors of channels that go through the depthwise convolution at once, at most, if not all: what a tile may have
MAX_PANEL_VECTORS = 4


def worth_joining(kernel: Kernel, machine: Machine) -> bool:
    """Whether a kernel around a depthwise convolution is faster than its members one by one.

    Measured: it is where what lies between the members does not stay in the second-level caches, and the weights, which
    are read again for every block of rows, do. The threads' shares must be even and their bands not add much. A row of
    each member must have a rule made for it (what only `general` takes is scalar), and one that does it once.
    """
    if any(is_open(*b.shape) for b in kernel.params):  # rings and bands are for rows whose number is known
        return False
    single = row_chain(kernel)
    if isinstance(single, str):
        return False
    between = sum(4 * m.result.size for m in single.members[:-1]) * single.images
    weights = sum(4 * kernel.buffer(n).size for n in kernel.constants)
    if between < machine.l2_bytes * machine.cores or weights > machine.l2_bytes:
        return False
    rows, bands = _defaults(single, _fitting(kernel, single, machine), machine)
    if rows is None:
        return False
    total = single.rows
    uneven = -(-total // (rows * bands)) * rows * bands > 1.1 * total
    again = max((w.rows - w.step) * bands / m.total for m, w in zip(single.members, single.windows, strict=False))
    made = row_chain(kernel, rows)
    assert isinstance(made, RowChain)
    if uneven or again > 1 / 8 or weights + local_bytes(made) > machine.l2_bytes:
        return False
    parts = members(kernel, machine, {"rows": rows})
    return all(m.rule != general.NAME and not m.problems and _once(m) for m in parts)


def members(kernel: Kernel, machine: Machine, decisions: Mapping[str, Any]) -> list[Scheduled]:
    """The schedules of one block of rows of each member of a chain, with the number of rows of `decisions`; empty for
    a kernel that is no chain."""
    chain = row_chain(kernel, decisions.get("rows", 1))
    return [] if isinstance(chain, str) else [_scheduled(_copied(m.kernel), machine, {})[0] for m in chain.members]


def _once(made: Scheduled) -> bool:
    return made.executed is None or made.executed.recomputation <= TOO_MUCH


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if isinstance(single := row_chain(kernel), str):
        return single
    s = Schedule(kernel, machine, decisions=decisions)
    s.tactic(NAME)
    return s


def write(s: Schedule, machine: Machine) -> Stmt | str:
    kernel = s.kernel
    if isinstance(single := row_chain(kernel), str):
        return single
    fitting = _fitting(kernel, single, machine)
    rows, bands = _defaults(single, fitting, machine)
    rows = s.sample_choice("rows", fitting or [1], rows or 1)
    width = s.sample_choice("channels", _widths(single, machine), _width(single, machine))
    blocks = single.rows // rows
    even = [n for n in range(1, blocks + 1) if -(-blocks // n) * (n - 1) < blocks]
    bands = s.sample_choice("bands", even, min((n for n in even if n >= bands), default=blocks))
    chain = row_chain(kernel, rows, 1 if width else None)
    assert isinstance(chain, RowChain)
    columns = [_columns(m, width) if i < 2 else None for i, m in enumerate(chain.members)]
    nests = [_row_nest(s, i, m, c, machine) for i, (m, c) in enumerate(zip(chain.members, columns, strict=True))]
    made = _Rows(kernel, chain, nests, columns, machine)
    body = made.run(bands)
    s.temporaries.clear()
    s.params.update(made.params)
    s.packs.update(made.packs)
    return body


tactic(NAME, write)


def _columns(member: RowKernel, width: int) -> Columns | None:
    """A member's first `width` channels, None for all of them."""
    if not width:
        return None
    found = first_columns(member.kernel, width)
    assert isinstance(found, Columns)
    return found


def _widths(single: RowChain, machine: Machine) -> list[int]:
    """How many channels may go through the depthwise convolution at once; 0: all."""
    first = single.members[0].result
    vector, total = lanes(machine, first.dtype), first.shape[-1]
    if len(single.members) < 3 or any(isinstance(first_columns(m.kernel, vector), str) for m in single.members[:2]):
        return [0]
    return [
        0,
        *[n * vector for n in range(1, MAX_PANEL_VECTORS + 1) if total % (n * vector) == 0 and n * vector < total],
    ]


def _width(single: RowChain, machine: Machine) -> int:
    """The channels that go through the depthwise convolution at once: as many as leave the rows that it needs in the
    first-level cache, where it skips rows; else what it reads is little beside its arithmetic.

    Measured, rows from the first-level cache: 5 cycles for a vector of results, from the second 6 at step 1 and 12 at
    step 2."""
    w = single.windows[0]
    skips = len(single.members) == 3 and w.step > 1
    row = w.rows * single.members[0].result.shape[2] * 4
    return max((n for n in _widths(single, machine) if n * row <= machine.l1_bytes), default=0) if skips else 0


def _fitting(kernel: Kernel, single: RowChain, machine: Machine) -> list[int]:
    """How many rows may be made at once: what lies between the members must take half of the second-level cache at
    most."""
    total = single.rows
    chains = {n: row_chain(kernel, n) for n in range(1, min(total, 2 * MAX_ROWS) + 1) if total % n == 0}
    return [n for n, c in chains.items() if isinstance(c, RowChain) and 2 * local_bytes(c) <= machine.l2_bytes]


def _defaults(single: RowChain, fitting: list[int], machine: Machine) -> tuple[int | None, int]:
    """Rows at once and bands of an image: bands as few as keep all threads busy, and as many rows as leave their shares
    even. What a depthwise convolution reads several times then comes to the first-level cache once for several rows."""
    total = single.rows
    bands = machine.cores // gcd(machine.cores, single.images)
    single_rows = local_bytes(single) <= machine.l1_bytes * SINGLE_ROW_L1_TIMES
    shares = {n: -(-total // (n * bands)) * n for n in fitting if n <= MAX_ROWS}
    if single_rows and 1 in shares:
        return 1, bands
    least = min(shares.values(), default=0)
    return max((n for n, share in shares.items() if share == least), default=None), bands


def local_bytes(chain: RowChain) -> int:
    """The bytes that lie between the members."""
    makers = zip(chain.members, chain.windows, strict=False)
    return sum(4 * w.rows * prod(m.result.shape[2:]) for m, w in makers)


def _row_nest(s: Schedule, number: int, member: RowKernel, columns: Columns | None, machine: Machine) -> Nest:
    """The nest of one row of a member (of its first `columns`); its rule's decisions stand in `s` with the member's
    number before them."""
    mark = f"row{number}_"
    given = {name.removeprefix(mark): v for name, v in s.fixed_decisions.items() if name.startswith(mark)}
    kernel = _copied(member.kernel if columns is None else columns.kernel)
    scheduled, nest = _scheduled(kernel, machine, given)
    made = scheduled.schedule
    tile = made.decisions.get("tile")
    if columns is not None and tile is not None and not _whole_panels(nest, columns):
        *rows, vectors = tile.chosen  # weights are laid out by tiles: no tile may lie across two panels
        vectors = gcd(vectors, columns.width // lanes(machine, member.result.dtype))
        scheduled, nest = _scheduled(kernel, machine, {**given, "tile": (*rows, vectors)})
        made = scheduled.schedule
    if columns is not None and not _whole_panels(nest, columns):
        raise ScheduleError("the weights are laid out across panels of channels", stage="schedule")
    for d in made.decisions.values():
        s.decisions[mark + d.name] = Decision(mark + d.name, d.candidates, d.chosen, d.default)
    return nest


def _scheduled(kernel: Kernel, machine: Machine, given: Mapping[str, object]) -> tuple[Scheduled, Nest]:
    from .. import known

    alone = cast(Hashable, one_thread(machine))
    return _kept(replace(kernel, one_thread=True), alone, freeze(given), (known(), current()))


@lru_cache(maxsize=64)
def _kept(
    kernel: Kernel, machine: Machine, given: tuple[tuple[str, Any], ...], known: tuple[object, ...]
) -> tuple[Scheduled, Nest]:
    """A schedule by the rules that are known, and its finished nest. They are kept: the tuner takes decisions of one
    member otherwise, and the others stay as they are."""
    from .. import schedule

    made = schedule(kernel, machine, dict(given))
    return made, finish(made.schedule.nest())


def _whole_panels(nest: Nest, columns: Columns) -> bool:
    """Whether what is laid out anew begins a tile of its own for every panel of columns."""
    for name, pack in nest.packs.items():
        cut = [f for f, n in zip(pack.splits, columns.moves.get(pack.source, ()), strict=False) if n]
        splits = cut[0] if len(cut) == 1 and name == pack.source and not any(pack.repeats) else (0, 0)
        if len(splits) > 1 or any(columns.width % n for n in splits):
            return False
    return True


def _copied(kernel: Kernel) -> Kernel:
    """A member whose sum is its result, with a sum that is copied there: rules keep sums in registers only where they
    make all of a tensor, and these are some of its rows."""
    (out,) = kernel.outputs
    maker = next(x for x in kernel.stages if x.buffer == out)
    t, extents = maker.targets[0], maker.extents
    if t.init is None or not all(isinstance(i, Var) or i == ZERO for i in t.indices):
        return kernel
    shape = tuple(extents[i.name] if isinstance(i, Var) else 1 for i in t.indices)
    result = kernel.buffer(out)
    total = Buffer(f"{out}_sum", shape, result.dtype, "local")

    def moved(x: Load) -> Load:
        return Load(total.name, x.indices, x.dtype) if x.buffer == out else x

    summed = replace(maker, targets=(Target(total.name, t.indices, map_loads(t.value, moved), t.init),))
    names = {v: f"{v}_copy" for v, _ in maker.parallel}
    at = tuple(Var(names[i.name]) if isinstance(i, Var) else ZERO for i in t.indices)
    dims = tuple((names[v], n) for v, n in maker.parallel)
    copy = Stage(f"{maker.name}_copy", dims, (Target(out, at, Load(total.name, at, result.dtype)),))
    stages = [y for x in kernel.stages for y in ((summed, copy) if x is maker else (x,))]
    return replace(kernel, temporaries=(*kernel.temporaries, total), stages=tuple(stages))


@dataclass
class _Rows:
    """Builds the nest. A block of rows of member i has the number it has in the member's result."""

    kernel: Kernel
    chain: RowChain
    nests: list[Nest]
    columns: list[Columns | None]
    machine: Machine
    params: dict[str, Buffer] = field(default_factory=dict)
    packs: dict[str, Pack] = field(default_factory=dict)
    first: list[Expr] = field(default_factory=list)
    rings: list[Buffer] = field(default_factory=list)

    def run(self, bands: int) -> Stmt:
        members, windows = self.chain.members, self.chain.windows
        total = members[-1].count
        size = -(-total // bands)
        band: Expr = ZERO if bands == 1 else Var("task") % bands if self.chain.images > 1 else Var("task")
        self.image: Expr = Var("task") // bands if self.chain.images > 1 else ZERO
        early = 0  # blocks before the first, in which the rings are filled
        #: the first block of each member that a band needs
        self.first = [band * size]
        for i, w in reversed(list(enumerate(windows))):
            self.first.insert(0, self.first[0] * (w.step // self.chain.together[i]))
        for i, (maker, w) in enumerate(zip(members, windows, strict=False)):
            early = -(-((w.rows - w.step) // self.chain.together[i] + early) // (w.step // self.chain.together[i]))
            shape: tuple[int, ...] = (w.rows, *maker.result.shape[2:])
            if i == 0 and (c := self.columns[0]):
                shape = (shape[-1] // c.width, *shape[:-1], c.width)
            self.rings.append(Buffer(self.chain.links[i], shape, maker.result.dtype, "local"))
        blocks: Expr = index(size) if total % size == 0 else minimum(size, total - self.first[-1])
        body = self.produce(len(members) - 1, Var("row") - early, -early)
        body = For("row", blocks + early, body)
        for ring in self.rings:
            body = Alloc(ring, body)
        return seq(loop("task", self.chain.images * bands, body, "thread"), *self.edges())

    def edges(self) -> list[Stmt]:
        """The rows above and below the result, if it has a border."""
        last = len(self.chain.members) - 1
        m, parts = self.chain.members[last], list[Stmt]()
        below = m.first + self.chain.rows
        for name, start, rows in (("top", 0, m.first), ("bottom", below, m.total - below)):
            if rows:
                self.image = Var(name) // rows if self.chain.images > 1 else ZERO
                row = Var(name) % rows + start
                parts.append(loop(name, self.chain.images * rows, self.border(last, row, name), "thread"))
        return parts

    def produce(self, i: int, number: Expr, lowest: int) -> Stmt:
        """Make block `number` of those that a band needs of member i, and first what that needs of the member before;
        `lowest` is the lowest that the number can be. Blocks below 0 are not made."""
        m = self.chain.members[i]
        pull: Stmt | None = None
        if i:
            w, new = self.chain.windows[i - 1], f"new{i}"
            each = w.step // self.chain.together[i - 1]
            ahead = (w.rows - w.step) // self.chain.together[i - 1]
            more = self.produce(i - 1, number * each + ahead + Var(new), lowest * each + ahead)
            pull = loop(new, each, more)
            if i == 2 and (c := self.columns[0]):
                pull = loop("panel", self.chain.members[0].result.shape[-1] // c.width, pull)
        block = self.first[i] + number
        if i:  # a border of the result is written apart
            body = self.compute(i, block)
        else:
            body = self.compute(0, block - m.first)
            inside = [at_least(block, m.first)] if m.first else []
            inside += [less(block, m.first + m.count)] if m.first + m.count * self.chain.together[0] < m.total else []
            if inside:
                body = If(_all(inside), body, self.border(0, block, "f0"))
        return seq(pull, If(at_least(number, 0), body) if lowest < 0 else body)

    def border(self, i: int, row: Expr, mark: str) -> Stmt:
        """A row of the border."""
        m = self.chain.members[i]
        assert m.border is not None
        shape = m.result.shape[2:]
        if c := self.columns[i]:
            shape = (*shape[:-1], c.width)
        names = [f"f{d}" for d in range(len(shape))]
        dims = tuple((v, n) for v, n in zip(names, shape, strict=True) if n != 1)
        at = tuple(ZERO if n == 1 else Var(v) for v, n in zip(names, shape, strict=True))
        out = Buffer("p0", (1, 1, *shape), m.result.dtype)
        stage = Stage("border", dims, (Target("p0", (ZERO, ZERO, *at), m.border),))
        from .. import schedule

        nest = finish(schedule(Kernel("border", (out,), ("p0",), (), (stage,)), self.machine).schedule.nest())
        return placed(nest, mark, lambda _, indices: self.written(i, row, indices))

    def compute(self, i: int, r: Expr) -> Stmt:
        """A block of rows inside the border: the member's own nest, moved to block `r` of this image."""
        m, nest = self.chain.members[i], self.nests[i]
        params = {p.name: p for p in nest.params}
        ours = {p.name for p in self.kernel.params}
        self.params.update({n: p for n, p in params.items() if n in nest.packs})
        self.packs.update(nest.packs)
        link = self.chain.links[i - 1] if i else None

        def where(name: str, indices: Indices) -> tuple[str, Indices]:
            if name == m.result.name:
                return self.written(i, r * self.chain.together[i], indices)
            if name == link:
                return name, self.turned(i - 1, r * self.chain.windows[i - 1].step, indices)
            if name not in ours:
                return f"{name}_{i}", indices
            indices = self.panel_of(i, nest.packs.get(name), name, indices)
            if name in nest.packs or not indices:
                return name, indices
            moves = m.steps.get(name, (0,) * len(indices))
            moved = tuple(e + r * n if n else e for e, n in zip(indices, moves, strict=True))
            return name, (self.image, *moved[1:]) if name in self.chain.moved[i] else moved

        return placed(nest, str(i), where)

    def panel_of(self, i: int, pack: Pack | None, name: str, indices: Indices) -> Indices:
        """Where the channels at work have an element of a parameter that the nest has for the first ones."""
        c = self.columns[i]
        if c is None or not indices:
            return indices
        moves = c.moves.get(name, (0,) * len(indices))
        if pack is None:
            return tuple(e + Var("panel") * c.width if n else e for e, n in zip(indices, moves, strict=True))
        (d,) = (d for d, n in enumerate(moves) if n)
        step = c.width // prod(pack.splits[d])
        at = pack.order.index(d + sum(len(x) for x in pack.splits[:d]))
        return tuple(e + Var("panel") * step if n == at else e for n, e in enumerate(indices))

    def written(self, i: int, row: Expr, indices: Indices) -> tuple[str, Indices]:
        """Where an element of member i's result goes, `row` rows further on: into the ring behind it, or the kernel's
        result."""
        if i + 1 == len(self.chain.members):
            return self.kernel.outputs[0], (self.image, indices[1] + row, *indices[2:])
        if i == 1 and (c := self.columns[1]):
            indices = (*indices[:-1], indices[-1] + Var("panel") * c.width)
        return self.chain.links[i], self.turned(i, row, indices)

    def turned(self, i: int, row: Expr, indices: Indices) -> Indices:
        """The place in the ring behind member i of an element `row` rows further on."""
        rows = self.chain.windows[i].rows
        filled = rows == self.chain.together[i] and not self.chain.members[i].first  # by each block of rows
        place = indices[1] if filled else (indices[1] + row) % rows
        return (*([Var("panel")] if i == 0 and self.columns[0] else []), place, *indices[2:])


def _all(tests: list[Expr]) -> Expr:
    return tests[0] if len(tests) == 1 else Op("andi", tuple(tests), "i1")
