"""What flows between operators of StableHLO during import: tensors, of which some are known, and pairs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch_mlir import ir

from ....ir.types import Type, Typed, from_array, is_float
from ...failures import NotImported

if TYPE_CHECKING:
    from .node import HloEmitter


@dataclass(frozen=True)
class Piece:
    """`size` positions of a tensor along some axis, from `start` on."""

    source: HloTensor
    start: int
    size: int

    def part(self, start: int, stop: int) -> Piece:
        return Piece(self.source, self.start + start, stop - start)


class HloTensor(Typed):
    """A value of the graph, which enters it when an operator first uses it.

    It is a value in the IR already, an array that is known, or pieces of other tensors one after the other: what loops
    write row by row (`dynamic_update_slice` at known positions) is joined once, at the end.
    """

    def __init__(
        self,
        n: HloEmitter,
        t: Type,
        ssa: ir.Value | None = None,
        array: np.ndarray | None = None,
        axis: int = 0,
        pieces: Sequence[Piece] = (),
    ) -> None:
        self.n, self.type, self.array, self.axis, self.pieces = n, t, array, axis, pieces
        self._ssa = ssa

    @property
    def is_float(self) -> bool:
        return is_float(self.dtype)

    @property
    def ssa(self) -> ir.Value:
        """The value in the IR."""
        if self._ssa is None:
            self._ssa = self._joined() if self.pieces else self._constant()
        return self._ssa

    def _joined(self) -> ir.Value:
        parts = [self.n.slice(p.source, self.axis, p.start, p.size) for p in self.pieces]
        return self.n.concat(parts, self.axis).ssa

    def _constant(self) -> ir.Value:
        array = self.array
        assert array is not None
        kept = array[tuple(slice(None) if s else slice(0, 1) for s in array.strides)] if array.size else array
        if kept.size == array.size:
            return self.n.make.constant(np.asarray(array, order="C"), self.n.place or "c")
        # repeated: the IR has it once
        first = next((i for i, d in enumerate(kept.shape) if d > 1), kept.ndim)
        small = self.n.make.constant(np.asarray(kept.reshape(kept.shape[first:]), order="C"), self.n.place or "c")
        expanded: ir.Value = self.n.make("expand", small, place=self.n.place, shape=array.shape)
        return expanded

    def replaced(self, axis: int, start: int, update: HloTensor) -> HloTensor:
        """The tensor with `update` in place of what begins at `start` along an axis."""
        stop = start + update.shape[axis]
        if self.pieces and self.axis != axis:
            _ = self.ssa  # joined now: pieces of pieces of pieces would be too deep in a loop
        pieces = list(self.pieces) if self.axis == axis and self.pieces else [Piece(self, 0, self.shape[axis])]
        before, after, at = [], [], 0
        for p in pieces:
            if at < start:
                before.append(p.part(0, min(p.size, start - at)))
            if at + p.size > stop:
                after.append(p.part(max(stop - at, 0), p.size))
            at += p.size
        made = [*before, Piece(update, 0, stop - start), *after]
        return HloTensor(self.n, self.type, axis=axis, pieces=[p for p in made if p.size])

    def within(self, axis: int, start: int, size: int) -> HloTensor | None:
        """Positions along an axis, taken of the one piece that has them; None if that is no piece's."""
        at = 0
        for p in self.pieces if self.axis == axis else ():
            if at <= start and start + size <= at + p.size:
                return self.n.slice(p.source, axis, p.start + start - at, size)
            at += p.size
        return None


@dataclass(frozen=True, eq=False)
class Complex:
    """A complex tensor, as two of real numbers of one type."""

    re: HloTensor
    im: HloTensor

    @property
    def type(self) -> Type:
        """That of the parts."""
        return self.re.type


def element_of(t: ir.Type) -> tuple[Type, bool]:
    """Our type of a tensor type of StableHLO, of a complex one that of its parts, and whether it is complex.

    NotImported for what is no tensor of fixed size and of numbers that we have."""
    if not isinstance(t, ir.RankedTensorType):
        raise NotImported(f"values of type {t} are not supported")
    tensor = ir.RankedTensorType(t)
    element, shape = str(tensor.element_type), tensor.shape
    is_complex = element.startswith("complex<")
    element = element.removeprefix("complex<").removesuffix(">") if is_complex else element
    found = Type(tuple(shape) if tensor.has_static_shape else (), element)
    if not tensor.has_static_shape:
        raise NotImported(f"tensors of open shape ({t}) are not supported here")
    if element not in KNOWN:
        raise NotImported(f"tensors of {element} are not supported")
    return found, is_complex


#: element types that are computed with
KNOWN = frozenset({
    "f64", "f32", "f16", "bf16", "i64", "i32", "i16", "i8", "ui64", "ui32", "ui16", "ui8", "i1",
})  # fmt: skip


def known_tensor(n: HloEmitter, array: np.ndarray) -> HloTensor:
    """A tensor that is known; the array is not copied."""
    return HloTensor(n, from_array(array), array=array)
