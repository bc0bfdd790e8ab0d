"""Level 4 -> 5: a finished loop nest to MLIR text (func, scf, memref, arith, math and one-dimensional vectors).

The kernel is ``func.func @name(%p0: memref<Nxf32>, ..., %scratch: memref<Sxi8>, %tid: index, %nt: index)``; buffers
are flat. Register buffers never touch memory: their elements are SSA values, carried through loops as iteration
arguments.
"""

from __future__ import annotations

from ...codegen.kernel_info import has_parallel
from ...schedule.inplace import inplace_pairs
from ...schedule.nest import Alloc, For, If, Nest, Seq, Stmt, Store, Target, children, walk_stmts, writes
from ...schedule.region import all_ranges
from ...support.errors import CompileError
from ...tensor.expr import Buffer, Load, Op
from .dot_product import IntegerEmitter
from .emit_expr import LARGER, SPREADING
from .emit_tiles import TileEmitter
from .interleaved import InterleaveEmitter
from .padding import PaddingEmitter
from .reduced import ReduceEmitter
from .reduced_rows import RowReduceEmitter
from .shared_vectors import SharedVectorEmitter
from .side_by_side import SideBySideEmitter
from .staggered import StaggeredEmitter
from .transposed import TransposeEmitter
from .uncached import UncachedEmitter
from .values import Value, Vector

SCRATCH_ALIGN = 64
#: stands for the type of %scratch until its size is known
SCRATCH = "<scratch>"


def emit(nest: Nest, lanes: int, features: tuple[str, ...] = ()) -> tuple[str, int]:
    """MLIR module text of a finished nest, and the bytes of scratch one thread needs.

    `lanes` is the number of 32-bit lanes of the target's vector registers (16 for AVX-512), `features` what LLVM calls
    the instructions that it has beyond the usual ones.
    """
    return Emitter(nest, lanes, features).run()


