"""Level 4 -> 5: prints a finished loop nest as a function in a C-like language.

    KERNEL void conv_relu(const float *in0, const float *weights1, float *out2, unsigned char *scratch)

Loops keep the names and the order of the schedule; unrolled ones are written out, vectorized ones (a vector is one
element here) are plain. Register buffers are local variables. A loop bound to a grid or block axis is a plain loop
where the dialect has no such axes. Where it has, each thread runs its iteration, and what stands outside of those loops
runs on every thread, or on the first one if it writes parameters, as the nest's interpreter has it.
"""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace

from ...schedule.concurrency import is_plain
from ...schedule.inplace import COPIES
from ...schedule.nest import (
    THREAD,
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
    exprs,
    walk_stmts,
    writes,
)
from ...schedule.region import all_ranges
from ...support.errors import CompileError
from ...support.sizes import Size, highest, larger
from ...tensor.expr import Buffer, Const, Expr, Load, Op, Target, Var, walk
from ..gpu.open_launch import BYTES, ONE_THREAD, typical_grid
from ..gpu.open_sizes import TABLE, closed
from .dialect import PRODUCT, Dialect
from .function import ClikeFunction
from .launch import launch_of, limited, may_skip
from .vector_loops import VectorLoops

#: scratch memory, and the arrays in it, begin where any type of C can
SCRATCH_ALIGN_BYTES = 8


def emit(nest: Nest, dialect: Dialect, constants: frozenset[str] = frozenset()) -> ClikeFunction:
    """A finished nest as a function; UnsupportedError for a dtype, an operation or memory that the dialect has not."""
    return ClikeEmitter(nest, dialect, constants).run()


