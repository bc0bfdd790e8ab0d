"""The node of a `torch.export` program that is being imported, as the import functions see it."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import torch
from torch_mlir import ir

from ...ir.graph_builder import Maker
from ...ir.types import NUMPY, Type, Typed, is_float, type_of
from ...ops.common import broadcast_shapes
from ...support.errors import UnsupportedError
from ...support.sizes import Size, Undecided, is_open
from ..failures import FAILED as FAILED
from ..failures import ImportFailure, NotImported
from ..failures import report as failures_as_error
from ..moves import Moves
from ..open_values import made_of_sizes

if TYPE_CHECKING:
    import numpy.typing as npt

#: PyTorch's element types and ours
DTYPES = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint64: "ui64", torch.uint32: "ui32",
    torch.uint16: "ui16", torch.uint8: "ui8", torch.bool: "i1",
}  # fmt: skip
#: complex numbers are pairs of these, in a last dimension of 2 that PyTorch's shapes do not have
COMPLEX = {torch.complex32: "f16", torch.complex64: "f32", torch.complex128: "f64"}
_FRAME = re.compile(r'File "(.*?)", line (\d+), in (<?\w+>?)')
_OWN = re.compile(r"[/\\]torch[/\\]")


def dtype_of(dtype: torch.dtype) -> str:
    """Our name of an element type; NotImported if it has none."""
    if dtype not in DTYPES:
        raise NotImported(f"tensors of {str(dtype).removeprefix('torch.')} are not supported")
    return DTYPES[dtype]


def is_complex(value: object) -> bool:
    """Whether a value of PyTorch's metadata is a complex tensor, or a list with one."""
    if isinstance(value, (list, tuple)):
        return any(map(is_complex, value))
    return isinstance(value, torch.Tensor) and value.dtype in COMPLEX


def touches_complex(node: torch.fx.Node) -> bool:
    """Whether an operand or a result of a node is complex."""
    return any(is_complex(n.meta.get("val")) for n in (node, *node.all_input_nodes))


def result_of(node: torch.fx.Node) -> Any:
    """PyTorch's metadata of a node's result; where there is none (operators that run under an RNG state), that of the
    elements that are taken from it."""
    if node.meta.get("val") is not None:
        return node.meta["val"]
    taken = {u.args[1]: result_of(u) for u in node.users if u.target is operator.getitem}
    return [taken.get(i) for i in range(max(taken) + 1)] if taken else None  # type: ignore[type-var,arg-type,operator]


@dataclass(frozen=True, eq=False)
class FxTensor(Typed):
    """A value of the graph."""

    ssa: ir.Value
    type: Type

    @property
    def is_float(self) -> bool:
        return is_float(self.type.dtype)

    def axis(self, axis: int) -> int:
        """An axis counted from the front; a tensor without dimensions counts as one with one."""
        return axis % max(self.rank, 1)

    def axes(self, axes: int | Sequence[int] | None) -> tuple[int, ...]:
        """Axes counted from the front; all of them for None and none."""
        if not self.rank:
            return ()
        given = [axes] if isinstance(axes, int) else list(axes or range(self.rank))
        return tuple(sorted(a % self.rank for a in given))


#: what an operator takes: numbers mix in as constants
Operand: TypeAlias = "FxTensor | float"
#: one number for all dimensions of a window, or one for each
Each: TypeAlias = "int | Sequence[int]"
#: dimensions that are reduced: one, several, or all (None, none)
Axes: TypeAlias = "int | Sequence[int] | None"


class RunTimeNumber(FxTensor):
    """A number that the program computes when it runs, as a tensor without dimensions."""


