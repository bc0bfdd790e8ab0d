"""Level 4 -> 5: lowers a finished loop nest, bound to workgroups and invocations (`gpu.walk`), to a module of MLIR's
`spirv` dialect.

Parameters are storage buffers of set 0, numbered. The module is one kernel, the entry point is its name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ...schedule.machine import Machine
from ...schedule.nest import AsyncCopy, Barrier, For, Nest, Store, Wait, writes
from ...support.sizes import smaller
from ...tensor.expr import Buffer, bounds, ceildiv
from ..clike.launch import limited
from ..gpu.open_launch import Launch, OpenLaunch, typical_grid
from ..gpu.text import SsaValue
from ..gpu.vectors import always, in_turn, whole_only
from ..gpu.walk import NestWalk
from .builder import SpirvText, pointer
from .expressions import SpirvExpressions
from .memory import LOCAL_BYTES, SpirvMemory, element, own_bytes

#: axes -> built-in variables
_BUILT_IN = {"grid": "WorkgroupId", "block": "LocalInvocationId"}
#: the most blocks on an axis: where a nest has more threads each does several
_GRID = 65535
_BARRIER = "spirv.ControlBarrier <Workgroup>, <Workgroup>, <AcquireRelease|UniformMemory|WorkgroupMemory>"


class SpirvModule(NamedTuple):
    """The text of the module, on how many threads it runs, as how many parameters each argument is bound, bytes of
    scratch memory of a thread, which are one more parameter for each number; and what open sizes need."""

    text: str
    launch: Launch
    pieces: tuple[int, ...] = ()
    scratch: tuple[int, ...] = ()
    open: OpenLaunch | None = None


def emit(nest: Nest, machine: Machine) -> SpirvModule:
    """The module of a nest. CompileError for what its loops cannot be, UnsupportedError for operations and
    memory that are missing."""
    return SpirvEmitter(nest, machine).run()


class SpirvEmitter(NestWalk):
    text: SpirvText
    family = "Vulkan"

    def __init__(self, nest: Nest, machine: Machine) -> None:
        super().__init__(nest, machine, SpirvText())
        self.expressions = SpirvExpressions(self.text, self.at, nest.name)
        self.memory = SpirvMemory(self.text, self.at, self.buffers, self.expressions)
        self.memory.wholes = whole_only(self.nest, self.at, self.memory.longest, self.memory.least)
        self.expr = self.at.expr = self.expressions.expr
        self.used: dict[str, str] = {}  # built-in variables -> what they hold
        #: local arrays that are parts of scratch memory, by the type of an element
        self.large: dict[str, list[Buffer]] = {}
        for b in self.buffers.values():
            if b.scope == "local" and own_bytes(b) > LOCAL_BYTES:
                self.large.setdefault(element(b), []).append(b)
        self.own = sum(own_bytes(b) for those in self.large.values() for b in those)

    def run(self) -> SpirvModule:
        pieces = tuple(self.memory.begin_parameter(p, p.name in self.nest.outputs) for p in self.nest.params)
        scratch = self.begin_scratch()
        self.names = {k: self.axis_index(k) for k in self.launch_axes.kinds}
        self.define_sizes()
        self.stmt(self.nest.body)
        launch = self.launch()
        name, inside = self.nest.name, [*self.text.variables, *self.text.entry, *self.text.lines]
        inputs = [
            f'spirv.GlobalVariable @{x} built_in("{x}") : {pointer("vector<3xui32>", "Input")}' for x in self.used
        ]
        last = [
            f'spirv.EntryPoint "GLCompute" @{", @".join([name, *self.used])}',
            f'spirv.ExecutionMode @{name} "LocalSize", {", ".join(map(str, launch.block))}',
        ]
        body = [*self.memory.globals, *inputs, f'spirv.func @{name}() "None" {{', *inside, "  spirv.Return", "}", *last]
        opened = None if self.closed is None else self.closed.with_grid(launch.grid)
        made = replace(launch, grid=typical_grid(launch.grid))
        return SpirvModule(module(name, body), made, pieces, scratch, opened)

    def begin_scratch(self) -> tuple[int, ...]:
        """A buffer for each type of large local arrays, of which every thread has a part."""
        sizes = []
        for kind, arrays in self.large.items():
            each = sum(b.size for b in arrays)
            whole, first = self.memory.begin_scratch(kind, each, self.flat_thread_index()), 0
            for b in arrays:
                at = self.text.integer("add", whole.first, self.text.number(first))
                self.memory.places[b.name] = replace(whole, first=at)
                first += b.size
            sizes.append(sum(own_bytes(b) for b in arrays))
        return tuple(sizes)

    def flat_thread_index(self) -> str:
        """The index of the thread among all of the grid."""
        launch, text = self.launch(), self.text
        found = text.number(0)
        sides = (*(("grid", i) for i in (2, 1, 0)), *(("block", i) for i in (2, 1, 0)))
        for name, i in sides:
            extent = (launch.grid if name == "grid" else launch.block)[i]
            if extent > 1:
                found = text.integer("mul", found, text.number(extent))
                found = text.integer("add", found, self.number(f"{name}.{'xyz'[i]}"))
        return found

    def launch(self) -> Launch:
        made = self.launch_axes.launch
        if any(self.launch_axes.is_thread(k) for k in self.launch_axes.kinds):
            made = replace(made, grid=(smaller(made.grid[0], _GRID), 1, 1))
        return limited(made, self.nest, self.own)

    def number(self, axis: str) -> str:
        name, _, d = axis.partition(".")
        variable = _BUILT_IN[name]
        if variable not in self.used:
            kind = pointer("vector<3xui32>", "Input")
            place = self.text.op(f"spirv.mlir.addressof @{variable} : {kind}")
            self.used[variable] = self.text.load(place, "vector<3xui32>", "Input")
        number = "xyz".index(d)
        part = self.text.op(f"spirv.CompositeExtract {self.used[variable]}[{number} : i32] : vector<3xui32>")
        return self.text.convert("Bitcast", part, "ui32", "si32")

    # ---- statements

    def bound(self, s: For) -> None:
        """More iterations than there can be threads are done in turns."""
        threads, limit = _GRID * self.launch().block[0], bounds(s.extent, self.at.ranges)
        if not self.launch_axes.is_thread(s.kind) or (limit is not None and limit[1] <= threads):
            super().bound(s)
            return
        first = self.names[s.kind]
        with self.text.counted(self.at.index(ceildiv(s.extent, threads))) as turn:
            before = self.text.integer("mul", turn, self.text.number(threads))
            self.names[s.kind] = self.text.integer("add", before, first)
            super().bound(s)
        self.names[s.kind] = first

    def barrier(self, s: Barrier) -> None:
        if s.scope != "block":
            super().barrier(s)
        self.text.line(_BARRIER)

    def asynchronous(self, s: AsyncCopy | Wait) -> None:
        """Copies are done when they are begun: a wait finds nothing to do."""
        if isinstance(s, AsyncCopy):
            self.stmt(s.body)

    def alloc(self, b: Buffer) -> None:
        if b.scope in ("register", "local"):
            self.memory.begin_own(b)
        else:
            self.memory.begin_shared(b)

    def store(self, s: Store) -> None:
        values = [self.expr(t.value) for t in s.targets]
        for t, v in zip(s.targets, values, strict=True):
            self.memory.store(t, v)

    def vector(self, s: Store, var: str, count: int) -> None:
        """All iterations of a vector loop: neighbours are read and written at once, where lanes do not write one
        element in turn."""
        memory = self.memory
        turns = in_turn(s, var, self.at, self.buffers)
        alone = writes(s) if turns else frozenset()
        reads = dict.fromkeys(x for t in s.targets for x in always(t.value) if x.buffer not in alone)
        widths = {x: memory.width(self.buffers[x.buffer], x.indices, var, count, False) for x in reads}
        found = {x: memory.read_lanes(x, var, count, n) for x, n in widths.items() if n > 1}
        values: list[list[SsaValue]] = [[] for _ in s.targets]
        for i in range(count):
            memory.found = {x: lanes[i] for x, lanes in found.items()}
            with self.at.at_lane(var, i):
                made = [self.expr(t.value) for t in s.targets]
                for t, v, kept in zip(s.targets, made, values, strict=True):
                    kept.append(v)
                    if turns:
                        memory.store(t, v)
        memory.found = {}
        for t, kept in zip(s.targets, values, strict=True):
            if not turns:
                width = memory.width(self.buffers[t.buffer], t.indices, var, count, True)
                memory.write_lanes(t, kept, var, width)


def module(name: str, body: list[str]) -> str:
    """What the serializer takes: a module of the `gpu` dialect with one of the `spirv` dialect in it."""
    text = "\n".join(body)
    wide = [c for c, kind in (("Int64", "i64"), ("Float64", "f64")) if kind in text]
    needs = f"#spirv.vce<v1.3, [{', '.join(['Shader', *wide])}], []>"
    lines = [
        "module attributes {gpu.container_module} {",
        f"gpu.module @{name} [#spirv.target_env<{needs}, #spirv.resource_limits<>>] {{",
        f"spirv.module Logical GLSL450 requires {needs} {{",
        text,
        *"}}}",
    ]
    return "\n".join(lines) + "\n"


__all__ = ["SpirvModule", "SpirvEmitter", "emit"]