class ClikeEmitter(VectorLoops):
    def __init__(self, nest: Nest, dialect: Dialect, constants: frozenset[str]) -> None:
        self.launch = launch_of(nest) if dialect.axes else ONE_THREAD
        self.closed = closed(nest) if dialect.axes and not dialect.size else None
        nest = self.closed.nest if self.closed is not None else nest
        super().__init__(nest.buffers(), nest.name, dialect)
        self.nest, self.written = nest, frozenset(nest.outputs)
        self.signed = self.closed.signed if self.closed is not None else frozenset()
        self.spread = bool(dialect.axes)  # whether what is printed runs on every thread
        self.scratch = self.scratch_peak = 0
        self.arrays: dict[str, tuple[int, int]] = {}  # typed scratch memory, by type: elements in use, and at most
        self.braces, self.alone = True, False  # whether what comes needs a block of its own, or has one
        self.copied: str | None = None  # the input that the loop at hand copies
        self.within: tuple[str, ...] = ()  # axes of the loops around
        self.used = {s.kind for s in walk_stmts(nest.body) if isinstance(s, For) and s.kind in dialect.axes}
        self.shared: list[str] = []  # declarations of arrays that threads share
        taken = {*dialect.reserved, *self.dims.values()}
        for i, p in enumerate(nest.params):
            kind = "out" if p.name in nest.outputs else "weights" if p.name in constants else "in"
            self.names[p.name] = f"{kind}{i}"
            taken.add(f"{kind}{i}")
        self.loop_names: dict[str, str] = {}
        for s in walk_stmts(nest.body):
            if isinstance(s, For):
                self.loop_names[s.var] = self._unused(s.var, taken)
            elif (
                isinstance(s, Alloc) and s.buffer.name not in self.names
            ):  # a copy of a statement may allocate it again
                self.names[s.buffer.name] = self._unused(s.buffer.name, taken)
                taken.add(self.names[s.buffer.name])
        big = [s.buffer for s in walk_stmts(nest.body) if isinstance(s, Alloc) and not self._small(s.buffer)]
        known = dict(self.closed.ranges) if self.closed is not None else None
        self.begin_vectors(nest, all_ranges(nest.body, known))
        # memory that held numbers of one type may not hold those of another within one C function
        self.reuse = len({b.dtype for b in big}) <= 1

    def _unused(self, name: str, taken: set[str]) -> str:
        name = re.sub(r"\W", "_", name)
        ours = r"(v|size)\d+" if self.dims else r"v\d+"
        while name in taken or re.fullmatch(ours, name):
            name += "_"
        return name

    def _small(self, b: Buffer) -> bool:
        return b.scope == "register" or highest(self.own_bytes(b)) <= self.dialect.stack_bytes

    def own_bytes(self, b: Buffer) -> int:
        """Of an array that is no parameter: no two of its elements share a word."""
        return b.size * max(BYTES[b.dtype], 4) if b.dtype in self.dialect.packed else self.nbytes(b)

    def nbytes(self, b: Buffer) -> int:
        return b.size * BYTES[b.dtype]

    def run(self) -> ClikeFunction:
        params: list[tuple[str, str, bool]] = []
        for p in self.nest.params:
            if highest(p.size) >= 1 << 31:
                raise self.unsupported(f"an array of {highest(p.size)} elements")
            if p.dtype not in self.dialect.parameters:
                raise self.unsupported(f"an array of dtype {p.dtype}")
            params += self.bound_as(p)
        self.define_sizes()
        read = {x.buffer for s in walk_stmts(self.nest.body) for e in exprs(s) for x in walk(e) if isinstance(x, Load)}
        for p in self.nest.params:
            if p.name not in read and p.name not in self.nest.outputs and not (p.name == TABLE and self.loops):
                for name, _, _ in self.bound_as(p):
                    self.line(self.dialect.unused.format(name=name))
        at = len(self.lines)
        self.whole(self.nest.body)
        constant, kind = self.dialect.constant, self.dialect.types["index"]
        quotients = self.quotients.items()
        self.lines[at:at] = ["    " + constant.format(type=kind, name=n, value=text) for text, n in quotients]
        arrays = tuple((f"scratch_{kind}", kind, most) for kind, (_, most) in self.arrays.items())
        own = int(highest(self.scratch_peak)) + sum(8 * n for _, _, n in arrays)
        launch = limited(self.launch, self.nest, own) if self.dialect.axes else self.launch
        return ClikeFunction(
            self.nest.name,
            tuple(params),
            "\n".join(self.lines),
            self.scratch_peak,
            tuple(sorted(self.helpers)),
            self.needs_math,
            tuple(n for n in self.dims.values() if n in self.sizes),
            replace(launch, grid=typical_grid(launch.grid)),
            tuple(self.shared),
            tuple(self.pieces.get(p.name, 1) for p in self.nest.params),
            arrays,
            None if self.closed is None else self.closed.with_grid(launch.grid),
        )

    def define_sizes(self) -> None:
        """What the kernel needs of its table of sizes, at its beginning."""
        if self.closed is not None:
            for name in self.closed.names:
                own = self.loops[name] = name.removeprefix("%")
                self.define(self.type("index"), own, self.bare(self.closed.place(name))[0])

    def bound_as(self, p: Buffer) -> list[tuple[str, str, bool]]:
        """Name, type and whether it is written of what a parameter is bound as: itself, or its pieces."""
        name, written, pieces = self.names[p.name], p.name in self.nest.outputs, self.dialect.pieces
        packed = p.dtype in self.dialect.packed
        kind = self.type(p.dtype) if not packed else "atomic<u32>" if self.atomic(p.name) else "u32"
        several = self.vectors.most if self.is_vectors(p.name) else 1
        kind = self.vectors.name(kind, several) if several > 1 else kind
        count = pieces.count(highest(self.nbytes(p))) if pieces is not None and not written else 1
        if count == 1 or pieces is None:
            return [(name, kind, written)]
        if p.name not in self.pieces:
            self.pieces[p.name] = count
            nbytes = 4 if packed else self.nbytes(p) // p.size * several
            self.shared.append(pieces.reader(name, kind, nbytes, count))
        return [(f"{name}_{n}", kind, False) for n in range(count)]

    # ---- statements ----

    def stmt(self, s: Stmt) -> None:
        if isinstance(s, Alloc):
            self.alloc(s)
            return
        self.alone, self.braces = not self.braces, True
        if isinstance(s, Barrier):
            self.barrier(s)
        elif isinstance(s, Wait):
            pass  # copies are done when they are begun
        elif self.spread and not isinstance(s, Seq) and is_plain(s):
            self.unshared(s)
        elif isinstance(s, Seq):
            for x in s.stmts:
                self.stmt(x)
        elif isinstance(s, For):
            self.loop(s)
        elif isinstance(s, Store):
            self.store(s)
        elif isinstance(s, If):
            self.condition(s)
        elif isinstance(s, AsyncCopy):
            self.stmt(s.body)

    def barrier(self, s: Barrier) -> None:
        if s.scope not in self.dialect.barriers:
            raise self.unsupported(f"barrier({s.scope})")
        self.line(self.dialect.barriers[s.scope])

    def shared_out(self, s: Stmt) -> bool:
        """Whether it is a loop whose iterations are divided among threads."""
        return isinstance(s, For) and s.kind in self.dialect.axes

    def unshared(self, s: Stmt) -> None:
        """A statement outside of loops bound to axes: the first thread writes what they share, each of them its own."""
        shared, params = self.written_in(s, "shared"), writes(s) & {p.name for p in self.nest.params}
        inner = {k for k in self.used if k.partition(".")[0] == "block"}
        first = (self.used if params else inner if shared else set()) - set(self.within)
        self.spread = False
        if first or ((params or shared) and not self.used):
            axes = first or {next(iter(self.dialect.axes))}
            with self.block(f"if ({' && '.join(sorted(f'{self.dialect.axes[k][0]} == 0' for k in axes))}) {{"):
                self.stmt(s)
        else:
            self.stmt(s)
        self.spread = True

    def written_in(self, s: Stmt, scope: str) -> bool:
        return any(n in self.buffers and self.buffers[n].scope == scope for n in writes(s))

    def loop(self, s: For) -> None:
        source = s.note(COPIES) if self.dialect.pointers else None
        if source is not None and self.copied is None:  # where both are one memory there is nothing to copy
            self.copied = source
            (output,) = writes(s)
            with self.block(f"if ({self.names[source]} != {self.names[output]}) {{"):
                self.loop(s)
            self.copied = None
            return
        extent = self.bound(s.extent)
        trip = extent.value if isinstance(extent, Const) and not isinstance(extent.value, Size) else None
        if self.dot(s):
            return
        self.recent.clear()
        if self.vector(s):
            return
        lanes = s.kind == "vector" and (trip == 1 or self.uses_registers(s.body))
        if lanes and trip is None and s.lanes:
            self.masked(s)
            return
        if s.kind == "unroll" or lanes:
            if trip is None:
                raise CompileError(
                    f"unrolled loop {s.var} has no constant extent", stage="emit", operator=self.operator
                )
            self.unrolled(s, trip)
            return
        name, d = self.loop_names[s.var], self.dialect
        first, step = "0", d.step.format(name=name)
        if s.bound and s.kind != THREAD and not self.shared_out(s):
            raise self.unsupported(f"a loop on axis {s.kind}")
        around, self.within = self.within, (*self.within, s.kind) if self.shared_out(s) else self.within
        outside, self.spread = self.spread, self.spread and set(self.within) != self.used
        if self.shared_out(s):
            index, count = d.axes[s.kind]
            if not count:
                self.on_thread(s, index)
                self.within, self.spread = around, outside
                return
            first, step = self.cast("index", index), f"{name} += {self.cast('index', count)}"
        limit = self.statement_expr(s.extent)
        self.loops[s.var] = name
        if s.kind in d.pragmas:
            self.line(d.pragmas[s.kind])
        with self.block(d.loop.format(type=self.type("index"), name=name, first=first, limit=limit, step=step)):
            self.iteration(s)
        self.within, self.spread = around, outside

    def iteration(self, s: For) -> None:
        """The body of a loop whose variable has been declared."""
        terms = self.name_terms(s)
        self.whole(s.body)
        del self.loops[s.var]
        for t in terms:
            del self.terms[t]

    def on_thread(self, s: For, index: str) -> None:
        """A loop each of whose iterations is one thread's: no loop is written, only a condition for threads beyond
        it."""
        name = self.loop_names[s.var]
        all_of_it = Const(self.launch.extent(s.kind), "index")
        short = s.extent != (self.closed.extents.get(s.kind, all_of_it) if self.closed is not None else all_of_it)
        if short and not may_skip(s):
            raise CompileError(
                f"loop {s.var} has fewer iterations than {s.kind} has threads, and a barrier in it",
                stage="emit",
                operator=self.operator,
            )
        with nullcontext() if self.alone else self.block("{"):
            self.define(self.type("index"), name, self.cast("index", index))
            self.loops[s.var], self.thread_loops[s.var] = name, s.kind
            with self.block(f"if ({name} < {self.statement_expr(s.extent)}) {{") if short else nullcontext():
                self.iteration(s)
            del self.thread_loops[s.var]

    def name_terms(self, s: For) -> list[Expr]:
        """Quotients and remainders of a loop variable (of fused loops) get a name at the head of its loop."""
        found: dict[Op, Const] = {}
        for x in walk_stmts(s.body):
            for e in exprs(x):
                for t in walk(e):
                    match t:
                        case Op("floordivsi" | "remsi", (a, Const() as b), "index") if a == Var(s.var):
                            found.setdefault(t, b)
        for t, b in found.items():
            text, _ = self.bare(t)
            name = f"{self.loops[s.var]}_{'div' if t.op == 'floordivsi' else 'mod'}"
            self.terms[t] = self._term(name, b.value)
            self.define(self.type("index"), self.terms[t], text)
        return [*found]

    def _term(self, name: str, divisor: int) -> str:
        name += str(len(self.terms)) + "_" if isinstance(divisor, Size) else str(divisor)
        return f"{name}_" if name in self.dims.values() else name

    def whole(self, s: Stmt) -> None:
        """A statement that is all of a block: what it allocates needs no block of its own."""
        self.braces = False
        self.stmt(s)
        self.braces = True

    def unrolled(self, s: For, trip: int) -> None:
        for i in range(trip):
            self.values[s.var] = Const(i, "index")
            self.stmt(s.body)
        self.values.pop(s.var, None)

    def masked(self, s: For) -> None:
        """The lanes of a vector loop one after the other, as many as there are."""
        limit = self.statement_expr(s.extent)
        for i in range(s.lanes):
            self.values[s.var] = Const(i, "index")
            with self.block(f"if ({i} < {limit}) {{"):
                self.whole(s.body)
        self.values.pop(s.var, None)

    def uses_registers(self, s: Stmt) -> bool:
        names = {x.buffer for t in walk_stmts(s) for e in exprs(t) for x in walk(e) if isinstance(x, Load)}
        names |= {t.buffer for x in walk_stmts(s) if isinstance(x, Store) for t in x.targets}
        return any(self.buffers[n].scope == "register" for n in names)

    def condition(self, s: If) -> None:
        cond = self.statement_expr(s.cond)
        with self.block(f"if ({cond}) {{", ""):
            self.stmt(s.then)
        if s.otherwise is not None and s.otherwise != Seq(()):
            with self.block("} else {"):
                self.stmt(s.otherwise)
        else:
            self.line("}")

    def alloc(self, s: Alloc) -> None:
        b = s.buffer
        name, kind = self.names[b.name], self.type(b.dtype)
        own = self.block("{") if self.braces and b.scope not in self.dialect.shared else nullcontext()
        offset = self.scratch
        with own:
            if b.scope == "register":
                self.registers(s, kind)
            elif b.scope in self.dialect.shared:
                text, size = self.dialect.shared[b.scope], max(highest(b.size), 1)
                if self.is_vectors(b.name):
                    kind, size = self.vectors.name(kind, self.vectors.most), size // self.vectors.most
                elif self.shares_words(b):
                    kind, size = "u32", -(-size // self.least(b))
                self.shared.append(text.format(type=kind, name=name, size=size))
                self.stmt(s.body)
            elif self._small(b) or b.scope != "local":
                if b.scope not in self.dialect.arrays:
                    raise self.unsupported(f"an array in memory {b.scope!r}")
                self.line(self.dialect.arrays[b.scope].format(type=kind, name=name, size=max(highest(b.size), 1)))
                self.stmt(s.body)
            elif self.dialect.typed_scratch:
                self.place(s, kind)
            else:
                if not self.dialect.arena:
                    raise self.unsupported(f"a local array of {self.nbytes(b)} bytes")
                self.scratch += -(-self.nbytes(b) // SCRATCH_ALIGN_BYTES) * SCRATCH_ALIGN_BYTES
                self.scratch_peak = larger(self.scratch_peak, self.scratch)
                place = f"scratch + {self.number(offset, PRODUCT)}" if offset else "scratch"
                self.line(self.dialect.arena.format(type=kind, name=name, place=place))
                self.stmt(s.body)
        if self.reuse:
            self.scratch = offset

    def place(self, s: Alloc, kind: str) -> None:
        """A local array as a part of the thread's own scratch memory for numbers of this type."""
        b, array = s.buffer, f"scratch_{kind}"
        begin, most = self.arrays.get(kind, (0, 0))
        end = begin + int(highest(b.size))
        self.arrays[kind] = end, max(most, end)
        self.names[b.name], self.placed[b.name] = array, f"{array}_at + {begin}" if begin else f"{array}_at"
        self.stmt(s.body)
        self.arrays[kind] = begin, self.arrays[kind][1]

    def registers(self, s: Alloc, kind: str) -> None:
        """Local variables, declared once it is known which elements are used."""
        self.slots[s.buffer.name] = {}
        at = len(self.lines)
        self.stmt(s.body)
        used = [name for _, name in sorted(self.slots.pop(s.buffer.name).items())]
        many = self.dialect.together
        rows = [used[i : i + many] for i in range(0, len(used), many)]
        text = self.dialect.variable
        self.lines[at:at] = ["    " * self.depth + text.format(type=kind, name=", ".join(row)) for row in rows]

    def store(self, s: Store) -> None:
        self.uses = {}
        self.memo.append({})
        values: list[Expr] = [self.bound(t.value) for t in s.targets]
        for v in values:
            self.count_uses(v)
        texts = []
        for t, v in zip(s.targets, values, strict=True):
            text = self.bare(v)[0] if len(s.targets) == 1 else self.expr(v)
            if len(s.targets) > 1:
                name = self.fresh()
                self.define(self.local_type(v.dtype), name, text)
                text = name
            texts.append((t, text, v))
        for t, text, v in texts:
            self.assign(t, text, v)
        self.memo.pop()
        self.uses = {}

    def assign(self, t: Target, text: str, value: Expr) -> None:
        """Write a value that has a text to its element."""
        buffer = self.buffers[t.buffer]
        if not self.shares_words(buffer):
            self.line(self.assignment(self.element(t.buffer, t.indices), text, value))
            return
        flat = self.flat(buffer, t.indices)
        bits = self.cast("i1", f"({text})") if buffer.dtype == "i1" else text
        for line in self.dialect.packed[buffer.dtype].store(self.names[t.buffer], self.index(flat)[0], bits):
            self.line(line)

    def assignment(self, where: str, text: str, value: Expr) -> str:
        if value.dtype == "i1":
            return f"{where} = {self.cast('i1', f'({text})')};"
        if (
            isinstance(value, Op)
            and value.op == "addf"
            and isinstance(value.args[0], Load)
            and text.startswith(f"{where} + ")
        ):
            return f"{where} += {text.removeprefix(f'{where} + ')};"
        return f"{where} = {text};"