def place_of(node: torch.fx.Node) -> str:
    """Where a node comes from in the user's Python: the innermost place outside of PyTorch.

    ``model.py:12 in forward``
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    own = [f for f in frames if not _OWN.search(f[0])] or frames
    return "{}:{} in {}".format(*own[-1]) if own else ""


class TorchImportContext(Protocol):
    """The importer, as nodes use it."""

    make: Maker
    failures: list[ImportFailure]
    loops: bool

    def walk(self, module: torch.fx.GraphModule, given: Sequence[Any] | None) -> list[Any]: ...

    def size(self, d: int | torch.SymInt) -> int: ...

    def key(self) -> FxTensor: ...

    def draw(self) -> int: ...


class FxNode(Moves[FxTensor]):
    """One node, and the means to append `tw` operators in its place: ``n("add", x, y)``. Numbers mix in as constants of
    the dtype of the first tensor."""

    wraps = True

    def __init__(
        self, importer: TorchImportContext, node: torch.fx.Node, overload: str, results: list[Type | None]
    ) -> None:
        self.importer, self.node, self.overload, self.results = importer, node, overload, results
        self.make = importer.make

    @property
    def type(self) -> Type:
        """The type that PyTorch gives the (first) result."""
        t = self.results[0]
        if t is None:
            raise NotImported("its result has no type")
        return t

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.dims

    @property
    def label(self) -> str:
        """What errors call it."""
        return self.overload

    # ---- emitting ----

    def __call__(self, operator: str, *operands: Operand | None, **attributes: Any) -> Any:
        first = next((v for v in operands if isinstance(v, FxTensor)), None)
        values = [
            self.tensor(v, first.dtype) if isinstance(v, (int, float)) and first is not None else v for v in operands
        ]
        made = self.make(
            operator, *[v.ssa if isinstance(v, FxTensor) else None for v in values], place=self.node.name, **attributes
        )
        return [FxTensor(r, type_of(r)) for r in made] if isinstance(made, list) else FxTensor(made, type_of(made))

    def constant(self, array: npt.ArrayLike, dtype: str | None = None) -> FxTensor:
        """A tensor that is known. Undecided if it was made of a size, which is not."""
        array = np.asarray(array, NUMPY[dtype] if dtype else None)
        if made_of_sizes(array):
            raise Undecided("a table of numbers that depends on sizes is not known when the model is compiled")
        value = self.make.constant(array, self.node.name)
        return FxTensor(value, type_of(value))

    def full(self, shape: Sequence[int], number: Operand, dtype: str) -> FxTensor:
        """A tensor of one number."""
        return self.expand(self.tensor(number, dtype), shape)

    def count(self, number: int, start: int = 0, step: int = 1) -> FxTensor:
        """``start + i * step`` for i below `number`, of i64; all three may be sizes."""
        if is_open(number, start, step):
            made: FxTensor = self("arange", count=number, start=start, step=step, dtype="i64")
            return made
        return self.constant(start + np.arange(number, dtype=np.int64) * step)

    def tensor(self, x: Operand, dtype: str | None = None) -> FxTensor:
        """A tensor, or a number as one, of the dtype given."""
        if isinstance(x, FxTensor):
            return x if dtype is None else self.cast(x, dtype)
        if isinstance(x, Size):
            return self.cast(self.reshape(self.count(1, x, 0), ()), dtype or self.dtype)
        return self.constant(np.array(x).astype(NUMPY[dtype or self.dtype]))

    def random(self, kind: str, shape: Sequence[int], dtype: str) -> FxTensor:
        """A tensor of random numbers, others in every run and for every node."""
        made: FxTensor = self(
            "random", self.importer.key(), kind=kind, shape=tuple(shape), dtype=dtype, seed=self.importer.draw()
        )
        return made

    # ---- types ----

    def common(self, *positions: int) -> str:
        """The dtype in which arguments of the node meet, by PyTorch's rules of promotion."""
        given = [self.node.args[p] for p in positions or range(len(self.node.args))]
        metas: list[Any] = [g.meta["val"] if isinstance(g, torch.fx.Node) else g for g in given]
        found = metas[0].dtype if isinstance(metas[0], torch.Tensor) else None
        for a, b in itertools.pairwise(metas):
            found = torch.result_type(a, b)
        return dtype_of(found or self.node.meta["val"].dtype)

    def need(self, condition: object, why: str) -> None:
        """NotImported unless the condition holds."""
        if not condition:
            raise NotImported(why)

    def known(self, *sizes: int) -> None:
        """NotImported if one of these sizes is not known: what is made of them is a table of numbers."""
        self.need(not is_open(*sizes), "of open size, for which there is a table of numbers")

    # ---- what many import functions need ----

    def ranks(self, x: FxTensor, rank: int) -> FxTensor:
        """x with leading dimensions of size 1, so that there are `rank`."""
        return self.reshape(x, (1,) * (rank - x.rank) + x.shape)


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """The shape in which shapes meet; OpError if they do not."""
    return Type(broadcast_shapes(*map(tuple, shapes)), "f32").dims


def report(failures: Sequence[ImportFailure]) -> UnsupportedError:
    """All failures as one error."""
    return failures_as_error(
        failures,
        'torch.compile(module, backend="tilewright") runs such operators in PyTorch; docs/torch.md lists what is '
        "imported, an operator is one function in frontends/torch/",
    )
