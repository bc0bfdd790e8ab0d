"""Builder of a kernel's MLIR text: lines, names of values, scopes, constants, and the values that stand for loop
variables, register buffers and lanes at this place."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from ...support.errors import CompileError
from ...support.sizes import Size, at_most, highest
from ...tensor.expr import CASTS, Buffer, Load, Op, loads, variables
from .open_sizes import OpenSizes
from .values import Value, Vector, constant_text, element, type_text

_V = TypeVar("_V", str, Value)


class Builder:
    """MLIR text, one line an operation. `env` has what a loop variable is: an SSA name, or its number in unrolled code;
    `vector` is the loop whose iterations are lanes, if any; `registers` are the elements of register buffers by their
    keys (see `registers`); `memory` the names of other buffers; `declared` what the module needs beside the kernel."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.constants: dict[str, str] = {}
        self.declared: dict[str, str] = {}
        self.memory: dict[str, str] = {}
        self.env: dict[str, str | int] = {}
        self.depth: dict[str, int] = {}
        self.born: dict[str, int] = {}
        self.registers: dict[tuple[str, int], Value] = {}
        self.vector: Vector | None = None
        #: sums of an index and a constant, by their names
        self.steps: dict[str, tuple[str, int]] = {}
        #: the index, an offset and the lanes of what is stored by the operation that would load it
        self._places: dict[Hashable, tuple[str, int, int]] = {}
        #: names of what is made here and around: of operations by their text, of sums of indices by their terms; of
        #: what is loaded, for each buffer
        self._made: dict[Hashable, str] = {}
        self._loaded: dict[str, dict[Hashable, Value]] = {}
        #: for each scope what ends with it, and the loop that it is, if values can be made before that
        self._inside: list[list[tuple[dict[Any, Any], Hashable, Any]]] = [[]]
        self._loops: list[EmittedLoop | None] = [None]
        #: how many scopes are around a name, where it is not all of the kernel
        self._around: dict[str, int] = {}
        self._indent = ""
        self._count = 0
        self.sizes = OpenSizes(self.at_first)

    # ---- lines and names ----

    def line(self, text: str) -> None:
        self.lines.append(self._indent + text)

    def fresh(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def op(self, text: str) -> str:
        """Emit a pure operation once per scope and return its result name."""
        name = self._made.get(text)
        if name is None or self._hidden(name):
            name = self.made(text)
            self._keep(self._made, text, name)
        return name

    def made(self, text: str) -> str:
        """Emit an operation."""
        name = self.fresh()
        self.line(f"{name} = {text}")
        return name

    def once(self, key: Hashable, emit: Callable[[], str]) -> str:
        """The name of what takes several operations, which `key` tells from others, once per scope."""
        name = self._made.get(key)
        if name is None or self._hidden(name):
            name = emit()
            self._keep(self._made, key, name)
        return name

    def _keep(self, known: dict[Hashable, _V], key: Hashable, made: _V) -> None:
        """Remember what was made until the scope ends."""
        known[key] = made
        self._inside[-1].append((known, key, made))
        self._around.setdefault(made if isinstance(made, str) else made.ssa, len(self._inside))

    def _hidden(self, name: str) -> bool:
        """Whether a name is made further inside than what is being emitted (see `before_loops`)."""
        return self._around.get(name, 1) > len(self._inside)

    def op_value(self, text: str, like: Value) -> Value:
        return Value(self.op(text), like.dtype, like.width)

    def at_first(self, text: str) -> str:
        """An operation at the beginning of the kernel, as constants are."""
        name = self.constants.get(text)
        if name is None:
            name = self.constants[text] = self.fresh()
        return name

    def const(self, value: float, dtype: str, width: int = 0) -> str:
        if isinstance(value, Size):
            name = self.sizes.value(value)
            if dtype != "index":
                raise CompileError(f"the size {value} stands where a number of dtype {dtype} is", stage="emit")
            return self.at_first(f"vector.broadcast {name} : index to vector<{width}xindex>") if width else name
        return self.at_first(f"arith.constant {constant_text(value, dtype, width)}")

    # ---- scopes ----

    @property
    def scopes(self) -> int:
        return len(self._inside)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A region: values made inside are not visible outside, and neither are register contents unless yielded."""
        self._inside.append([])
        self._loops.append(None)
        saved, indent = dict(self.registers), self._indent
        self._indent += "  "
        yield
        self.registers, self._indent = saved, indent
        self._loops.pop()
        for known, key, made in self._inside.pop():
            if known.get(key) is made:
                del known[key]

    @contextmanager
    def loop(self, writes: Set[str]) -> Iterator[None]:
        """The scope of a loop that is entered at least once by one thread, whose head is the last line; `writes` are
        the buffers that change in it."""
        lines, head = self.lines, len(self.lines) - 1
        loop = EmittedLoop(writes, [], self._indent)
        with self.scope():
            self._loops[-1] = loop
            yield
        lines[head:head] = loop.before

    def before_loops(self, load: Load, emit: Callable[[], Value]) -> Value:
        """What is loaded, before those loops around that do not change it."""
        buffers = {x.buffer for x in loads(load)}
        if not buffers <= self.memory.keys():  # what is in registers changes without being written
            return emit()
        bound = (v for v in variables(load) if isinstance(self.env.get(v), str))
        least = max((*(self.depth[v] for v in bound), *(self.born.get(b, 1) for b in buffers)), default=1)
        level = len(self._inside)
        while level > least and (loop := self._loops[level - 1]) is not None and not loop.writes & buffers:
            level -= 1
        if level == len(self._inside) or (self.vector and self._around.get(self.vector.mask or "", 1) > level):
            return emit()
        loop = self._loops[level]
        assert loop is not None
        saved = self._inside, self._loops, self.lines, self._indent
        self._inside, self._loops = self._inside[:level], self._loops[:level]
        self.lines, self._indent = loop.before, loop.indent
        try:
            return emit()
        finally:
            self._inside, self._loops, self.lines, self._indent = saved

    def bind(self, var: str, value: str | int) -> _Bound:
        """Inside: a loop variable is a value."""
        bound = _Bound(self.env, var)
        self.env[var], self.depth[var] = value, len(self._inside)
        return bound

    def lanes(self, vector: Vector | None) -> _Lanes:
        """Inside: the iterations of a loop are lanes, or there are none."""
        lanes = _Lanes(self)
        self.vector = vector
        return lanes

    def region(self, emit: Callable[[], Value]) -> tuple[list[str], Value]:
        """What `emit` emits, in lines of its own."""
        outer, self.lines = self.lines, []
        with self.scope():
            v = emit()
        lines, self.lines = self.lines, outer
        return lines, v

    def branch(self, cond: str, there: tuple[list[str], Value], elsewhere: tuple[list[str], Value]) -> Value:
        """One of two values, each with the lines that make it."""
        name, like = self.fresh(), there[1]
        self.line(f"{name} = scf.if {cond} -> ({like.type}) {{")
        self.lines += [*there[0], f"scf.yield {there[1].ssa} : {like.type}"]
        self.line("} else {")
        self.lines += [*elsewhere[0], f"scf.yield {elsewhere[1].ssa} : {like.type}"]
        self.line("}")
        return Value(name, like.dtype, like.width)

    # ---- memory ----

    def memref(self, b: Buffer) -> str:
        return f"memref<{max(highest(b.size), 1)}x{element(b.dtype)}>"

    def start(self, b: Buffer) -> str:
        """The address at which a buffer begins, as a number."""
        return self.op(f"memref.extract_aligned_pointer_as_index {self.memory[b.name]} : {self.memref(b)} -> index")

    def remember(self, buffer: Buffer, key: Hashable, load: Callable[[], Value]) -> Value:
        """What is loaded from a buffer, once until it is written."""
        known = self._loaded.setdefault(buffer.name, {})
        found = known.get(key)
        if found is None or self._hidden(found.ssa):
            found = load()
            self._keep(known, key, found)
        return found

    def loaded(self, b: Buffer, text: str, shape: Value) -> Value:
        """The result of a load."""
        return self.remember(b, text, lambda: Value(self.made(text), shape.dtype, shape.width))

    def forget(self, buffers: Set[str]) -> None:
        """Drop remembered loads of buffers that have been written."""
        for b in buffers:
            self._loaded.get(b, {}).clear()

    def read(self, b: Buffer, at: str, shape: Value, mask: str | None = None) -> Value:
        """The element at a flat index, or as many neighbours from there on as `shape` has lanes; those that are masked
        off are not read, and zero."""
        whole = self._load(b, at, shape)
        if mask is None:
            return self.loaded(b, whole, shape)
        zero, stored = self.const(0, shape.dtype, shape.width), self._loaded.get(b.name, {}).get((whole, mask))
        if stored is not None and not self._hidden(stored.ssa):
            return self.select(mask, stored, zero)
        where, kind = f"{self.memory[b.name]}[{at}]", self.memref(b)
        types = f"{kind}, vector<{shape.width}xi1>, {shape.type} into {shape.type}"
        return self.loaded(b, f"vector.maskedload {where}, {mask}, {zero} : {types}", shape)

    def _load(self, b: Buffer, at: str, shape: Value) -> str:
        """The operation that loads all of a value."""
        where, kind = f"{self.memory[b.name]}[{at}]", self.memref(b)
        return f"vector.load {where} : {kind}, {shape.type}" if shape.width else f"memref.load {where} : {kind}"

    def write(self, b: Buffer, at: str, value: Value, mask: str | None = None, attributes: str = "") -> None:
        """Store a scalar, or a vector but for lanes that are masked off. What is stored need not be loaded."""
        known, lanes = self._loaded.setdefault(b.name, {}), value.width or 1
        base, offset = self.steps.get(at, (at, 0))
        for key in [k for k in known if not self._apart(k, base, offset, lanes)]:
            del known[key]
        whole = self._load(b, at, value)
        stored = whole if mask is None else (whole, mask)
        self._places[stored] = base, offset, lanes
        self._keep(known, stored, value)
        where, kind = f"{self.memory[b.name]}[{at}]", self.memref(b)
        if not value.width:
            self.line(f"memref.store {value.ssa}, {where} : {kind}")
        elif mask is None:
            self.line(f"vector.store {value.ssa}, {where}{attributes} : {kind}, {value.type}")
        else:
            types = f"{kind}, vector<{value.width}xi1>, {value.type}"
            self.line(f"vector.maskedstore {where}, {mask}, {value.ssa} : {types}")

    def _apart(self, key: Hashable, base: str, offset: int, lanes: int) -> bool:
        """Whether what has been loaded or stored is no element of so many behind the sum of a base and an offset."""
        place = self._places.get(key)
        if place is None or place[0] != base:
            return False
        between = place[1] - offset  # a size, if one of them is
        return at_most(between, -lanes) or at_most(place[2], between)

    def write_first(self, b: Buffer, at: str, value: Value, count: int) -> None:
        """Store the first `count` lanes of a vector."""
        if count == 1:  # LLVM 22 makes a masked store of one truncated byte write four: never give it one
            self.write(b, at, self.lane(value, 0))
        else:
            self.write(b, at, value, None if count == value.width else self.first_lanes(count, value.width))

    def from_storage(self, v: Value, dtype: str) -> Value:
        """A number that was read: booleans take a byte."""
        return self.compare(Op("cmpi.ne", (), "i1"), [v, Value(self.const(0, "i8"), "i8")]) if dtype == "i1" else v

    def to_storage(self, v: Value) -> Value:
        return self.elementwise("arith.extui", [v], "i8") if v.dtype == "i1" else v

    # ---- vectors ----

    def all_true(self, width: int) -> str:
        return self.const(True, "i1", width)

    def first_lanes(self, count: int, width: int) -> str:
        """The mask of so many lanes."""
        return self.at_first(f"vector.constant_mask [{count}] : vector<{width}xi1>")

    def lanes_below(self, count: str, width: int) -> str:
        """The same for a number that is known when it runs."""
        return self.op(f"vector.create_mask {count} : vector<{width}xi1>")

    def select(self, mask: str, x: Value, other: str) -> Value:
        """Lanes of `x` where the mask has them."""
        return self.op_value(f"arith.select {mask}, {x.ssa}, {other} : vector<{x.width}xi1>, {x.type}", x)

    def lane(self, v: Value, i: int) -> Value:
        return Value(self.op(f"vector.extract {v.ssa}[{i}] : {v.dtype} from {v.type}"), v.dtype)

    def shuffle(self, a: Value, b: Value, places: Sequence[int]) -> Value:
        text = f"vector.shuffle {a.ssa}, {b.ssa} [{', '.join(map(str, places))}] : {a.type}, {b.type}"
        return Value(self.op(text), a.dtype, len(places))

    def as_vector(self, v: Value, width: int | None = None) -> Value:
        if v.width:
            return v
        shape = Value("", v.dtype, width or (self.vector.width if self.vector else 0))
        return self.op_value(f"vector.broadcast {v.ssa} : {v.dtype} to {shape.type}", shape)

    def even(self, args: list[Value]) -> tuple[list[Value], int]:
        """Broadcast scalars where there is a vector among the operands."""
        widths = {a.width for a in args}
        width = max(widths, default=0)
        return ([self.as_vector(a, width) for a in args] if len(widths) > 1 else args), width

    def elementwise(self, name: str, args: list[Value], dtype: str, flags: str = "") -> Value:
        args, width = self.even(args)
        t = type_text(dtype, width)
        names = ", ".join([a.ssa for a in args])
        if name == "arith.select":
            return Value(self.op(f"{name} {names} : {args[0].type}, {t}"), dtype, width)
        if name[6:] in CASTS:
            return Value(self.op(f"{name} {names} : {args[0].type} to {t}"), dtype, width)
        if name == "math.fpowi":
            return Value(self.op(f"{name} {names} : {args[0].type}, {args[1].type}"), dtype, width)
        return Value(self.op(f"{name} {names}{flags} : {t}"), dtype, width)

    def compare(self, e: Op, args: list[Value]) -> Value:
        args, width = self.even(args)
        if args[0].dtype == "bf16":
            args = [self.fenced(self.elementwise("arith.extf", args[:1], "f32")),
                    self.elementwise("arith.extf", args[1:], "f32")]  # fmt: skip
        kind, predicate = e.op.split(".")
        return Value(self.op(f"arith.{kind} {predicate}, {args[0].ssa}, {args[1].ssa} : {args[0].type}"), "i1", width)

    def fenced(self, x: Value) -> Value:
        """x, behind a fence: LLVM makes a comparison of bf16 out of one that widens them, and cannot select it on x86
        with AVX-512 where the result becomes 16-bit integers."""
        return self.op_value(f'llvm.call_intrinsic "llvm.arithmetic.fence"({x.ssa}) : ({x.type}) -> {x.type}', x)

    def call(self, name: str, args: list[Value], result: Value) -> Value:
        """A call of a function that the target defines when the kernel is compiled."""
        types = f"({', '.join(a.type for a in args)}) -> {result.type}"
        self.declared[name] = f"func.func private @{name}{types}"
        return self.op_value(f"func.call @{name}({', '.join(a.ssa for a in args)}) : {types}", result)


class EmittedLoop(NamedTuple):
    """A loop that is being emitted: the buffers that change in it, the lines before it and how they begin."""

    writes: Set[str]
    before: list[str]
    indent: str


class _Bound:
    """Makes a loop variable again what it was: a context of few instructions, as there is one for each iteration."""

    __slots__ = ("env", "old", "var")

    def __init__(self, env: dict[str, str | int], var: str) -> None:
        self.env, self.var, self.old = env, var, env.get(var)

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        if self.old is None:
            del self.env[self.var]
        else:
            self.env[self.var] = self.old


class _Lanes:
    """The same for the loop whose iterations are lanes."""

    __slots__ = ("text", "vector")

    def __init__(self, text: Builder) -> None:
        self.text, self.vector = text, text.vector

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.text.vector = self.vector
