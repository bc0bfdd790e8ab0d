"""An MLIR dialect for each chip, made from its description: one operation for each instruction and each copy engine.

    func.func @conv(%arg0: memref<3200xi8>, ...) {
      %0 = "systolic32.copy_load"(%arg0) {count = array<i64: 1, 1, 1>, host = 32 : i64, route = "host -> weights", ...}
      %1 = "systolic32.mma"(%0) {k = 32 : i64, m = array<i64: 1, 4, 8>, n = 32 : i64, start = 1 : i64, ...}
          : (!systolic32.token) -> !systolic32.token

Every operation gives a token and takes those of the operations that it waits for, so that the order between engines is
in the IR; what an engine does, it does in the order of the block. Attributes are the fields of
`binary.InstructionFormat`; those that are 0 are left out, and a copy's route is a pair of names. A copy takes the
kernel's argument that it reads or writes as an operand; one that writes a number is an operation of its own,
`fill_load`.

The verifiers are MLIR's: they run as text is parsed, after passes, and when `verify` is called. A description with
other parameters is another dialect of the same name, so each has a context of its own. Whether the tokens are enough is
another question, which `race_check.check_order` answers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod
from types import ModuleType
from typing import Any

from torch_mlir import ir
from torch_mlir.dialects import ext, func

from ...ir.context import place
from ...ir.dialect import from_attribute, to_attribute
from ...support.errors import UsageError
from .binary import ChipProgram, Formats, InstructionFormat, Issue, fields_of
from .dependences import accesses, walk
from .describe import HOST, CopyEngine
from .functional import in_order


@dataclass(frozen=True)
class DialectOperation:
    """An operation of the dialect: what it is called, its form, whether it writes a number, and whether it takes an
    argument of the kernel."""

    name: str
    form: InstructionFormat
    fills: bool = False
    host: bool = False


def kinds(formats: Formats) -> dict[str, DialectOperation]:
    """The operations of a chip's dialect by their full names; UsageError where two would have the same.

    >>> from tilewright.targets.chips.systolic32 import CHIP
    >>> [k.partition(".")[2] for k in kinds(Formats(CHIP()))]
    ['copy_load', 'fill_load', 'copy_store', 'fill_store', 'mma', 'depthwise', 'requantize']
    """
    found: list[DialectOperation] = []
    for name, forms in formats.forms.items():
        engine = formats.listing.engines[name]
        if isinstance(engine, CopyEngine):
            reads, writes = HOST in engine.sources, HOST in engine.targets
            found.append(DialectOperation(f"copy_{name}", forms[0], host=reads or writes))
            if engine.fill:
                found.append(DialectOperation(f"fill_{name}", forms[0], fills=True, host=writes))
        else:
            found += [DialectOperation(f.name, f) for f in forms]
    names = [k.name for k in found]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise UsageError(
            f"the dialect of {formats.chip.name} would have two operations {twice[0]}",
            stage="describe",
            hint="give the instruction another name",
        )
    return {f"{formats.chip.name}.{k.name}": k for k in found}


class ChipDialect:
    """The dialect of a chip with a context in which it is loaded."""

    def __init__(self, formats: Formats) -> None:
        self.formats, self.kinds = formats, kinds(formats)
        name = formats.chip.name
        dialect: Any = type(name, (ext.Dialect,), {}, name=name)
        self.token_type = type("Token", (dialect.Type,), {"__annotations__": {}}, name="token")
        for kind in self.kinds.values():
            _operation(dialect, self.token_type, kind, formats)
        self.context = ir.Context()
        self.context.enable_multithreading(False)
        with self.context:
            try:
                dialect.load()
            except ext.DialectAlreadyLoadedError:
                raise UsageError(
                    f"MLIR has a dialect {name} of its own", stage="describe", hint="give the chip another name"
                ) from None
        # The bindings look for a Python module of each dialect: without one, again for every operation.
        sys.modules.setdefault(f"torch_mlir.dialects.{name}", ModuleType(f"torch_mlir.dialects.{name}"))

    def parse(self, text: str) -> ir.Module:
        """A module from its text; UsageError with the operation that is wrong."""
        with self.context:
            try:
                return ir.Module.parse(text)
            except ir.MLIRError as e:
                raise _error(e, "parse") from None

    def module(self, *programs: ChipProgram) -> ir.Module:
        """A function for each program; UsageError where engines wait for each other."""
        chip = self.formats.chip
        with self.context, ir.Location.unknown():
            module = ir.Module.create()
            parameters = {k: _parameter(v) for k, v in asdict(chip).items()}
            module.operation.attributes[f"{chip.name}.parameters"] = ir.DictAttr.get(
                {k: to_attribute(v) for k, v in parameters.items()}
            )
            with ir.InsertionPoint(module.body):
                for p in programs:
                    self._function(p)
        return module

    def _function(self, program: ChipProgram) -> None:
        byte = ir.IntegerType.get_signless(8)
        types = [ir.MemRefType.get([n], byte) for n in program.arguments]
        f = func.FuncOp(program.name, ir.FunctionType.get(types, []))
        block = f.add_entry_block()
        arguments, token = list(block.arguments), self.token_type.get()  # type: ignore[attr-defined]
        tokens: dict[str, list[ir.Value]] = {e: [] for e in self.formats.engines}
        by_form = {(k.form.engine, k.form.name, k.fills): (name, k) for name, k in self.kinds.items()}
        attribute = _Attributes(self.formats)
        with ir.InsertionPoint(block):
            for issue in in_order(self.formats, program):
                engine, v = issue.form.engine, issue.values
                fills = "fill" in v and bool(issue["fill"])
                name, kind = by_form[engine, issue.form.name, fills]
                if kind.host and issue["arg"] >= len(arguments):
                    raise _wrong(
                        f"argument {issue['arg']} of {len(arguments)}", self.formats.line(issue), stage="to mlir"
                    )
                operands = [arguments[issue["arg"]]] if kind.host else []
                operands += [tokens[e][n - 1] for e, n in issue.waits.items() if n]
                op = ir.Operation.create(name, results=[token], operands=operands, attributes=attribute.of(kind, v))
                tokens[engine].append(op.result)
            func.ReturnOp([])


class _Attributes:
    """Makes attributes, each once."""

    def __init__(self, formats: Formats) -> None:
        self.made: dict[Any, ir.Attribute] = {}
        self.routes = {
            e: tuple(map(route_name, formats.routes(e)))
            for e, forms in formats.forms.items()
            if forms and forms[0].meaning is None
        }

    def of(self, kind: DialectOperation, values: Any) -> dict[str, ir.Attribute]:
        found = {}
        for f in kind.form.fields:
            numbers = values[f.name]
            if f.name == "route" and kind.form.meaning is None:
                found["route"] = self.one(self.routes[kind.form.engine][numbers[0]])
            elif any(numbers) and f.name not in _unsaid(kind):
                found[f.name] = self.one(numbers[0] if f.parts == 1 else numbers)
        return found

    def one(self, value: Any) -> ir.Attribute:
        if value not in self.made:
            self.made[value] = to_attribute(value)
        return self.made[value]


def _unsaid(kind: DialectOperation) -> tuple[str, ...]:
    """Fields that are said otherwise: by the operation's name, by its operand."""
    if kind.form.meaning is not None:
        return ()
    return ("fill", "arg") if kind.host else ("fill",)


