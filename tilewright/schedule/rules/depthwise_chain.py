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

from dataclasses import dataclass, field, replace
from math import gcd, prod

from ...tensor.chains import RowChain, row_chain
from ...tensor.expr import Buffer, Expr, Load, Op, Target, Var, map_loads, minimum
from ...tensor.kernel import Kernel, Stage
from ...tensor.stream import ZERO, RowKernel
from ..decisions import Decision, Decisions
from ..finish import finish
from ..machine import Machine
from ..nest import Alloc, For, If, Nest, Pack, Stmt, loop, seq
from ..schedule import Schedule
from .nests import index
from .streaming import Indices, at_least, less, placed

NAME = "depthwise_chain"
PRIORITY = 15
#: rows that are made at once; more were measured and bring nothing
TOGETHER = 8


def worth_joining(kernel: Kernel, machine: Machine) -> bool:
    """Whether a kernel around a depthwise convolution is faster than its members one by one.

    Measured: it is where what lies between the members does not stay in the second-level caches, and the weights, which
    are read again for every block of rows, do. The threads' shares must be even and their bands not add much.
    """
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
    return not uneven and again <= 1 / 8 and weights + local_bytes(made) <= machine.l2_bytes


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    single = row_chain(kernel)
    if isinstance(single, str):
        return single
    s = Schedule(kernel, body=seq(), decisions=decisions)
    fitting = _fitting(kernel, single, machine)
    rows, bands = _defaults(single, fitting, machine)
    rows = s.sample_choice("rows", fitting or [1], rows or 1)
    blocks = single.rows // rows
    even = [n for n in range(1, blocks + 1) if -(-blocks // n) * (n - 1) < blocks]
    bands = s.sample_choice("bands", even, min((n for n in even if n >= bands), default=blocks))
    chain = row_chain(kernel, rows)
    assert isinstance(chain, RowChain)
    nests = [_row_nest(s, i, m, machine) for i, m in enumerate(chain.members)]
    made = _Rows(kernel, chain, nests, machine)
    body = made.run(bands)
    s.temporaries.clear()
    s.body = body
    s.params.update(made.params)
    s.packs.update(made.packs)
    return s


def _fitting(kernel: Kernel, single: RowChain, machine: Machine) -> list[int]:
    """How many rows may be made at once: what lies between the members must take half of the second-level cache at
    most."""
    total = single.rows
    chains = {n: row_chain(kernel, n) for n in range(1, min(total, 2 * TOGETHER) + 1) if total % n == 0}
    return [n for n, c in chains.items() if isinstance(c, RowChain) and 2 * local_bytes(c) <= machine.l2_bytes]


def _defaults(single: RowChain, fitting: list[int], machine: Machine) -> tuple[int | None, int]:
    """Rows at once and bands of an image: bands as few as keep all threads busy, and as many rows as leave their shares
    even. What a depthwise convolution reads several times then comes to the first-level cache once for several rows."""
    total = single.rows
    bands = machine.cores // gcd(machine.cores, single.images)
    shares = {n: -(-total // (n * bands)) * n for n in fitting if n <= TOGETHER}
    least = min(shares.values(), default=0)
    return max((n for n, share in shares.items() if share == least), default=None), bands


def local_bytes(chain: RowChain) -> int:
    """The bytes that lie between the members."""
    makers = zip(chain.members, chain.windows, strict=False)
    return sum(4 * w.rows * prod(m.result.shape[2:]) for m, w in makers)


def _row_nest(s: Schedule, number: int, member: RowKernel, machine: Machine) -> Nest:
    """The nest of one row of a member; its rule's decisions stand in `s` with the member's number before them."""
    from . import schedule

    mark = f"row{number}_"
    given = {name.removeprefix(mark): v for name, v in s.given.items() if name.startswith(mark)}
    made = schedule(_copied(member.kernel), machine, given).schedule
    for d in made.decisions.values():
        s.decisions[mark + d.name] = Decision(mark + d.name, d.candidates, d.chosen, d.default)
    return finish(made.nest())


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
            shape = (w.rows, *maker.result.shape[2:])
            self.rings.append(Buffer(self.chain.links[i], shape, maker.result.dtype, "local"))
        blocks: Expr = index(size) if total % size == 0 else minimum(size, total - self.first[-1])
        body = self.produce(len(members) - 1, Var("row") - early, -early)
        body = For("row", blocks + early, body)
        for ring in self.rings:
            body = Alloc(ring, body)
        return seq(loop("task", self.chain.images * bands, body, "parallel"), *self.edges())

    def edges(self) -> list[Stmt]:
        """The rows above and below the result, if it has a border."""
        last = len(self.chain.members) - 1
        m, parts = self.chain.members[last], list[Stmt]()
        below = m.first + self.chain.rows
        for name, start, rows in (("top", 0, m.first), ("bottom", below, m.total - below)):
            if rows:
                self.image = Var(name) // rows if self.chain.images > 1 else ZERO
                row = Var(name) % rows + start
                parts.append(loop(name, self.chain.images * rows, self.border(last, row, name), "parallel"))
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
        names = [f"f{d}" for d in range(len(shape))]
        dims = tuple((v, n) for v, n in zip(names, shape, strict=True) if n != 1)
        at = tuple(ZERO if n == 1 else Var(v) for v, n in zip(names, shape, strict=True))
        out = Buffer("p0", (1, 1, *shape), m.result.dtype)
        stage = Stage("border", dims, (Target("p0", (ZERO, ZERO, *at), m.border),))
        from . import schedule

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
            if name in nest.packs or not indices:
                return name, indices
            moves = m.steps.get(name, (0,) * len(indices))
            moved = tuple(e + r * n if n else e for e, n in zip(indices, moves, strict=True))
            return name, (self.image, *moved[1:]) if name in self.chain.moved[i] else moved

        return placed(nest, str(i), where)

    def written(self, i: int, row: Expr, indices: Indices) -> tuple[str, Indices]:
        """Where an element of member i's result goes, `row` rows further on: into the ring behind it, or the kernel's
        result."""
        if i + 1 == len(self.chain.members):
            return self.kernel.outputs[0], (self.image, indices[1] + row, *indices[2:])
        return self.chain.links[i], self.turned(i, row, indices)

    def turned(self, i: int, row: Expr, indices: Indices) -> Indices:
        """The place in the ring behind member i of an element `row` rows further on."""
        rows = self.chain.windows[i].rows
        filled = rows == self.chain.together[i] and not self.chain.members[i].first  # by each block of rows
        place = indices[1] if filled else (indices[1] + row) % rows
        return (place, *indices[2:])


def _all(tests: list[Expr]) -> Expr:
    return tests[0] if len(tests) == 1 else Op("andi", tuple(tests), "i1")
