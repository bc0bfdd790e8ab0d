"""Prefix sums along few long lines in slices that are scanned in parallel."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..ir.types import type_of
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, pattern, rewrite, shape, static
from .split_sums import divisor

#: a slice has at least so many numbers: fewer are not worth three kernels
SLICE = 4096
#: sums of other types are rounded where slices are added up
DTYPES = ("f32", "f64", "i32", "i64", "ui32", "ui64")
#: what a scan combines numbers with, and what it begins with
COMBINED = {"cumsum": ("reduce_sum", "add", 0), "cumprod": ("reduce_prod", "mul", 1)}


@register("split-scans")
@dataclass(frozen=True)
class SplitScans:
    """Take long lines of which there are fewer than `parts` in slices: a kernel's blocks cannot wait for each other.

        %0 = "tw.cumsum"(%x) {axis = 0} : (tensor<1048576xf32>) -> tensor<1048576xf32>
    ->  %s = reshape of %x to 128x8192
        %b = "tw.cumsum"("tw.reduce_sum"(%s) {axes = [1]}) {axis = 0, exclusive = true}
        %0 = reshape of "tw.add"("tw.cumsum"(%s) {axis = 1}, %b)

    A line whose length has no divisor near the wanted number of slices is filled up with what changes nothing.
    """

    parts: int = 0

    def run(self, graph: Graph) -> PassReport:
        @pattern(*COMBINED)
        def split_scan(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """cumsum(x) -> cumsum of slices + cumsum of their sums"""
            return sliced(rw, op, self.parts)

        return rewrite(graph, [split_scan])


def slices(lines: int, size: int, parts: int) -> int:
    """Into how many slices each of some lines is taken; 1 if they stay as they are.

    >>> slices(1, 1 << 20, 128), slices(1, 1_000_003, 128), slices(64, 1 << 20, 128), slices(1, 5000, 128)
    (128, 128, 2, 1)
    """
    return max(min(parts // max(lines, 1), size // SLICE), 1)


def sliced(rw: Rewriter, op: ir.Operation, parts: int) -> Rewritten:
    """The scan of slices that takes the place of one of few long lines; None where it stays."""
    (x,) = op.operands
    if not static(x) or type_of(x).dtype not in DTYPES:
        return None
    a, name, sizes = dialect.attributes(op), dialect.operator(op).mnemonic, shape(x)
    axis = a["axis"] % len(sizes) if sizes else 0
    if prod(sizes) == 0:
        return None
    size = sizes[axis]
    count = slices(prod(sizes) // size, size, parts)
    if count < 2:
        return None
    count = divisor(size, count, SLICE) or count
    length = -(-size // count)
    whole = (*sizes[:axis], count * length, *sizes[axis + 1 :])
    combine, join, nothing = COMBINED[name]
    if whole != sizes:
        more = [count * length - size if d == axis else 0 for d in range(len(sizes))]
        # beyond the last number in the direction of the scan
        ends = {"low" if a["reverse"] else "high": tuple(more), "high" if a["reverse"] else "low": (0,) * len(sizes)}
        x = rw.create("pad", x, **ends, value=float(nothing))
    cut = rw.reshape(x, (*sizes[:axis], count, length, *sizes[axis + 1 :]))
    sums = rw.create(combine, cut, axes=(axis + 1,), keepdims=True)
    before = rw.create(name, sums, axis=axis, reverse=a["reverse"], exclusive=True)
    inside = rw.create(name, cut, axis=axis + 1, reverse=a["reverse"], exclusive=a["exclusive"])
    found = rw.reshape(rw.create(join, inside, before), whole)
    if whole != sizes:
        starts = tuple(whole[d] - sizes[d] if a["reverse"] else 0 for d in range(len(sizes)))
        found = rw.create("slice", found, starts=starts, sizes=sizes, steps=(1,) * len(sizes))
    return found


__all__ = ["SplitScans", "slices"]