class Emitter(
    TransposeEmitter,
    SharedVectorEmitter,
    InterleaveEmitter,
    ReduceEmitter,
    RowReduceEmitter,
    SideBySideEmitter,
    StaggeredEmitter,
    PaddingEmitter,
    UncachedEmitter,
    TileEmitter,
    IntegerEmitter,
):
    """Emits statements; expressions are in the base classes."""

    def __init__(self, nest: Nest, lanes: int, features: tuple[str, ...] = ()) -> None:
        super().__init__(nest.buffers(), lanes)
        self.nest, self.features, self.packed = nest, features, frozenset(nest.packs)
        self.ranges = all_ranges(nest.body)
        self.declared: dict[str, str] = {}
        self.scratch = self.scratch_peak = 0
        self.whole: set[tuple[str, int]] = set()

    def run(self) -> tuple[str, int]:
        for i, p in enumerate(self.nest.params):
            self.memory[p.name] = f"%p{i}"
        self.begin_tiles()
        self.top(self.nest.body)
        self.end_tiles()
        self.end_uncached()
        size = max(self.scratch_peak, 1)
        params = [f"%p{i}: {self.memref(p)}{self.alone(p)}" for i, p in enumerate(self.nest.params)]
        params += [f"%scratch: memref<{size}xi8> {{llvm.noalias}}", "%tid: index", "%nt: index"]
        body = "\n".join("    " + x for x in [*self.constants.values(), *self.lines])
        body = body.replace(SCRATCH, f"memref<{size}xi8>")
        called = "".join(f"  {d}\n" for d in self.declared.values())
        text = (
            f"module {{\n{called}  func.func @{self.nest.name}({', '.join(params)}) {{\n{body}\n    return\n  }}\n}}\n"
        )
        return text, self.scratch_peak

    def alone(self, p: Buffer) -> str:
        """Tell LLVM that a result shares its memory with no operand; then what is written there changes none of them,
        and what does not change in a loop is computed before it."""
        shared = {o for o, _ in inplace_pairs(self.nest)}
        return " {llvm.noalias}" if p.name in self.nest.outputs and p.name not in shared else ""

    # ---- work sharing ----

    def top(self, s: Stmt) -> None:
        """Statements outside parallel loops: shared results are written by thread 0 alone, private buffers by every
        thread.
        """
        if isinstance(s, Seq):
            for x in s.stmts:
                self.top(x)
        elif isinstance(s, Alloc) and has_parallel(s.body):
            self.alloc(s, self.top)
        elif isinstance(s, For) and s.kind == "parallel":
            self.parallel(s)
        elif has_parallel(s):  # its iterations would need a barrier each
            raise CompileError("a parallel loop is not outermost", stage="emit", operator=self.nest.name)
        elif writes(s) & {p.name for p in self.nest.params}:
            first = self.op(f"arith.cmpi eq, %tid, {self.const(0, 'index')} : index")
            self.line(f"scf.if {first} {{")
            with self.scope():
                self.stmt(s)
            self.line("}")
        else:
            self.stmt(s)

    def parallel(self, s: For) -> None:
        """Thread t of n runs iterations trip*t/n up to trip*(t+1)/n."""
        trip = self.const(s.trip, "index")
        one = self.const(1, "index")
        low = self.op(f"arith.divui {self.op(f'arith.muli %tid, {trip} : index')}, %nt : index")
        after = self.op(f"arith.addi %tid, {one} : index")
        high = self.op(f"arith.divui {self.op(f'arith.muli {after}, {trip} : index')}, %nt : index")
        self.loop(s, low, high)

    # ---- statements ----

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, Seq | Alloc) and self.staggered(s):
            return
        if isinstance(s, Seq):
            for x in self.starts_left(s.stmts):
                self.stmt(x)
        elif isinstance(s, For):
            self.any_loop(s)
        elif isinstance(s, Store):
            self.store(s)
        elif isinstance(s, If):
            self.condition(s)
        elif isinstance(s, Alloc):
            self.alloc(s, self.stmt)

    def any_loop(self, s: For) -> None:
        if self.tile_loop(s):
            return
        if s.kind == "unroll":
            if self.dot_loop(s) or self.sum_of_vectors(s) or self.sums_of_rows(s) or self.side_by_side(s):
                return
            if s.trip is None:
                raise CompileError(
                    f"unrolled loop {s.var} has no constant extent", stage="emit", operator=self.nest.name
                )
            with self.transposing(s):
                for i in range(s.trip):
                    with self.bind(s.var, i):
                        self.stmt(s.body)
        elif s.kind == "vector":
            self.vector_loop(s)
        else:
            self.loop(s, self.const(0, "index"), self.index(s.extent).ssa)

    def vector_loop(self, s: For) -> None:
        if s.trip is None or self.vector is not None:
            why = "has no constant extent" if s.trip is None else "is inside another vectorized loop"
            raise CompileError(f"vectorized loop {s.var} {why}", stage="emit", operator=self.nest.name)
        width = s.lanes or 1 << max(s.trip - 1, 0).bit_length()
        mask = None if width == s.trip else self.op(f"vector.constant_mask [{s.trip}] : vector<{width}xi1>")
        self.vector = Vector(s.var, width, mask, s.trip == 1 < width, s.trip)
        if not self.stores_between(s.body):
            self.stmt(s.body)
        self.vector = None

    def loop(self, s: For, low: str, high: str) -> None:
        """An scf.for; register elements written inside are its iteration arguments."""
        slots = self.written_slots(s.body, {s.var})
        if slots or not self.both_forms(s, lambda: self.one_loop(s, low, high, slots)):
            self.one_loop(s, low, high, slots)

    def one_loop(self, s: For, low: str, high: str, slots: dict) -> None:
        self.forget(writes(s.body))
        var = self.fresh()
        carried = {k: self.fresh() for k in slots}
        start = {k: self.slot(k, v) for k, v in slots.items()}
        names = {k: self.fresh() for k in slots}
        args = ", ".join(f"{carried[k]} = {start[k].ssa}" for k in slots)
        types = ", ".join(start[k].type for k in slots)
        head = f"scf.for {var} = {low} to {high} step {self.const(1, 'index')}"
        if slots:
            self.line(f"{', '.join(names.values())} = {head} iter_args({args}) -> ({types}) {{")
        else:
            self.line(head + " {")
        with self.scope(), self.bind(s.var, var):
            for k in slots:
                self.registers[k] = Value(carried[k], start[k].dtype, start[k].width)
            self.ask_ahead(s)
            self.stmt(s.body)
            if slots:
                self.line(f"scf.yield {', '.join(self.registers[k].ssa for k in slots)} : {types}")
        self.line("}" + _annotation(s))
        for k in slots:
            self.registers[k] = Value(names[k], start[k].dtype, start[k].width)
        self.forget(writes(s.body))

    def ask_ahead(self, s: For) -> None:
        """What an iteration of a loop prefetches."""
        for buffer, index in s.prefetch:
            where, level = f"{self.memory[buffer]}[{self.index(index).ssa}]", 3 if s.note("near") else 2
            kind = self.memref(self.buffers[buffer])
            self.line(f"memref.prefetch {where}, read, locality<{level}>, data : {kind}")

    def condition(self, s: If) -> None:
        cond = self.expr(s.cond)
        if cond.width:
            raise CompileError("a condition depends on a vectorized loop", stage="emit", operator=self.nest.name)
        both = s.then if s.otherwise is None else Seq((s.then, s.otherwise))
        slots = self.written_slots(both, set())
        before = {k: self.slot(k, v) for k, v in slots.items()}
        types = ", ".join(v.type for v in before.values())
        names = {k: self.fresh() for k in slots}
        result = f"{', '.join(names.values())} = " if slots else ""
        self.line(f"{result}scf.if {cond.ssa}" + (f" -> ({types})" if slots else "") + " {")
        for i, branch in enumerate((s.then, s.otherwise)):
            if i == 1 and (branch is not None or slots):
                self.line("} else {")
            with self.scope():
                if branch is not None:
                    self.stmt(branch)
                if slots:
                    self.line(f"scf.yield {', '.join(self.registers[k].ssa for k in slots)} : {types}")
            self.registers.update(before)
        self.line("}")
        for k, v in before.items():
            self.registers[k] = Value(names[k], v.dtype, v.width)
        self.forget(writes(both))

    def alloc(self, s: Alloc, body) -> None:
        b = s.buffer
        if b.scope == "register":
            self.whole_slots(s)
            body(s.body)
            self.registers = {k: v for k, v in self.registers.items() if k[0] != b.name}
            self.forget_lanes(b.name)
            return
        offset = self.scratch
        self.scratch += -(-max(b.size, 1) * self.storage_bytes(b.dtype) // SCRATCH_ALIGN) * SCRATCH_ALIGN
        self.scratch_peak = max(self.scratch_peak, self.scratch)
        shift = self.const(offset, "index")
        self.memory[b.name] = self.fresh()
        self.line(f"{self.memory[b.name]} = memref.view %scratch[{shift}][] : {SCRATCH} to {self.memref(b)}")
        body(s.body)
        self.forget({b.name})
        self.scratch = offset

    # ---- stores ----

    def store(self, s: Store) -> None:
        values = [self.target_value(t) for t in s.targets]
        if not self.write_pairs(s, values):
            for t, v in zip(s.targets, values, strict=True):
                self.write(t, v)

    def target_value(self, t: Target) -> Value:
        if self.vector and self.invariant(t):
            return self.across_lanes(t)
        fused = self.fused_multiply_add(t)
        return self.expr(t.value) if fused is None else fused

    def fused_multiply_add(self, t: Target) -> Value | None:
        """acc + a*b in one rounding, and the larger of two in one instruction: for updates of an accumulator only."""
        v = t.value
        if isinstance(v, Op) and (v.op in LARGER or v.op in SPREADING):
            for acc, other in (v.args, v.args[::-1]):
                if isinstance(acc, Load) and acc.buffer == t.buffer and acc.indices == t.indices:
                    return self.combine(v.op, self.expr(other), self.expr(acc), v.dtype)
        if isinstance(v, Op) and v.op == "addi":
            for acc, other in (v.args, v.args[::-1]):
                if isinstance(other, Op) and other.op == "dot4":
                    return self.word_product(other, self.expr(acc))
        if not (isinstance(v, Op) and v.op == "addf" and v.dtype in ("f32", "f64")):
            return None
        for acc, product in (v.args, v.args[::-1]):
            own = isinstance(acc, Load) and acc.buffer == t.buffer and acc.indices == t.indices
            dot = self.dot_update(acc, product) if own else None
            if dot is not None:
                return dot
            if own and isinstance(product, Op) and product.op == "mulf":
                return self.elementwise("math.fma", [self.expr(a) for a in (*product.args, acc)], v.dtype)
        return None

    def invariant(self, t: Target) -> bool:
        """Whether the element written does not depend on the lane."""
        assert self.vector is not None
        return self.lane_stride(t.buffer, t.indices) == 0

    def write(self, t: Target, value: Value) -> None:
        buffer = self.buffers[t.buffer]
        if buffer.scope == "register":
            self.write_register(buffer, t, value)
        else:
            self.write_memory(buffer, t, value)
        self.forget({t.buffer})

    def across_lanes(self, t: Target) -> Value:
        """``x[i] = combine(x[i], value(lane))`` for every lane at once: a horizontal reduction."""
        v, vector = t.value, self.vector
        assert vector is not None
        orders = (v.args, v.args[::-1]) if isinstance(v, Op) and len(v.args) == 2 else ()
        for acc, other in orders:
            assert isinstance(v, Op)
            if isinstance(acc, Load) and acc.buffer == t.buffer and acc.indices == t.indices:
                lanes = self.as_vector(self.expr(other))
                with self.no_vector():
                    start = self.expr(acc)
                return self.horizontal(v.op, lanes, start)
        if not self.depends_on_lane(v):
            with self.no_vector():
                return self.expr(v)
        raise CompileError(
            f"lanes of {vector.var} write the same element of {t.buffer}", stage="emit", operator=self.nest.name
        )

    def write_register(self, buffer: Buffer, t: Target, value: Value) -> None:
        key = self.slot_key(buffer, t.indices)
        vector = self.vector if not (self.vector and self.invariant(t)) else None
        if vector:
            value = self.as_vector(value)
            if vector.mask and key not in self.whole and not self.adds_zeros(t):
                old = self.slot(key, (buffer.dtype, vector.width))
                value = self.op_value(
                    f"arith.select {vector.mask}, {value.ssa}, {old.ssa} : vector<{vector.width}xi1>, {value.type}",
                    value,
                )
        self.registers[key] = value

    def adds_zeros(self, t: Target) -> bool:
        """Whether lanes that are masked off stay what they are: they add the product of two zeros, not read."""
        v = t.value
        if not (isinstance(v, Op) and v.op == "addf"):
            return False
        for acc, product in (v.args, v.args[::-1]):
            own = isinstance(acc, Load) and acc.buffer == t.buffer and acc.indices == t.indices
            if own and isinstance(product, Op) and product.op == "mulf":
                return all(isinstance(x, Load) and self.reads_zeros(x) for x in product.args)
        return False

    def reads_zeros(self, x: Load) -> bool:
        """Whether a load gives zero in lanes that are masked off."""
        b = self.buffers[x.buffer]
        along = b.scope != "register" and self.lane_stride(x.buffer, x.indices) == 1
        return along and not self.ends_in_padding(b, x.indices)

    def write_memory(self, buffer: Buffer, t: Target, value: Value) -> None:
        memory, kind = self.memory[buffer.name], self.memref(buffer)
        vector = self.vector if not (self.vector and self.invariant(t)) else None
        value = self.to_storage(value)
        if vector is None:
            self.line(f"memref.store {value.ssa}, {memory}[{self.address(buffer, t.indices).ssa}] : {kind}")
            return
        value = self.as_vector(value)
        stride = self.lane_stride(buffer.name, t.indices)
        if stride == 1:
            base = self.address(buffer, t.indices, lane0=True).ssa
            if vector.mask and vector.single:
                # LLVM 22 makes a masked store of one truncated byte write four: never give it one
                one = self.op(f"vector.extract {value.ssa}[0] : {value.dtype} from {value.type}")
                self.line(f"memref.store {one}, {memory}[{base}] : {kind}")
            elif vector.mask and not self.ends_in_padding(buffer, t.indices):
                self.line(
                    f"vector.maskedstore {memory}[{base}], {vector.mask}, {value.ssa} : {kind}, "
                    f"vector<{vector.width}xi1>, {value.type}"
                )
            else:
                how = self.store_attributes(buffer, value)
                self.line(f"vector.store {value.ssa}, {memory}[{base}]{how} : {kind}, {value.type}")
            return
        if self.write_rows(buffer, t.indices, value):
            return
        where = self.as_vector(self.address(buffer, t.indices))
        mask = vector.mask or self.all_true(vector.width)
        zero = self.const(0, "index")
        self.line(
            f"vector.scatter {memory}[{zero}] [{where.ssa}], {mask}, {value.ssa} : {kind}, {where.type}, "
            f"vector<{vector.width}xi1>, {value.type}"
        )

    # ---- registers ----

    def written_slots(self, s: Stmt, dynamic: set[str]) -> dict[tuple[str, int], tuple[str, int]]:
        """Register elements written below `s` and living outside it: key -> (dtype, vector width or 0)."""
        inside = {x.buffer.name for x in walk_stmts(s) if isinstance(x, Alloc)}
        if not {b for b in writes(s) if self.buffers[b].scope == "register"} - inside:
            return {}
        found: dict[tuple[str, int], tuple[str, int]] = {}
        self._collect(s, inside, found)
        return found

    def whole_slots(self, s: Alloc) -> None:
        """Remember the elements of a register buffer that are always written under the same mask.

        Their inactive lanes are never defined, so there is nothing to keep in them: masked writes need no select.
        """
        trips: dict[tuple[str, int], set[int]] = {}
        self._collect(s.body, set(), {}, trips)
        for key, found in trips.items():
            if key[0] == s.buffer.name:
                (self.whole.add if len(found) == 1 else self.whole.discard)(key)

    def _collect(self, s: Stmt, inside: set[str], found: dict, trips: dict | None = None) -> None:
        """Register elements written below `s`: (dtype, lanes) into `found`, active lanes into `trips`."""
        if isinstance(s, For) and s.kind == "unroll":
            for i in range(s.trip or 0):
                with self.bind(s.var, i):
                    self._collect(s.body, inside, found, trips)
        elif isinstance(s, For) and s.kind == "vector":
            width = s.lanes or 1 << max((s.trip or 1) - 1, 0).bit_length()
            self.vector = Vector(s.var, width, str(s.trip), first=s.trip)
            self._collect(s.body, inside, found, trips)
            self.vector = None
        elif isinstance(s, Store):
            for t in s.targets:
                b = self.buffers[t.buffer]
                if b.scope == "register" and b.name not in inside:
                    lanes = self.vector.width if self.vector and not self.invariant(t) else 0
                    key = self.slot_key(b, t.indices)
                    found[key] = (b.dtype, lanes)
                    if trips is not None:
                        trips.setdefault(key, set()).add(int(self.vector.mask) if lanes and self.vector else 0)  # type: ignore[arg-type]
        else:
            for c in children(s):
                self._collect(c, inside, found, trips)


def _annotation(s: For) -> str:
    """What LLVM is told about a loop, from the notes that it knows."""
    if s.note("no_unroll"):
        return " {llvm.loop_annotation = #llvm.loop_annotation<unroll = <disable = true>>}"
    count = s.note("unroll_count")
    if isinstance(count, int) and count > 1:
        return f" {{llvm.loop_annotation = #llvm.loop_annotation<unroll = <count = {count} : i32>>}}"
    return ""
