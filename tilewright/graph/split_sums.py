"""Two-stage reductions: long sums with few results in slices that are summed in parallel."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..ir.types import type_of
from ..ops.common import axes_of
from .machine_costs import SumTile, required
from .passes import PassReport, register
from .rewrite import (
    Rewriter,
    Rewritten,
    defined_by,
    definition,
    elementwise,
    has_one_use,
    pattern,
    rewrite,
    shape,
    static,
)

#: reductions whose parts can be reduced once more
REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")
#: a reduction of at least NUMBERS numbers to at most FEW is sliced, into slices of SLICE numbers at most (measured: 1.6
#: times as fast with two threads, as fast as before with one; half as many numbers are reduced faster by one thread)
NUMBERS, FEW, SLICE = 1 << 18, 4, 1 << 17
#: fewer multiply-adds are not worth a second kernel, nor are slices shorter than DEPTH; both decide in which order
#: numbers are added, and so hold for all machines
WORK, DEPTH = 1 << 15, 128
#: a sum is taken in about as many slices as a tile says, and in so many times as many at most where its length has no
#: better divisor
MOST = 4


@register("split-sums")
@dataclass(frozen=True)
class SplitSums:
    """Take long sums that have few results in slices: the slices are kernels' outermost loop, which threads divide.

    A kernel divides its results among threads, and sums each from front to back. A product of 4 x 8192 and 8192 x 32
    has results for one tile of registers, and so for one thread. The number of slices follows from sizes and from
    `tile`, what a thread's registers hold, so results are the same with any number of threads. It divides the length of
    the sum; where no number near `tile.slices` does, the sum stays as it is. Where results are few vectors, there are
    more slices, some of which are summed beside each other (`schedule/planner`): one vector's additions would wait for
    each other. What comes after the sum joins the sum over slices.

        %0 = "tw.matmul"(%x, %w) : (tensor<4x8192xf32>, tensor<8192x32xf32>) -> tensor<4x32xf32>
    ->  %p = "tw.einsum"(reshape of %x to 4x8x1024, reshape of %w to 8x1024x32) {equation = "msk,skn->smn"}
        %0 = "tw.reduce_sum"(%p) {axes = array<i64: 0>} : (tensor<8x4x32xf32>) -> tensor<4x32xf32>

    Convolutions with constant weights become convolutions with a group for each slice of the channels, and reductions
    reduce slices first.
    """

    tile: SumTile | None = None

    def run(self, graph: Graph) -> PassReport:
        tile = required(self.tile, "split-sums", "tile")

        @pattern("matmul")
        def split_matmul(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """matmul(x, w) -> reduce_sum(einsum("msk,skn->smn", reshape(x), reshape(w)))"""
            return sliced_matmul(rw, op, tile)

        @pattern("conv")
        def split_conv(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """conv(x, w, b) -> add(reduce_sum(reshape(conv(x, w of a group for each slice))), b)"""
            return sliced_conv(rw, op, tile)

        @pattern(*REDUCTIONS)
        def split_reduction(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """reduce(x) -> reduce(reduce(reshape(x)))"""
            return sliced_reduction(rw, op, tile)

        return rewrite(graph, [split_matmul, split_conv, split_reduction])


def divisor(n: int, wanted: int, least: int) -> int | None:
    """The number of slices of at least `least`: the least divisor of n from `wanted` to `MOST` times as much, else the
    greatest below; None if there is none.

    >>> divisor(8192, 8, 128), divisor(1306, 8, 128), divisor(2050, 16, 128), divisor(8209, 8, 128)
    (8, 2, 10, None)
    """
    found = [d for d in range(2, min(n // least, MOST * wanted) + 1) if n % d == 0]
    return next((d for d in found if d >= wanted), found[-1] if found else None)


def slices(tile: SumTile, rows: int, columns: int, depth: int, window: int = 1) -> int | None:
    """Into how many slices a sum of `depth` times `window` products is taken; None if it stays as it is.

    >>> tile = SumTile(lanes=16, vectors=32, rows=16, in_flight=8)
    >>> slices(tile, 4, 32, 8192), slices(tile, 64, 64, 8192), slices(tile, 1, 1, 8192), slices(tile, 1, 16, 256)
    (8, None, None, None)
    """
    vectors = rows * -(-columns // tile.lanes)
    if columns < tile.lanes // 2 or not tile.least_rows <= rows <= tile.rows or vectors > tile.vectors:
        return None
    if rows * columns * depth * window < WORK:
        return None
    wanted = tile.slices if vectors <= tile.vectors // 2 else tile.slices // 2
    beside = max(tile.in_flight // vectors, 1)
    return divisor(depth, wanted * beside, max(DEPTH // window, tile.lanes))


def sliced_matmul(rw: Rewriter, op: ir.Operation, tile: SumTile) -> Rewritten:
    """The sum of slices that takes the place of a product; None where it stays."""
    x, w = op.operands
    if not static(x, w) or type_of(x).rank < 1 or type_of(w).rank != 2 or not _f32(op):
        return None
    (*lead, depth), columns = shape(x), shape(w)[1]
    rows = prod(lead)
    count = slices(tile, rows, columns, depth)
    if count is None or defined_by(w, "transpose") is not None:  # then vectors run along the sum: slower (measured)
        return None
    sizes = (count, depth // count)
    turned = defined_by(x, "transpose")
    if turned is not None and dialect.attributes(turned)["permutation"] == (1, 0):
        x = rw.reshape(turned.operands[0], (*sizes, rows))  # as it lies in memory
    else:
        turned, x = None, rw.reshape(x, (rows, *sizes))
    equation = f"{'skm' if turned else 'msk'},skn->smn"
    parts = rw.create("einsum", x, rw.reshape(w, (*sizes, columns)), equation=equation)
    return rw.reshape(rw.create("reduce_sum", parts, axes=(0,), keepdims=False), (*lead, columns))


def sliced_conv(rw: Rewriter, op: ir.Operation, tile: SumTile) -> Rewritten:
    """The same for a convolution with constant weights."""
    x, w, bias = dialect.arguments(op)[:3]
    a, weights, result = dialect.attributes(op), rw.array(w), shape(op.results[0])
    if a["layout"] != "nhwc" or a["groups"] != 1 or weights is None or not static(x) or not _f32(op):
        return None
    *places, filters = result
    channels, window = weights.shape[1], prod(weights.shape[2:])
    count = slices(tile, prod(places), filters, channels, window)
    if prod(places) * -(-filters // tile.lanes) > tile.vectors // 2 or count is None:
        return None  # two tiles of positions are not faster in slices (measured)
    grouped = weights.reshape(filters, count, channels // count, *weights.shape[2:])
    grouped = np.ascontiguousarray(np.moveaxis(grouped, 1, 0)).reshape(-1, *grouped.shape[2:])
    (parts,) = rw.again(op, [x, rw.constant(grouped, rw.symbol(w)), None], groups=count)
    parts = rw.reshape(parts, (*places, count, filters))
    total = rw.create("reduce_sum", parts, axes=(len(places),), keepdims=False)
    return total if bias is None else rw.create("add", total, bias)


def sliced_reduction(rw: Rewriter, op: ir.Operation, tile: SumTile) -> Rewritten:
    """The reduction of slices that takes the place of one with few results; None where it stays."""
    (x,) = op.operands
    if not static(x) or type_of(x).dtype != "f32":
        return None
    sizes, a, name = shape(x), dialect.attributes(op), dialect.operator(op).mnemonic
    axes = sorted(axes_of(a["axes"], len(sizes)))
    numbers, result = prod(sizes), shape(op.results[0])
    # where the last dimension stays, vectors of results are summed, and slices do not pay (measured)
    if numbers < NUMBERS or prod(result) > FEW or not axes or axes[-1] != len(sizes) - 1:
        return None
    chosen = _axis(sizes, axes, max(tile.slices // prod(result), numbers // prod(result) // SLICE))
    if chosen is None or not _can_slice(x):
        return None
    axis, count = chosen
    sliced = _sliced(rw, x, (*sizes[:axis], count, sizes[axis] // count, *sizes[axis + 1 :]))
    each = "reduce_sum" if name == "reduce_mean" else name
    parts = rw.create(each, sliced, axes=tuple(d + (d >= axis) for d in axes), keepdims=False)
    total = rw.create(each, parts, axes=(axis - sum(d < axis for d in axes),), keepdims=False)
    if name == "reduce_mean":
        total = rw.create("div", total, rw.like(prod(sizes[d] for d in axes), x))
    return rw.reshape(total, result)


def _axis(sizes: tuple[int, ...], axes: list[int], wanted: int) -> tuple[int, int] | None:
    """The axis to slice, and the number of slices: the outermost axis with enough, else the one with the most.

    >>> _axis((3, 480, 640), [0, 1, 2], 8), _axis((3, 4, 10007), [0, 1, 2], 8), _axis((10007,), [0], 8)
    ((1, 8), (1, 4), None)
    """
    found = [(axis, d) for axis in axes if (d := divisor(sizes[axis], wanted, 1)) is not None]
    enough = next((f for f in found if f[1] >= wanted), None)
    return enough or max(found, key=lambda f: f[1], default=None)


def _joins(x: ir.Value) -> ir.Operation | None:
    """The elementwise operation that makes a value for one reader, and so becomes a part of the reader's kernel."""
    op = definition(x)
    return op if elementwise(op) and has_one_use(x) else None


def _can_slice(x: ir.Value) -> bool:
    """Whether the arithmetic before a reduction works on arrays of its shape and on single numbers alone."""
    op = _joins(x)
    if op is None:
        return True
    alike = [v for v in op.operands if type_of(v).shape == shape(x)]
    return all(v in alike or type_of(v).size == 1 for v in op.operands) and all(map(_can_slice, alike))


def _sliced(rw: Rewriter, x: ir.Value, sizes: tuple[int, ...]) -> ir.Value:
    """A value in another shape. The arithmetic that makes it works on slices too: a reshape would part the kernels."""
    op = _joins(x)
    if op is None:
        return rw.reshape(x, sizes)
    operands = [_sliced(rw, v, sizes) if type_of(v).shape == shape(x) else rw.reshape(v, ()) for v in op.operands]
    return rw.again(op, operands)[0]


def _f32(op: ir.Operation) -> bool:
    """Whether all operands and the result are f32."""
    return all(type_of(v).dtype == "f32" for v in [*op.operands, *op.results])


__all__ = ["SplitSums", "divisor", "slices"]
