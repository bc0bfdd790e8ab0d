"""Loop nests to programs: every loop around instructions and copies is run here, what is left are the instructions.

A copy's loops become one instruction where they are a box with as many strides as the engine has, else several. The
loops of an instruction (`tiles.CHIP`) become its counts, places and strides. What waits for what is found from the
words they touch. A nest that asks for what the chip cannot do ends in one error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import lcm
from typing import Any, NoReturn

from ...schedule.nest import Alloc, AsyncCopy, For, If, Nest, Seq, Stmt, Store, Wait, walk_stmts
from ...support.dtypes import LOOP_TYPES
from ...support.errors import CompileError
from ...tensor.analysis import flat
from ...tensor.expr import Const, Expr, Load, Op, Target, Var, walk
from .binary import COUNT, RUN, ChipProgram, Form, Formats, Issue, fields_of
from .describe import HOST, CopyEngine, Instruction, Operand
from .places import Dependences
from .tiles import CHIP, DIM

Env = dict[str, int]
_PYTHON = {"addi": "+", "muli": "*", "floordivsi": "//", "remsi": "%", "subi": "-", "andi": "and", "ori": "or"}
_COMPARED = {"slt": "<", "sle": "<=", "sgt": ">", "sge": ">=", "eq": "==", "ne": "!="}


def emit(nest: Nest, formats: Formats) -> ChipProgram:
    """The program of a nest; CompileError for what the chip cannot do, or where its memories are too small."""
    return _Emitter(nest, formats).run()


@dataclass(frozen=True)
class _Loop:
    var: str
    dim: str
    extent: Callable[[Env], int]


class _Emitter:
    def __init__(self, nest: Nest, formats: Formats) -> None:
        self.nest, self.formats, self.listing = nest, formats, formats.listing
        self.arguments = {p.name: n for n, p in enumerate(nest.params)}
        self.buffers = nest.buffers()
        self.at = self.placed()
        self.dependences = Dependences(formats)
        self.streams: dict[str, list[Issue]] = {e: [] for e in formats.engines}
        self.compiled: dict[Any, Any] = {}

    def fail(self, message: str, hint: str = "") -> NoReturn:
        raise CompileError(message, stage="emit", operator=self.nest.name, hint=hint or None)

    def run(self) -> ChipProgram:
        if len(self.arguments) > self.formats.chip.arguments:
            self.fail(f"{len(self.arguments)} arguments, the chip can name {self.formats.chip.arguments}")
        self.stmt(self.nest.body, {})
        most = (1 << self.formats.chip.count_bits) - 1
        for engine, stream in self.streams.items():
            if len(stream) > most:
                self.fail(
                    f"{len(stream)} instructions for {engine}, it counts to {most}", "cut the kernel in larger tiles"
                )
        sizes = tuple(p.size * LOOP_TYPES[p.dtype].nbytes for p in self.nest.params)
        return ChipProgram(self.nest.name, {e: tuple(s) for e, s in self.streams.items()}, sizes)

    def placed(self) -> dict[str, int]:
        """The first byte of each buffer on the chip: one after the other."""
        found: dict[str, int] = {}
        used = dict.fromkeys(self.listing.memories, 0)
        for s in walk_stmts(self.nest.body):
            if isinstance(s, Alloc) and s.buffer.scope in used:
                b, memory = s.buffer, self.listing.memories[s.buffer.scope]
                size = b.size * LOOP_TYPES[b.dtype].nbytes
                found[b.name] = used[memory.name]
                used[memory.name] += -(-size // memory.word) * memory.word
                if used[memory.name] > memory.bytes:
                    self.fail(
                        f"the tiles take more than the {memory.bytes} bytes of {memory.name}: {b.name} has {size}",
                        "cut the kernel in smaller tiles",
                    )
        return found

    # ---- expressions ----

    def compile(self, e: Expr) -> Callable[[Env], int]:
        """An index expression as a function of the loops' values."""
        if e not in self.compiled:
            self.compiled[e] = eval(f"lambda v: {self.python(e)}")
        return self.compiled[e]

    def python(self, e: Expr) -> str:
        if isinstance(e, Const):
            return repr(int(e.value))
        if isinstance(e, Var):
            return f"v[{e.name!r}]"
        if isinstance(e, Op) and e.op in _PYTHON:
            return f"({self.python(e.args[0])} {_PYTHON[e.op]} {self.python(e.args[1])})"
        if isinstance(e, Op) and e.op.startswith("cmpi.") and e.op[5:] in _COMPARED:
            return f"({self.python(e.args[0])} {_COMPARED[e.op[5:]]} {self.python(e.args[1])})"
        if isinstance(e, Op) and e.op in ("minsi", "maxsi"):
            return f"{e.op[:3]}({self.python(e.args[0])}, {self.python(e.args[1])})"
        self.fail(f"{e} is no index that a chip's program can have")

    def address(self, buffer: str, indices: tuple[Expr, ...]) -> Callable[[Env], int]:
        """The byte of an element in its memory or argument."""
        key = (buffer, indices)
        if key not in self.compiled:
            b = self.buffers[buffer]
            element = self.compile(flat(b, indices))
            size, start = LOOP_TYPES[b.dtype].nbytes, self.at.get(buffer, 0)
            self.compiled[key] = lambda v: start + size * element(v)
        return self.compiled[key]

    # ---- statements ----

    def stmt(self, s: Stmt, env: Env) -> None:
        if isinstance(s, Seq):
            for x in s.stmts:
                self.stmt(x, env)
        elif isinstance(s, Alloc):
            self.stmt(s.body, env)
        elif isinstance(s, If):
            chosen = s.then if self.compile(s.cond)(env) else s.otherwise
            if chosen is not None:
                self.stmt(chosen, env)
        elif isinstance(s, AsyncCopy) and not isinstance(s.body, If):
            self.copies(s.body, env)
        elif isinstance(s, AsyncCopy):
            self.stmt(s.body, env)
        elif isinstance(s, For):
            self.loop(s, env)
        elif not isinstance(s, Wait):
            self.fail(f"a {type(s).__name__} outside of copies and instructions", "let an instruction do it")

    def loop(self, s: For, env: Env) -> None:
        if (said := s.note(CHIP)) is not None:
            self.instruction(s, said, env)
        elif self.plain(s):
            self.copies(s, env)
        else:
            for n in range(self.compile(s.extent)(env)):
                env[s.var] = n
                self.stmt(s.body, env)
            env.pop(s.var, None)

    @staticmethod
    def plain(s: Stmt) -> bool:
        """Loops around nothing but an element, or a number, that is stored."""
        while isinstance(s, For) and s.note(CHIP) is None:
            s = s.body
        return isinstance(s, Store) and isinstance(s.targets[0].value, (Const, Load))

    # ---- copies ----

    def copies(self, s: Stmt, env: Env) -> None:
        """Loops around one plain store; loops that others hang on are run, in groups whose inner loops are the same."""
        loops: list[For] = []
        while isinstance(s, For):
            loops.append(s)
            s = s.body
        if not isinstance(s, Store) or len(s.targets) != 1:
            self.fail("a copy is loops around one store")
        self.groups(loops, 0, s.targets[0], dict(env), [])

    def groups(self, loops: Sequence[For], n: int, t: Target, env: Env, counts: list[tuple[str, int]]) -> None:
        """Settle the extent of loop `n` and those in it; loops begin where `env` says."""
        if n == len(loops):
            self.box(t, env, counts)
            return
        f = loops[n]
        extent = self.compile(f.extent)(env)
        inner = [x for x in loops[n + 1 :] if f.var in x.variables]
        if not inner:
            self.groups(loops, n + 1, t, {**env, f.var: 0}, [*counts, (f.var, extent)])
            return
        known = [x for x in inner if not (x.variables & {y.var for y in loops[n + 1 :]})]
        sizes = [tuple(self.compile(x.extent)({**env, f.var: i}) for x in known) for i in range(extent)]
        first = 0
        for _, same in groupby(sizes):
            count = len(list(same)) if len(known) == len(inner) else 1
            self.groups(loops, n + 1, t, {**env, f.var: first}, [*counts, (f.var, count)])
            first += count

    def box(self, t: Target, env: Env, counts: list[tuple[str, int]]) -> None:
        """A box of elements: its runs and strides, in as many instructions as it takes."""
        if any(c <= 0 for _, c in counts):
            return
        fill = t.value.value if isinstance(t.value, Const) else None
        target = self.address(t.buffer, t.indices)
        source = self.address(t.value.buffer, t.value.indices) if isinstance(t.value, Load) else None
        if source is None and fill is None:
            self.fail(f"{t.value} is no plain copy")
        size = LOOP_TYPES[self.buffers[t.buffer].dtype].nbytes
        sides = [self.strides(f, env, counts) for f in (source or target, target)]
        walks = [(c, sides[0][n], sides[1][n]) for n, (_, c) in enumerate(counts) if c > 1]
        run = size
        while walks and walks[-1][1:] == (run, run):
            run *= walks.pop()[0]
        walks = _joined(walks)
        memories = (self.memory(t.value.buffer) if isinstance(t.value, Load) else None, self.memory(t.buffer))
        starts = ((source or target)(env), target(env))
        byte = None if fill is None else int(fill) & 0xFF
        names = (t.value.buffer if isinstance(t.value, Load) else "", t.buffer)
        if run >= 1 << RUN:  # longer than an instruction can say: parts of whole words
            word = lcm(*(self.listing.memories[m].word for m in memories if m in self.listing.memories))
            part = _part(run, word)
            self.copy(memories, names, starts, [*walks, (run // part, part, part)], part, byte)
            done, run = run // part * part, run % part
            starts = (starts[0] + done, starts[1] + done)
        if run:
            self.copy(memories, names, starts, walks, run, byte)

    def strides(self, f: Callable[[Env], int], env: Env, counts: Sequence[tuple[str, int]]) -> list[int]:
        """By how many bytes an address moves with each loop; an error if it does not move evenly."""
        start = f(env)
        found = [f({**env, v: env[v] + 1}) - start if c > 1 else 0 for v, c in counts]
        end = f({**env, **{v: env[v] + c - 1 for v, c in counts}})
        if end != start + sum(s * (c - 1) for s, (_, c) in zip(found, counts, strict=True)):
            self.fail("a tile whose elements do not lie evenly")
        return found

    def memory(self, buffer: str) -> str:
        return HOST if buffer in self.arguments else self.buffers[buffer].scope

    def copy(
        self,
        memories: tuple[str | None, str],
        names: tuple[str, str],
        starts: tuple[int, int],
        walks: Sequence[tuple[int, int, int]],
        run: int,
        fill: int | None,
    ) -> None:
        source, target = memories
        engine = self.engine(source, target)
        if len(walks) > engine.levels or any(c >= 1 << COUNT for c, _, _ in walks):
            count, a, b = walks[0]
            for n in range(count):
                self.copy(memories, names, (starts[0] + n * a, starts[1] + n * b), walks[1:], run, fill)
            return
        form = self.formats.forms[engine.name][0]
        routes = self.formats.routes(engine.name)
        route = next(n for n, (a, b) in enumerate(routes) if b == target and source in (a, None))
        values: dict[str, Any] = {"route": route, "run": run, "count": [c for c, _, _ in walks]}
        if fill is not None:
            values |= {"fill": 1, "value": fill}
        for side, memory in enumerate(memories):
            strides = [w[1 + side] for w in walks]
            if memory == HOST:
                values |= {"arg": self.arguments[names[side]], "host": starts[side], "host_stride": strides}
            elif memory is not None:
                name = "from" if side == 0 and target != HOST else "at"
                at, steps = self.words(memory, starts[side], strides, names[side])
                values |= {name: at, "from_stride" if name == "from" else "stride": steps}
        self.issue(form, values)

    def engine(self, source: str | None, target: str) -> CopyEngine:
        for e in self.listing.engines.values():
            if (
                isinstance(e, CopyEngine)
                and target in e.targets
                and (e.fill if source is None else source in e.sources)
            ):
                return e
        what = f"copies from {source}" if source else "writes a number"
        self.fail(f"no engine {what} to {target}")

    def words(self, memory: str, start: int, strides: Sequence[int], name: str) -> tuple[int, list[int]]:
        word = self.listing.memories[memory].word
        if start % word or any(s % word for s in strides):
            self.fail(f"rows of {name} do not begin at words of {memory} ({word} bytes)")
        return start // word, [s // word for s in strides]

    def issue(self, form: Form, values: Mapping[str, Any]) -> None:
        made = Issue(form, fields_of(form, values))
        self.streams[form.engine].append(replace(made, waits=self.dependences.waits(made)))

    # ---- instructions ----

    def instruction(self, s: For, said: str, env: Env) -> None:
        key = (CHIP, id(s))
        if key not in self.compiled:
            self.compiled[key] = (_Region(self, s, said), s)
        region: _Region = self.compiled[key][0]
        region.emit(env)


class _Region:
    """The loops of an instruction, read once: emitted again and again with other values of the loops around."""

    def __init__(self, emitter: _Emitter, s: For, said: str) -> None:
        self.e = emitter
        name, *pairs = said.split()
        given = dict(p.split("=") for p in pairs)
        known = emitter.listing.instructions
        if name not in known:
            emitter.fail(f"the chip has no instruction {name!r}", f"instructions: {', '.join(known)}")
        self.meaning: Instruction = known[name]
        self.form = emitter.formats.form(name)
        self.operands = {o.name: given.pop(o.name) for o in self.meaning.operands}
        self.fields = {k: int(v) for k, v in given.items()}
        self.loops: dict[str, _Loop] = {}
        self.places: dict[str, tuple[Expr, ...]] = {}
        self.reduction: tuple[str, ...] = ()
        self.read(s, ())

    def read(self, s: Stmt, path: tuple[str, ...]) -> None:
        """Collect loops and the places of operands."""
        if isinstance(s, For):
            dim = s.note(DIM)
            if dim is not None:
                self.loops[s.var] = _Loop(s.var, dim, self.e.compile(s.extent))
            elif s.trip != 1:
                self.e.fail(f"loop {s.var} of {self.meaning.name} is none of its dimensions", "tensorize last")
            self.read(s.body, (*path, s.var))
        elif isinstance(s, Seq):
            for x in s.stmts:
                self.read(x, path)
        elif isinstance(s, Alloc):
            self.read(s.body, path)
        elif isinstance(s, Store):
            self.store(s, path)

    def store(self, s: Store, path: tuple[str, ...]) -> None:
        t = s.targets[0]
        found = [(x.buffer, x.indices) for x in walk(t.value) if isinstance(x, Load)] + [(t.buffer, t.indices)]
        for buffer, indices in found:
            for o in (o for o, b in self.operands.items() if b == buffer):
                self.places.setdefault(o, indices)
        if t.buffer == self.operands[self.meaning.outputs[0].name]:
            self.path, self.reduction = path, s.reduction

    def emit(self, env: Env) -> None:
        e = self.e
        zero = {**env, **dict.fromkeys(self.loops, 0)}
        for v in self.path:
            zero.setdefault(v, 0)
        counts = {v: f.extent(zero) for v, f in self.loops.items()}
        if min(counts.values(), default=1) <= 0:
            return
        values: dict[str, Any] = dict(self.fields)
        for d in self.meaning.dims:
            own = [counts[v] for v in self.path if v in self.loops and self.loops[v].dim == d.name]
            total = 1
            for c in own:
                total *= c
            if total > d.limit:
                e.fail(f"{self.meaning.name} takes {d.limit} along {d.name}, not {total}", "cut the loops")
            values[d.name] = own if d.levels else [total]
        for o in self.meaning.operands:
            self.operand(o, zero, counts, values)
        if self.meaning.accumulates:
            values["start"] = int(all(not zero[v] for v in self.reduction))
        e.issue(self.form, values)

    def operand(self, o: Operand, zero: Env, counts: Mapping[str, int], values: dict[str, Any]) -> None:
        """Where an operand lies, and its strides."""
        if o.name not in self.places:
            self.e.fail(f"{o.name} of {self.meaning.name} is not {self.operands[o.name]}", "tensorize last")
        e, indices = self.e, self.places[o.name]
        address = e.address(self.operands[o.name], indices)
        start, word = address(zero), e.listing.memories[o.memory].word
        if start % word:
            e.fail(f"{o.name} of {self.meaning.name} does not begin at a word of {o.memory}")
        values[o.name] = start // word
        if not o.dims:
            return
        steps = {v: address({**zero, v: 1}) - start if c > 1 else 0 for v, c in counts.items()}
        end = address({**zero, **{v: c - 1 for v, c in counts.items()}})
        if end != start + sum(s * (counts[v] - 1) for v, s in steps.items()):
            e.fail(f"{o.name} of {self.meaning.name} does not lie evenly in {o.memory}")
        run = [v for v, f in self.loops.items() if f.dim == o.dims[-1] and counts[v] > 1]
        if any(steps[v] not in (0, o.numpy.itemsize) for v in run):
            e.fail(f"{o.name} of {self.meaning.name} is no run along {o.dims[-1]}")
        length = max((counts[v] for v in run), default=1) * o.numpy.itemsize
        pitch = -(-length // word) * word
        strides: list[int] = []
        for dim in o.dims[-2::-1]:
            d = self.meaning.dim(dim)
            for v in [v for v in reversed(self.path) if v in self.loops and self.loops[v].dim == dim]:
                if d.levels and not o.dense:
                    strides.insert(0, steps[v])
                elif counts[v] > 1 and steps[v] != pitch:
                    e.fail(f"rows of {o.name} of {self.meaning.name} do not follow one another")
                pitch *= counts[v]
        if any(s % word for s in strides):
            e.fail(f"rows of {o.name} of {self.meaning.name} do not begin at words of {o.memory}")
        if strides:
            values[f"{o.name}_stride"] = [s // word for s in strides]


def _part(run: int, word: int) -> int:
    """Into what a long run is cut: equal parts where there are a few, else the longest, with a rest."""
    most = ((1 << RUN) - 1) // word * word
    few = -(-run // most)
    return next((run // n for n in range(few, 8 * few) if run % (n * word) == 0), most)


def _joined(walks: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Loops that go on where the inner one ends, on both sides, as one."""
    found: list[tuple[int, int, int]] = []
    for count, a, b in walks:
        if found and found[-1][1:] == (count * a, count * b):
            count *= found.pop()[0]
        found.append((count, a, b))
    return found
