"""Level 4 -> 5: a finished loop nest, bound to the units of a GPU, to LLVM IR with NVVM intrinsics.

    define ptx_kernel void @name(ptr addrspace(1) %p0, ...)        one parameter for each of the nest

Every thread runs the whole text: a loop on an axis is the iteration of its unit, and what stands outside of such loops
is run by the first unit if it writes memory that the units share, else by all, as the nest's interpreter has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...schedule.bulk import PRODUCER
from ...schedule.concurrent import is_plain, verify
from ...schedule.inplace import inplace_pairs
from ...schedule.machine import Machine
from ...schedule.nest import (
    Alloc,
    AsyncCopy,
    Barrier,
    For,
    If,
    Nest,
    Seq,
    Stmt,
    Store,
    Wait,
    in_parts,
    stores,
    transform,
    writes,
)  # fmt: skip
from ...schedule.region import all_ranges
from ...support.errors import CompileError, UnsupportedError
from ...support.sizes import is_open
from ...tensor.expr import Buffer, Load, Op, Target
from .builder import BYTES, Builder, Value
from .bulk import Bulk, TensorMap
from .copies import Copies, waits
from .dot_products import ByteProducts
from .expressions import Expressions
from .fragments import LANE, Fragments
from .indices import Indices
from .launch import WARP, Launch, UnitsOfNest
from .memory import GLOBAL, Lanes, Memory
from .own_parts import own_parts

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

#: what parameters begin at a multiple of
PARAMETER_ALIGN_BYTES = 16
#: the barrier of all threads of a block
BLOCK = "block"


@dataclass(frozen=True)
class Emitted:
    """A kernel's name and LLVM IR, how it is launched, and the shared memory that a block takes: bytes by name. Behind
    the parameters of the nest come tensor maps of some of them (`bulk`)."""

    name: str
    text: str
    launch: Launch
    shared: dict[str, int]
    maps: tuple[TensorMap, ...] = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`."""
        launch = Launch(*(tuple(data["launch"][n]) for n in ("grid", "block")))  # type: ignore[arg-type]
        maps = tuple(map(TensorMap.from_json, data["maps"]))
        return cls(data["name"], data["text"], launch, data["shared"], maps)


def emit(nest: Nest, machine: Machine) -> Emitted:
    """LLVM IR of a finished nest; CompileError for what its loops and copies cannot be, UnsupportedError for sizes and
    operations that are missing here."""
    return Emitter(nest, machine).run()


