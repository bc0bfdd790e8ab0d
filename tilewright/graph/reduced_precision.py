"""Reduced precision: contractions on bf16 or f16 with f32 sums, and what lies between kernels stored so."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import numpy_dtype
from .cse import Cse
from .layout import to_last
from .passes import PassReport, register
from .rewrite import (
    Pattern,
    Rewriter,
    Rewritten,
    defined_by,
    definition,
    dtype,
    elementwise,
    pattern,
    rewrite,
    shape,
    static,
    users,
)
from .simplify_shape import permutation

#: operators that only move elements (or pick some): rounding before them is rounding after them
#: a matmul of an odd sum gets one element of zeros more where rows, columns and the sum are at least so many: what is
#: written for that is then little beside the products
MIN_PADDED = 4
MOVES = ("reshape", "transpose", "slice", "split", "concat", "pad", "expand", "max_pool", "gather", "tile")


@register("precision")
@dataclass(frozen=True)
class Precision:
    """Give matmul, conv and attention operands of a smaller float type; their sums, and all else, stay f32.

    ``dtype``: "bf16" for weights and activations, or "f16" for weights alone. Weights are rounded here, to nearest
    even. The rounding of an activation moves up to what makes it, so that kernels write the smaller type; elementwise
    operators that read the same value then read it rounded too, unless a normalization makes it. Inputs and outputs of
    the model keep their types.

        %0 = "tw.matmul"(%x, %w) : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
        %1 = "tw.relu"(%0) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    ->  %0 = "tw.cast"(%x) {to = "bf16"} : (tensor<4x8xf32>) -> tensor<4x8xbf16>
        %1 = "tw.matmul"(%0, %w_bf16) {dtype = "f32"} : (tensor<4x8xbf16>, tensor<8x8xbf16>) -> tensor<4x8xf32>
        %2 = "tw.relu"(%1) : (tensor<4x8xf32>) -> tensor<4x8xf32>
    """

    dtype: Literal["bf16", "f16"] = "bf16"

    def run(self, graph: Graph) -> PassReport:
        work = _Narrowing(graph, self.dtype)
        if self.dtype == "f16":
            return rewrite(graph, [work.weights()])
        report = Counter(rewrite(graph, [work.contractions(), work.attention()]))
        report.update(rewrite(graph, work.moves()))
        Cse().run(graph)
        with use():
            report["shared"] += work.share()
        report.update(rewrite(graph, work.moves()))
        return {name: count for name, count in report.items() if count}


class _Narrowing:
    """The patterns for one smaller type."""

    def __init__(self, graph: Graph, small: str) -> None:
        self.graph, self.small = graph, small
        self.symbols: dict[str, str] = {}  # of a weight -> of the rounded one

    # ---- contractions ----

    def narrow(self, rw: Rewriter, value: ir.Value) -> ir.Value:
        """A value rounded: weights now, others by a cast."""
        array = rw.array(value)
        if array is not None:
            return self.rounded(rw, value, array)
        maker = definition(value)  # whose kernel will round: its names tell where the value comes from
        location = rw.location if maker is None else maker.location
        return dialect.create("cast", value, location=location, to=self.small)[0]

    def rounded(self, rw: Rewriter, value: ir.Value, array: np.ndarray) -> ir.Value:
        """A weight in the smaller type; one that has been rounded before is used again."""
        known = self.symbols.get(rw.symbol(value)) if rw.symbol(value) != "c" else None
        if known is not None and known in self.graph.constants:
            return self.graph.constant_like(self.graph.constants[known], known, rw.location)
        new = rw.constant(array.astype(numpy_dtype(self.small)), rw.symbol(value))
        if rw.symbol(value) != "c" and rw.symbol(new) != "c":
            self.symbols[rw.symbol(value)] = rw.symbol(new)
        return new

    def contractions(self) -> Pattern:
        @pattern("matmul", "conv")
        def contraction(rw: Rewriter, op: ir.Operation) -> Rewritten:
            x, w, *rest = dialect.arguments(op)
            if dtype(x) != "f32" or dtype(w) != "f32" or not static(x, w):
                return None
            if op.name == "tw.matmul":
                x, w = self.even(rw, self.narrow(rw, x), self.narrow(rw, w))
                return rw.create("matmul", x, w, dtype="f32")
            attrs = dialect.attributes(op)
            if attrs["groups"] > 1 and shape(w)[1] == 1:  # depthwise: nothing to sum in pairs, the weights are few
                return rw.again(op, [self.narrow(rw, x), w, *rest], dtype="f32")[0]
            if shape(w)[1] % 2 and attrs["groups"] == 1:
                return self.padded_channels(rw, op, x, w, rest)
            return rw.again(op, [self.narrow(rw, x), self.narrow(rw, w), *rest], dtype="f32")[0]

        return contraction

    def even(self, rw: Rewriter, x: ir.Value, w: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The factors of a matmul; those of an odd sum with one element of zeros more, so that it is taken in pairs."""
        if len(shape(w)) < 2 or shape(w)[-2] % 2 == 0:
            return x, w
        (*_, rows, k), columns = (1, *shape(x)), shape(w)[-1]
        if min(k, columns, rows if rw.array(w) is None else k) < MIN_PADDED:
            return x, w
        return self.padded(rw, x, len(shape(x)) - 1), self.padded(rw, w, len(shape(w)) - 2)

    def padded(self, rw: Rewriter, value: ir.Value, axis: int) -> ir.Value:
        """A value with one more element of zeros along an axis."""
        more = tuple(int(d == axis) for d in range(len(shape(value))))
        array = rw.array(value)
        if array is not None:
            return rw.constant(np.pad(array, [(0, n) for n in more]), rw.symbol(value))
        return rw.create("pad", value, low=(0,) * len(more), high=more)

    def padded_channels(
        self, rw: Rewriter, op: ir.Operation, x: ir.Value, w: ir.Value, rest: list[ir.Value | None]
    ) -> Rewritten:
        """A convolution of an odd number of channels gets one of zeros, so that they can be summed in pairs; the first
        one of a model, whose input has the channels first, sums pairs of neighbouring columns instead."""
        attrs = dialect.attributes(op)
        weights, rank = rw.array(w), len(shape(x))
        if weights is None:
            return rw.again(op, [self.narrow(rw, x), self.narrow(rw, w), *rest], dtype="f32")[0]
        first = channels_first_of_last(x) if attrs["layout"] == "nhwc" and attrs["dilations"][-1] == 1 else None
        if first is not None:
            return self.padded_columns(rw, op, first, weights, rest)
        last, pads = attrs["layout"] == "nhwc", attrs["pads"]
        low, high = pads[: rank - 2], pads[rank - 2 :]
        extra = {"low": (0, *low, 0) if last else (0, 0, *low), "high": (0, *high, 1) if last else (0, 1, *high)}
        wider = np.pad(weights, [(0, 0), (0, 1), *[(0, 0)] * (rank - 2)])
        small = rw.constant(wider.astype(numpy_dtype(self.small)), rw.symbol(w))
        x = rw.create("pad", self.narrow(rw, x), **extra)
        return rw.again(op, [x, small, *rest], dtype="f32", pads=(0,) * len(pads))[0]

    def padded_columns(
        self, rw: Rewriter, op: ir.Operation, x: ir.Value, weights: np.ndarray, rest: list[ir.Value | None]
    ) -> Rewritten:
        """A convolution of x with its channels first; an odd kernel gets one more column, of zeros."""
        attrs, rank = dialect.attributes(op), weights.ndim
        more = weights.shape[-1] % 2
        low, high = [0, 0, *attrs["pads"][: rank - 2]], [0, 0, *attrs["pads"][rank - 2 :]]
        high[-1] += more
        inner = defined_by(x, "pad")
        if (
            inner is not None
            and dialect.attributes(inner)["mode"] == "constant"
            and not dialect.attributes(inner)["value"]
        ):
            x, own = inner.operands[0], dialect.attributes(inner)
            low = [a + b for a, b in zip(low, own["low"], strict=True)]
            high = [a + b for a, b in zip(high, own["high"], strict=True)]
        wider = np.pad(weights, [(0, 0)] * (rank - 1) + [(0, more)])
        small = rw.constant(wider.astype(numpy_dtype(self.small)), rw.symbol(op.operands[1]))
        x = rw.create("pad", self.narrow(rw, x), low=tuple(low), high=tuple(high))
        pads = (0,) * len(attrs["pads"])
        return rw.again(op, [x, small, *rest], dtype="f32", pads=pads, x_layout="nchw")[0]

    def attention(self) -> Pattern:
        @pattern("attention")
        def attention(rw: Rewriter, op: ir.Operation) -> Rewritten:
            q, k, v, *mask = dialect.arguments(op)
            if dtype(q) != "f32" or not static(q, k, v):
                return None
            narrow = [self.narrow(rw, x) for x in (q, k, v)]
            if shape(q)[3] % 2 and min(shape(q)[2:]) >= MIN_PADDED:  # the head's size is what scores sum over
                narrow[:2] = (self.padded(rw, x, 3) for x in narrow[:2])
            new = rw.again(op, [*narrow, *mask])[0]
            return rw.create("cast", new, to="f32")

        return attention

    def weights(self) -> Pattern:
        @pattern("matmul", "conv")
        def weight(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """matmul(x, w) -> matmul(x, w in f16)"""
            x, w, *rest = dialect.arguments(op)
            array = rw.array(w)
            if dtype(x) != "f32" or dtype(w) != "f32" or array is None or not _fits(array, self.small):
                return None
            return rw.again(op, [x, self.rounded(rw, w, array), *rest], dtype="f32")[0]

        return weight

    # ---- between kernels ----

    def moves(self) -> list[Pattern]:
        small = self.small

        @pattern("cast")
        def rounded_twice(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """cast(cast(x to f32) to bf16) -> x"""
            inner = defined_by(op.operands[0], "cast")
            if inner is None or dtype(op.results[0]) != small or dtype(inner.operands[0]) != small:
                return None
            return inner.operands[0] if dtype(inner.results[0]) == "f32" else None

        @pattern("cast")
        def rounded_before(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """cast(reshape(x) to bf16) -> reshape(cast(x to bf16)), where all that read the result round it"""
            inner = defined_by(op.operands[0], *MOVES)
            if inner is None or dtype(op.results[0]) != small or dtype(op.operands[0]) != "f32":
                return None
            if not all(self.rounds(user) for r in inner.results for user in users(r)):
                return None
            rw.names_of(inner)
            values = [
                None if v is None else self.narrow(rw, v) if dtype(v) == "f32" else v for v in dialect.arguments(inner)
            ]
            return rw.again(inner, values)[list(inner.results).index(op.operands[0])]

        return [rounded_twice, rounded_before]

    def rounds(self, op: ir.Operation) -> bool:
        return op.name == "tw.cast" and dtype(op.results[0]) == self.small

    def share(self) -> int:
        """Where a value is read both rounded and not, elementwise operators read the rounded one: it is stored once."""
        count = 0
        for cast in list(self.graph.operations()):
            if not self.rounds(cast):
                continue
            value = cast.operands[0]
            others = [u for u in users(value) if u != cast]
            maker = definition(value)
            if maker is None or not (elementwise(maker) or defined_by(value, "conv", "matmul", *MOVES)):
                continue
            if not others or not all(map(elementwise, others)):
                continue
            self.store(value)
            count += 1
        return count

    def store(self, value: ir.Value) -> None:
        """Round a value where it is made; all that read it, read it so."""
        before = list(value.uses)
        maker = definition(value)
        assert maker is not None
        with ir.InsertionPoint.after(maker):
            small = dialect.create("cast", value, location=maker.location, to=self.small)[0]
            wide = dialect.create("cast", small, location=maker.location, to="f32")[0]
        for use_ in before:
            use_.owner.operation.operands[use_.operand_number] = wide


def channels_first_of_last(value: ir.Value) -> ir.Value | None:
    """x where value is x transposed from channels first to channels last."""
    op = defined_by(value, "transpose")
    rank = len(shape(value))
    return op.operands[0] if op is not None and permutation(op) == to_last(rank) else None


def _fits(array: np.ndarray, small: str) -> bool:
    """Whether no element overflows in the smaller type."""
    return bool(np.abs(array).max(initial=0) <= float(np.finfo(np.float16).max)) if small == "f16" else True


__all__ = ["Precision"]
