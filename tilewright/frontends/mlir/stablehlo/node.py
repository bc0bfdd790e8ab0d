"""The operator of StableHLO that is being imported, as the import functions see it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch_mlir import ir

from ....ir import dialect
from ....ir.graph_builder import Maker
from ....ir.types import NUMPY, Type, type_of
from ....support.errors import OpError
from ...failures import NotImported
from ...moves import Moves
from .values import Complex, HloTensor, element_of, known_tensor

if TYPE_CHECKING:
    import numpy.typing as npt

#: results of known tensors are known up to this size: trip counts, positions, tables
FOLDED = 4096
_NAME = re.compile(r'loc\("([^"]+)"(?!:\d)')
_FILE = re.compile(r'"([^"]+)":(\d+)(?::\d+)?')


class HloEmitter(Moves):
    """The means to append `tw` operators: ``n("add", x, y)``. Numbers mix in as constants of the dtype of the first
    tensor. Operators of small tensors that are all known are computed at once, by their references."""

    def __init__(self, make: Maker, place: str = "") -> None:
        self.make, self.place = make, place
        #: operators appended by all emitters of the import
        self.count = [0]

    def __call__(self, operator: str, *operands: HloTensor | float | None, **attributes: Any) -> Any:
        first = next((v for v in operands if isinstance(v, HloTensor)), None)
        values: list[HloTensor | None] = []
        for v in operands:
            if isinstance(v, (int, float)) and first is not None:
                v = self.tensor(v, first.dtype)
            assert v is None or isinstance(v, HloTensor)
            values.append(v)
        if (known := self._folded(operator, values, attributes)) is not None:
            return known if dialect.OPERATORS[operator].multiple else known[0]
        self.count[0] += 1
        given = [None if v is None else v.ssa for v in values]
        made = self.make(operator, *given, place=self.place, **attributes)
        if isinstance(made, list):
            return [HloTensor(self, type_of(r), r) for r in made]
        return HloTensor(self, type_of(made), made)

    def _folded(
        self, operator: str, values: Sequence[HloTensor | None], attributes: dict[str, Any]
    ) -> list[HloTensor] | None:
        """The results of an operator of known tensors, None where they are not, or are large."""
        arrays = [None if v is None else v.array for v in values]
        if not all(v is None or v.array is not None for v in values) or operator in ("random", "arange"):
            return None
        if any(a is not None and any(a.strides) and a.size > FOLDED for a in arrays):
            return None
        cls = dialect.OPERATORS[operator]
        full = {**cls.attributes, **attributes}
        try:
            types = dialect.infer(cls, [None if v is None else v.type for v in values], full)
        except OpError:
            return None  # the maker says what is wrong
        if any(t.size > FOLDED for t in types) and operator != "expand":
            return None
        with np.errstate(all="ignore"):
            made = dialect.as_list(cls.reference(*arrays, **full))
        return [
            known_tensor(self, np.asarray(a).astype(NUMPY[t.dtype], copy=False))
            for a, t in zip(made, types, strict=True)
        ]

    def constant(self, array: npt.ArrayLike, dtype: str | None = None) -> HloTensor:
        """A tensor that is known."""
        return known_tensor(self, np.asarray(array, NUMPY[dtype] if dtype else None))

    def full(self, shape: Sequence[int], number: float, dtype: str) -> HloTensor:
        """A tensor of one number."""
        return known_tensor(self, np.broadcast_to(np.array(number).astype(NUMPY[dtype]), tuple(shape)))

    def tensor(self, x: HloTensor | float, dtype: str) -> HloTensor:
        """A tensor, or a number as one, of this dtype."""
        return self.cast(x, dtype) if isinstance(x, HloTensor) else self.constant(np.array(x).astype(NUMPY[dtype]))

    def places(self, size: int, dtype: str = "i64") -> HloTensor:
        """0, 1, 2 ... below `size`."""
        if size <= FOLDED:
            return self.constant(np.arange(size), dtype)
        return self.cast(self("arange", count=size, start=0, step=1, dtype="i64"), dtype)

    def need(self, condition: object, why: str) -> None:
        """NotImported unless the condition holds."""
        if not condition:
            raise NotImported(why)

    def narrowed(self, x: HloTensor, axis: int, start: int, size: int) -> HloTensor:
        """`slice` that takes rows of what loops wrote row by row."""
        found = x.within(axis, start, size) if x.pieces else None
        return found if found is not None else self.slice(x, axis, start, size)


class StableHloImportContext(Protocol):
    """What a node asks of the importer."""

    walked: int

    def walk(self, block: ir.Block, given: Sequence[Any]) -> list[Any]: ...

    def lifted(self, block: ir.Block, given: Sequence[HloTensor]) -> list[Any]: ...

    def call(self, name: str, given: Sequence[Any]) -> list[Any]: ...

    def capture(self, op: ir.Operation) -> None: ...


class HloOp(HloEmitter):
    """One operator of StableHLO."""

    def __init__(self, importer: StableHloImportContext, emitter: HloEmitter, op: ir.Operation, name: str) -> None:
        super().__init__(emitter.make, place_of(op))
        self.importer, self.op, self.name, self.count = importer, op, name, emitter.count

    # ---- its results ----

    @property
    def type(self) -> Type:
        """The type of the first result; of a complex one that of its parts."""
        return self.types[0]

    @property
    def types(self) -> list[Type]:
        return [element_of(r.type)[0] for r in self.op.results]

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.dims

    # ---- its attributes ----

    def attribute(self, name: str) -> Any:
        """An attribute as MLIR has it, None if it is not there."""
        return self.op.attributes.get(name)

    def numbers(self, name: str, default: Sequence[int] = ()) -> list[int]:
        """A list of integers, or a table of them row by row."""
        found = self.attribute(name)
        if found is None:
            return list(default)
        if isinstance(found, ir.DenseI64ArrayAttr):
            return list(found)
        return [int(v) for v in ir.DenseIntElementsAttr(found)]

    def number(self, name: str, default: int = 0) -> int:
        """An integer."""
        found = self.attribute(name)
        return default if found is None else ir.IntegerAttr(found).value

    def flags(self, name: str, count: int) -> list[bool]:
        """A list of truth values, all False if it is not there."""
        found = self.attribute(name)
        return [False] * count if found is None else [bool(v) for v in ir.DenseBoolArrayAttr(found)]

    def text(self, name: str) -> str:
        """A string."""
        return ir.StringAttr(self.attribute(name)).value

    def block(self, index: int = 0) -> ir.Block:
        """The block of one of its regions."""
        return self.op.regions[index].blocks[0]

    def wide(self, f: Callable[..., HloTensor], *xs: HloTensor) -> Any:
        """``f(n, *xs)``, a formula of several operators: of halves in f32."""
        dtype = xs[0].dtype
        work = "f32" if dtype in ("f16", "bf16") else dtype
        return self.cast(f(self, *[self.cast(x, work) for x in xs]), dtype)


def place_of(op: ir.Operation) -> str:
    """Where an operator comes from, as its location says: ``jit(f)/dot_general (model.py:12)``."""
    text = str(op.location)
    name, file = _NAME.search(text), _FILE.search(text)
    where = "" if file is None else f"{os.path.basename(file[1])}:{file[2]}"
    if file is not None and file[1] == "-":  # MLIR text without names
        where = f"line {file[2]}"
    if name is None:
        return where
    return f"{name[1]} ({where})" if where else name[1]


def real(x: HloTensor | Complex) -> HloTensor:
    """NotImported for complex tensors."""
    if isinstance(x, Complex):
        raise NotImported("of complex numbers")
    return x
