"""Split-K matrix products: those with too few result tiles to fill a GPU sum slices of K in parallel."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..ir.types import type_of
from ..support.dtypes import NUMPY
from .machine_costs import GridCosts, required
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, defined_by, dtype, pattern, rewrite, shape, static
from .split_attention import ALONE

#: rows and columns of tiles: what is tried, of a product of matrices; columns, of one with so few vectors that the
#: matrix is read and multiplied number for number
TILES = ((128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32), (16, 64), (16, 32))
COLUMNS, VECTORS = (128, 64, 32), 10
#: results of a tile that keep all units of a processor busy
BUSY = 64 * 64
#: what blocks need: steps of a slice, and what their number is a multiple of
LEAST_STEPS, STEPS = 128, 32
#: what slices must save of the time
WORTH = 0.85
#: types of factors: how their sums are kept, and which of a machine's products multiply them
FACTORS = {"f32": ("f32", 0), "f16": ("f32", 1), "bf16": ("f32", 1), "i8": ("i32", 2), "ui8": ("i32", 2)}


@register("split-products")
@dataclass(frozen=True)
class SplitProducts:
    """Take long sums of products in slices, where results are too few for all processors of a machine.

    A block computes a tile of a result, and blocks have no barrier for all of them: what slices have summed up, in f32
    (i32 of bytes), a second kernel adds up, which what follows joins. How many there are, `costs` says: waves of tiles
    on the processors beside what partial sums move through memory. They divide the length of the sum.

        %0 = "tw.matmul"(%x, %w) : (tensor<16x16384xbf16>, tensor<16384x1024xbf16>) -> tensor<16x1024xbf16>
    ->  %p = "tw.einsum"(reshape of %x, reshape of %w) {equation = "msk,skn->smn", dtype = "f32"} : ...
        %s = "tw.reduce_sum"(%p) {axes = array<i64: 0>} : (tensor<8x16x1024xf32>) -> tensor<16x1024xf32>
        %0 = "tw.cast"(%s) {to = "bf16"} : (tensor<16x1024xf32>) -> tensor<16x1024xbf16>

    Convolutions with constant weights become convolutions with a group for each slice of the channels.
    """

    costs: GridCosts | None = None

    def run(self, graph: Graph) -> PassReport:
        costs = required(self.costs, "split-products", "costs")

        @pattern("matmul", "integer_matmul")
        def split_matmul(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """matmul(x, w) -> reduce_sum(einsum("msk,skn->smn", reshape(x), reshape(w)))"""
            return sliced_matmul(rw, op, costs)

        @pattern("conv", "integer_conv")
        def split_conv(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """conv(x, w, b) -> add(reduce_sum(reshape(conv(x, w of a group for each slice))), b)"""
            return sliced_conv(rw, op, costs)

        return rewrite(graph, [split_matmul, split_conv])


def slices(rows: int, columns: int, depth: int, factor: str, costs: GridCosts, window: int = 1) -> int:
    """Into how many slices the `depth` of sums of `window` products for each of its steps is taken; 1 for those that
    stay whole.

    >>> h100 = GridCosts(132, 3, (128, 1024, 2048), far=1900, near=48, begin=1200, kernel=3000)
    >>> slices(16, 1024, 16384, "bf16", h100), slices(4096, 4096, 4096, "bf16", h100)
    (4, 1)
    >>> slices(49, 512, 512, "f32", h100, window=9)
    16
    """
    found = [n for n in range(2, depth // STEPS + 1) if depth % n == 0 and _whole(depth // n, window)]
    cycles = {n: _cycles(n, rows, columns, depth * window, factor, costs) for n in (1, *found)}
    best = min(cycles, key=lambda n: (cycles[n], n))
    return best if cycles[best] < WORTH * cycles[1] else 1


def _whole(steps: int, window: int) -> bool:
    return steps % STEPS == 0 and steps * window >= LEAST_STEPS


def _cycles(n: int, rows: int, columns: int, depth: int, factor: str, costs: GridCosts) -> float:
    """What a product in so many slices is expected to take."""
    size, (single, *_), rate = NUMPY[factor].itemsize, costs.products, costs.products[FACTORS[factor][1]]
    rows, columns = sorted((rows, columns))
    few = rows <= (VECTORS if rate == single else 1)
    tiles_tried = [(rows, c) for c in COLUMNS] if few else [*TILES, *(t[::-1] for t in TILES)]
    steps, read = depth / n, (rows + columns) * depth * size / costs.far

    def cycles(tile: tuple[int, int]) -> float:
        r, c = tile
        tiles = -(-rows // r) * -(-columns // c) * n
        computed = r * c * steps / (single if few else rate * min(r * c / BUSY, 1.0))
        brought = (r + c) * steps * size / costs.near
        idle = max(costs.processors / (ALONE * tiles), 1.0)
        return max(-(-tiles // costs.processors) * (max(computed, brought) + costs.begin), read * idle)

    time = min(map(cycles, tiles_tried))
    return time if n == 1 else time + costs.kernel + costs.begin + 2 * 4 * rows * columns * n / costs.far


def sliced_matmul(rw: Rewriter, op: ir.Operation, costs: GridCosts) -> Rewritten:
    """The sum of slices that takes the place of a product; None where it stays."""
    x, w = op.operands
    sums = _sums(x, w)
    if sums is None or not static(x, w) or type_of(x).rank < 1 or type_of(w).rank != 2:
        return None
    (*lead, depth), columns = shape(x), shape(w)[1]
    rows = prod(lead)
    if not rows * columns * depth or (count := slices(rows, columns, depth, dtype(w), costs)) == 1:
        return None
    sizes = (count, depth // count)
    turned = defined_by(w, "transpose")
    if turned is not None and dialect.attributes(turned)["permutation"] == (1, 0):
        right, w = "nsk", rw.reshape(turned.operands[0], (columns, *sizes))  # as it lies in memory
    else:
        right, w = "skn", rw.reshape(w, (*sizes, columns))
    parts = rw.create("einsum", rw.reshape(x, (rows, *sizes)), w, equation=f"msk,{right}->smn", dtype=sums)
    return _total(rw, op, parts, 0, (*lead, columns))


def sliced_conv(rw: Rewriter, op: ir.Operation, costs: GridCosts) -> Rewritten:
    """The same for a convolution with constant weights."""
    x, w, bias = (*dialect.arguments(op), None)[:3]
    a, weights, result = dialect.attributes(op), rw.array(w), shape(op.results[0])
    sums = _sums(x, w)
    if sums is None or a["layout"] != "nhwc" or a["groups"] != 1 or weights is None or not static(x):
        return None
    *places, filters = result
    channels, window = weights.shape[1], prod(weights.shape[2:])
    if not prod(result) * channels:
        return None
    count = slices(prod(places), filters, channels, dtype(w), costs, window)
    if count == 1:
        return None
    grouped = weights.reshape(filters, count, channels // count, *weights.shape[2:])
    grouped = np.ascontiguousarray(np.moveaxis(grouped, 1, 0)).reshape(-1, *grouped.shape[2:])
    given_weights, more = rw.constant(grouped, rw.symbol(w)), {"dtype": sums} if op.name == "tw.conv" else {}
    operands = [x, given_weights] if op.name == "tw.integer_conv" else [x, given_weights, None]
    (parts,) = rw.again(op, operands, groups=count, **more)
    total = rw.create("reduce_sum", rw.reshape(parts, (*places, count, filters)), axes=(len(places),), keepdims=False)
    if bias is not None:
        total = rw.create("add", total, bias if dtype(bias) == sums else rw.create("cast", bias, to=sums))
    return total if dtype(op.results[0]) == sums else rw.create("cast", total, to=dtype(op.results[0]))


def _sums(x: ir.Value, w: ir.Value) -> str | None:
    """How products of two factors are summed up in parts; None where nothing says so."""
    if dtype(x) != dtype(w) and not (dtype(x) == "ui8" and dtype(w) == "i8"):
        return None
    return FACTORS[dtype(x)][0] if dtype(x) in FACTORS else None


def _total(rw: Rewriter, op: ir.Operation, parts: ir.Value, axis: int, result: tuple[int, ...]) -> ir.Value:
    """Slices together, as the result that a product had."""
    total = rw.reshape(rw.create("reduce_sum", parts, axes=(axis,), keepdims=False), result)
    to = dtype(op.results[0])
    return total if dtype(total) == to else rw.create("cast", total, to=to)


__all__ = ["SplitProducts", "slices"]
