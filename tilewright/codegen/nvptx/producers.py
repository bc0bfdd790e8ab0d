"""Warp specialization: producer warps that only issue bulk copies (`schedule.producers`), and consumer warps that
compute.

A loop with a producer is two loops at the same time. One thread of a further team issues the copies of each step, and
waits until the consumers have done it: they arrive at a barrier of the ring "done". The consumers wait for the copies
and compute. The barrier at the top of a step is only run before the first one; where the steps are a loop within the
loop, the consumers synchronize before each run of it, and at the barriers around it, without the producer.

Threads that issue copies need few registers. Where accumulators take most of the others', teams can hand registers to
each other (`machine.RegisterTrade`): if nothing that all run together comes after the loop, they get them
(``setmaxnreg``).
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Protocol

from ...schedule.machine import RegisterTrade
from ...schedule.nest import Alloc, AsyncCopy, For, Nest, Seq, Stmt
from ...schedule.producers import Produced, begins_copies, parts, read_producer
from ...tensor.expr import Buffer, Expr, Var
from ..gpu.indices import GpuIndices
from ..gpu.launch import LaunchAxes
from ..gpu_llvm.builder import GpuLlvmBuilder
from .rings import Rings

#: the ring on which teams say that they have done a step
DONE = "%done"
#: registers of a thread beside its sums
_OTHERS = 48
#: the hardware's barrier of those that compute; that of all threads has number 0
_TOGETHER = 1


class ProducerCopies(Protocol):
    """What begins copies, and has their barriers (`bulk.Bulk`)."""

    rings: Rings
    memory: str
    fence: str

    def group(self, s: AsyncCopy) -> None: ...
    def wait_for(self, ring: str, number: Expr) -> None: ...
    def barrier(self, ring: str, number: Expr) -> str: ...
    def arrive_at(self, lane: str, barrier: str) -> None: ...


class Products(Protocol):
    """What makes the products of warpgroups (`groups.Groups`)."""

    left: int

    @property
    def held(self) -> int: ...
    def only(self, s: Stmt) -> bool: ...
    def wait(self) -> None: ...
    def before_barrier(self) -> None: ...


class ProducerEmitter(Protocol):
    """The emitter whose part this is."""

    nest: Nest
    buffers: dict[str, Buffer]
    launch_axes: LaunchAxes
    names: dict[str, str]
    text: GpuLlvmBuilder
    at: GpuIndices
    consuming: bool

    def stmt(self, s: Stmt) -> None: ...
    def block_barrier(self) -> None: ...


class Producers:
    """Emits loops with a producer."""

    def __init__(
        self, core: ProducerEmitter, copies: ProducerCopies, products: Products, trade: RegisterTrade | None
    ) -> None:
        self.core, self.copies, self.products, self.trade = core, copies, products, trade
        self.text, self.at, self.launch_axes, self.names = core.text, core.at, core.launch_axes, core.names
        self.found: Produced | None = None  # the loop whose consumers' part is being emitted
        self.traded = False  # whether registers change hands

    @property
    def teams(self) -> int:
        """Teams that compute; one more begins copies."""
        return self.launch_axes.count[self.launch_axes.team] - 1

    @property
    def arrivals(self) -> int:
        """At the barrier of a step: one lane of each warp does."""
        return self.teams * (self.launch_axes.lanes // self.launch_axes.warp)

    def loop(self, s: For) -> None:
        """Both of the loops that a loop with a producer is."""
        core, text = self.core, self.text
        found = read_producer(s, core.buffers, self.copies.memory)
        core.block_barrier()
        producer = text.op(f"icmp eq i32 {core.names[self.launch_axes.team]}, {self.teams}")
        few, many = self.registers(s)
        with text.where(producer, "producer"):
            self.keep("dec", few)
            first = text.op(f"icmp eq i32 {core.names[self.launch_axes.lane]}, 0")
            with text.where(first, "begins"):
                self.produce(s, found)
        with text.where(text.op(f"xor i1 {producer}, true"), "consumers"):
            self.keep("inc", many)
            self.found, core.consuming = found, True
            if s is found.steps:
                self.consume(s)
            else:
                with text.counted(self.at.index(s.extent)) as i, self.at.bind(s.var, i):
                    core.stmt(s.body)
            self.found, core.consuming = None, False

    def produce(self, s: Stmt, found: Produced) -> None:
        """What the producer does of a statement that begins copies."""
        assert isinstance(s, For)
        with self.text.counted(self.at.index(s.extent)) as number, self.at.bind(s.var, number):
            if s is not found.steps:
                self.produce(next(x for x in parts(s.body) if begins_copies(x)), found)
                return
            for c in found.copies:
                self.copies.group(c)
            self.copies.wait_for(DONE, self.copies.rings.number[id(s)] + Var(s.var))

    # ---- those that compute

    def takes(self, s: Stmt) -> bool:
        """Whether a statement is the loop of the steps, within the one at hand."""
        return self.found is not None and s is self.found.steps and s is not self.found.loop

    def again(self, s: Stmt) -> None:
        """The loop of the steps within another one: all have used what the runs of it before have left."""
        assert isinstance(s, For)
        self.meet()
        self.consume(s)

    def meet(self) -> None:
        """The barrier of those that compute."""
        self.products.before_barrier()
        count = self.teams * self.launch_axes.lanes
        self.text.call("llvm.nvvm.barrier.cta.sync.aligned.count", "void", [f"i32 {_TOGETHER}", f"i32 {count}"])

    def consume(self, s: For) -> None:
        """The steps. If they are products of warpgroups alone, those of a step run on while the next copies are
        waited for; their factors are free when the products after them have begun."""
        assert self.found is not None
        turn = self.copies.rings.number[id(s)]
        behind = int(all(map(self.products.only, self.found.rest)))
        with self.text.counted(self.at.index(s.extent)) as i, self.at.bind(s.var, i):
            self.products.left = behind
            for x in self.found.rest:
                self.core.stmt(x)
            self.products.left = 0
            with self.text.where(self.text.op(f"icmp sge i32 {i}, {behind}"), "behind") if behind else nullcontext():
                self.arrive(turn + Var(s.var) - behind)
        if behind:
            self.products.wait()
            self.arrive(turn + s.extent - 1)

    def arrive(self, number: Expr) -> None:
        """Signals that a step's data are consumed: one lane of each warp arrives at the barrier."""
        self.text.line(self.copies.fence)
        self.text.call("llvm.nvvm.bar.warp.sync", "void", ["i32 -1"])
        lane = self.text.op(f"urem i32 {self.core.names[self.launch_axes.lane]}, {self.launch_axes.warp}")
        self.copies.arrive_at(lane, self.copies.barrier(DONE, number))

    # ---- registers

    def registers(self, s: For) -> tuple[int, int]:
        """Registers of a producer thread and of a consumer thread; 0 where none are reallocated."""
        axes = self.launch_axes
        if self.trade is None or self.trade.threads != axes.lanes or not last(self.core.nest.body, s):
            return 0, 0
        each = self.trade.each(axes.count[axes.team] * axes.lanes)
        if self.products.held + _OTHERS < each:
            return 0, 0
        spare = (self.teams + 1) * each - self.trade.least
        many = min(spare // self.teams // self.trade.step * self.trade.step, self.trade.most)
        return (self.trade.least, many) if many > each > self.trade.least else (0, 0)

    def keep(self, how: str, count: int) -> None:
        if count:
            self.traded = True
            self.text.call(f"llvm.nvvm.setmaxnreg.{how}.sync.aligned.u32", "void", [f"i32 {count}"])


def last(body: Stmt, s: For) -> bool:
    """Whether nothing comes after a loop, which runs once."""
    while body is not s:
        if isinstance(body, Seq):
            body = body.stmts[-1]
        elif isinstance(body, Alloc) or (isinstance(body, For) and body.bound):
            body = body.body
        else:
            return False
    return True


__all__ = ["DONE", "Producers", "last"]
