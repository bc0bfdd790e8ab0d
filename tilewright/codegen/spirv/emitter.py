"""Level 4 -> 5: a finished loop nest, bound to the units of a GPU (`gpu.walk`), to a module of MLIR's `spirv` dialect.

Parameters are storage buffers of set 0, numbered. The module is one kernel, the entry point is its name.
"""

from __future__ import annotations

from dataclasses import replace

from ...schedule.machine import Machine
from ...schedule.nest import AsyncCopy, Barrier, For, Nest, Store, Wait
from ...support.sizes import smaller
from ...tensor.expr import Buffer, bounds, ceildiv
from ..clike.function import Launch
from ..gpu.open_launch import OpenLaunch, typical_grid
from ..gpu.walk import Walk
from .builder import SpirvText, pointer
from .expressions import Expressions
from .memory import Memory

#: axes -> built-in variables
_BUILT_IN = {"grid": "WorkgroupId", "block": "LocalInvocationId"}
#: the most blocks on an axis: where a nest has more threads each does several
_GRID = 65535
_BARRIER = "spirv.ControlBarrier <Workgroup>, <Workgroup>, <AcquireRelease|UniformMemory|WorkgroupMemory>"


def emit(nest: Nest, machine: Machine) -> tuple[str, Launch, OpenLaunch | None]:
    """The text of the module, on how many units it runs, and what that is for open sizes. CompileError for what its
    loops cannot be, UnsupportedError for operations and memory that are missing."""
    return Emitter(nest, machine).run()


class Emitter(Walk):
    text: SpirvText
    family = "Vulkan"

    def __init__(self, nest: Nest, machine: Machine) -> None:
        super().__init__(nest, machine, SpirvText())
        self.expressions = Expressions(self.text, self.at, nest.name)
        self.memory = Memory(self.text, self.at, self.buffers, self.expressions)
        self.expr = self.at.expr = self.expressions.expr
        self.used: dict[str, str] = {}  # built-in variables -> what they hold

    def run(self) -> tuple[str, Launch, OpenLaunch | None]:
        for i, p in enumerate(self.nest.params):
            self.memory.begin_parameter(p, i)
        self.names = {k: self.unit(k) for k in self.units.kinds}
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
        return module(name, body), replace(launch, grid=typical_grid(launch.grid)), opened

    def launch(self) -> Launch:
        made = self.units.launch
        if any(self.units.is_thread(k) for k in self.units.kinds):
            return Launch(made.block, (smaller(made.grid[0], _GRID), 1, 1))
        return Launch(made.block, made.grid)

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
        units, limit = _GRID * self.launch().block[0], bounds(s.extent, self.at.ranges)
        if not self.units.is_thread(s.kind) or (limit is not None and limit[1] <= units):
            super().bound(s)
            return
        first = self.names[s.kind]
        with self.text.counted(self.at.index(ceildiv(s.extent, units))) as turn:
            before = self.text.integer("mul", turn, self.text.number(units))
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


__all__ = ["Emitter", "emit"]
