"""Convolutions whose windows lie outside of the image in part: what would only multiply padding is left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from math import prod

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.context import use
from ..ir.graph import Graph
from ..ops.conv import spatial, with_channels
from ..ops.windows import Clipped, clip
from ..support.sizes import is_open
from .machine_costs import RegionCosts, required
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, pattern, replace, rewrite, shape, static

#: convolutions are divided where their estimate is then at most WORTH of what it was, into PIECES at most: the time to
#: compile grows with them
WORTH, PIECES = 0.85, 49


@register("clip-windows")
@dataclass(frozen=True)
class ClipWindows:
    """Remove the taps of convolutions that never lie inside of the image, and the part of an image that is not read.

        %0 = "tw.conv"(%x, %w) {dilations = array<i64: 36, 36>, pads = array<i64: 36, 36, 36, 36>, ...}
        : (tensor<1x8x14x14xf32>, tensor<4x8x3x3xf32>) -> tensor<1x4x14x14xf32>
    ->  %0 = "tw.conv"(%x, %v) {dilations = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, ...}
        : (tensor<1x8x14x14xf32>, tensor<4x8x1x1xf32>) -> tensor<1x4x14x14xf32>
    """

    def run(self, graph: Graph) -> PassReport:
        return rewrite(graph, [clip_taps])


@register("split-windows")
@dataclass(frozen=True)
class SplitWindows:
    """Divide the results of dilated convolutions into regions that the same taps reach, where that pays.

    It does where joining the regions is estimated, by the machine's `costs`, to take less time than multiplying the
    padding. With dilation 12 the
    first 2 of 14 rows are reached by two taps of three, so are the last two; those between by the tap in the middle
    alone. Each region is a convolution of its own on the part of the image that it reads:

        %0 = "tw.conv"(%x, %w) {dilations = array<i64: 12>, pads = array<i64: 12, 12>, ...}
        : (tensor<1x64x14xf32>, tensor<64x64x3xf32>) -> tensor<1x64x14xf32>
    ->  %a = "tw.conv"(slice of %x to 1x64x14, %v) : (..., tensor<64x64x2xf32>) -> tensor<1x64x2xf32>
        %b = "tw.conv"(slice of %x to 1x64x10, %u) : (..., tensor<64x64x1xf32>) -> tensor<1x64x10xf32>
        %c = "tw.conv"(slice of %x to 1x64x14, %t) : (..., tensor<64x64x2xf32>) -> tensor<1x64x2xf32>
        %0 = "tw.concat"(%a, %b, %c) {axis = 2 : i64} : ... -> tensor<1x64x14xf32>
    """

    costs: RegionCosts | None = None

    def run(self, graph: Graph) -> PassReport:
        divided, costs = 0, required(self.costs, "split-windows", "costs")
        with use():
            for op in [op for op in graph.operations() if op.name == "tw.conv"]:  # once: regions stay whole
                rw = Rewriter(graph)
                rw.names_of(op)
                with ir.InsertionPoint(op):
                    new = split_conv(rw, op, costs)
                if new is not None:
                    replace(op, new)
                    divided += 1
        return {"divided": divided} if divided else {}


@dataclass(frozen=True)
class Line:
    """One dimension of a convolution, as `ops.windows.clip` takes it."""

    n: int
    out: int
    kernel: int
    stride: int
    low: int
    dilation: int

    def clipped(self, first: int, end: int) -> Clipped:
        """What the results [first, end) need."""
        return _clipped(self, first, end)

    def cuts(self) -> list[int]:
        """The results at which another set of taps begins to be inside, with the first and the end.

        >>> Line(n=14, out=14, kernel=3, stride=1, low=12, dilation=12).cuts()
        [0, 2, 12, 14]
        """
        places = [self.low - k * self.dilation for k in range(self.kernel)]
        found = {-(-p // self.stride) for p in places} | {-(-(p + self.n) // self.stride) for p in places}
        return sorted({0, self.out} | {c for c in found if 0 < c < self.out})


@cache
def _clipped(line: Line, first: int, end: int) -> Clipped:
    return clip(line.n, end - first, line.kernel, line.stride, line.low - first * line.stride, line.dilation)


def lines_of(op: ir.Operation) -> list[Line]:
    """The dimensions of a convolution."""
    a = dialect.attributes(op)
    x, w = dialect.arguments(op)[:2]
    sizes, outs = spatial(shape(x), a["x_layout"] or a["layout"]), spatial(shape(op.results[0]), a["layout"])
    each = zip(sizes, outs, shape(w)[2:], a["strides"], a["pads"][: len(sizes)], a["dilations"], strict=True)
    return [Line(*d) for d in each]


# ---- taps that are never inside ------------------------------------------------------------------------------------


@pattern("conv")
def clip_taps(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """conv(x, w) -> conv(slice(x), slice(w))"""
    x, w = dialect.arguments(op)[:2]
    if not static(x, w, op.results[0]) or 0 in (*shape(x), *shape(w), *shape(op.results[0])):
        return None
    lines = lines_of(op)
    if any(is_open(line.n, line.out) for line in lines):  # which taps are never inside is another thing for every size
        return None
    whole = [(0, line.out) for line in lines]
    each = [line.clipped(0, line.out) for line in lines]
    less = any(len(c.taps) < line.kernel or c.stop - c.start < line.n for c, line in zip(each, lines, strict=True))
    return part(rw, op, lines, whole) if less else None


def part(rw: Rewriter, op: ir.Operation, lines: Sequence[Line], region: Sequence[tuple[int, int]]) -> ir.Value:
    """The results of a region, [first, end) of each dimension, as a convolution of what they read."""
    x, w, bias = dialect.arguments(op)[:3]
    a = dialect.attributes(op)
    layout, result = a["layout"], shape(op.results[0])
    each = [line.clipped(*ends) for line, ends in zip(lines, region, strict=True)]
    channels = result[1 if layout == "nchw" else -1]
    if not all(c.taps for c in each):  # nothing but padding
        size = with_channels(result[0], channels, [end - first for first, end in region], layout)
        return _nothing(rw, op, bias, size)
    own = a["x_layout"] or layout
    dims = shape(x)
    read = with_channels(dims[0], dims[1 if own == "nchw" else -1], [c.stop - c.start for c in each], own)
    if read != dims:
        x = rw.create("slice", x, starts=with_channels(0, 0, [c.start for c in each], own), sizes=read,
                      steps=(1,) * len(dims))  # fmt: skip
    changes = {
        "pads": tuple(c.low for c in each) + tuple(c.high for c in each),
        "dilations": tuple(
            line.dilation * c.taps.step if len(c.taps) > 1 else 1 for line, c in zip(lines, each, strict=True)
        ),
    }
    return rw.again(op, [x, _taps(rw, w, each), bias], **changes)[0]


def _taps(rw: Rewriter, w: ir.Value, each: Sequence[Clipped]) -> ir.Value:
    """The weights of the taps that are left."""
    kept, dims = tuple(len(c.taps) for c in each), shape(w)
    if kept == dims[2:]:
        return w
    array = rw.array(w)
    if array is not None:
        taken = array[(slice(None), slice(None), *[slice(c.taps[0], c.taps[-1] + 1, c.taps.step) for c in each])]
        return rw.constant(np.ascontiguousarray(taken), rw.symbol(w))
    starts, steps = (0, 0, *(c.taps[0] for c in each)), (1, 1, *(c.taps.step for c in each))
    return rw.create("slice", w, starts=starts, sizes=(*dims[:2], *kept), steps=steps)


def _nothing(rw: Rewriter, op: ir.Operation, bias: ir.Value | None, size: tuple[int, ...]) -> ir.Value:
    """The bias alone, or zeros."""
    if bias is None:
        bias = rw.like(0, op.results[0])
    elif dialect.attributes(op)["layout"] == "nchw":
        bias = rw.reshape(bias, (shape(bias)[0], *[1] * (len(size) - 2)))
    return rw.create("expand", bias, shape=size)


# ---- taps that are inside for some results -------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """A convolution of n images; with `columns` the lanes of vectors run along the last dimension, else along filters.

    >>> costs = RegionCosts(lanes=16, tap=6, padded=16, joined=12, kernel=100_000)
    >>> near, far = (Sizes((Line(14, 14, 3, 1, d, d),) * 2, 1, 64, 64, 1, False, costs) for d in (1, 12))
    >>> divide(near)
    >>> divide(far)
    [[0, 2, 12, 14], [0, 2, 12, 14]]
    """

    lines: tuple[Line, ...]
    n: int
    channels: int
    filters: int
    groups: int
    columns: bool
    costs: RegionCosts

    def cost(self, region: Sequence[tuple[int, int]], whole: bool) -> float:
        """The estimate of a region, in multiply-adds; `whole` if it is all there is."""
        each, x = [line.clipped(*ends) for line, ends in zip(self.lines, region, strict=True)], self.costs
        spans = [end - first for first, end in region]
        taps, results = prod(len(c.taps) for c in each), self.n * prod(spans)
        rows = self.n * prod(spans[:-1]) * rounded(spans[-1], x.lanes) if self.columns else results
        total = x.kernel + taps * (rows + x.tap) * self.channels // self.groups * self.filters
        if any(c.low or c.high for c in each):
            total += x.padded * self.n * self.channels * prod(c.low + c.stop - c.start + c.high for c in each)
        return total + (0 if whole else x.joined * results * self.filters)


def rounded(n: int, lanes: int) -> int:
    """Numbers that whole vectors hold."""
    return -(-n // lanes) * lanes


def divide(sizes: Sizes) -> list[list[int]] | None:
    """Where to cut each dimension of the results; None if that does not pay.

    One dimension after the other is cut best for how the others are, twice: from none cut, and from all cut everywhere
    (padding that stays in one dimension is copied for every piece of the others: two cuts may pay where one does not).
    """
    most = round(PIECES ** (1 / len(sizes.lines)))  # of a dimension
    before = sizes.cost([(0, line.out) for line in sizes.lines], whole=True)
    found = []
    for ends in ([[0, line.out] for line in sizes.lines], [_few(line.cuts(), most) for line in sizes.lines]):
        total = before
        for i in [*range(len(ends))] * 2:
            total, ends[i] = _cut(sizes, ends, i)
        found.append((total, ends))
    total, ends = min(found)
    return ends if total <= WORTH * before and any(len(e) > 2 for e in ends) else None


def _few(cuts: list[int], most: int) -> list[int]:
    """The ends of at most so many pieces."""
    return cuts if len(cuts) <= most + 1 else [cuts[i * (len(cuts) - 1) // most] for i in range(most + 1)]


def _cut(sizes: Sizes, ends: list[list[int]], i: int) -> tuple[float, list[int]]:
    """The best cuts of dimension i, and what all regions take then: the shortest path over the places to cut."""
    most = PIECES // prod(len(e) - 1 for d, e in enumerate(ends) if d != i)
    others = [[*pairwise(e)] for e in ends]
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [0])}
    cuts = sizes.lines[i].cuts()
    for end in cuts[1:]:
        found = []
        for first in cuts[: cuts.index(end)]:
            regions = product(*[[(first, end)] if d == i else o for d, o in enumerate(others)])
            cost, path = best[first]
            if len(path) <= most:
                found.append((cost + sum(sizes.cost(r, whole=False) for r in regions), [*path, end]))
        best[end] = min(found)
    return best[cuts[-1]]


def split_conv(rw: Rewriter, op: ir.Operation, costs: RegionCosts) -> Rewritten:
    """conv(x, w) -> concat of convolutions of slices of x and w"""
    x, w = dialect.arguments(op)[:2]
    a = dialect.attributes(op)
    if not static(x, w, op.results[0]) or 0 in (*shape(x), *shape(w), *shape(op.results[0])) or max(a["dilations"]) < 2:
        return None
    lines = lines_of(op)
    if any(is_open(line.n, line.out) for line in lines):
        return None
    out, dims, first = shape(op.results[0]), shape(w), a["layout"] == "nchw"
    each = dims[0] // a["groups"]  # of a group: what lanes run along, unless they run along columns, or it is one
    filters = dims[0]
    if not first:
        filters = rounded(dims[0], costs.lanes) if each == 1 else a["groups"] * rounded(each, costs.lanes)
    ends = divide(Sizes(tuple(lines), out[0], dims[1] * a["groups"], filters, a["groups"], first, costs))
    return None if ends is None else _joined(rw, op, lines, ends, ())


def _joined(
    rw: Rewriter, op: ir.Operation, lines: list[Line], ends: list[list[int]], chosen: tuple[tuple[int, int], ...]
) -> ir.Value:
    """The regions below those `chosen` of the outer dimensions, joined."""
    d = len(chosen)
    if d == len(lines):
        return part(rw, op, lines, chosen)
    made = [_joined(rw, op, lines, ends, (*chosen, piece)) for piece in pairwise(ends[d])]
    axis = d + (2 if dialect.attributes(op)["layout"] == "nchw" else 1)
    return made[0] if len(made) == 1 else rw.create("concat", *made, axis=axis)


__all__ = ["ClipWindows", "Line", "Sizes", "SplitWindows", "divide"]
