"""The walk over the operators of a StableHLO program, which become those of `ops/`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch_mlir import ir

from ....graph.dce import Dce
from ....graph.rewrite import uses
from ....ir.graph import Graph, from_dense
from ....ir.graph_builder import Maker
from ....ir.types import NUMPY, Type
from ....support.budget import Counter
from ....support.errors import CompileError, ModelError
from ...failures import FAILED, ImportFailure, NotImported, report
from . import families as families
from . import registry
from .node import HloEmitter, HloOp, place_of
from .values import Complex, HloTensor, element_of, known_tensor

HINT = "docs/jax.md lists what is imported; an operator is one function in frontends/mlir/stablehlo/"
RETURNS = ("stablehlo.return", "func.return")
#: functions that call functions, so deep
MAX_CALLS = 64
_LABEL = re.compile(r'^loc\("([^"]+)"(?:\)|\()')


class StableHloImporter:
    """Makes a graph of blocks of a module, with these inputs; `functions` are the bodies of its functions."""

    def __init__(self, functions: Mapping[str, ir.Block], inputs: Sequence[tuple[str, Type]]) -> None:
        self.functions = functions
        self.make = Maker(inputs)
        self.emitter = HloEmitter(self.make)
        self.inputs = {
            name: HloTensor(self.emitter, t, v) for (name, t), v in zip(inputs, self.make.inputs, strict=True)
        }
        self.values: dict[ir.Value, Any] = {}
        self.failures: list[ImportFailure] = []
        #: operators that were imported, those of loops in each step
        self.walked = 0
        self._counter, self._depth = Counter(), 0
        self._calls: list[str] = []
        self._lifted = False

    # ---- what nodes ask (`node.StableHloImportContext`) ----

    def walk(self, block: ir.Block, given: Sequence[Any]) -> list[Any]:
        """What a block returns for these arguments."""
        for argument, value in zip(block.arguments, given, strict=True):
            self.values[argument] = value
        self._depth += 1
        try:
            for view in block.operations:
                op = view.operation
                if op.name in RETURNS:
                    return [self.values[v] for v in op.operands]
                self.step(op)
        finally:
            self._depth -= 1
        return []

    def lifted(self, block: ir.Block, given: Sequence[HloTensor]) -> list[Any]:
        """What the body of a reduction, a comparison ... gives for tensors of any shape in place of its numbers."""
        before, self._lifted, failed = self._lifted, True, len(self.failures)
        try:
            made = self.walk(block, given)
        finally:
            self._lifted = before
        if len(self.failures) > failed:
            first = self.failures[failed]
            del self.failures[failed:]
            raise NotImported(f"with {first.operator} in its body" + (f": {first.reason}" if first.reason else ""))
        return made

    def function(self, name: str) -> ir.Block:
        """The body of a function; ModelError if there is none, or if it calls itself."""
        if name not in self.functions:
            raise ModelError(f"there is no function @{name}", stage="import")
        if len(self._calls) > MAX_CALLS or name in self._calls:
            raise ModelError(f"function @{name} calls itself, or calls are nested too deep", stage="import")
        return self.functions[name]

    def call(self, name: str, given: Sequence[Any]) -> list[Any]:
        """What a function returns."""
        block = self.function(name)
        self._calls.append(name)
        try:
            return self.walk(block, given)
        finally:
            self._calls.pop()

    def capture(self, op: ir.Operation) -> None:
        """Bring the values that regions of an operator take from outside into the graph in front of it: what enters the
        graph in a region is not there after it."""
        for v in uses(op):
            for x in (found.re, found.im) if isinstance(found := self.values[v], Complex) else (found,):
                if isinstance(x, HloTensor):
                    _ = x.ssa

    # ---- one operator ----

    def step(self, op: ir.Operation) -> None:
        """Import one operator; failures are collected."""
        self.walked += 1
        self._counter.add(f"{op.name} {place_of(op)}" if self._depth <= 1 else "", self._depth <= 1)
        given = [self.values[v] for v in op.operands]
        if any(v is FAILED for v in given):
            made: list[Any] = [FAILED] * len(op.results)
        else:
            try:
                made = self._imported(op, given)
            except NotImported as e:
                self.failures.append(ImportFailure(label(op), place_of(op), str(e)))
                made = [FAILED] * len(op.results)
        for result, value in zip(op.results, made, strict=True):
            self.values[result] = value

    def _imported(self, op: ir.Operation, given: list[Any]) -> list[Any]:
        dialect, _, name = op.name.partition(".")
        if op.name == "func.call":
            return self.call(ir.FlatSymbolRefAttr(op.attributes["callee"]).value, given)
        if dialect != "stablehlo" and op.name != "arith.constant":
            raise NotImported(f"operators of the dialect {dialect} do not mix with StableHLO")
        if self._lifted and not registry.is_elementwise(name):
            raise NotImported("in the body of another operator")
        node = HloOp(self, self.emitter, op, name)
        if name == "constant":
            return [constant(node)]
        function = registry.find(name)
        is_complex = not op.regions and _touches_complex(op, given)
        if is_complex:
            made = self._complex(node, name, function, given)
        elif function is None:
            raise NotImported("")
        else:
            made = function(node, *given)
        results = list(made) if isinstance(made, (list, tuple)) else [made]
        if not self._lifted:
            _check(node, results)
        return results

    def _complex(self, node: HloOp, name: str, function: Any, given: list[Any]) -> Any:
        own = registry.find_complex(name)
        if own is not None:
            return own(node, *given)
        if not registry.is_by_parts(name) or function is None:
            raise NotImported("of complex numbers")
        sides = [
            function(node, *[getattr(v, side) if isinstance(v, Complex) else v for v in given]) for side in ("re", "im")
        ]
        if isinstance(sides[0], HloTensor):
            return Complex(*sides)
        return [Complex(a, b) if b is not None else a for a, b in zip(*sides, strict=True)]

    # ---- the graph ----

    def graph(self, results: Sequence[tuple[str, Any]]) -> Graph:
        """The graph with these results; UnsupportedError lists everything that was not imported."""
        self.raise_failures()
        for name, value in results:
            if not isinstance(value, HloTensor):
                self.failures.append(
                    ImportFailure("return", name, "complex results: return their real and imaginary parts")
                )
        self.raise_failures()
        graph = self.make.finish([(name, value.ssa) for name, value in results])
        if self.make.controls:  # the first steps of loops that turned out not to be unrolled
            Dce().run(graph)
        return graph

    def raise_failures(self) -> None:
        if self.failures:
            raise report(self.failures, HINT)


def label(op: ir.Operation) -> str:
    """What errors call an operator: its name, and that of what it calls."""
    name = op.name.removeprefix("stablehlo.")
    target = op.attributes.get("call_target_name")
    return name if target is None else f"{name} @{ir.StringAttr(target).value}"


def _touches_complex(op: ir.Operation, given: Sequence[Any]) -> bool:
    if any(isinstance(v, Complex) for v in given):
        return True
    return any(isinstance(r.type, ir.RankedTensorType) and "complex<" in str(r.type) for r in op.results)


def _check(node: HloOp, results: Sequence[Any]) -> None:
    """CompileError for results of other types than the operator says: a fault of its import function."""
    for result, value in zip(node.op.results, results, strict=True):
        if isinstance(value, (HloTensor, Complex)):
            expected, is_complex = element_of(result.type)
            if value.type != expected or is_complex != isinstance(value, Complex):
                raise CompileError(
                    f"the import of stablehlo.{node.name} gives {value.type}, its result is {result.type}",
                    stage="import",
                    operator=node.place,
                )


def constant(n: HloOp) -> HloTensor | Complex:
    """A tensor that the program has written in it; one number for all elements is kept as that."""
    t, is_complex = element_of(n.op.results[0].type)
    if is_complex:
        return _complex_constant(n, t)
    value = n.attribute("value")
    elements = ir.DenseElementsAttr(value)
    if elements.is_splat and t.size > 1:
        single = np.asarray(elements.get_splat_value().value).astype(NUMPY[t.dtype])
        return known_tensor(n, np.broadcast_to(single, t.dims))
    return known_tensor(n, from_dense(value, t))


_PAIR = re.compile(r"\(\s*([^\s,()]+)\s*,\s*([^\s,()]+)\s*\)")
_HEX = re.compile(r'dense<"0x([0-9A-Fa-f]*)">')


def _complex_constant(n: HloOp, t: Type) -> Complex:
    """The bindings do not read complex elements: they are taken from the printed form."""
    n.need(t.dtype in ("f32", "f64"), f"a complex constant of {t.dtype}")
    text, kind = str(n.op), NUMPY[t.dtype]
    if (packed := _HEX.search(text)) is not None:
        numbers = np.frombuffer(bytes.fromhex(packed[1]), kind).reshape(-1, 2)
    else:
        numbers = np.array([[_number(v, kind) for v in pair] for pair in _PAIR.findall(text)], kind).reshape(-1, 2)
    n.need(len(numbers) in (1, t.size), "a complex constant that is not written as numbers")
    parts = [np.broadcast_to(numbers[:, i], (t.size,)).reshape(t.dims) for i in range(2)]
    return Complex(known_tensor(n, parts[0]), known_tensor(n, parts[1]))


def _number(text: str, kind: np.dtype) -> Any:
    """A float as MLIR prints it: infinities and NaNs by their bits."""
    if text.startswith("0x"):
        return np.array(int(text, 16), f"u{kind.itemsize}").view(kind)[()]
    return float(text)


def name_of(value: ir.Value) -> str:
    """The name that the location of an argument gives it, "" if it gives none."""
    found = _LABEL.match(str(value.location))
    return found[1] if found is not None else ""
