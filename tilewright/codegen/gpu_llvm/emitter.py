"""Level 4 -> 5: lowers a finished loop nest, bound to blocks and threads (`gpu.walk`), to LLVM IR for a GPU.

define KERNEL void @name(ptr addrspace(1) %p0, ...)        one parameter for each of the nest
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...schedule.inplace import COPIES, inplace_pairs
from ...schedule.machine import Machine
from ...schedule.nest import For, Nest, Stmt, Store, writes
from ...schedule.shuffles import held
from ...tensor.expr import Buffer, Expr, Load, Op, Target
from ..gpu.open_launch import BYTES, Launch, OpenLaunch, typical_grid
from ..gpu.walk import NestWalk
from .builder import GpuLlvmBuilder, GpuLlvmValue
from .dot_products import Dot4Emitter
from .expressions import GpuLlvmExpressions
from .family import Family
from .memory import ALIGN_BYTES, GLOBAL, GpuLlvmMemory, Lanes
from .shuffles import Exchange

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

#: what parameters begin at a multiple of
PARAMETER_ALIGN_BYTES = 16


@dataclass(frozen=True)
class GpuLlvmKernel:
    """A kernel's name and LLVM IR, how it is launched, and the shared memory that a block takes: bytes by name. With
    `open` the last parameter is a table of sizes, and `launch` is that for typical ones."""

    name: str
    text: str
    launch: Launch
    shared: dict[str, int]
    open: OpenLaunch | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`."""
        launch = Launch.from_json(data["launch"])
        return cls(data["name"], data["text"], launch, data["shared"], OpenLaunch.from_json(data["open"]))


class GpuLlvmEmitter(NestWalk):
    """Of a finished nest. `run` raises CompileError for what its loops and copies cannot be, UnsupportedError for
    operations that are missing here."""

    text: GpuLlvmBuilder
    expr: Callable[[Expr], GpuLlvmValue]

    def __init__(self, nest: Nest, machine: Machine, family: Family) -> None:
        self.words, self.family = family, family.name
        self.pairs = inplace_pairs(nest)  # results that may be the memory of an operand
        super().__init__(nest, machine, GpuLlvmBuilder())
        self.memory = GpuLlvmMemory(self.text, self.at, self.buffers, nest.name, family.own)
        self.expressions = GpuLlvmExpressions(self.text, self.at, self.memory, nest.name, family)
        self.expr = self.at.expr = self.expressions.expr
        self.dots = Dot4Emitter(self.memory, {d.name: d for d in machine.dot_products}, self.dot_product)
        self.exchange = Exchange(self.memory, held(self.buffers, machine), self.inside, self.shuffle)
        self.shared: dict[str, int] = {}
        self.distinct: set[tuple[str, str]] = set()  # of which it is known at hand that they are not

    def run(self) -> GpuLlvmKernel:
        alone = {name for pair in self.pairs for name in pair}
        params = []
        for i, p in enumerate(self.nest.params):
            self.memory.pointers[p.name] = (f"%p{i}", GLOBAL)
            how = "" if p.name in alone else " noalias"
            params.append(f"{GLOBAL}{how} align {PARAMETER_ALIGN_BYTES} %p{i}")
        params += self.more_params()
        self.names = {k: self.axis_index(k) for k in self.launch_axes.kinds}
        self.define_sizes()
        self.begin()
        self.stmt(self.nest.body)
        self.end()
        launch = replace(self.launch_axes.launch, grid=typical_grid(self.launch_axes.launch.grid))
        x, y, z = launch.block
        told = {
            "more": self.attributes(),
            "name": self.nest.name,
            "params": ", ".join(params),
            "x": x,
            "y": y,
            "z": z,
            "threads": launch.threads,
        }
        body = ["entry:", *self.text.entry, *self.text.lines, "  ret void", "}"]
        top = [*self.text.declared.values(), *self.text.globals_]
        head, end = (text.format(**told) for text in (self.words.head, self.words.end))
        return GpuLlvmKernel(self.nest.name, "\n".join([*top, head, *body, end]), launch, self.shared, self.open_launch)

    def more_params(self) -> list[str]:
        """Those behind the nest's own."""
        return []

    def begin(self) -> None:
        """Before the first statement, when `names` has the indices of the thread."""

    def end(self) -> None:
        """Behind the last one."""

    def attributes(self) -> str:
        """What the first line of the kernel says besides."""
        return ""

    def number(self, axis: str) -> str:
        return self.text.call(self.words.numbers[axis], "i32", [], pure=True)

    def dot_product(self, name: str, signs: str, args: list[str]) -> tuple[str, list[str]]:
        """The intrinsic of one of the machine's products of bytes, and its arguments; `args` are x, w and the sum."""
        raise self.error(f"{self.family} have no instruction {name!r}")

    def unless_in_place(self, s: For) -> AbstractContextManager[None]:
        source = s.note(COPIES)
        pairs = {(o, source) for o in writes(s)} & set(self.pairs) - self.distinct
        if not pairs:
            return nullcontext()
        ((output, _),) = pairs
        a, b = (self.memory.pointers[n][0] for n in (source, output))
        return self._where_apart((output, source), self.text.op(f"icmp ne {GLOBAL} {a}, {b}"))

    @contextmanager
    def _where_apart(self, pair: tuple[str, str], cond: str) -> Iterator[None]:
        """Inside it is known that two parameters are not one memory."""
        self.distinct.add(pair)
        with self.text.where(cond, "apart"):
            yield
        self.distinct.discard(pair)

    def shuffle(self, word: str, asked: str | int) -> str:
        """The word of another lane: of the one of this number (``i32 name``), or of the one so far apart (xor)."""
        raise self.error(f"{self.family} have no shuffles")

    def shared_align(self, b: Buffer) -> int:
        """What an array in shared memory begins at a multiple of."""
        return ALIGN_BYTES

    # ---- statements

    def plain(self, s: Stmt) -> None:
        if isinstance(s, For) and self.dots.takes(s):
            self.dots.emit(s)
        else:
            super().plain(s)

    def alloc(self, b: Buffer) -> None:
        if b.scope in ("register", "local"):
            self.memory.begin_own(b)
        elif self.exchange.owns(b.name):
            self.exchange.begin(b)
        else:
            self.memory.begin_shared(b, self.nest.name, self.shared_align(b))
            self.shared[b.name] = b.size * BYTES[b.dtype]

    def store(self, s: Store) -> None:
        values = [self.value(t) for t in s.targets]
        for t, v in zip(s.targets, values, strict=True):
            self.memory.store(t, v)

    def vector(self, s: Store, var: str, count: int) -> None:
        """All iterations of a vector loop. Lanes that write one element do so in turn."""
        turns = any(self.at.step(self.buffers[t.buffer], t.indices, var) in (0, None) for t in s.targets)
        lanes = Lanes(var, count, alone=writes(s) if turns else frozenset())
        values: list[list[GpuLlvmValue]] = [[] for _ in s.targets]
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

    def value(self, t: Target) -> GpuLlvmValue:
        """What is stored; a product that is added is so in one rounding."""
        v = t.value
        if isinstance(v, Op) and v.op == "addf" and v.dtype in ("f32", "f64"):
            for acc, other in (v.args, v.args[::-1]):
                mine = isinstance(acc, Load) and (acc.buffer, acc.indices) == (t.buffer, t.indices)
                if mine and isinstance(other, Op) and other.op == "mulf":
                    return self.expr(Op("fma", (*other.args, acc), v.dtype))
        return self.expr(v)


__all__ = ["GpuLlvmKernel", "GpuLlvmEmitter"]
