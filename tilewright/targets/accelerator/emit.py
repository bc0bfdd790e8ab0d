"""Lowers loop nests to accelerator programs: all loops are unrolled here, so that only a stream of instructions is
left.

A copy's loops become one instruction where they are a box with as many strides as the engine has, else several. The
loops of an instruction (`tiles.CHIP`) become its counts, places and strides. What waits for what is found from the
words they touch. A nest that asks for what the chip cannot do ends in one error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby, product
from math import lcm
from typing import Any, NoReturn

from ...schedule.nest import Alloc, AsyncCopy, For, If, Nest, Seq, Stmt, Store, Wait, walk_stmts
from ...support.dtypes import LOOP_TYPES
from ...support.errors import CompileError
from ...tensor.analysis import flat
from ...tensor.expr import Const, Expr, Load, Op, Target, Var
from .binary import COUNT, RUN, ChipProgram, Formats, InstructionFormat, Issue, fields_of
from .blocks import Env, InstructionLoop, is_block
from .dependences import Dependences, Touched
from .describe import HOST, CopyEngine
from .tiles import CHIP

_PYTHON = {"addi": "+", "muli": "*", "floordivsi": "//", "remsi": "%", "subi": "-", "andi": "and", "ori": "or"}
_COMPARED = {"slt": "<", "sle": "<=", "sgt": ">", "sge": ">=", "eq": "==", "ne": "!="}


def emit(nest: Nest, formats: Formats) -> ChipProgram:
    """The program of a nest; CompileError for what the chip cannot do, or where its memories are too small."""
    return ChipProgramEmitter(nest, formats).run()


class ChipProgramEmitter:
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
        """Allocates buffers on the chip: the first byte of each, one after the other."""
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
        """Compiles an index expression to a Python function of the loops' values."""
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
        if (block := self.block(s)) is not None:
            for issue, touched in block.issues(env):
                self.place(issue, touched)
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
        """Loops around one plain store; loops that others depend on are run, in groups whose inner loops are the
        same."""
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
            self.row_by_row(memories, names, starts, walks, run, byte)

    def row_by_row(
        self,
        memories: tuple[str | None, str],
        names: tuple[str, str],
        starts: tuple[int, int],
        walks: Sequence[tuple[int, int, int]],
        run: int,
        fill: int | None,
    ) -> None:
        """Rows that follow one another and do not all begin at words. The last one comes first, and each from its word
        on: what is too much before it, the rows before it cover."""
        source, target = memories
        memory = self.listing.memories.get(target)
        odd = [w for w in walks if memory is not None and w[2] % memory.word]
        if memory is None or not odd or source != HOST:
            self.copy(memories, names, starts, walks, run, fill)
            return
        length = run
        for count, _, b in reversed(odd):
            if b != length:
                self.fail(f"rows of {names[1]} do not begin at words of {target} ({memory.word} bytes), and have gaps")
            length *= count
        even = [w for w in walks if w not in odd]
        for place in reversed(list(product(*(range(count) for count, _, _ in odd)))):
            there, here = (s + sum(n * w[1 + i] for n, w in zip(place, odd, strict=True)) for i, s in enumerate(starts))
            more = here % memory.word
            if starts[1] % memory.word or there < more:
                self.fail(f"{names[0]} has nothing before a row that begins within a word of {target}")
            self.copy(memories, names, (there - more, here - more), even, run + more, fill)

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

    def issue(self, form: InstructionFormat, values: Mapping[str, Any]) -> None:
        made = Issue(form, fields_of(form, values))
        self.place(made, self.dependences.touched(made))

    def place(self, issue: Issue, touched: Touched) -> None:
        """The next instruction of its stream, with what it waits for."""
        waits = self.dependences.wait(touched)
        self.streams[issue.form.engine].append(Issue(issue.form, issue.values, waits) if waits else issue)

    # ---- instructions ----

    def block(self, s: For) -> InstructionLoop | None:
        """The instructions that a loop is, or is around; None if it is around copies too."""
        key = (CHIP, id(s))
        if key not in self.compiled:
            self.compiled[key] = (InstructionLoop(self, s) if is_block(s) else None, s)
        found: InstructionLoop | None = self.compiled[key][0]
        return found


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
