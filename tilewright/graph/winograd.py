"""3x3 convolutions by Winograd's method, where that is estimated to be faster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..ir.types import type_of
from ..ops.winograd import TRANSFORM, WEIGHT, transform_weights
from .passes import PassReport, register
from .rewrite import Rewriter, pattern, rewrite, shape, static


@register("winograd")
@dataclass(frozen=True)
class Winograd:
    """Turn convolutions with 3x3 constant weights, strides 1 and channels last into ``tw.winograd_conv``.

    ``tile``: the size of the tiles, "2" or "4"; "auto" takes the one with the lower estimate, if it is at most
    ``worth`` of that of the direct convolution. Larger tiles save more multiplications and lose more digits:
    relative to the largest result about 3e-7 is lost with 2, as by the direct sum, and 1e-6 to 3e-6 with 4.

        %0 = "tw.conv"(%x, %w, %b) {layout = "nhwc", pads = array<i64: 1, 1, 1, 1>, ...} : (tensor<1x14x14x64xf32>, ...)
    ->  %p = "tw.pad"(%x) {low = array<i64: 0, 1, 1, 0>, high = array<i64: 0, 3, 3, 0>} : ... -> tensor<1x18x18x64xf32>
        %m = "tw.winograd_conv"(%p, %u) {tile = 4 : i64, size = array<i64: 14, 14>} : ... -> tensor<1x14x14x64xf32>
        %0 = "tw.add"(%m, %b)
    """

    tile: Literal["auto", "2", "4"] = "auto"
    worth: float = 0.9

    def run(self, graph: Graph) -> PassReport:
        @pattern("conv")
        def to_winograd(rw: Rewriter, op: ir.Operation) -> Any:
            """conv(x, w, b) -> add(winograd_conv(pad(x), transformed w), b)"""
            return winograd(rw, op, self.tile, self.worth)

        return rewrite(graph, [to_winograd])


def winograd(rw: Rewriter, op: ir.Operation, tile: str, worth: float) -> Any:
    """What takes the place of a convolution, None if it stays."""
    x, w, bias = (*dialect.arguments(op), None)[:3]
    a = dialect.attributes(op)
    plain = a["strides"] == (1, 1) and a["dilations"] == (1, 1) and a["groups"] == 1 and a["layout"] == "nhwc"
    if not plain or not static(x, w) or shape(w)[2:] != (3, 3) or type_of(x).dtype != "f32":
        return None
    numbers = rw.array(w)
    if type_of(op.results[0]).dtype != "f32" or type_of(w).dtype != "f32" or numbers is None:
        return None
    (n, h, width, f), c = shape(op.results[0]), shape(x)[3]
    if c % 16 or f % 16 or 0 in (n, h, width):
        return None
    m = choose((n, h, width), c, f, worth) if tile == "auto" else int(tile)
    if m is None:
        return None
    top, left, bottom, right = a["pads"]
    low, high = (0, top, left, 0), (0, bottom + -h % m, right + -width % m, 0)
    padded = x if not any((*low, *high)) else rw.create("pad", x, low=low, high=high)
    u = rw.constant(transform_weights(numbers, m), rw.symbol(w))
    out = rw.create("winograd_conv", padded, u, tile=m, size=(h, width))
    return out if bias is None else rw.create("add", out, bias)


def choose(size: tuple[int, int, int], c: int, f: int, worth: float = 0.9) -> int | None:
    """The tile size with the lowest estimated time for n x h x w results of c to f channels; None: the direct way."""
    n, h, w = size
    direct = (n * h * w + WEIGHT) * 9 * c * f * worth
    best: tuple[float, int | None] = (direct, None)
    for m in (2, 4):
        tiles, p = n * -(-h // m) * -(-w // m), (m + 2) ** 2
        time = (tiles + WEIGHT) * p * c * f + p * tiles * (c + f) * TRANSFORM
        best = min(best, (time, m), key=lambda b: b[0])
    return best[1]
