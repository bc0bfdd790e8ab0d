"""Memory layout: convolutions and pools with channels last, transposes only where they cannot be avoided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from .layout_choice import stay_first
from .machine_costs import ImageCosts, WinogradCosts, required
from .passes import PassReport, register
from .rewrite import Pattern, Rewriter, Rewritten, defined_by, elementwise, has_one_use, pattern, rewrite, shape, static
from .simplify_shape import (
    grouped_permutation,
    permutation,
    reshape_of_reshape,
    transpose_of_reshape,
    transpose_of_transpose,
)

#: channels of an image that is better read as it is than transposed: colours, which no vector is full of
FEW = 4


@register("layout")
@dataclass(frozen=True)
class Layout:
    """Put channels last in convolutions, pools and group norms, and move the transposes this needs until they cancel.

    ``mode``: "nhwc" always, "nchw" never, "auto" if the graph has a convolution. Transposes move down through
    elementwise operators, residual adds, concat, pad, slice, split, reductions and softmax; a flattening in front of
    constant weights is taken into the weights. What is left stands at inputs and in front of what needs channels
    first. With `lanes`, the f32 of a vector of the machine, and its `costs` (those of `winograd` too, which takes
    channels last), "auto" leaves convolutions that stand alone, or in a short chain, as they are where that is
    estimated to be faster (`layout_choice`).

        %0 = "tw.conv"(%x, %w) {...} : (tensor<1x3x8x8xf32>, ...) -> tensor<1x16x8x8xf32>
        %1 = "tw.relu"(%0) : (tensor<1x16x8x8xf32>) -> tensor<1x16x8x8xf32>
    ->  %0 = "tw.transpose"(%x) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<1x3x8x8xf32>) -> tensor<1x8x8x3xf32>
        %1 = "tw.conv"(%0, %w) {layout = "nhwc", ...} : (tensor<1x8x8x3xf32>, ...) -> tensor<1x8x8x16xf32>
        %2 = "tw.relu"(%1) : (tensor<1x8x8x16xf32>) -> tensor<1x8x8x16xf32>
        %3 = "tw.transpose"(%2) {permutation = array<i64: 0, 3, 1, 2>} : ...
    """

    mode: Literal["auto", "nhwc", "nchw"] = "auto"
    lanes: int = 0
    costs: ImageCosts | None = None
    winograd: WinogradCosts | None = None

    def run(self, graph: Graph) -> PassReport:
        convolutions = any(op.name in ("tw.conv", "tw.conv_transpose", "tw.integer_conv") for op in graph.operations())
        if self.mode == "nchw" or (self.mode == "auto" and not convolutions):
            return {}
        first = self.first(graph) if self.mode == "auto" and self.lanes else set()

        def unless_first(p: Pattern) -> Pattern:
            def apply(rw: Rewriter, op: ir.Operation) -> Rewritten:
                return None if op.results[0] in first else p(rw, op)

            apply.__name__ = p.__name__
            return pattern(*p.roots)(apply)

        chosen = [unless_first(few_channels), unless_first(channels_last)]
        return rewrite(graph, [*chosen, *PATTERNS])

    def first(self, graph: Graph) -> set[ir.Value]:
        """The results of the convolutions that stay as they are."""
        costs, winograd = required(self.costs, "layout", "costs"), required(self.winograd, "layout", "winograd")
        return stay_first(graph, self.lanes, costs, winograd)


def to_last(rank: int) -> tuple[int, ...]:
    """N C spatial -> N spatial C."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """N spatial C -> N C spatial."""
    return (0, rank - 1, *range(1, rank - 1))


@pattern("conv")
def few_channels(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """conv(x) -> conv(pad(x)) with channels first, for an input x of the model that has few channels

    Transposing an image is slow where its rows of channels are shorter than a vector. Padded first, it is read through
    the transpose by the convolution, which takes single elements of it anyway.
    """
    x, w, *rest = dialect.arguments(op)
    assert x is not None
    attrs = dialect.attributes(op)
    image = attrs["layout"] == "nchw" and isinstance(x.owner, ir.Block) and static(op.results[0], x)
    if not image or not any(attrs["pads"]) or (shape(x)[1] or 0) > FEW or attrs["groups"] != 1:
        return None
    rank = len(shape(x)) - 2
    pads = attrs["pads"]
    padded = rw.create("pad", x, low=(0, 0, *pads[:rank]), high=(0, 0, *pads[rank:]))
    return rw.again(op, [padded, w, *rest], pads=(0,) * 2 * rank)


@pattern("conv", "conv_transpose", "integer_conv", "max_pool", "avg_pool", "lp_pool", "group_norm")
def channels_last(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """conv(x) -> transpose(conv {layout = "nhwc"}(transpose(x)))"""
    x, *rest = dialect.arguments(op)
    if dialect.attributes(op)["layout"] == "nhwc" or not static(op.results[0], x):
        return None
    rank = len(shape(x))
    new = rw.again(op, [rw.transpose(x, to_last(rank)), *rest], layout="nhwc")[0]
    return rw.transpose(new, to_first(rank))


# ---- moving transposes down ----------------------------------------------------------------------------------------


def channels_first_of(value: ir.Value | None) -> ir.Value | None:
    """x where value is transpose(x) from channels last to channels first."""
    op = defined_by(value, "transpose")
    if op is None:
        return None
    perm = permutation(op)
    return op.operands[0] if len(perm) > 2 and perm == to_first(len(perm)) else None


def with_channels_last(value: ir.Value) -> Callable[[Rewriter], ir.Value] | None:
    """How to get a value with channels last without moving elements: its transpose goes, or that of the tokens (N,
    area, channels) that it is an image of."""
    inner = channels_first_of(value)
    if inner is not None:
        return lambda rw: inner
    image = defined_by(value, "reshape")
    tokens = defined_by(image.operands[0], "transpose") if image is not None else None
    rank = len(shape(value))
    if tokens is None or rank < 3 or not static(value, x := tokens.operands[0]):
        return None
    last = _permuted(shape(value), to_last(rank))
    order = grouped_permutation(shape(x), last, to_first(rank))
    if order is None or _moves(order, x) != _moves(permutation(tokens), x):
        return None
    return lambda rw: rw.reshape(x, last)


def _moves(order: Sequence[int], value: ir.Value) -> list[int]:
    """A permutation without the dimensions of size 1."""
    return [i for i in order if shape(value)[i] != 1]


@pattern("*")
def through_elementwise(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """add(transpose(x), transpose(y)) -> transpose(add(x, y)); constants and small operands are transposed"""
    if not elementwise(op) or not static(*op.results, *op.operands):
        return None
    out = shape(op.results[0])
    if not any(channels_first_of(v) is not None for v in op.operands):
        return None
    moved = [m for v in op.operands if (m := _moved(v, out)) is not None]
    if len(moved) != len(op.operands):
        return None
    return rw.transpose(rw.again(op, [m(rw) for m in moved])[0], to_first(len(out)))


def _moved(value: ir.Value, out: tuple[int | None, ...]) -> Callable[[Rewriter], ir.Value] | None:
    """How to get an operand with channels last: it is a transpose, a constant, or has one dimension larger than 1."""
    inner = with_channels_last(value)
    rank, dims = len(out), shape(value)
    if inner is not None and len(dims) == rank:
        return inner
    if channels_first_of(value) is not None:
        return None
    free = [d for d in dims if d != 1]
    if defined_by(value, "constant") is None and len(free) > 1:
        return None
    if not free:
        return lambda rw: value
    return lambda rw: rw.transpose(rw.reshape(value, (*[1] * (rank - len(dims)), *dims)), to_last(rank))


@pattern("batch_norm", "softmax", "log_softmax", "hardmax", "lp_norm", "resample", "cumsum")
def through_axis(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """softmax(transpose(x)) -> transpose(softmax(x)) along the axis that x has it on; images of tokens too are
    resampled so"""
    x, *rest = dialect.arguments(op)
    assert x is not None
    inner = with_channels_last(x)
    if inner is None or (channels_first_of(x) is None and op.name != "tw.resample"):
        return None
    perm = to_first(len(shape(x)))
    axis = perm[dialect.attributes(op)["axis"] % len(perm)]
    return rw.transpose(rw.again(op, [inner(rw), *rest], axis=axis)[0], perm)


@pattern("requantize", "quantize_linear", "dequantize_linear", "lookup")
def through_quantization(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """requantize(transpose(x)) -> transpose(requantize(x)) along the axis that x has it on"""
    x, *rest = dialect.arguments(op)
    inner, attrs = channels_first_of(x), dialect.attributes(op)
    if inner is None or attrs.get("block"):
        return None
    perm = to_first(len(shape(inner)))
    changes = {"axis": perm[attrs["axis"] % len(perm)]} if "axis" in attrs else {}
    return rw.transpose(rw.again(op, [inner, *rest], **changes)[0], perm)


@pattern("concat")
def through_concat(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """concat(transpose(x), transpose(y)) -> transpose(concat(x, y))"""
    inner = [with_channels_last(v) for v in op.operands]
    constant = [defined_by(v, "constant") is not None for v in op.operands]
    if all(channels_first_of(v) is None for v in op.operands):
        return None
    if any(i is None and not c for i, c in zip(inner, constant, strict=True)):
        return None
    rank = len(shape(op.results[0]))
    operands = [i(rw) if i else rw.transpose(v, to_last(rank)) for i, v in zip(inner, op.operands, strict=True)]
    axis = to_first(rank)[dialect.attributes(op)["axis"] % rank]
    return rw.transpose(rw.create("concat", *operands, axis=axis), to_first(rank))


@pattern("split")
def through_split(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """split(transpose(x)) -> transposes of split(x)"""
    inner = channels_first_of(op.operands[0])
    if inner is None:
        return None
    perm = to_first(len(shape(inner)))
    axis = perm[dialect.attributes(op)["axis"] % len(perm)]
    return [rw.transpose(piece, perm) for piece in rw.again(op, [inner], axis=axis)]


#: attributes with one entry a dimension, by operator
PER_DIMENSION = {"pad": ("low", "high"), "slice": ("starts", "sizes", "steps"), "tile": ("repeats",)}


@pattern(*PER_DIMENSION)
def through_dimensions(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """pad(transpose(x)) -> transpose(pad(x)), for slice and tile too"""
    inner = channels_first_of(op.operands[0])
    if inner is None:
        return None
    rank, attrs = len(shape(inner)), dialect.attributes(op)
    changes = {k: _permuted(attrs[k], to_last(rank)) for k in PER_DIMENSION[dialect.mnemonic(op) or ""]}
    return rw.transpose(rw.again(op, [inner], **changes)[0], to_first(rank))


def _permuted(entries: Sequence[int], perm: Sequence[int]) -> tuple[int, ...]:
    return tuple(entries[p] for p in perm)


@pattern("*")
def through_reduction(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """reduce_mean(transpose(x)) -> reduce_mean(x) over the axes that x has them on"""
    inner = channels_first_of(op.operands[0]) if op.name.startswith("tw.reduce_") else None
    if inner is None:
        return None
    perm, attrs = to_first(len(shape(inner))), dialect.attributes(op)
    axes = [perm[a % len(perm)] for a in attrs["axes"]]
    new = rw.again(op, [inner], axes=tuple(sorted(axes)))[0]
    if attrs["keepdims"]:
        return rw.transpose(new, perm)
    kept = [p for p in perm if p not in axes]  # the order in which the result has the dimensions of inner
    return rw.transpose(new, [sorted(kept).index(p) for p in kept])


@pattern("matmul")
def flatten_into_weights(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """matmul(reshape(transpose(x)), w) -> matmul(reshape(x), w with its rows permuted), where the reshape flattens"""
    flat = defined_by(op.operands[0], "reshape")
    inner = channels_first_of(flat.operands[0]) if flat is not None else None
    w = rw.array(op.operands[1])
    if flat is None or inner is None or w is None or w.ndim != 2 or not has_one_use(op.operands[1]):
        return None
    dims = shape(flat.operands[0])
    if not static(inner) or shape(flat.results[0]) != (dims[0], w.shape[0]) or dims[1] == 1 or prod(dims[2:]) == 1:
        return None  # where the transpose only moves dimensions of size 1, it becomes a reshape
    rank = len(dims)
    order = [p - 1 for p in to_last(rank)[1:]]
    rows = w.reshape(*dims[1:], w.shape[1]).transpose(*order, rank - 1).reshape(w.shape)
    new = rw.constant(np.asarray(rows, order="C"), rw.symbol(op.operands[1]))
    return rw.create("matmul", rw.reshape(inner, shape(flat.results[0])), new)


PATTERNS = [
    transpose_of_transpose,
    transpose_of_reshape,
    reshape_of_reshape,
    through_axis,
    through_quantization,
    through_concat,
    through_split,
    through_dimensions,
    flatten_into_weights,
    through_elementwise,
    through_reduction,
]
