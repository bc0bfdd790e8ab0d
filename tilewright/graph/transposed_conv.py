"""Transposed convolutions as convolutions: each output reads only the inputs and weights that meet there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..support.sizes import is_open
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, pattern, rewrite, shape, static


@register("transposed-conv")
@dataclass(frozen=True)
class TransposedConv:
    """Turn transposed convolutions with channels last into convolutions with stride 1.

    With stride s, the results at positions p, p + s, p + 2s ... of a dimension use every s-th weight, and are a
    convolution of their own. The s of them (s * s in two dimensions) are computed together, as channels of one
    convolution, and put in their places by a transpose. Weights that are missing count as 0.

        %0 = "tw.conv_transpose"(%x, %w) {strides = array<i64: 2, 2>, ...} : (tensor<1x8x8x32xf32>, ...)
    ->  %c = "tw.conv"(%x, %v) : (tensor<1x8x8x32xf32>, tensor<64x32x1x1xf32>) -> tensor<1x8x8x64xf32>
        %t = "tw.transpose"(reshape of %c to 1x8x8x2x2x16) {permutation = array<i64: 0, 1, 3, 2, 4, 5>}
        %0 = "tw.reshape"(%t) {shape = array<i64: 1, 16, 16, 16>} : ... -> tensor<1x16x16x16xf32>
    """

    def run(self, graph: Graph) -> PassReport:
        return rewrite(graph, [to_conv])


@dataclass(frozen=True)
class Phases:
    """One dimension: the results at o = stride * y + phase sum x[y - low + j] over the positions j of a window, each
    with weight `taps[phase][j]` (None: with none). There are `count` of every phase, and the result begins at position
    `start` of them all."""

    taps: tuple[tuple[int | None, ...], ...]
    low: int
    count: int
    start: int = 0

    @staticmethod
    def of(kernel: int, stride: int, pad: int, dilation: int, out: int) -> Phases:
        """For `out` results. A result that begins a little earlier, at a multiple of the stride, can do with a shorter
        window.

        >>> Phases.of(kernel=4, stride=2, pad=1, dilation=1, out=8)
        Phases(taps=((2, 0), (3, 1)), low=1, count=5, start=1)
        """
        if stride == 1:
            return Phases((tuple(reversed(range(kernel))),), dilation * (kernel - 1) - pad, out)
        found = []
        for start in (0, pad % stride):
            before = pad - start  # o sums x[y + d] w[phase + before - stride * d]
            least, most = -((kernel - 1 - before) // stride), (stride - 1 + before) // stride
            weights = [[phase + before - stride * d for d in range(least, most + 1)] for phase in range(stride)]
            taps = tuple(tuple(k if 0 <= k < kernel else None for k in row) for row in weights)
            found.append(Phases(taps, -least, -(-(out + start) // stride), start))
        return min(found, key=lambda p: len(p.taps[0]))


@pattern("conv_transpose")
def to_conv(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """conv_transpose(x, w) -> reshape(transpose(reshape(conv(x, weights of all phases))))"""
    x, w, bias = dialect.arguments(op)[:3]
    a, weights, result = dialect.attributes(op), rw.array(w), shape(op.results[0])
    steps, dilations, groups = a["strides"], a["dilations"], a["groups"]
    spread = any(s > 1 and d > 1 for s, d in zip(steps, dilations, strict=True))
    if a["layout"] != "nhwc" or not static(x, w, op.results[0]) or spread or 0 in result:
        return None
    if is_open(*shape(w)[2:]):  # which weights meet where is not known
        return None
    assert x is not None and w is not None
    n, out, rank = result[0], result[1:-1], len(result) - 2
    of = zip(shape(w)[2:], steps, a["pads"][:rank], dilations, out, strict=True)
    phases = [Phases.of(*each) for each in of]
    extents = [d * (len(p.taps[0]) - 1) for p, d in zip(phases, dilations, strict=True)]
    high = [p.count - 1 + e - p.low - (m - 1) for p, e, m in zip(phases, extents, shape(x)[1:-1], strict=True)]
    low = [p.low for p in phases]
    if min(*low, *high) < 0:
        return None  # a part of x is cut off
    if weights is not None:
        made = rw.constant(phase_weights(weights, groups, phases), rw.symbol(w))
    else:
        made = _computed(rw, w, groups, phases)
    each = _repeated(rw, bias, groups, prod(steps))
    how = {"strides": (1,) * rank, "pads": (*low, *high), "dilations": dilations, "groups": groups, "layout": "nhwc"}
    y = rw.create("conv", x, made, each, **how)
    counts = [p.count for p in phases]
    y = rw.reshape(y, (n, *counts, groups, *steps, result[-1] // groups))
    places = [i for d in range(rank) for i in (1 + d, 2 + rank + d)]
    y = rw.transpose(y, (0, *places, 1 + rank, 2 + 2 * rank))
    y = rw.reshape(y, (n, *[c * s for c, s in zip(counts, steps, strict=True)], result[-1]))
    if shape(y) != result:
        y = rw.create("slice", y, starts=(0, *(p.start for p in phases), 0), sizes=result, steps=(1,) * len(result))
    return y if bias is None or each is not None else rw.create("add", y, bias)


def phase_weights(w: np.ndarray, groups: int, phases: Sequence[Phases]) -> np.ndarray:
    """[I, O / groups, *kernel] -> [groups * phases * O / groups, I / groups, *window]"""
    rank = w.ndim - 2
    w = w.reshape(groups, w.shape[0] // groups, *w.shape[1:])  # [g, i, o, *kernel]
    for d, p in enumerate(phases):
        axis = 3 + 2 * d  # of the kernel, which becomes [phase, position in the window]
        with_none = np.concatenate([w, np.zeros_like(w.take([0], axis))], axis)
        w = with_none.take(np.array([[w.shape[axis] if k is None else k for k in row] for row in p.taps]), axis)
    steps, windows = [3 + 2 * d for d in range(rank)], [4 + 2 * d for d in range(rank)]
    w = w.transpose(0, *steps, 2, 1, *windows)
    return np.ascontiguousarray(w.reshape(-1, *w.shape[2 + rank :]))


def _computed(rw: Rewriter, w: ir.Value, groups: int, phases: Sequence[Phases]) -> ir.Value:
    """`phase_weights` of weights that are known at run time only."""
    sizes, rank = shape(w), len(phases)
    w = rw.reshape(w, (groups, sizes[0] // groups, *sizes[1:]))
    for d, p in enumerate(phases):
        axis, rows = 3 + 2 * d, len(shape(w))
        table = np.array([[sizes[2 + d] if k is None else k for k in row] for row in p.taps])
        if (table == sizes[2 + d]).any():  # no weight: one of the zeros after the last
            none = tuple(int(i == axis) for i in range(rows))
            w = rw.create("pad", w, low=(0,) * rows, high=none)
        w = rw.create("gather", w, rw.constant(table), axis=axis)
    steps, windows = [3 + 2 * d for d in range(rank)], [4 + 2 * d for d in range(rank)]
    w = rw.transpose(w, (0, *steps, 2, 1, *windows))
    return rw.reshape(w, (prod(shape(w)[: 2 + rank]), *shape(w)[2 + rank :]))


def _repeated(rw: Rewriter, bias: ir.Value | None, groups: int, phases: int) -> ir.Value | None:
    """A constant bias for the channels of all phases; None for any other."""
    array = rw.array(bias)
    if bias is None or array is None:
        return None
    return rw.constant(np.repeat(array.reshape(groups, 1, -1), phases, axis=1).reshape(-1), rw.symbol(bias))


__all__ = ["Phases", "TransposedConv", "phase_weights", "to_conv"]
