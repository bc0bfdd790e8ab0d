"""3x3 convolutions by Winograd's method, where that is estimated, or was measured, to be faster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..ir.types import type_of
from ..ops.winograd import transform_weights
from ..support.errors import UsageError
from ..support.sizes import is_open, typical
from .machine_costs import WinogradCosts, required
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, pattern, rewrite, shape, static

#: how a convolution can be computed: by the direct sum, by F(2x2, 3x3), by F(4x4, 3x3)
ALGORITHMS = ("direct", "2", "4")
#: Winograd's method is chosen where its estimate is at most this part of that of the direct convolution
WORTH = 0.9
#: channels and filters are multiples of this: the loop nest has no form for a rest, with vectors of any usual width
CHANNELS = 16


@dataclass(frozen=True)
class Layer:
    """Sizes of a convolution that may take another way: n x h x w results of `channels` to `filters` channels.

    >>> str(Layer(1, 7, 7, 512, 512))
    '1x7x7x512x512'
    """

    n: int
    h: int
    w: int
    channels: int
    filters: int

    def __str__(self) -> str:
        return "x".join(map(str, self.sizes))

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.n, self.h, self.w, self.channels, self.filters

    @property
    def work(self) -> int:
        """Multiply-adds of the direct sum."""
        return self.n * self.h * self.w * 9 * self.channels * self.filters

    def described(self, way: str) -> str:
        """For people.

        >>> Layer(1, 7, 7, 512, 512).described("2")
        '3x3 convolution of 512 to 512 channels at 7 x 7 by F(2x2)'
        """
        images = f"{self.n} images of " if self.n > 1 else ""
        name = "the direct sum" if way == "direct" else f"F({way}x{way})"
        return f"3x3 convolution of {self.channels} to {self.filters} channels at {images}{self.h} x {self.w} by {name}"


@register("winograd")
@dataclass(frozen=True)
class Winograd:
    """Turn convolutions with 3x3 constant weights, strides 1 and channels last into ``tw.winograd_conv``.

    ``tile``: the size of the tiles, "2" or "4"; "auto" takes the one with the lower estimate (by the machine's
    ``costs``), if it is at most ``worth`` of that of the direct convolution. Larger tiles save more multiplications and
    lose more digits: relative to the largest result about 3e-7 is lost with 2, as by the direct sum, and 1e-6 to 3e-6
    with 4.
    ``algorithms`` says otherwise for layers of some sizes: ``1x7x7x512x512:direct/1x14x14x256x256:4``.

        %0 = "tw.conv"(%x, %w, %b) {layout = "nhwc", pads = array<i64: 1, 1, 1, 1>, ...} : (tensor<1x14x14x64xf32>, ...)
    ->  %p = "tw.pad"(%x) {low = array<i64: 0, 1, 1, 0>, high = array<i64: 0, 3, 3, 0>} : ... -> tensor<1x18x18x64xf32>
        %m = "tw.winograd_conv"(%p, %u) {tile = 4 : i64, size = array<i64: 14, 14>} : ... -> tensor<1x14x14x64xf32>
        %0 = "tw.add"(%m, %b)
    """

    tile: Literal["auto", "2", "4"] = "auto"
    worth: float = WORTH
    algorithms: str = ""
    costs: WinogradCosts | None = None

    def run(self, graph: Graph) -> PassReport:
        algorithms = _algorithms(self.algorithms)

        @pattern("conv")
        def to_winograd(rw: Rewriter, op: ir.Operation) -> Rewritten:
            """conv(x, w, b) -> add(winograd_conv(pad(x), transformed w), b)"""
            layer = layer_of(graph, op)
            if layer is None:
                return None
            way = self.tile if is_open(*shape(op.results[0])) else algorithms.get(str(layer), self.tile)
            way = choose(layer, required(self.costs, "winograd", "costs"), self.worth) if way == "auto" else way
            return None if way == "direct" else winograd(rw, op, int(way))

        return rewrite(graph, [to_winograd])


def _algorithms(text: str) -> dict[str, str]:
    """Sizes -> way; UsageError for anything else.

    >>> _algorithms("1x7x7x512x512:direct/1x14x14x256x256:4")
    {'1x7x7x512x512': 'direct', '1x14x14x256x256': '4'}
    """
    found = {}
    for item in filter(None, text.split("/")):
        layer, _, way = item.partition(":")
        if way not in ALGORITHMS or len(layer.split("x")) != 5:
            hint = f"write NxHxWxCHANNELSxFILTERS:WAY with one of {', '.join(ALGORITHMS)}"
            raise UsageError(f"{item!r} is no way for a layer", stage="passes", hint=hint)
        found[layer] = way
    return found


def layers(graph: Graph) -> Counter[Layer]:
    """The convolutions of a graph that may take another way, and how many there are of each."""
    known = [op for op in graph.operations() if op.name == "tw.conv" and not is_open(*shape(op.results[0]))]
    found = [layer_of(graph, op) for op in known]
    return Counter(layer for layer in found if layer is not None)


def layer_of(graph: Graph, op: ir.Operation) -> Layer | None:
    """The sizes of a convolution that Winograd's method could compute (typical ones of an image of open size), None if
    it cannot."""
    x, w = dialect.arguments(op)[:2]
    a = dialect.attributes(op)
    plain = a["strides"] == (1, 1) and a["dilations"] == (1, 1) and a["groups"] == 1 and a["layout"] == "nhwc"
    if not plain or not static(x, w) or shape(w)[2:] != (3, 3) or type_of(x).dtype != "f32":
        return None
    if type_of(op.results[0]).dtype != "f32" or type_of(w).dtype != "f32" or graph.constant_value(w) is None:
        return None
    (n, h, width, f), c = shape(op.results[0]), shape(x)[3]
    if c % CHANNELS or f % CHANNELS or 0 in (n, h, width):
        return None
    return Layer(typical(n), typical(h), typical(width), c, f)


def winograd(rw: Rewriter, op: ir.Operation, m: int) -> Rewritten:
    """What takes the place of a convolution."""
    x, w, bias = dialect.arguments(op)[:3]
    _, h, width, _ = shape(op.results[0])
    top, left, bottom, right = dialect.attributes(op)["pads"]
    more = [(s + m - 1) // m * m - s for s in (h, width)]  # to whole tiles
    low, high = (0, top, left, 0), (0, bottom + more[0], right + more[1], 0)
    padded = x if not any((*low, *high)) else rw.create("pad", x, low=low, high=high)
    numbers = rw.array(w)
    assert numbers is not None  # `layer_of` has seen to it
    u = rw.constant(transform_weights(numbers, m), rw.symbol(w))
    out = rw.create("winograd_conv", padded, u, tile=m, size=(h, width))
    return out if bias is None else rw.create("add", out, bias)


def choose(layer: Layer, costs: WinogradCosts, worth: float = WORTH) -> str:
    """The way with the lowest estimated time.

    >>> [choose(Layer(1, s, s, c, c), WinogradCosts(16, 16)) for s, c in ((28, 128), (14, 256), (7, 512))]
    ['4', '2', 'direct']
    """
    n, h, w, c, f = layer.sizes
    best: tuple[float, str] = ((n * h * w + costs.weight) * 9 * c * f * worth, "direct")
    for m in (2, 4):
        tiles, p = n * -(-h // m) * -(-w // m), (m + 2) ** 2
        time = (tiles + costs.weight) * p * c * f + p * tiles * (c + f) * costs.transform
        best = min(best, (time, str(m)), key=lambda b: b[0])
    return best[1]