def route_name(route: tuple[str, str]) -> str:
    return " -> ".join(route)


def _parameter(value: Any) -> Any:
    """A parameter of a chip as MLIR has attributes for it."""
    return value if isinstance(value, bool | int | float | str) else repr(value)


# ---- one for all -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def dialect_of(formats: Formats) -> ChipDialect:
    """The dialect of a chip, made once for the same formats."""
    return ChipDialect(formats)


def to_mlir(program: ChipProgram, formats: Formats) -> ir.Module:
    """A module with the program as a function of one block, its arguments memrefs of bytes.

    UsageError where engines wait for each other, or an argument is named that there is not. What instructions say is
    not judged here: `verify` does.
    """
    return dialect_of(formats).module(program)


def from_mlir(module: ir.Module, formats: Formats) -> ChipProgram:
    """The program of a module with one function: what `to_mlir` was given.

    UsageError for a module of another chip, and for what `verify` finds.
    """
    functions = programs(module, formats)
    if len(functions) != 1:
        raise _wrong(f"a program is one function, here are {len(functions)}", stage="from mlir")
    return functions[0]


def programs(module: ir.Module, formats: Formats) -> list[ChipProgram]:
    """The programs of all functions of a module; errors as `from_mlir`."""
    chip = formats.chip
    verify(module)
    said, key = module.operation.attributes, f"{chip.name}.parameters"
    if key not in said:
        raise _wrong(f"this is no module for {chip.name}: it has no {key}", stage="from mlir")
    given = {a.name: from_attribute(a.attr) for a in ir.DictAttr(said[key])}
    own = {k: _parameter(v) for k, v in asdict(chip).items()}
    if given != own:
        raise _wrong(f"the module is for {chip.name} with {given}, this one has {own}", stage="from mlir")
    reader = _OperationReader(formats)
    return [reader.program(f) for f in module.body.operations]


