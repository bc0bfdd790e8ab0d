"""The description of an operator that `tw.offload` passes to a user's predicate and builder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...support.dtypes import NUMPY

if TYPE_CHECKING:
    from torch_mlir import ir

    from ...tensor.kernel import Kernel

#: what an object of such a kernel begins with
MAGIC = b"tilewright.offload\n"


@dataclass(frozen=True)
class OffloadOperand:
    """A tensor that an operation reads or writes.

    `constant`: it is a weight, or another array of the model; builders find it as `value`, predicates do not.

    >>> str(OffloadOperand((6, 32), "f32")), OffloadOperand((6, 32), "f32").nbytes
    ('f32[6, 32]', 768)
    """

    shape: tuple[int, ...]
    dtype: str
    constant: bool = False
    value: np.ndarray | None = field(default=None, compare=False, repr=False)

    @property
    def numpy_dtype(self) -> np.dtype:
        return NUMPY[self.dtype]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.numpy_dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Operation:
    """An operator of level 2, as it is after all passes of that level.

    `name` is that of the `tw` dialect without ``tw.`` (``matmul``), `attributes` has all of its attributes, `operands`
    are in the order of the operator's declaration, None for an absent optional one. `nodes` are the names of the nodes
    of the model that it comes from.

    >>> o = Operation("relu", (OffloadOperand((2, 2), "f32"),), (OffloadOperand((2, 2), "f32"),))
    >>> str(o), o.reference(np.float32([[1, -1], [-2, 2]]))[0].tolist()
    ('relu(f32[2, 2]) -> f32[2, 2]', [[1.0, 0.0], [0.0, 2.0]])
    """

    name: str
    operands: tuple[OffloadOperand | None, ...]
    results: tuple[OffloadOperand, ...]
    attributes: Mapping[str, object] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()

    def reference(self, *operands: np.ndarray | None) -> list[np.ndarray]:
        """The results for these operands by the operator's NumPy meaning, which the compiler's own tests go by."""
        from ... import ops  # noqa: F401 (fills the table of operators)
        from ...ir.dialect import OPERATORS, as_list

        made = as_list(OPERATORS[self.name].reference(*operands, **self.attributes))
        return [np.asarray(a, r.numpy_dtype) for a, r in zip(made, self.results, strict=True)]

    def __str__(self) -> str:
        operands = ", ".join("none" if o is None else str(o) for o in self.operands)
        return f"{self.name}({operands}) -> {', '.join(map(str, self.results))}"


# ---- from the compiler ---------------------------------------------------------------------------------------------


def of_level2(op: ir.Operation) -> Operation:
    """An operation of a level-2 graph."""
    from torch_mlir import ir

    from ...codegen.kernel_info import location_names
    from ...ir import dialect
    from ...ir.types import type_of

    def operand(v: ir.Value) -> OffloadOperand:
        t = type_of(v)
        return OffloadOperand(t.dims, t.dtype, not isinstance(v.owner, ir.Block) and v.owner.name == "tw.constant")

    operands = tuple(None if v is None else operand(v) for v in dialect.arguments(op))
    results = tuple(map(operand, op.results))
    return Operation(op.name[3:], operands, results, dialect.attributes(op), location_names(op.location))


@dataclass(frozen=True)
class OperationArguments:
    """An operation, and which argument of its kernel each operand and result is (None: absent)."""

    operation: Operation
    operands: tuple[int | None, ...]
    results: tuple[int, ...]

    @staticmethod
    def of(kernel: Kernel) -> OperationArguments:
        """Those of a kernel that is one operator."""
        o = kernel.opaque
        assert o is not None and not kernel.stages
        place = {p.name: n for n, p in enumerate(kernel.params)}

        def operand(name: str, dtype: str) -> OffloadOperand:
            return OffloadOperand(kernel.buffer(name).shape, dtype, name in kernel.constants)

        operands = tuple(
            None if n is None or t is None else operand(n, t) for n, t in zip(o.operands, o.dtypes, strict=True)
        )
        results = tuple(operand(n, t) for n, t in zip(o.results, o.made, strict=True))
        made = Operation(o.mnemonic, operands, results, o.attributes)
        given = tuple(None if n is None else place[n] for n in o.operands)
        return OperationArguments(made, given, tuple(place[n] for n in o.results))

    def to_bytes(self) -> bytes:
        return MAGIC + json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> OperationArguments:
        """What `to_bytes` wrote.

        >>> o = Operation("sum", (OffloadOperand((4, 2), "f32"), None), (OffloadOperand((4,), "f32"),), {"axes": (1,)})
        >>> a = OperationArguments(o, (0, None), (1,))
        >>> OperationArguments.from_bytes(a.to_bytes()) == a
        True
        """
        read = json.loads(data.removeprefix(MAGIC), object_hook=lambda d: {k: _tuples(v) for k, v in d.items()})
        o = read["operation"]
        operands = tuple(None if x is None else OffloadOperand(**x) for x in o["operands"])
        results = tuple(OffloadOperand(**x) for x in o["results"])
        operation = Operation(o["name"], operands, results, o["attributes"], o["nodes"])
        return OperationArguments(operation, read["operands"], read["results"])

    def with_values(self, arrays: Mapping[int, np.ndarray], nodes: tuple[str, ...]) -> Operation:
        """The operation of one call, with its constants by argument."""
        pairs = zip(self.operation.operands, self.operands, strict=True)
        operands = tuple(
            replace(o, constant=True, value=view(arrays[n], o)) if o and n is not None and n in arrays else o
            for o, n in pairs
        )
        return replace(self.operation, operands=operands, nodes=nodes)


def view(memory: np.ndarray, operand: OffloadOperand) -> np.ndarray:
    """The bytes of an argument as the array that it is."""
    return memory.view(operand.numpy_dtype).reshape(operand.shape)


def _tuples(v: object) -> object:
    return tuple(map(_tuples, v)) if isinstance(v, list) else v
