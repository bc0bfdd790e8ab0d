"""Level 4: the walk over a finished loop nest, statement by statement, that all GPU emitters in SSA form derive from.

Every thread runs the whole kernel (SPMD): a loop bound to an axis is the iteration of that thread's index, and what
stands outside of such loops is run by the first thread if it writes global or shared memory, else by all, as the nest's
interpreter has it. What only some GPUs have (asynchronous copies, warp-level instructions) are methods that emitters
override.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from ...schedule.concurrency import is_plain, verify
from ...schedule.machine import Machine
from ...schedule.nest import Alloc, AsyncCopy, Barrier, For, If, Nest, Seq, Stmt, Store, Wait, in_parts
from ...schedule.open_nest import nest_at, typical_sizes
from ...schedule.region import all_ranges
from ...support.errors import CompileError, UnsupportedError
from ...tensor.expr import Buffer, Const, Expr
from .indices import GpuIndices
from .launch import LaunchAxes
from .open_launch import BYTES, OpenLaunch
from .open_sizes import closed, has_sizes
from .privatization import privatize
from .text import KernelText, SsaValue


class NestWalk(ABC):
    """`family`: what the GPUs are called in errors. UnsupportedError for sizes that kernels cannot have there."""

    family: str
    #: emits a scalar expression; set by the emitter
    expr: Callable[[Expr], SsaValue]

    def __init__(self, nest: Nest, machine: Machine, text: KernelText) -> None:
        self.text = text
        given = nest_at(nest, typical_sizes()) if has_sizes(nest) else nest
        params = {p.name for p in nest.params}
        own = {n: b for n, b in given.buffers().items() if n not in params or b.scope == "param"}
        if reason := verify(given.body, own, machine):
            why = f"a GPU cannot run this nest: {reason}"
            raise CompileError(why, stage="emit", operator=nest.name)
        self.launch_axes = LaunchAxes(nest, machine)
        self.nest = privatize(nest, self.launch_axes)
        self.closed = closed(self.nest)
        known: dict[str, tuple[int, int]] = {}
        if self.closed is not None:
            self.nest, known = self.closed.nest, dict(self.closed.ranges)
        self.buffers = self.nest.buffers()
        self.params = {p.name for p in self.nest.params}
        for b in self.buffers.values():
            if b.size * max(BYTES[b.dtype], 1) >= 1 << 32 or b.size >= 1 << 31:
                why = f"kernels for {self.family} have no arrays of {b.size} elements"
                raise UnsupportedError(why, stage="emit", operator=nest.name)
        self.at = GpuIndices(text, all_ranges(self.nest.body, known))
        self.names: dict[str, str] = {}  # the thread's index on each axis
        self.inside: dict[str, str] = {}  # axes whose loops are around, with the variable

    def error(self, why: str, hint: str | None = None) -> CompileError:
        return CompileError(why, stage="emit", operator=self.nest.name, hint=hint)

    @abstractmethod
    def number(self, axis: str) -> str:
        """The number of the thread's block on an axis of the grid, or of the thread on one of its block."""

    def axis_index(self, kind: str) -> str:
        """The thread's index on an axis."""
        number = self.number(self.launch_axes.counted_on(kind))
        if self.launch_axes.is_team(kind):
            return self.text.integer("udiv", number, self.text.number(self.launch_axes.lanes))
        if self.launch_axes.has_clusters(kind):
            return self.text.integer("udiv", number, self.text.number(self.launch_axes.clustered))
        if self.launch_axes.is_cluster(kind):
            return self.text.integer("urem", number, self.text.number(self.launch_axes.clustered))
        if self.launch_axes.is_thread(kind):
            first = self.text.integer("mul nsw", self.number("grid.x"), self.text.number(self.launch_axes.warp))
            return self.text.integer("add nsw", first, number)
        if self.launch_axes.is_lane(kind):
            return self.text.integer("urem", number, self.text.number(self.launch_axes.lanes))
        return number

    # ---- who runs what

    def stmt(self, s: Stmt) -> None:
        """A statement in which loops bound to axes may still come."""
        if is_plain(s) and not isinstance(s, Seq) and not in_parts(s, self.params):
            self.by_first(self.launch_axes.kinds, s)
        elif isinstance(s, Seq):
            for x in s.stmts:
                self.stmt(x)
        elif isinstance(s, For) and s.bound:
            self.bound(s)
        elif isinstance(s, Barrier):
            self.barrier(s)
        elif isinstance(s, (AsyncCopy, Wait)):
            self.asynchronous(s)
        else:
            self.literally(s)

    def by_first(self, kinds: Sequence[str], s: Stmt) -> None:
        """A statement outside of the loops of some axes: the first thread runs it alone if threads share what it
        writes."""
        kinds = [k for k in kinds if k not in self.inside and self.launch_axes.nest_axes.first(k, s, self.buffers)]
        with self.only_first(kinds):
            self.plain(s)

    @contextmanager
    def only_first(self, kinds: Sequence[str]) -> Iterator[None]:
        """Within the context, only the first thread of each of these axes runs what is emitted."""
        if not kinds:
            yield
            return
        cond, *others = (self.text.test("eq", self.names[k], self.text.number(0)) for k in kinds)
        for other in others:
            cond = self.text.both(cond, other)
        with self.text.where(cond, "first"):
            yield

    def here(self, kind: str) -> int:
        """The threads of an axis that run what is emitted now."""
        return self.launch_axes.count[kind]

    def all_of(self, kind: str) -> Expr:
        """The size of an axis as the extent of a loop on all of its threads."""
        extents = self.closed.extents if self.closed is not None else {}
        return extents[kind] if kind in extents else Const(self.here(kind), "index")

    def define_sizes(self) -> None:
        """Read the table of sizes."""
        if self.closed is not None:
            for name in self.closed.names:
                self.at.names[name] = self.expr(self.closed.place(name)).ssa

    @property
    def open_launch(self) -> OpenLaunch | None:
        """What the host computes for a size."""
        return None if self.closed is None else self.closed.with_grid(self.launch_axes.launch.grid)

    def bound(self, s: For) -> None:
        self.inside[s.kind] = s.var
        with self.at.bind(s.var, self.names[s.kind]), self.unless_in_place(s):
            if self.launch_axes.is_thread(s.kind) or s.extent != self.all_of(s.kind):
                extent = self.at.index(s.extent)
                with self.text.where(self.text.test("slt", self.names[s.kind], extent), "within"):
                    self.stmt(s.body)
            else:
                self.stmt(s.body)
        del self.inside[s.kind]

    # ---- statements

    def plain(self, s: Stmt) -> None:
        """A statement without loops bound to axes, barriers and copies in it."""
        if isinstance(s, Seq):
            for x in s.stmts:
                self.plain(x)
        elif isinstance(s, Store):
            self.store(s)
        else:
            self.literally(s)

    def literally(self, s: Stmt) -> None:
        """What holds other statements."""
        below = self.plain if is_plain(s) and not in_parts(s, self.params) else self.stmt
        if isinstance(s, For):
            self.loop(s, below)
        elif isinstance(s, If):
            self.condition(s, below)
        elif isinstance(s, Alloc):
            self.alloc(s.buffer)
            below(s.body)

    def loop(self, s: For, below: Callable[[Stmt], None]) -> None:
        if s.kind == "unroll" and s.trip is None:
            raise self.error(f"unrolled loop {s.var} has no constant extent")
        if s.kind == "vector" and s.trip is not None and isinstance(s.body, Store):
            self.vector(s.body, s.var, s.trip)
        elif s.kind in ("unroll", "vector") and s.trip is not None:
            with self.written_out(s.body):
                for i in range(s.trip):
                    with self.at.bind(s.var, i):
                        below(s.body)
        elif s.kind == "vector" and s.lanes:  # registers want to know which lane it is
            extent = self.at.index(s.extent)
            for i in range(s.lanes):
                with self.text.where(self.text.test("slt", self.text.number(i), extent)), self.at.bind(s.var, i):
                    below(s.body)
        else:
            extent = self.at.index(s.extent)
            with self.unless_in_place(s), self.text.counted(extent) as number, self.at.bind(s.var, number):
                below(s.body)

    def condition(self, s: If, below: Callable[[Stmt], None]) -> None:
        cond = self.expr(s.cond).ssa
        with self.text.where(cond):
            below(s.then)
        if s.otherwise is not None and s.otherwise != Seq(()):
            with self.text.where(self.text.opposite(cond), "else"):
                below(s.otherwise)

    # ---- what a family of GPUs does in its way

    def written_out(self, body: Stmt) -> AbstractContextManager[None]:
        """Around the iterations of an unrolled loop."""
        return nullcontext()

    def unless_in_place(self, s: For) -> AbstractContextManager[None]:
        """Around a loop: where it copies what is there already (`inplace.COPIES`) nothing need be done."""
        return nullcontext()

    def barrier(self, s: Barrier) -> None:
        raise self.error(f"{self.family} have no barrier {s.scope!r}")

    def asynchronous(self, s: AsyncCopy | Wait) -> None:
        why = f"{self.family} have no asynchronous copies"
        raise self.error(why, hint="copy in a loop of the block's threads, behind a barrier")

    def vector(self, s: Store, var: str, count: int) -> None:
        """All iterations of a vector loop."""
        for i in range(count):
            with self.at.bind(var, i):
                self.store(s)

    @abstractmethod
    def alloc(self, b: Buffer) -> None: ...

    @abstractmethod
    def store(self, s: Store) -> None: ...


__all__ = ["NestWalk"]
