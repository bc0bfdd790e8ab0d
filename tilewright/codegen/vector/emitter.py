"""Level 4 -> 5: a finished loop nest to MLIR text (func, scf, memref, arith, math and one-dimensional vectors).

The kernel is ``func.func @name(%p0: memref<Nxf32>, ..., %scratch: memref<Sxi8>, %tid: index, %nt: index)``; buffers
are flat. Register buffers never touch memory: their elements are SSA values, carried through loops as iteration
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ...schedule.concurrency import only_threads
from ...schedule.inplace import inplace_pairs
from ...schedule.nest import Alloc, AsyncCopy, For, If, Nest, Seq, Stmt, Store, Target, in_parts, writes
from ...schedule.region import all_ranges
from ...support.errors import CompileError
from ...support.sizes import Undecided, highest, is_open
from ...tensor.expr import Buffer, loads, variables
from ..kernel_info import has_parallel
from ..llvm.assemble import IN_MEMORY
from .access import Access
from .accumulate import Updates
from .builder import Builder
from .dot_product import ByteProducts
from .expressions import Expressions
from .indices import Indices
from .interleaved import InterleavedVectors
from .open_sizes import OpenSizes, leaked
from .pair_products import PairProducts
from .part import Core, Part, VectorMachine
from .registers import Key, Registers
from .row_sums import RowSums
from .software_pipeline import SoftwarePipeline
from .strided import Strided
from .values import BYTES, Value, Vector, lanes_of
from .vector_sums import VectorSums

#: scratch memory begins at a multiple of this, and so do the arrays in it: what programs of all targets keep to
SCRATCH_ALIGN_BYTES = 64
#: stands for the type of %scratch until its size is known
SCRATCH = "<scratch>"


@dataclass(frozen=True)
class Emitted:
    """The MLIR module of a kernel, the bytes of scratch one thread needs, what loops asked for by notes and did not
    get, as sentences, and whether it takes the sizes of open dimensions."""

    text: str
    scratch: int
    refused: tuple[str, ...] = ()
    sizes: bool = False


def emit(nest: Nest, machine: VectorMachine, plugged: Sequence[Callable[[Core], Part]] = ()) -> Emitted:
    """MLIR of a finished nest. `plugged` makes the parts for instructions that only this target has."""
    emitter = Emitter(nest, machine, plugged)
    try:
        return emitter.run()
    finally:  # its parts refer to it: what it holds goes now, not when garbage is collected
        for x in (emitter, emitter.text, emitter.at):
            vars(x).clear()


class Emitter:
    """The core (see `part.Core`): walks the statements and emits those that no part takes."""

    def __init__(self, nest: Nest, machine: VectorMachine, plugged: Sequence[Callable[[Core], Part]]) -> None:
        self.nest, self.machine, self.text = nest, machine, Builder()
        self.at = Indices(self.text, nest.buffers(), all_ranges(nest.body))
        self.strided = Strided(self.at)
        self.registers = Registers(self.strided)
        self.refused: dict[str, None] = {}
        self._pairs = inplace_pairs(nest)  # results that may be in the memory of an operand
        self._shared = {o for o, _ in self._pairs}
        self._scratch = self._scratch_peak = 0
        self._around: list[For] = []  # the loops around what is emitted that are loops in the code, too
        self._accumulates = False  # see `IN_MEMORY`
        self.access = Access(self)
        # who is asked for a statement or a value, in this order
        self.parts: tuple[Part, ...] = (
            *(*(make(self) for make in plugged), PairProducts(self), ByteProducts(self)),  # instruction selection
            *(VectorSums(self), RowSums(self), Updates(self)),  # reductions
            *(SoftwarePipeline(self), InterleavedVectors(self)),  # instruction order
            *self.access.members,
        )
        #: by the identity of a statement the parts that want it, and the statement, which is kept
        self._takers: dict[int, tuple[list[Part], Stmt]] = {}
        #: the same for a target: the parts that may have a better way
        self._setters: dict[int, tuple[list[Part], Target]] = {}
        self._updaters = [p for p in self.parts if type(p).value is not Part.value]
        self._literally: dict[type[Stmt], Callable[[Any], None]] = {
            Seq: self._sequence,
            For: self._loop,
            Store: self._store,
            If: self.condition,
            Alloc: lambda s: self.alloc(s, self.stmt),
            AsyncCopy: lambda s: self.stmt(s.body),  # done when it is begun: a wait finds nothing to do
        }
        operations = {name: handler for p in self.parts[::-1] for name, handler in p.operations.items()}
        self.expr = Expressions(self.at, self.access.load, operations, machine.table_lanes).expr
        self.at.expr, self.at.load = self.expr, self.access.load

    def run(self) -> Emitted:
        text, nest = self.text, self.nest
        only_threads(nest, "a processor")
        text.memory.update((p.name, f"%p{i}") for i, p in enumerate(nest.params))
        for part in self.parts:
            part.begin()
        self.top(nest.body)
        for part in self.parts:
            part.end()
        lines = [*(f"{name} = {made}" for made, name in text.constants.items()), *text.lines]
        if (leak := leaked(lines)) is not None:
            raise self.error(f"a size that is not known stands in the code as a number: {leak}")
        size = max(self._scratch_peak, 1)
        params = [f"%p{i}: {text.memref(p)}{self.alone(p)}" for i, p in enumerate(nest.params)]
        params += [OpenSizes.parameter()] if text.sizes.used else []
        params += [f"%scratch: memref<{size}xi8> {{llvm.noalias}}", "%tid: index", "%nt: index"]
        body = "\n".join(["    " + x for x in lines])
        body = body.replace(SCRATCH, f"memref<{size}xi8>")
        called = "".join(f"  {d}\n" for d in text.declared.values())
        told = f' attributes {{passthrough = ["{IN_MEMORY}"]}}' if self._accumulates else ""
        head = f"func.func @{nest.name}({', '.join(params)}){told}"
        module = f"module {{\n{called}  {head} {{\n{body}\n    return\n  }}\n}}\n"
        return Emitted(module, self._scratch_peak, tuple(self.refused), text.sizes.used)

    def alone(self, p: Buffer) -> str:
        """Tell LLVM that a result shares its memory with no operand; then what is written there changes none of them,
        and what does not change in a loop is computed before it."""
        return " {llvm.noalias}" if p.name in self.nest.outputs and p.name not in self._shared else ""

    def error(self, why: str) -> CompileError:
        return CompileError(why, stage="emit", operator=self.nest.name)

    def refuse(self, s: For, note: str, why: str) -> None:
        self.refused[f"loop {s.var} asks for {note}, which it does not get: {why}"] = None

    # ---- work sharing ----

    def top(self, s: Stmt) -> None:
        """Statements outside parallel loops: shared results are written by thread 0 alone, private buffers by every
        thread.
        """
        params = {p.name for p in self.nest.params}
        if isinstance(s, Seq):
            for x in s.stmts:
                self.top(x)
        elif isinstance(s, Alloc) and (has_parallel(s.body) or in_parts(s, params)):
            self.alloc(s, self.top)
        elif isinstance(s, For) and s.bound:
            self.parallel(s)
        elif has_parallel(s):  # its iterations would need a barrier each
            raise self.error("a parallel loop is not outermost")
        elif writes(s) & params:
            first = self.text.op(f"arith.cmpi eq, %tid, {self.text.const(0, 'index')} : index")
            self.text.line(f"scf.if {first} {{")
            with self.text.scope():
                self.stmt(s)
            self.text.line("}")
        else:
            self.stmt(s)

    def parallel(self, s: For) -> None:
        """Thread t of n runs iterations trip*t/n up to trip*(t+1)/n."""
        assert s.trip is not None
        op, trip, one = self.text.op, self.text.const(s.trip, "index"), self.text.const(1, "index")
        low = op(f"arith.divui {op(f'arith.muli %tid, {trip} : index')}, %nt : index")
        after = op(f"arith.addi %tid, {one} : index")
        high = op(f"arith.divui {op(f'arith.muli {after}, {trip} : index')}, %nt : index")
        self.counted(s, low, high)

    # ---- statements ----

    def stmt(self, s: Stmt) -> None:
        known = self._takers.get(id(s))
        if known is None:
            asked = [p for p in self.parts if type(s) in p.takes and self._taken(p.wants, s)]
            known = self._takers[id(s)] = asked, s
        for part in known[0]:
            if self._taken(part.emit, s):
                return
        if (literally := self._literally.get(type(s))) is not None:  # barriers and waits are none of one thread's
            literally(s)

    def _taken(self, by: Callable[[Stmt], bool], s: Stmt) -> bool:
        """Whether a part wants or emits a statement; one that would have to know sizes does not."""
        before = len(self.text.lines)
        try:
            return by(s)
        except Undecided:
            if len(self.text.lines) != before:
                raise
            return False

    def _sequence(self, s: Seq) -> None:
        for x in s.stmts:
            self.stmt(x)

    def _store(self, s: Store) -> None:
        for t, v in [(t, self.value(t)) for t in s.targets]:
            self.write(t, v)

    def _loop(self, s: For) -> None:
        if s.prefetch and s.kind in ("unroll", "vector"):
            self.refuse(s, "prefetch", "its iterations are not counted")
        if s.kind == "unroll":
            if s.trip is None:
                raise self.error(f"unrolled loop {s.var} has no constant extent")
            self.unrolled(s)
        elif s.kind == "vector":
            self.vectorized(s)
        else:
            self.counted(s, self.text.const(0, "index"), self.at.index(s.extent).ssa)

    def vectorized(self, s: For) -> None:
        if self.text.vector is not None or (s.trip is None and not s.lanes):
            why = "has no constant extent" if s.trip is None else "is inside another vectorized loop"
            raise self.error(f"vectorized loop {s.var} {why}")
        with self.text.lanes(self._vector(s)):
            self.stmt(s.body)

    def _vector(self, s: For) -> Vector:
        """The lanes of a loop; those of one that has all of them are always the same."""
        whole: Vector | None = s.known.get(Vector)
        if whole is not None:
            return whole
        width, trip = lanes_of(s), s.trip
        if trip is None or is_open(trip):
            return Vector(s.var, width, self.text.lanes_below(self.at.index(s.extent).ssa, width))
        if trip != width:
            return Vector(s.var, width, self.text.first_lanes(trip, width), trip)
        whole = s.known[Vector] = Vector(s.var, width, None, trip)
        return whole

    def unrolled(self, s: For) -> None:
        env, var, body = self.text.env, s.var, s.body
        with self.text.bind(var, 0):
            for i in range(s.trip or 0):
                env[var] = i
                self.stmt(body)

    def counted(self, s: For, low: str, high: str) -> None:
        """An scf.for; register elements written inside are its iteration arguments."""
        slots = self.registers.written(s.body)
        if not self.access.non_temporal.in_both_forms(s, bool(slots), lambda: self._carrying(s, low, high, {})):
            self._carrying(s, low, high, slots)

    def _carrying(self, s: For, low: str, high: str, slots: dict[Key, tuple[str, int]]) -> None:
        text = self.text
        text.forget(writes(s.body))
        var = text.fresh()
        carried = {k: text.fresh() for k in slots}
        start = {k: self.registers.value(k, v) for k, v in slots.items()}
        names = {k: text.fresh() for k in slots}
        args = ", ".join(f"{carried[k]} = {start[k].ssa}" for k in slots)
        types = ", ".join(start[k].type for k in slots)
        head = f"scf.for {var} = {low} to {high} step {text.const(1, 'index')}"
        text.line(f"{', '.join(names.values())} = {head} iter_args({args}) -> ({types}) {{" if slots else head + " {")
        with self._scope(s), text.bind(s.var, var):
            for k in slots:
                text.registers[k] = Value(carried[k], start[k].dtype, start[k].width)
            self._around.append(s)
            self.prefetch(s)
            self.stmt(s.body)
            self._yield(start)
            self._around.pop()
        text.line("}" + _annotation(s))
        for k in slots:
            text.registers[k] = Value(names[k], start[k].dtype, start[k].width)
        text.forget(writes(s.body))

    def _scope(self, s: For) -> AbstractContextManager[None]:
        """The scope of a loop that is emitted."""
        if s.trip is None or is_open(s.trip) or s.trip < 1:
            return self.text.scope()
        written = writes(s.body)
        return self.text.loop(written | {operand for result, operand in self._pairs if result in written})

    def _yield(self, slots: dict[Key, Value]) -> None:
        """The end of a region that gives new values to elements in registers."""
        if slots:
            values = ", ".join(self.text.registers[k].ssa for k in slots)
            self.text.line(f"scf.yield {values} : {', '.join(v.type for v in slots.values())}")

    def prefetch(self, s: For) -> None:
        for buffer, index in s.prefetch:
            where, level = f"{self.text.memory[buffer]}[{self.at.index(index).ssa}]", 3 if s.note("near") else 2
            kind = self.text.memref(self.at.buffers[buffer])
            self.text.line(f"memref.prefetch {where}, read, locality<{level}>, data : {kind}")

    def condition(self, s: If) -> None:
        text, cond = self.text, self.expr(s.cond)
        if cond.width:
            raise self.error("a condition depends on a vectorized loop")
        both = s.then if s.otherwise is None else Seq((s.then, s.otherwise))
        before = {k: self.registers.value(k, v) for k, v in self.registers.written(both).items()}
        types = ", ".join(v.type for v in before.values())
        names = {k: text.fresh() for k in before}
        result = f"{', '.join(names.values())} = " if before else ""
        text.line(f"{result}scf.if {cond.ssa}" + (f" -> ({types})" if before else "") + " {")
        for i, branch in enumerate((s.then, s.otherwise)):
            if i == 1 and (branch is not None or before):
                text.line("} else {")
            with text.scope():
                if branch is not None:
                    self.stmt(branch)
                self._yield(before)
            text.registers.update(before)
        text.line("}")
        for k, v in before.items():
            text.registers[k] = Value(names[k], v.dtype, v.width)
        text.forget(writes(both))

    def alloc(self, s: Alloc, body: Callable[[Stmt], None]) -> None:
        b = s.buffer
        if b.scope == "register":
            self.registers.begin(s)
            body(s.body)
            self.registers.free(b.name)
            return
        offset = self._scratch
        self._scratch += -(-max(highest(b.size), 1) * BYTES[b.dtype] // SCRATCH_ALIGN_BYTES) * SCRATCH_ALIGN_BYTES
        self._scratch_peak = max(self._scratch_peak, self._scratch)
        shift, name = self.text.const(offset, "index"), self.text.fresh()
        self.text.memory[b.name] = name
        self.text.born[b.name] = self.text.scopes
        self.text.line(f"{name} = memref.view %scratch[{shift}][] : {SCRATCH} to {self.text.memref(b)}")
        body(s.body)
        self.text.forget({b.name})
        self._scratch = offset

    # ---- values ----

    def value(self, t: Target) -> Value:
        known = self._setters.get(id(t))
        if known is None:
            known = self._setters[id(t)] = [p for p in self._updaters if p.improves(t)], t
        for part in known[0]:
            if (found := part.value(t)) is not None:
                return found
        return self.expr(t.value)

    def write(self, t: Target, value: Value) -> None:
        b, vector = self.at.buffers[t.buffer], self.text.vector
        if b.scope == "register":
            keeps = vector is not None and vector.mask is not None and self.access.adds_zeros(t)
            self.registers.write(b, t.indices, value, keeps)
        else:
            self._accumulates = self._accumulates or self._updates_in_place(t)
            self.access.store(b, t.indices, value)

    def _updates_in_place(self, t: Target) -> bool:
        """Whether each step of a loop without others in it reads the element that the step before wrote."""
        if not self._around or any(self._around[-1].var in variables(i) for i in t.indices):
            return False
        if any(x.kind not in ("unroll", "vector") for x in self._around[-1].body.loops):
            return False
        return any(x.buffer == t.buffer and x.indices == t.indices for x in loads(t.value))


def _annotation(s: For) -> str:
    """What LLVM is told about a loop, from the notes that it knows."""
    if s.note("no_unroll"):
        return " {llvm.loop_annotation = #llvm.loop_annotation<unroll = <disable = true>>}"
    count = s.note("unroll_count")
    if isinstance(count, int) and count > 1:
        return f" {{llvm.loop_annotation = #llvm.loop_annotation<unroll = <count = {count} : i32>>}}"
    return ""
