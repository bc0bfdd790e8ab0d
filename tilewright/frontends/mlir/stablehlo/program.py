"""A StableHLO module as a program: what goes in and out, and its graph."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from torch_mlir import ir

from ....ir.context import run_passes, use
from ....ir.graph import Graph
from ....ir.types import Type
from ....support.budget import Counter
from ....support.errors import CompileError, ModelError, UnsupportedError, UsageError
from ....support.sizes import is_open
from ...failures import NotImported
from .importer import StableHloImporter, name_of
from .refine import refine
from .values import element_of, known_tensor

#: names that JAX gives results, and arguments that are numbers of the platform
RESULT, GLOBAL = "jax.result_info", "jax.global_constant"
#: what graphs and saved programs call an argument
NAME = "tw.name"


class StableHloProgram:
    """A module whose calls are inlined. `source` is what errors call it. `platform`: the number of ours among those
    that the module was made for, where it asks for that."""

    def __init__(self, module: ir.Module, source: str, platform: int | None = None) -> None:
        self.module, self.source, self.platform = module, source, platform
        names = _names(_functions(module), source)
        _check_calls(_functions(module), source)
        run_passes(module, "builtin.module(inline)", stage="import")
        self.functions = _functions(module)
        self.block = self.functions["main"]
        self.main = self.block.owner
        #: of the arguments of @main, "" for those that have none; the module keeps them
        self._names = [self._information("arg_attrs", i, NAME) or n for i, n in enumerate(names)]
        with use():
            self._sign()

    def _sign(self) -> None:
        """Write the names of the arguments into the module."""
        attributes, count = self.main.attributes, len(self.block.arguments)
        kept = attributes["arg_attrs"] if "arg_attrs" in attributes else [{}] * count
        named = []
        for name, own in zip(self._names, kept, strict=True):
            given = {a.name: a.attr for a in ir.DictAttr(own)} if own else {}
            named.append(ir.DictAttr.get({**given, **({NAME: ir.StringAttr.get(name)} if name else {})}))
        attributes["arg_attrs"] = ir.ArrayAttr.get(named)

    # ---- what goes in and out ----

    @property
    def used_arguments(self) -> list[int]:
        """The positions of arguments that the caller gives."""
        return [i for i in range(len(self.block.arguments)) if not self._is_platform(i)]

    def _is_platform(self, position: int) -> bool:
        found = self._information("arg_attrs", position, GLOBAL)
        return self.platform is not None and found == "_platform_index"

    @property
    def open(self) -> bool:
        """Whether sizes of arguments are open."""
        return any(not ir.RankedTensorType(self.block.arguments[i].type).has_static_shape for i in self.used_arguments)

    def inputs(self) -> list[tuple[str, Type]]:
        """Name and type of every argument, with None for open sizes; UnsupportedError for what is no tensor."""
        names = _unique([self._names[i] for i in self.used_arguments], "arg")
        return [(n, self._type(self.block.arguments[i], n)) for n, i in zip(names, self.used_arguments, strict=True)]

    def outputs(self) -> list[tuple[str, Type]]:
        """Name and type of every result."""
        end = self.block.operations[len(self.block.operations) - 1].operation
        found = [self._information("res_attrs", i, RESULT) for i in range(len(end.operands))]
        return [(n, self._type(v, n)) for n, v in zip(_unique(found, "out"), end.operands, strict=True)]

    def _information(self, table: str, position: int, key: str) -> str:
        attributes = self.main.attributes
        if table not in attributes:
            return ""
        found = ir.DictAttr(ir.ArrayAttr(attributes[table])[position])
        return ir.StringAttr(found[key]).value if key in found else ""

    def _type(self, value: ir.Value, name: str) -> Type:
        if isinstance(value.type, ir.RankedTensorType):
            tensor = ir.RankedTensorType(value.type)
            if not tensor.has_static_shape:
                dims = tuple(None if tensor.is_dynamic_dim(i) else d for i, d in enumerate(tensor.shape))
                with use():
                    fixed = ir.RankedTensorType.get([1 if d is None else d for d in dims], tensor.element_type)
                return self._checked(fixed, name).with_shape(dims)
        return self._checked(value.type, name)

    def _checked(self, t: ir.Type, name: str) -> Type:
        try:
            found, is_complex = element_of(t)
        except NotImported as e:
            raise UnsupportedError(f"{name!r} of {self.source}: {e}", stage="import") from None
        if is_complex:
            raise UnsupportedError(
                f"{name!r} of {self.source} is complex ({t}): inputs and results are real",
                stage="import",
                hint="give and return real and imaginary parts",
            )
        return found

    # ---- its graph ----

    def graph(self) -> Graph:
        """The program as one graph; UnsupportedError lists what is not imported."""
        with use():
            self.need_fixed()
            importer = StableHloImporter(self.functions, self.inputs())
            values = iter(importer.inputs.values())
            arguments = [
                known_tensor(importer.emitter, np.array(self.platform, np.int32))
                if self._is_platform(i)
                else next(values)
                for i in range(len(self.block.arguments))
            ]
            results = importer.walk(self.block, arguments)
            return importer.graph([(n, v) for (n, _), v in zip(self.outputs(), results, strict=True)])

    def need_fixed(self) -> None:
        """UsageError with ``run_time`` if sizes are open."""
        if self.open:
            shown = ", ".join(f"{n}: {t}" for n, t in self.inputs() if not t.static)
            error = UsageError(
                f"the shapes of these inputs are not fixed: {shown}", stage="import", hint="pass inputs={name: shape}"
            )
            error.run_time = True
            raise error

    def fixed(self, shapes: Mapping[str, tuple[int, ...]]) -> StableHloProgram:
        """The program for these shapes of its arguments, by name; UsageError for those that do not fit."""
        inputs = self.inputs()
        if unknown := sorted(set(shapes) - {n for n, _ in inputs}):
            raise UsageError(
                f"{self.source} has no input {unknown[0]!r}",
                stage="import",
                hint=f"inputs: {', '.join(n for n, _ in inputs)}",
            )
        if is_open(*(d for shape in shapes.values() for d in shape)):
            raise UnsupportedError(
                "StableHLO programs are not compiled for ranges of sizes",
                stage="import",
                hint="leave them out: the program is compiled for the sizes that it is called with",
            )
        for name, t in inputs:
            if name in shapes and not _fits(t, shapes[name]):
                raise UsageError(f"input {name!r} is {t}, which is not of shape {tuple(shapes[name])}", stage="import")
        if not self.open or any(not t.static and n not in shapes for n, t in inputs):
            return self
        with use():
            text = self.module.operation.get_asm(enable_debug_info=True)
            copy = ir.Module.parse(text)
            sizes = dict(zip(self.used_arguments, [shapes.get(n, t.shape) for n, t in inputs], strict=True))
            types = []
            for i, argument in enumerate(self.block.arguments):
                t = ir.RankedTensorType(argument.type)
                types.append(ir.RankedTensorType.get(list(sizes[i]), t.element_type) if i in sizes else t)
            try:
                refine(copy, types)
            except CompileError as e:
                given = ", ".join(
                    f"{n} {tuple(sizes[i])}" for (n, _), i in zip(inputs, self.used_arguments, strict=True)
                )
                raise UsageError(
                    f"{self.source} is not a program for these shapes: {given}", stage="import", hint=e.message[:500]
                ) from None
            return StableHloProgram(copy, self.source, self.platform)


def _functions(module: ir.Module) -> dict[str, ir.Block]:
    """The bodies of its functions."""
    found = {}
    for op in module.body.operations:
        if op.operation.name == "func.func" and len(op.operation.regions[0].blocks) == 1:
            found[ir.StringAttr(op.operation.attributes["sym_name"]).value] = op.operation.regions[0].blocks[0]
    return found


def _check_calls(functions: Mapping[str, ir.Block], source: str) -> None:
    """ModelError for functions that call themselves, or that are too large once their calls are inlined."""
    sizes: dict[str, int] = {}
    limit = Counter().limit

    def size(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            raise ModelError(f"function @{name} of {source} calls itself", stage="import")
        if name not in sizes and name in functions:
            called: list[str] = []
            count = 0

            def visit(op: ir.Operation) -> ir.WalkResult:
                nonlocal count
                count += 1
                if op.name == "func.call":
                    called.append(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
                return ir.WalkResult.ADVANCE

            functions[name].owner.walk(visit)
            sizes[name] = count + sum(size(c, (*above, name)) for c in called)
        found = sizes.get(name, 0)
        if found > limit:
            raise ModelError(
                f"{source} has more than {limit} operators once its calls are inlined",
                stage="import",
                hint="allow more with the option operators (--operators)",
            )
        return found

    for name in functions:
        size(name, ())


def _names(functions: Mapping[str, ir.Block], source: str) -> list[str]:
    """The names of the arguments of @main: their own, or those that a function has for them which it is called with.

    (Of programs with open sizes @main checks these, and calls another function.)"""
    if "main" not in functions:
        raise ModelError(f"{source} has no function @main with one block", stage="import")
    block = functions["main"]
    found = {a: name_of(a) for a in block.arguments}
    for view in block.operations:
        if view.operation.name == "func.call":
            callee = functions.get(ir.FlatSymbolRefAttr(view.operation.attributes["callee"]).value)
            own = [] if callee is None else callee.arguments
            for given, argument in zip(view.operation.operands, own, strict=False):
                if not found.get(given, "given"):
                    found[given] = name_of(argument)
    return [found[a] for a in block.arguments]


def _fits(t: Type, shape: tuple[int, ...]) -> bool:
    return len(t.shape) == len(shape) and all(d is None or d == s for d, s in zip(t.shape, shape, strict=True))


def _unique(names: list[str], prefix: str) -> list[str]:
    """Names as they are if all of them are there once, else numbers."""
    if all(names) and len({*names}) == len(names) and not any(re.search(r"[\x00-\x1f]", n) for n in names):
        return names
    return [f"{prefix}{i}" for i in range(len(names))]


__all__ = ["StableHloProgram"]
