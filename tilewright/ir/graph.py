"""A graph: an MLIR module of level 2 or 3 together with the constants it refers to."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch_mlir import ir

from ..support.dtypes import NUMPY
from ..support.errors import ModelError
from ..support.lazy_array import LazyArray, Stored
from ..support.notebook import NotebookText, fragment
from ..support.numbers import count
from . import dialect
from .constants import ConstantTable
from .context import parse, use
from .types import Type, from_array, signless, type_of

#: constants up to this many elements are written into the IR, where people and patterns can see them
INLINE_ELEMENTS = 16


@dataclass
class Graph:
    """A module with one public function ``@main`` and its constants.

    The arguments and results of ``@main`` carry their source names in the attribute ``tw.name`` and, from level 3 on
    where integers are signless, their dtype in ``tw.dtype``.
    """

    module: ir.Module
    constants: ConstantTable = field(default_factory=ConstantTable)

    # ---- the entry function ----

    @property
    def main(self) -> ir.OpView:
        """The ``func.func @main``."""
        for op in self.module.body.operations:
            if op.operation.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value == "main":
                return op
        raise ModelError("the module has no function @main", stage="parse", hint="MLIR's own passes run on any module")

    @property
    def block(self) -> ir.Block:
        return self.main.regions[0].blocks[0]

    def functions(self) -> list[ir.OpView]:
        """The functions other than @main: the kernels, once a graph is fused."""
        return [
            op
            for op in self.module.body.operations
            if op.operation.name == "func.func" and ir.StringAttr(op.attributes["sym_name"]).value != "main"
        ]

    @property
    def level(self) -> int:
        """2 if @main holds `tw` operators that are not yet lowered, else 3 (linalg, or calls of kernels)."""
        names = {op.operation.name for op in self.block.operations}
        return 2 if not names or all(n.startswith("tw.") or n == "func.return" for n in names) else 3

    def inputs(self) -> list[tuple[str, Type]]:
        """Name and type of every argument of @main."""
        return self._signature("arg_attrs", [a.type for a in self.block.arguments], "arg")

    def outputs(self) -> list[tuple[str, Type]]:
        """Name and type of every result of @main."""
        results = self.block.operations[len(self.block.operations) - 1].operands
        return self._signature("res_attrs", [r.type for r in results], "out")

    def _signature(self, attribute: str, types: list[ir.Type], prefix: str) -> list[tuple[str, Type]]:
        attrs = self.main.attributes
        dicts = list(attrs[attribute]) if attribute in attrs else [{}] * len(types)
        out = []
        for i, (t, d) in enumerate(zip(types, dicts, strict=True)):
            name = ir.StringAttr(d["tw.name"]).value if "tw.name" in d else f"{prefix}{i}"
            dtype = ir.StringAttr(d["tw.dtype"]).value if "tw.dtype" in d else type_of(t).dtype
            out.append((name, type_of(t).with_dtype(dtype)))
        return out

    def sign(self, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Give @main the types of its arguments and of what it returns, and these names."""
        block, main = self.block, self.main
        types = (
            [a.type for a in block.arguments],
            [v.type for v in block.operations[len(block.operations) - 1].operands],
        )
        main.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
        for key, names in (("arg_attrs", inputs), ("res_attrs", outputs)):
            main.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get({"tw.name": ir.StringAttr.get(n)}) for n in names])

    # ---- constants ----

    def constant(self, array: Stored | np.generic, hint: str = "c", location: ir.Location | None = None) -> ir.Value:
        """Append a `tw.constant` holding `array` at the current insertion point."""
        if not isinstance(array, LazyArray) or array.size <= INLINE_ELEMENTS:
            array = np.asarray(array)
        return self.constant_like(
            array, None if array.size <= INLINE_ELEMENTS else self.constants.add(array, hint), location
        )

    def constant_like(
        self, array: Stored, symbol: str | None, location: ir.Location | None = None, *, signless_ints: bool = False
    ) -> ir.Value:
        """Append a `tw.constant`: a reference to `symbol`, or the values themselves where symbol is None."""
        t = from_array(array)
        mlir_type = t.mlir(signless_ints=signless_ints)
        attrs = {"symbol": ir.StringAttr.get(symbol)} if symbol else {"value": dense(np.asarray(array), mlir_type)}
        return ir.Operation.create("tw.constant", results=[mlir_type], attributes=attrs, loc=location).results[0]

    def constant_value(self, value: ir.Value | None) -> np.ndarray | None:
        """The array behind a value made by `tw.constant`, None for every other value."""
        stored = self.stored_constant(value)
        return None if stored is None else np.asarray(stored)

    def stored_constant(self, value: ir.Value | None) -> Stored | None:
        """As `constant_value`; an array that is computed when it is read, as it is."""
        if value is None or isinstance(value.owner, ir.Block) or value.owner.name != "tw.constant":
            return None
        attrs = value.owner.attributes
        if "symbol" in attrs:
            return self.constants.stored(ir.StringAttr(attrs["symbol"]).value)
        return from_dense(attrs["value"], type_of(value))

    def operations(self) -> Iterator[ir.Operation]:
        """The operations of @main in order (a snapshot: safe against edits while iterating)."""
        yield from [op.operation for op in self.block.operations]

    # ---- text and files ----

    def text(self) -> NotebookText:
        """The module as MLIR text with locations."""
        return NotebookText(self.module.operation.get_asm(enable_debug_info=True, use_local_scope=False))

    def __repr__(self) -> str:
        with use():
            inputs, outputs = ("; ".join(f"{n}: {t}" for n, t in found) for found in (self.inputs(), self.outputs()))
            more = count(sum(1 for _ in self.operations()), "operation")
        return (
            f"<Graph of level {self.level} ({inputs}) -> ({outputs}), {more}, {count(len(self.constants), 'constant')}>"
        )

    def _repr_html_(self) -> str:
        """For notebooks: what it takes and gives; the text unfolds."""
        with use():
            found = {"input": self.inputs(), "output": self.outputs()}
            rows = [(kind, name, str(t)) for kind, pairs in found.items() for name, t in pairs]
            return fragment(f"graph of level {self.level}", rows, self.text(), "MLIR")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write ``NAME.mlir`` and, if there are constants outside the IR, ``NAME.constants`` beside it."""
        path = Path(path)
        if len(self.constants):
            self.constants.save(path.with_suffix(".constants"))
        path.write_text(self.text())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Graph:
        """Read what `save` wrote; ModelError if either file is damaged."""
        path = Path(path)
        module = parse(read_text(path), str(path))
        side = path.with_suffix(".constants")
        graph = Graph(module, ConstantTable.load(side) if side.exists() else ConstantTable())
        graph.check_symbols(str(path))
        return graph

    def check_symbols(self, source: str) -> None:
        """ModelError if the module refers to a constant that the table does not have, or has with another type."""
        missing: list[str] = []
        other: list[str] = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name == "tw.constant" and "symbol" in op.attributes:
                symbol = ir.StringAttr(op.attributes["symbol"]).value
                if symbol not in self.constants:
                    missing.append(symbol)
                elif not _same_type(self.constants[symbol], type_of(op.results[0])):
                    own = from_array(self.constants[symbol])
                    other.append(f"{symbol!r} of type {type_of(op.results[0])}, the file has {own}")
            return ir.WalkResult.ADVANCE

        self.module.operation.walk(visit)
        if missing:
            raise ModelError(
                f"{source} refers to constant {missing[0]!r}, which is not in its constant file",
                stage="parse",
                hint="keep NAME.constants beside NAME.mlir",
            )
        if other:
            raise ModelError(f"{source} refers to constant {other[0]}", stage="parse")

    def verify(self, stage: str = "verify") -> None:
        """MLIR's verifier, then the type rules of all `tw` operators; CompileError says what is wrong where."""
        with use():
            dialect.verify(self.module.operation, stage=stage)

    def clone(self) -> Graph:
        """A copy that shares the arrays but not the table or the module."""
        with use():
            text = self.module.operation.get_asm(enable_debug_info=True)
            return Graph(ir.Module.parse(text), self.constants.copy())


