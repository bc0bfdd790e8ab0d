"""The node being imported, as the import functions see it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import AttributeProto
from torch_mlir import ir

from ...ir.types import NUMPY, is_float
from ...support.errors import ModelError
from ...support.sizes import decode, is_open
from ..moves import Moves
from .values import DataDependentNode, OnnxNotImported, OnnxValue, Partial, inputs_of

if TYPE_CHECKING:
    from .importer import OnnxImporter, Scope


class OnnxNode(Moves):
    """One ONNX node: its attributes, and the means to emit `tw` operators in its place.

    ``n("add", x, y)`` emits `tw.add` (a list of Values for operators with several results) at the node's location;
    numbers mix in as constants of the dtype of the first tensor. Operators on small known tensors are evaluated at
    once.
    """

    wraps = True

    def __init__(self, importer: OnnxImporter, proto: onnx.NodeProto, scope: Scope, name: str, opset: int) -> None:
        self.importer, self.proto, self.scope, self.name, self.opset = importer, proto, scope, name, opset
        self.location = ir.Location.name(name)
        self._attributes = {a.name: a for a in proto.attribute}

    @property
    def operator(self) -> str:
        """The ONNX name, with its domain if it has one."""
        return f"{self.proto.domain}.{self.proto.op_type}" if self.proto.domain else self.proto.op_type

    @property
    def label(self) -> str:
        """How errors name the node."""
        return f'{self.operator} "{self.name}"'

    def wants(self, i: int) -> bool:
        """Whether the node's output `i` has a name."""
        return i < len(self.proto.output) and bool(self.proto.output[i])

    # ---- attributes ----

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute as int, float, str, list of these, array (tensors) or GraphProto; `default` if it is absent."""
        a = self._attributes.get(name)
        if a is not None and a.ref_attr_name:  # in a function: an attribute of the call
            a = self.scope.attributes.get(a.ref_attr_name)
        if a is None:
            return default
        if a.type == AttributeProto.TENSOR:
            return self.importer.model.array(a.t)
        if a.type == AttributeProto.STRING:
            return a.s.decode()
        if a.type == AttributeProto.STRINGS:
            return [s.decode() for s in a.strings]
        field = {
            AttributeProto.FLOAT: "f",
            AttributeProto.INT: "i",
            AttributeProto.GRAPH: "g",
            AttributeProto.FLOATS: "floats",
            AttributeProto.INTS: "ints",
        }.get(a.type)
        if field is None:
            raise OnnxNotImported(f"attribute {name} has a type that is not supported")
        value = getattr(a, field)
        return list(value) if field in ("floats", "ints") else value

    def required(self, name: str) -> Any:
        """An attribute that must be there; ModelError otherwise."""
        value = self.attr(name)
        if value is None:
            raise self.error(f"attribute {name!r} is missing")
        return value

    # ---- emitting ----

    def __call__(self, operator: str, *operands: OnnxValue | float | None, **attributes: Any) -> Any:
        first = next((v for v in operands if isinstance(v, OnnxValue)), None)
        values: list[OnnxValue | None] = []
        for v in operands:
            if isinstance(v, (int, float)) and first is not None:
                v = self.size(v, first.dtype)  # type: ignore[arg-type]
            assert v is None or isinstance(v, OnnxValue)
            values.append(v)
        return self.importer.emit(self, operator, values, attributes)

    def constant(self, array: Any, dtype: str | None = None) -> OnnxValue:
        """A constant tensor."""
        return self.importer.constant(np.asarray(array, NUMPY[dtype] if dtype else None), self.name)

    def count(self, n: int, dtype: str = "i64", step: int = 1) -> OnnxValue:
        """0, step, 2 * step ...: n numbers."""
        if not is_open(n, step):
            return self.constant(np.arange(n) * step, dtype)
        return self.cast(self("arange", count=n, dtype="i64", start=0, step=step), dtype)

    def size(self, n: int, dtype: str) -> OnnxValue:
        """An integer, known at import or not, as a tensor without dimensions."""
        if is_open(n) and is_float(dtype):
            return self.cast(self.constant(np.array(n, np.int64)), dtype)
        return self.constant(np.array(n, NUMPY[dtype]))

    def zero(self, x: OnnxValue) -> OnnxValue:
        """0 of the dtype of x."""
        return self.like(x, 0)

    def like(self, x: OnnxValue, number: float) -> OnnxValue:
        """A number of the dtype of x, without dimensions."""
        return self.size(number, x.dtype)  # type: ignore[arg-type]

    # ---- what must be known at import ----

    def known(self, x: OnnxValue | None, what: str) -> np.ndarray:
        """The array of an input that must be constant; the node counts as unsupported otherwise."""
        array = self.opt(x, what)
        if array is None:
            raise self.error(f"input {what!r} is missing")
        return array

    def opt(self, x: OnnxValue | None, what: str) -> np.ndarray | None:
        """`known` for an optional input: None if it is absent."""
        if x is None:
            return None
        array, question = x.known(), self.importer.question(what)
        if array is None:
            array = self.importer.answer(question, x)
        if array is None:
            raise self.needs(x, f"{what} is computed from the model's inputs, but has to be constant", question)
        return array

    def ints(self, x: OnnxValue | None, what: str) -> list[int]:
        """`known` as a list of Python ints."""
        return [decode(int(v)) for v in self.known(x, what).reshape(-1)]

    def scalar(self, x: OnnxValue | None, what: str, default: Any = None) -> Any:
        """The single element of a known input; `default` if it is absent."""
        array = self.opt(x, what)
        if array is None:
            return default
        if array.size != 1:
            raise self.error(f"{what} has shape {array.shape}, it needs one element")
        return decode(array.reshape(())[()].item())

    # ---- errors ----

    def needs(self, x: OnnxValue, message: str, question: str = "") -> DataDependentNode:
        """The error of a node that could be imported if the value of x were known."""
        return DataDependentNode(message, x, frozenset(self.importer.arguments[i] for i in inputs_of(x)), question)

    def partial(self, buffer: OnnxValue, count: OnnxValue, axis: int) -> Partial:
        """A result that is the first `count` positions of `buffer`; where that cannot be, the node waits as a whole."""
        if not self.importer.takes_partial(self.scope):
            raise self.needs(count, "the shape of its result depends on the data")
        return Partial(buffer, count, axis)

    def error(self, message: str, hint: str | None = None) -> ModelError:
        """A ModelError that names this node."""
        return ModelError(message, stage="import", operator=self.label, hint=hint)

    # ---- shapes ----

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """The attribute `axis`, counted from the front."""
        axis = self.attr(name, default)
        if not -rank <= axis < max(rank, 1):
            raise self.error(f"{name} {axis} is out of range for rank {rank}")
        return axis % rank if rank else 0