def verify(module: ir.Module) -> None:
    """UsageError with the first operation that its chip cannot do."""
    try:
        module.operation.verify()
    except ir.MLIRError as e:
        raise _error(e, "verify") from None


def _error(e: ir.MLIRError, stage: str) -> UsageError:
    """The first diagnostic; those of our verifiers have the operation in a second line."""
    if not e.error_diagnostics:
        return _wrong(str(e), stage=stage)
    first = e.error_diagnostics[0]
    message, _, op = first.message.partition("\n")
    where = "" if str(first.location) == "loc(unknown)" else place(first.location)
    return _wrong(message, ": ".join(x for x in (where, op) if x), stage)


def _wrong(message: str, operation: str = "", stage: str = "verify") -> UsageError:
    return UsageError(message, stage=stage, operator=operation or None)


# ---- verifiers -------------------------------------------------------------------------------------------------------


def _operation(dialect: Any, token: Any, kind: DialectOperation, formats: Formats) -> type:
    """The class of an operation, which attaches it to the dialect."""
    hints: dict[str, Any] = {"argument": ext.Operand[Any]} if kind.host else {}
    hints |= {"waits": Sequence[ext.Operand[token]], "done": ext.Result[token]}
    body = {"__annotations__": hints, "verify_invariants": staticmethod(_verifier(kind, formats))}
    return type(kind.name, (dialect.Operation,), body, name=kind.name)


def _verifier(kind: DialectOperation, formats: Formats) -> Callable[[ir.OpView], bool]:
    """What MLIR asks for every operation of a kind: False, with a diagnostic, if the chip cannot do it."""
    reader = _OperationReader(formats)

    def judged(op: ir.OpView) -> bool:
        operation = op.operation
        try:
            reader.check(kind, operation)
        except UsageError as e:
            text = operation.get_asm(print_generic_op_form=True, assume_verified=True, use_local_scope=True)
            operation.location.emit_error(f"{e.message}\n{text}")
            return False
        return True

    return judged


