"""Coalescing analysis: the memory sectors and bank conflicts of what the threads of a warp access together.

Neighbouring threads run an access at the same time. Memory gives whole sectors (`machine.CoalescedAccess`): threads
that read numbers far apart move one each for 4 bytes. Shared memory has banks, each of which gives one word at a time:
threads that ask one bank for different words wait for each other. Both are seen in the places that a warp touches,
which are computed here for some warps and iterations that are drawn at random (always the same ones).

    for u in block.x(32): y[u] = x[u * 64]          x moves 32 sectors where 4 would do, y moves 4

Accesses whose places hang on data are left out, and so are those of instructions that warps run together and of bulk
copies: what they touch is what their instruction says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

import numpy as np

from ..support.dtypes import NUMPY
from ..tensor.analysis import flat
from ..tensor.evaluate import evaluate
from ..tensor.expr import Buffer, Expr, Load, Op, children, variables
from .machine import Machine
from .machine_instructions import CoalescedAccess
from .nest import THREAD, AsyncCopy, For, If, Nest, Stmt, Store, walk_stmts
from .nest import children as parts
from .region import all_ranges
from .warp import NOTE

#: what is moved needlessly is worth a word from so many bytes on (some microseconds), if it is this part of the rest
_LARGE, _PART = 1 << 22, 0.5
#: warps and iterations that are looked at, for each access; and iterations in a row, whose sectors are still near
_SAMPLES, _RUN = 16, 8
Array = np.ndarray


@dataclass(frozen=True)
class Together:
    """The accesses of one statement to one buffer. `times`: how often a warp does it; `moved`: sectors that each moves,
    or turns that it takes in shared memory, and `least`: how many would do; both in the mean."""

    buffer: str
    shared: bool
    writes: bool
    block: str
    times: float
    moved: float
    least: float

    @property
    def ratio(self) -> float:
        return self.moved / self.least if self.least else 1.0

    @property
    def needless(self) -> float:
        """Sectors, or turns, that need not be."""
        return self.times * (self.moved - self.least)


def together(nest: Nest, machine: Machine) -> list[Together]:
    """The accesses to memory of a finished nest whose sizes are known; none for a machine whose threads are not beside
    each other.

    >>> from tilewright.schedule.parse import parse_nest
    >>> from tilewright.targets.cuda.description import SM_80
    >>> nest = parse_nest('''
    ... def f(x: f32[32, 64], y: out(f32[32])):
    ...     for u in block.x(32):
    ...         s0: y[u] = x[u, 0]
    ... ''', SM_80)
    >>> [(t.buffer, t.moved, t.least) for t in together(nest, SM_80)]
    [('x', 32.0, 4.0), ('y', 4.0, 4.0)]
    """
    how = machine.coalesced_access
    if how is None:
        return []
    return list(_Walk(nest, machine, how).visit(nest.body, _Here.begin(_SAMPLES, how.together)))


def scattered(nest: Nest, machine: Machine) -> list[str]:
    """What threads do not touch together although it is much, as sentences; empty for a nest that is well."""
    how, said = machine.coalesced_access, []
    found = together(nest, machine)
    apart = "neighbouring threads touch memory that lies apart"
    for shared, what in ((False, apart), (True, "threads wait for banks of shared memory")):
        own = [t for t in found if t.shared == shared]
        moved, least = sum(t.times * t.moved for t in own), sum(t.times * t.least for t in own)
        each = 0 if how is None else how.banks * how.bank_bytes if shared else how.sector_bytes
        if (moved - least) * each > _LARGE and moved - least > _PART * least:
            worst = max(own, key=lambda t: t.needless)
            verb = "written" if worst.writes else "read"
            said.append(f"{what}: {moved / least:.2g} times what would do, most where {worst.buffer} is {verb}")
    return said


class _DataDecide(Exception):
    """A place hangs on what is in memory."""


@dataclass(frozen=True)
class _Here:
    """Where a walk is: values of variables by sample, thread and lane of a vector; which of them are active; how often
    a warp comes here."""

    values: dict[str, Array]
    active: Array
    times: float = 1.0
    in_block: bool = False  # whether warps of a block are told apart
    loops: dict[str, int] = field(
        default_factory=dict
    )  # iterations in a row that are looked at, of a thread's own loops

    @staticmethod
    def begin(samples: int, threads: int) -> _Here:
        return _Here({}, np.ones((samples, threads, 1), bool))

    def bind(self, var: str, value: Array, extent: Array, times: float) -> _Here:
        active = self.active & (value < extent)
        return replace(self, values={**self.values, var: value}, active=active, times=self.times * times)


@dataclass
class _Walk:
    nest: Nest
    machine: Machine
    how: CoalescedAccess
    draw: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def __post_init__(self) -> None:
        self.buffers = self.nest.buffers()
        loops = [s for s in walk_stmts(self.nest.body) if isinstance(s, For) and s.bound]
        self.count: dict[str, int] = {}
        for s in loops:
            self.count[s.kind] = max(self.count.get(s.kind, 1), s.trip or 1)
        limits = {a.name: a.limit or 1 for a in self.machine.axes}
        self.team = next((limits[k] for k in ("lane", "member") if k in self.count), 0)
        teams = max(self.count.get("warp", 1), self.count.get("group", 1))
        sides = [self.count.get(f"block.{d}", 1) for d in "xyz"]
        self.threads = teams * self.team if self.team else prod(sides)
        warps = -(-self.threads // self.how.together)
        which = self.draw.integers(warps, size=(_SAMPLES, 1, 1))
        thread = which * self.how.together + np.arange(self.how.together)[None, :, None]
        self.warps = warps
        self.inside = thread < self.threads
        self.number = {
            "block.x": thread % sides[0],
            "block.y": thread // sides[0] % sides[1],
            "block.z": thread // (sides[0] * sides[1]),
            **{k: thread % self.team for k in ("lane", "member") if self.team},
            **{k: thread // self.team for k in ("warp", "group") if self.team},
        }

    def visit(self, s: Stmt, here: _Here) -> Iterator[Together]:
        if isinstance(s, Store):
            yield from self.accesses(s, here)
        elif isinstance(s, For):
            if s.note(NOTE) is None:
                yield from self.visit(s.body, self.loop(s, here))
        elif isinstance(s, If):
            yield from self.branch(s, here)
        elif not (isinstance(s, AsyncCopy) and s.bulk):
            for c in parts(s):
                yield from self.visit(c, here)

    # ---- loops and conditions

    def loop(self, s: For, here: _Here) -> _Here:
        try:
            extent = self.value(s.extent, here)
        except _DataDecide:  # as often as may be
            extent = np.full((1, 1, 1), all_ranges(self.nest.body)[s.var][1] + 1)
        if s.kind in self.number:
            if not here.in_block:
                active, times = here.active & self.inside, here.times * self.warps
                here = replace(here, active=active, times=times, in_block=True)
            return here.bind(s.var, self.number[s.kind], extent, 1.0)
        if s.kind == THREAD:
            warps = max(-(-int(extent.max()) // self.how.together), 1)
            base = self.draw.integers(warps, size=(_SAMPLES, 1, 1)) * self.how.together
            return here.bind(s.var, base + np.arange(self.how.together)[None, :, None], extent, warps)
        if s.kind == "vector" or s.note("dot") is not None:
            lanes = s.lanes or s.trip or 1
            return here.bind(s.var, np.arange(lanes)[None, None, :], extent, 1.0)
        drawn, run = self.draw.random((_SAMPLES, 1, 1)), 1
        if here.in_block:
            run = max(min(int(extent.min()), _RUN), 1)
        value = np.floor(drawn * (extent // run)).astype(np.int64) * run
        found = here.bind(s.var, value, extent, float(max(extent.mean(), 0)))
        return replace(found, loops={**here.loops, s.var: run}) if run > 1 else found

    def branch(self, s: If, here: _Here) -> Iterator[Together]:
        try:
            holds = self.value(s.cond, here).astype(bool)
        except _DataDecide:
            holds = np.ones((1, 1, 1), bool)
            branches = [(s.then, holds), (s.otherwise, holds)]
        else:
            branches = [(s.then, holds), (s.otherwise, ~holds)]
        for body, cond in branches:
            if body is not None:
                yield from self.visit(body, replace(here, active=here.active & cond))

    def value(self, e: Expr, here: _Here) -> Array:
        def load(buffer: str, indices: tuple[Array, ...], dtype: str) -> Array:
            raise _DataDecide

        found = np.asarray(evaluate(e, here.values, load))
        return found.reshape((1,) * (3 - found.ndim) + found.shape) if found.ndim < 3 else found

    # ---- accesses

    def accesses(self, s: Store, here: _Here) -> Iterator[Together]:
        for t in s.targets:
            for x, active in self.loads(t.value, here.active, here):
                yield from self.access(s, x.buffer, x.indices, active, here, False)
            yield from self.access(s, t.buffer, t.indices, here.active, here, True)

    def loads(self, e: Expr, active: Array, here: _Here) -> Iterator[tuple[Load, Array]]:
        """What an expression reads, and who reads it."""
        found: dict[Load, Array] = {}
        self._loads(e, active, here, found)
        yield from found.items()

    def _loads(self, e: Expr, active: Array, here: _Here, found: dict[Load, Array]) -> None:
        if isinstance(e, Load):
            found[e] = found.get(e, np.zeros((1, 1, 1), bool)) | active
        if isinstance(e, Op) and e.op == "guard":
            cond, value, other = e.args
            self._loads(cond, active, here, found)
            try:
                holds = self.value(cond, here).astype(bool)
            except _DataDecide:
                holds = np.ones((1, 1, 1), bool)
            self._loads(value, active & holds, here, found)
            self._loads(other, active, here, found)
            return
        for c in children(e):
            self._loads(c, active, here, found)

    def access(
        self, s: Store, buffer: str, indices: Sequence[Expr], active: Array, here: _Here, writes: bool
    ) -> Iterator[Together]:
        b = self.buffers[buffer]
        shared = b.scope in self.how.shared
        if not (shared or b.scope == "param") or not active.any():
            return
        where = flat(b, tuple(indices))
        try:
            place = self.value(where, here)
        except _DataDecide:
            return
        place, active = np.broadcast_arrays(place, active)
        if shared:
            moved, least = self.turns(b, place, active)
        elif writes:
            moved, least = self.written(b, place, active)
        else:
            moved, least = self.read(b, self.in_a_row(b, where, place, here), active)
        seen = moved > 0
        if seen.any():
            share = float(seen.mean())
            mean = [float(x[seen].mean()) for x in (moved, least)]
            yield Together(buffer, shared, writes, s.block, here.times * share, mean[0], mean[1])

    def requests(self, b: Buffer, place: Array, active: Array) -> tuple[Array, Array, int]:
        """First bytes of what threads ask for at a time, [request, thread], who does, and how many bytes one asks
        for."""
        nbytes = NUMPY[b.dtype].itemsize
        width = place.shape[2]
        run = bool(width > 1 and (np.diff(place, axis=2) == 1)[active[:, :, 1:]].all())
        step = min(width, max(self.how.access_bytes // nbytes, 1)) if run else 1
        place, active = place[:, :, ::step], active[:, :, ::step]
        # vector by vector
        place, active = (np.moveaxis(a, 2, 1).reshape(-1, a.shape[1]) for a in (place, active))
        return place * nbytes, active, step * nbytes

    def in_a_row(self, b: Buffer, where: Expr, place: Array, here: _Here) -> list[Array]:
        """The places of iterations in a row of the loop that walks through a sector: it has been brought already."""
        near = max(self.how.sector_bytes // NUMPY[b.dtype].itemsize, 2)
        for var, run in reversed(here.loops.items()):
            if var not in variables(where):
                continue
            places = [place]
            for r in range(1, run):
                later = replace(here, values={**here.values, var: here.values[var] + r})
                places.append(np.broadcast_to(self.value(where, later), place.shape))
            if (np.abs(places[1] - place) < near).all():
                return places
        return [place]

    def read(self, b: Buffer, places: list[Array], active: Array) -> tuple[Array, Array]:
        """Sectors that each sample's reads move, and how many would do; an iteration's part of those of a few."""
        nbytes, size = NUMPY[b.dtype].itemsize, self.how.sector_bytes
        found, least = [], []
        for i, a in enumerate(active):
            own = np.unique(np.concatenate([p[i][a] for p in places]))
            found.append(len(np.unique(own * nbytes // size)) / len(places))
            least.append(-(-len(own) * nbytes // size) / len(places))
        return np.asarray(found), np.asarray(least)

    def written(self, b: Buffer, place: Array, active: Array) -> tuple[Array, Array]:
        """Sectors that each sample's writes move, and how many would do: nothing waits for others of a sector."""
        first, active, nbytes = self.requests(b, place, active)
        size = self.how.sector_bytes
        found = [_distinct_pieces(f[a], nbytes, size) for f, a in zip(first, active, strict=True)]
        least = [-(-len(np.unique(f[a])) * nbytes // size) for f, a in zip(first, active, strict=True)]
        return _by_sample(found, place.shape[0]), _by_sample(least, place.shape[0])

    def turns(self, b: Buffer, place: Array, active: Array) -> tuple[Array, Array]:
        """Turns that shared memory takes for each sample's accesses, and how many would do."""
        first, active, nbytes = self.requests(b, place, active)
        word, banks = self.how.bank_bytes, self.how.banks
        size = max(nbytes, word)
        group = max(banks * word // size, 1)  # threads whose words come at once
        found, least = [], []
        for f, a in zip(first, active, strict=True):
            total = needed = 0
            for i in range(0, len(f), group):
                asked = np.unique(f[i : i + group][a[i : i + group]])
                if len(asked):
                    words = np.unique((asked[:, None] // word + np.arange(size // word)).ravel())
                    total += int(np.bincount(words % banks).max())
                    needed += 1
            found.append(total)
            least.append(needed)
        return _by_sample(found, place.shape[0]), _by_sample(least, place.shape[0])


def _distinct_pieces(first: Array, nbytes: int, size: int) -> int:
    """How many aligned pieces of `size` bytes runs of `nbytes` lie in."""
    if not len(first):
        return 0
    ends = np.concatenate([first // size, (first + nbytes - 1) // size])
    return len(np.unique(ends))


def _by_sample(found: list[int], samples: int) -> Array:
    """Sums over the requests of each sample."""
    total: Array = np.asarray(found, float).reshape(samples, -1).sum(axis=1)
    return total


__all__ = ["Together", "scattered", "together"]