def read_text(path: Path) -> str:
    """The text of a file of IR; ModelError if it cannot be read as text."""
    try:
        return path.read_text()
    except OSError as e:
        raise ModelError(f"cannot read {path}: {e.strerror or e}", stage="parse") from None
    except UnicodeDecodeError:
        raise ModelError(f"{path} is not text, so it is not MLIR text", stage="parse") from None


def _same_type(array: np.ndarray, t: Type) -> bool:
    """Level 3 has signless integers, its constant files keep the sign."""
    own = from_array(array)
    return own.shape == t.shape and t.dtype in (own.dtype, signless(own.dtype))


def dense(array: np.ndarray, mlir_type: ir.Type) -> ir.Attribute:
    """A DenseElementsAttr of any dtype."""
    array = np.ascontiguousarray(array)
    if array.size == 0:
        return ir.Attribute.parse(f"dense<> : {mlir_type}")
    element = ir.RankedTensorType(mlir_type).element_type
    if array.dtype == np.bool_:
        return ir.DenseElementsAttr.get([ir.IntegerAttr.get(element, int(v)) for v in array.reshape(-1)], mlir_type)
    if str(array.dtype) == "bfloat16":
        array = array.view(np.uint16)
    return ir.DenseElementsAttr.get(array, type=mlir_type)


def from_dense(attr: ir.Attribute, t: Type) -> np.ndarray:
    """The array of a DenseElementsAttr."""
    dtype = NUMPY[t.dtype]
    if t.size == 0:
        return np.zeros(t.dims, dtype)
    elements = ir.DenseElementsAttr(attr)
    if elements.is_splat:
        return np.full(t.dims, elements.get_splat_value().value, dtype)
    if t.dtype == "i1":
        return np.array(list(ir.DenseIntElementsAttr(attr)), dtype).reshape(t.dims)
    if t.dtype == "bf16":  # the bindings cannot read bfloat16 elements: take them from the printed form
        numbers = str(attr)[len("dense<") : str(attr).rindex(">", 0, str(attr).rindex(" : "))]
        values = [_bfloat16(x) for x in numbers.replace("[", "").replace("]", "").split(",")]
        return np.array(values, dtype).reshape(t.dims)
    return np.array(elements).view(dtype).reshape(t.dims)


def _bfloat16(text: str) -> float:
    text = text.strip()
    if text.startswith("0x"):  # infinities and NaNs print as bit patterns
        return float(np.array([int(text, 16)], np.uint16).view(NUMPY["bf16"])[0])
    return float(text)