class _OperationReader:
    """Reads operations back, and judges them by the description."""

    def __init__(self, formats: Formats) -> None:
        self.formats, self.kinds = formats, kinds(formats)
        self.fields = {n: {f.name: f for f in k.form.fields if f.name not in _unsaid(k)} for n, k in self.kinds.items()}
        self.defaults = {n: fields_of(k.form, {"fill": 1} if k.fills else {}) for n, k in self.kinds.items()}
        self.read: dict[tuple[str, str, ir.Attribute], tuple[int, ...]] = {}

    # ---- one operation ----

    def issue(self, kind: DialectOperation, op: ir.Operation) -> Issue:
        """An operation as an instruction, without what it waits for; UsageError where there is none such."""
        operation = op.name
        values = dict(self.defaults[operation])
        routed = kind.form.meaning is not None
        for name, attribute in op.attributes.items():
            key = (operation, name, attribute)  # the same ones come again and again
            numbers = self.read.get(key)
            if numbers is None:
                if "." in name:
                    continue  # what passes leave
                numbers = self.numbers(kind, *key)
                if len(self.read) > 1 << 16:
                    self.read.clear()
                self.read[key] = numbers
            values[name] = numbers
            routed = routed or name == "route"
        if not routed:
            raise _wrong(f"{operation} needs a route: {self._routes(kind.form)}")
        if kind.host:
            values["arg"] = (self.argument(op),)
        return Issue(kind.form, values)

    def numbers(self, kind: DialectOperation, op: str, name: str, attribute: ir.Attribute) -> tuple[int, ...]:
        """The numbers of a field, which has room for them."""
        field = self.fields[op].get(name)
        if field is None:
            raise _wrong(f"{op} has no attribute {name}; it has {', '.join(self.fields[op])}")
        value = from_attribute(attribute)
        if name == "route" and kind.form.meaning is None:
            return (self.route(kind.form, value),)
        numbers = value if isinstance(value, tuple) else (value,)
        if not all(type(n) is int for n in numbers):
            raise _wrong(f"{op}: {name} is {attribute}, not a number")
        if len(numbers) != field.parts:
            raise _wrong(f"{op}: {name} has {field.parts} parts, not {len(numbers)}")
        for n in numbers:
            field.check(n, op)
        return numbers

    def route(self, form: InstructionFormat, value: Any) -> int:
        names = [route_name(r) for r in self.formats.routes(form.engine)]
        if value not in names:
            raise _wrong(f"{form.engine} has no route {value!r}: {self._routes(form)}")
        return names.index(value)

    def _routes(self, form: InstructionFormat) -> str:
        return ", ".join(map(route_name, self.formats.routes(form.engine)))

    @staticmethod
    def argument(op: ir.Operation) -> int:
        """The number of the kernel's argument that a copy takes."""
        value = next(iter(op.operands), None)
        if value is None or not isinstance(value.owner, ir.Block):
            raise _wrong(f"{op.name} takes an argument of the function first")
        return ir.BlockArgument(value).arg_number

    def check(self, kind: DialectOperation, op: ir.Operation) -> None:
        """UsageError for what the chip cannot do."""
        issue = self.issue(kind, op)
        self.counts(op.name, issue)
        memories = self.formats.listing.memories
        for a in accesses(self.formats, issue):
            if not 0 <= a.low <= a.high <= memories[a.memory].words:
                size = memories[a.memory].words
                raise _wrong(f"{op.name} touches words {a.low} to {a.high - 1} of {a.memory}, which has {size}")
        if kind.host:
            self.on_host(issue, op)
        for value in list(op.operands)[kind.host :]:
            self.engine_of(value, kind, op.name)

    @staticmethod
    def counts(name: str, issue: Issue) -> None:
        """Counts are at least one, and together no more than the dimension takes."""
        meaning = issue.form.meaning
        dims = [(d.name, d.limit) for d in meaning.dims] if meaning else [("count", 0), ("run", 0)]
        for dim, limit in dims:
            numbers = issue.values[dim]
            if min(numbers) < 1:
                raise _wrong(f"{name}: {dim} is {', '.join(map(str, numbers))}, it must be at least 1")
            if limit and prod(numbers) > limit:
                raise _wrong(f"{name}: {dim} is {prod(numbers)}, it takes at most {limit}")

    @staticmethod
    def on_host(issue: Issue, op: ir.Operation) -> None:
        size = _bytes_of(op.operands[0].type, op.name)
        low, high = walk(issue.values["count"], issue.values["host_stride"])
        low, high = issue["host"] + low, issue["host"] + high + issue["run"]
        if low < 0 or high > size:
            raise _wrong(f"{op.name} touches bytes {low} to {high - 1} of argument {issue['arg']}, which has {size}")

    def engine_of(self, value: ir.Value, kind: DialectOperation, name: str) -> str:
        """The engine whose token this is."""
        owner = value.owner
        other = None if isinstance(owner, ir.Block) else self.kinds.get(owner.name)
        if other is None:
            raise _wrong(f"{name} waits for a token that no instruction gives")
        if other.form.engine == kind.form.engine:
            raise _wrong(
                f"{name} waits for {owner.name} of its own engine {kind.form.engine}, which takes them in order anyway"
            )
        return other.form.engine

    # ---- a function ----

    def program(self, f: ir.Operation) -> ChipProgram:
        """The program of a function that is verified."""
        if f.operation.name != "func.func" or len(f.regions[0].blocks) != 1 or f.type.results:
            raise _wrong("a program is a function of one block without results", f.operation.name, "from mlir")
        block = f.regions[0].blocks[0]
        streams: dict[str, list[Issue]] = {e: [] for e in self.formats.engines}
        tokens: dict[ir.Value, tuple[str, int]] = {}
        *body, _ = block.operations
        for view in body:
            op = view.operation
            kind = self.kinds.get(op.name)
            if kind is None:
                raise _wrong(f"{op.name} is not of {self.formats.chip.name}", str(op), "from mlir")
            waits: dict[str, int] = {}
            for token in list(op.operands)[kind.host :]:
                engine, count = tokens[token]
                waits[engine] = max(waits.get(engine, 0), count)
            issue = self.issue(kind, op)
            stream = streams[kind.form.engine]
            stream.append(Issue(issue.form, issue.values, waits))
            tokens[op.result] = (kind.form.engine, len(stream))
        sizes = tuple(_bytes_of(a.type, f.name.value) for a in block.arguments)
        return ChipProgram(f.name.value, {e: tuple(s) for e, s in streams.items()}, sizes)


def _bytes_of(t: ir.Type, where: str) -> int:
    """The size of a kernel's argument."""
    byte = ir.IntegerType.get_signless(8, t.context)
    if not isinstance(t, ir.MemRefType) or t.element_type != byte or t.rank != 1 or not t.has_static_shape:
        raise _wrong(f"{where}: an argument is {t}, it must be memref<BYTESxi8>")
    return int(t.shape[0])