class Emitter:
    def __init__(self, nest: Nest, machine: Machine) -> None:
        self.units = UnitsOfNest(nest, machine)
        self.nest = own_parts(nest, self.units)
        self.buffers = self.nest.buffers()
        self.params = {p.name for p in nest.params}
        own = {n: b for n, b in nest.buffers().items() if n not in self.params or b.scope == "param"}
        if reason := verify(nest.body, own, machine):
            raise self.error(f"a GPU cannot run this nest: {reason}")
        for b in self.buffers.values():
            if is_open(b.size) or b.size * max(BYTES[b.dtype], 1) >= 1 << 32 or b.size >= 1 << 31:
                why = "open sizes" if is_open(b.size) else f"an array of {b.size} elements"
                raise UnsupportedError(f"kernels for NVIDIA GPUs have no {why}", stage="emit", operator=nest.name)
        self.text = Builder()
        self.at = Indices(self.text, {**all_ranges(self.nest.body), LANE: (0, self.units.lanes - 1)})
        self.memory = Memory(self.text, self.at, self.buffers, nest.name)
        self.expressions = Expressions(self.text, self.at, self.memory, nest.name)
        self.expr = self.at.expr = self.expressions.expr
        self.copies, self.waits = Copies(self.memory), waits(self.nest.body)
        self.bulk = Bulk(self, self.nest, machine)
        self.fragments = Fragments(self, self.nest, machine)
        self.dots = ByteProducts(self.memory, {d.name: d for d in machine.dot_products})
        self.inside: dict[str, str] = {}  # axes whose loops are around, with the variable
        self.copying = False
        self.consuming = False  # whether the team that begins copies is elsewhere
        #: what threads write themselves
        self.plainly = frozenset(t.buffer for s in stores(_without_bulk(self.nest.body)) for t in s.targets)
        self.together = False  # whether the lanes of a warp run what they hold in parts, and the first one all else
        self.shared: dict[str, int] = {}

    def error(self, why: str, hint: str | None = None) -> CompileError:
        return CompileError(why, stage="emit", operator=self.nest.name, hint=hint)

    def run(self) -> Emitted:
        alone = {o for o, _ in inplace_pairs(self.nest)} | {i for _, i in inplace_pairs(self.nest)}
        params = []
        for i, p in enumerate(self.nest.params):
            self.memory.pointers[p.name] = (f"%p{i}", GLOBAL)
            how = "" if p.name in alone else " noalias"
            params.append(f"{GLOBAL}{how} align {PARAMETER_ALIGN_BYTES} %p{i}")
        params += self.bulk.params
        self.names = {k: self.unit(k) for k in self.units.kinds}
        if self.units.lane:
            self.at.names[LANE] = next(self.names[k] for k in self.units.kinds if self.units.is_lane(k))
        self.bulk.begin()
        self.stmt(self.nest.body)
        self.bulk.check(self.shared)
        launch = self.units.launch
        x, y, z = launch.block
        how = f'"nvvm.maxntid"="{x},{y},{z}"'
        if self.fragments.folds_rows:  # else the assembler spills some registers for the sake of more blocks
            how += ' "nvvm.minctasm"="1"'
        head = f"define ptx_kernel void @{self.nest.name}({', '.join(params)}) {how} {{"
        body = ["entry:", *self.text.entry, *self.text.lines, "  ret void"]
        top = [*self.text.declared.values(), *self.text.globals_]
        text = "\n".join([*top, head, *body, "}", ""])
        return Emitted(self.nest.name, text, launch, self.shared, tuple(self.bulk.maps))

    def unit(self, kind: str) -> str:
        """The number of the thread's unit on an axis."""
        number = self.text.call(f"llvm.nvvm.read.ptx.sreg.{self.units.register(kind)}", "i32", [], pure=True)
        if self.units.is_team(kind):
            return self.text.op(f"udiv i32 {number}, {self.units.lanes}")
        if self.units.is_thread(kind):
            block = self.text.call("llvm.nvvm.read.ptx.sreg.ctaid.x", "i32", [], pure=True)
            first = self.text.op(f"mul nsw i32 {block}, {WARP}")
            return self.text.op(f"add nsw i32 {first}, {number}")
        return self.text.op(f"urem i32 {number}, {self.units.lanes}") if self.units.is_lane(kind) else number

    # ---- who runs what

    def stmt(self, s: Stmt) -> None:
        """A statement in a place where loops of units may still come."""
        if is_plain(s) and not isinstance(s, Seq) and not in_parts(s, self.params):
            self.together = self.fragments.within(s)
            kinds = [k for k in self.units.kinds if not (self.together and self.units.is_lane(k))]
            self.by_first(kinds, s)
            self.together = False
        elif isinstance(s, Seq):
            for x in s.stmts:
                self.stmt(x)
        elif isinstance(s, For) and s.bound:
            self.bound(s)
        elif isinstance(s, For) and s.note(PRODUCER):
            self.bulk.loop(s)
        elif isinstance(s, Barrier):
            self.barrier(s)
        elif isinstance(s, AsyncCopy) and s.bulk:
            self.bulk.copy(s)
        elif isinstance(s, Wait) and self.bulk.takes(s):
            self.bulk.wait(s)
        elif isinstance(s, Wait):
            self.copies.wait(self.waits[id(s)])
        elif isinstance(s, AsyncCopy):
            self.copying = True
            self.stmt(s.body)
            self.copying = False
            self.copies.commit()
        else:
            self.literally(s)

    def by_first(self, kinds: Sequence[str], s: Stmt) -> None:
        """A statement beside the loops of some axes: the first unit runs it alone if units share what it writes."""
        kinds = [k for k in kinds if k not in self.inside and self.units.units.first(k, s, self.buffers)]
        with self.only_first(kinds):
            self.plain(s)

    @contextmanager
    def only_first(self, kinds: Sequence[str]) -> Iterator[None]:
        """Inside: only the first unit of each of these axes."""
        if not kinds:
            yield
            return
        op = self.text.op
        cond = op(f"icmp eq i32 {self.names[kinds[0]]}, 0")
        for k in kinds[1:]:
            other = op(f"icmp eq i32 {self.names[k]}, 0")
            cond = op(f"and i1 {cond}, {other}")
        with self.text.where(cond, "first"):
            yield

    @contextmanager
    def by_first_of_block(self) -> Iterator[None]:
        with self.only_first([k for k in self.units.kinds if BLOCK in self.units.units.axes[k].barriers]):
            yield

    def bound(self, s: For) -> None:
        self.inside[s.kind] = s.var
        all_here = s.trip == self.units.count[s.kind] - (self.consuming and self.units.is_team(s.kind))
        with self.at.bind(s.var, self.names[s.kind]):
            if self.units.is_thread(s.kind) or not all_here:
                extent = self.at.index(s.extent)
                with self.text.where(self.text.op(f"icmp slt i32 {self.names[s.kind]}, {extent}"), "within"):
                    self.stmt(s.body)
            else:
                self.stmt(s.body)
        del self.inside[s.kind]

    def barrier(self, s: Barrier) -> None:
        if s.scope == "warp":
            self.text.call("llvm.nvvm.bar.warp.sync", "void", ["i32 -1"])
        else:
            self.block_barrier()

    def block_barrier(self) -> None:
        self.fragments.groups.before_barrier()
        self.text.call("llvm.nvvm.barrier.cta.sync.aligned.all", "void", ["i32 0"])

    # ---- statements

    def plain(self, s: Stmt) -> None:
        """A statement without loops of units, barriers and copies in it."""
        if self.together and not self.fragments.within(s):
            self.together = False
            self.by_first([k for k in self.units.kinds if self.units.is_lane(k)], s)
            self.together = True
        elif self.fragments.takes(s):
            self.fragments.emit(s)
        elif isinstance(s, Seq):
            for x in s.stmts:
                self.plain(x)
        elif isinstance(s, Store):
            self.store(s)
        elif isinstance(s, For) and self.dots.takes(s):
            self.dots.emit(s)
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
            self.vector(s.body, Lanes(s.var, s.trip))
        elif s.kind in ("unroll", "vector") and s.trip is not None:
            with self.fragments.groups.run_of(s.body):
                for i in range(s.trip):
                    with self.at.bind(s.var, i):
                        below(s.body)
        else:
            extent = self.at.index(s.extent)
            with self.text.counted(extent) as number, self.at.bind(s.var, number):
                below(s.body)

    def condition(self, s: If, below: Callable[[Stmt], None]) -> None:
        cond = self.expr(s.cond).ssa
        with self.text.where(cond):
            below(s.then)
        if s.otherwise is not None and s.otherwise != Seq(()):
            with self.text.where(self.text.op(f"xor i1 {cond}, true"), "else"):
                below(s.otherwise)

    def alloc(self, b: Buffer) -> None:
        if self.fragments.owns(b.name):
            self.fragments.begin(b)
        elif b.scope in ("register", "local"):
            self.memory.begin_own(b)
        else:
            align = max(self.fragments.groups.align(b.name), self.bulk.aligned.get(b.name, 0))
            self.memory.begin_shared(b, self.nest.name, align)
            self.shared[b.name] = b.size * BYTES[b.dtype]

    def store(self, s: Store) -> None:
        if self.copying:
            for t in s.targets:
                self.copies.copy(t, None)
            return
        values = [self.value(t) for t in s.targets]
        for t, v in zip(s.targets, values, strict=True):
            self.memory.store(t, v)

    def vector(self, s: Store, lanes: Lanes) -> None:
        """All iterations of a vector loop. Lanes that write one element do so in turn."""
        if self.copying:
            for t in s.targets:
                self.copies.copy(t, lanes)
            return
        turns = any(self.at.step(self.buffers[t.buffer], t.indices, lanes.var) in (0, None) for t in s.targets)
        lanes = replace(lanes, alone=writes(s) if turns else frozenset())
        values: list[list[Value]] = [[] for _ in s.targets]
        self.memory.lanes = lanes
        for i in range(lanes.count):
            with self.memory.at_lane(lanes, i):
                found = [self.value(t) for t in s.targets]
                for t, v, kept in zip(s.targets, found, values, strict=True):
                    kept.append(v)
                    if turns:
                        self.memory.store(t, v)
        self.memory.lanes = None
        for t, kept in zip(s.targets, values, strict=True):
            if not turns:
                self.memory.store_lanes(t, kept, lanes)

    def value(self, t: Target) -> Value:
        """What is stored; a product that is added is so in one rounding."""
        v = t.value
        if isinstance(v, Op) and v.op == "addf" and v.dtype in ("f32", "f64"):
            for acc, other in (v.args, v.args[::-1]):
                mine = isinstance(acc, Load) and (acc.buffer, acc.indices) == (t.buffer, t.indices)
                if mine and isinstance(other, Op) and other.op == "mulf":
                    return self.expr(Op("fma", (*other.args, acc), v.dtype))
        return self.expr(v)


def _without_bulk(s: Stmt) -> Stmt:
    """A statement without what an engine copies."""
    return transform(s, lambda x: None if isinstance(x, AsyncCopy) and x.bulk else x) or Seq(())


__all__ = ["Emitted", "Emitter", "emit"]
