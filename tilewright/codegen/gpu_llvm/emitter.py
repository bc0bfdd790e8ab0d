"""Level 4 -> 5: a finished loop nest, bound to the units of a GPU, to LLVM IR.

    define KERNEL void @name(ptr addrspace(1) %p0, ...)        one parameter for each of the nest

Every thread runs the whole text: a loop on an axis is the iteration of its unit, and what stands outside of such loops
is run by the first unit if it writes memory that the units share, else by all, as the nest's interpreter has it.
What only some GPUs have (asynchronous copies, instructions of warps) are methods that a vendor's emitter adds to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

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
    writes,
)  # fmt: skip
from ...schedule.region import all_ranges
from ...support.errors import CompileError, UnsupportedError
from ...support.sizes import is_open
from ...tensor.expr import Buffer, Load, Op, Target
from .builder import BYTES, Builder, Value
from .dot_products import ByteProducts
from .expressions import Expressions
from .family import Family
from .indices import Indices
from .launch import Launch, UnitsOfNest
from .memory import ALIGN_BYTES, GLOBAL, Lanes, Memory
from .own_parts import own_parts

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

#: what parameters begin at a multiple of
PARAMETER_ALIGN_BYTES = 16


@dataclass(frozen=True)
class Emitted:
    """A kernel's name and LLVM IR, how it is launched, and the shared memory that a block takes: bytes by name."""

    name: str
    text: str
    launch: Launch
    shared: dict[str, int]

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`."""
        launch = Launch(*(tuple(data["launch"][n]) for n in ("grid", "block")))  # type: ignore[arg-type]
        return cls(data["name"], data["text"], launch, data["shared"])


class Emitter:
    """Of a finished nest. `run` raises CompileError for what its loops and copies cannot be, UnsupportedError for sizes
    and operations that are missing here."""

    family: ClassVar[Family]

    def __init__(self, nest: Nest, machine: Machine) -> None:
        self.units = UnitsOfNest(nest, machine)
        self.nest = own_parts(nest, self.units)
        self.buffers = self.nest.buffers()
        self.params = {p.name for p in nest.params}
        own = {n: b for n, b in nest.buffers().items() if n not in self.params}
        if reason := verify(nest.body, own, machine):
            raise self.error(f"a GPU cannot run this nest: {reason}")
        for b in self.buffers.values():
            if is_open(b.size) or b.size * max(BYTES[b.dtype], 1) >= 1 << 32 or b.size >= 1 << 31:
                why = "open sizes" if is_open(b.size) else f"arrays of {b.size} elements"
                raise UnsupportedError(
                    f"kernels for {self.family.name} have no {why}", stage="emit", operator=nest.name
                )
        self.text = Builder()
        self.at = Indices(self.text, all_ranges(self.nest.body))
        self.memory = Memory(self.text, self.at, self.buffers, nest.name, self.family.own)
        self.expressions = Expressions(self.text, self.at, self.memory, nest.name, self.family.name)
        self.expr = self.at.expr = self.expressions.expr
        self.dots = ByteProducts(self.memory, {d.name: d for d in machine.dot_products}, self.dot_product)
        self.inside: dict[str, str] = {}  # axes whose loops are around, with the variable
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
        self.names = {k: self.unit(k) for k in self.units.kinds}
        self.begin()
        self.stmt(self.nest.body)
        launch = self.units.launch
        x, y, z = launch.block
        words = {"name": self.nest.name, "params": ", ".join(params), "x": x, "y": y, "z": z, "threads": launch.threads}
        body = ["entry:", *self.text.entry, *self.text.lines, "  ret void", "}"]
        top = [*self.text.declared.values(), *self.text.globals_]
        head, end = (text.format(**words) for text in (self.family.head, self.family.end))
        return Emitted(self.nest.name, "\n".join([*top, head, *body, end]), launch, self.shared)

    def begin(self) -> None:
        """Before the first statement, when `names` has the numbers of the thread's units."""

    def number(self, axis: str) -> str:
        """The number of the thread's block on an axis of the grid, or of the thread on one of its block."""
        return self.text.call(self.family.numbers[axis], "i32", [], pure=True)

    def unit(self, kind: str) -> str:
        """The number of the thread's unit on an axis."""
        number = self.number(self.units.counted_on(kind))
        if self.units.is_team(kind):
            return self.text.op(f"udiv i32 {number}, {self.units.lanes}")
        if self.units.is_thread(kind):
            first = self.text.op(f"mul nsw i32 {self.number('grid.x')}, {self.units.warp}")
            return self.text.op(f"add nsw i32 {first}, {number}")
        return self.text.op(f"urem i32 {number}, {self.units.lanes}") if self.units.is_lane(kind) else number

    # ---- who runs what

    def stmt(self, s: Stmt) -> None:
        """A statement in a place where loops of units may still come."""
        if is_plain(s) and not isinstance(s, Seq) and not in_parts(s, self.params):
            self.by_first(self.units.kinds, s)
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
        """A statement beside the loops of some axes: the first unit runs it alone if units share what it writes."""
        kinds = [k for k in kinds if k not in self.inside and self.units.units.first(k, s, self.buffers)]
        if not kinds:
            self.plain(s)
            return
        op = self.text.op
        cond = op(f"icmp eq i32 {self.names[kinds[0]]}, 0")
        for k in kinds[1:]:
            other = op(f"icmp eq i32 {self.names[k]}, 0")
            cond = op(f"and i1 {cond}, {other}")
        with self.text.where(cond, "first"):
            self.plain(s)

    def bound(self, s: For) -> None:
        self.inside[s.kind] = s.var
        with self.at.bind(s.var, self.names[s.kind]):
            if self.units.is_thread(s.kind) or s.trip != self.units.count[s.kind]:
                extent = self.at.index(s.extent)
                with self.text.where(self.text.op(f"icmp slt i32 {self.names[s.kind]}, {extent}"), "within"):
                    self.stmt(s.body)
            else:
                self.stmt(s.body)
        del self.inside[s.kind]

    # ---- what a vendor has

    def barrier(self, s: Barrier) -> None:
        raise self.error(f"{self.family.name} have no barrier {s.scope!r}")

    def asynchronous(self, s: AsyncCopy | Wait) -> None:
        raise self.error(
            f"{self.family.name} have no asynchronous copies",
            hint="copy in a loop of the block's units, behind a barrier",
        )

    def dot_product(self, name: str, signs: str, args: list[str]) -> tuple[str, list[str]]:
        """The intrinsic of one of the machine's products of bytes, and its arguments; `args` are x, w and the sum."""
        raise self.error(f"{self.family.name} have no instruction {name!r}")

    def shared_align(self, b: Buffer) -> int:
        """What an array in shared memory begins at a multiple of."""
        return ALIGN_BYTES

    # ---- statements

    def plain(self, s: Stmt) -> None:
        """A statement without loops of units, barriers and copies in it."""
        if isinstance(s, Seq):
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
        if b.scope in ("register", "local"):
            self.memory.begin_own(b)
        else:
            self.memory.begin_shared(b, self.nest.name, self.shared_align(b))
            self.shared[b.name] = b.size * BYTES[b.dtype]

    def store(self, s: Store) -> None:
        values = [self.value(t) for t in s.targets]
        for t, v in zip(s.targets, values, strict=True):
            self.memory.store(t, v)

    def vector(self, s: Store, lanes: Lanes) -> None:
        """All iterations of a vector loop. Lanes that write one element do so in turn."""
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


__all__ = ["Emitted", "Emitter"]
