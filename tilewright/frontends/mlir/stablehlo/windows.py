"""Reductions over windows, with any body, and what their gradients are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .elementwise import is_neutral
from .node import HloEmitter, HloOp, real
from .reduce import Body, body_of, simple
from .registry import hlo
from .shape import padded
from .values import HloTensor

#: pooling operators visit every element of a window; longer windows are combined of shorter ones
LONGEST = 16


class Windows:
    """The windows of a `reduce_window`: for each dimension size, stride, dilation and what is around x."""

    def __init__(self, n: HloOp, rank: int) -> None:
        ones = [1] * rank
        self.sizes, self.strides = n.numbers("window_dimensions"), n.numbers("window_strides", ones)
        self.dilations, self.spaced = n.numbers("window_dilations", ones), n.numbers("base_dilations", ones)
        pads = n.numbers("padding", [0] * 2 * rank)
        self.low, self.high = pads[0::2], pads[1::2]

    def needs(self, axis: int) -> bool:
        """Whether anything happens along a dimension."""
        return (self.sizes[axis], self.strides[axis], self.low[axis], self.high[axis]) != (1, 1, 0, 0)


@hlo("reduce_window")
def reduce_window(n: HloOp, *operands: HloTensor) -> HloTensor | list[HloTensor]:
    count = len(operands) // 2
    xs, inits = [real(x) for x in operands[:count]], [real(x) for x in operands[count:]]
    w, name, body = Windows(n, xs[0].rank), simple(n.block()), body_of(n)
    if not math.prod(n.shape) or 0 in xs[0].shape:
        return [n.expand(i, t.dims) for i, t in zip(inits, n.types, strict=True)]
    if any(d > 1 for d in w.spaced):
        none, spaces = [0] * xs[0].rank, [d - 1 for d in w.spaced]
        xs = [padded(n, x, i, none, none, spaces) for x, i in zip(xs, inits, strict=True)]
    if count == 1 and is_neutral(name, inits[0]):
        made = running(n, xs[0], w, name) or pooled(n, xs[0], w, name)
        if made is not None:
            return made
    xs = [padded(n, x, i, w.low, w.high, [0] * x.rank) for x, i in zip(xs, inits, strict=True)]
    for axis in reversed(range(xs[0].rank)):
        xs = combined(n, xs, axis, w.sizes[axis], w.dilations[axis], body)
        out = n.shape[axis]
        xs = [n.slice(x, axis, 0, out, w.strides[axis]) for x in xs]
    if all(is_neutral(name, i) for i in inits):
        return xs
    return [n.expand(v, t.dims) for v, t in zip(body(inits, xs), n.types, strict=True)]


def combined(
    n: HloEmitter, xs: Sequence[HloTensor], axis: int, size: int, dilation: int, body: Body
) -> list[HloTensor]:
    """All windows of `size` elements along an axis: of windows of 1, 2, 4 ... elements, as the bits of `size` say."""
    length = xs[0].shape[axis] - (size - 1) * dilation
    part, width, done = list(xs), 1, 0
    made: list[HloTensor] = []
    while True:
        if size & width:
            shifted = [n.slice(x, axis, done * dilation, length) for x in part]
            made = shifted if not done else _like(n, body(made, shifted), made)
            done += width
        if done == size:
            return made
        rest = part[0].shape[axis] - width * dilation
        first = [n.slice(x, axis, 0, rest) for x in part]
        part = _like(n, body(first, [n.slice(x, axis, width * dilation, rest) for x in part]), first)
        width *= 2


def _like(n: HloEmitter, made: Sequence[HloTensor], operands: Sequence[HloTensor]) -> list[HloTensor]:
    return [n.expand(m, x.shape) for m, x in zip(made, operands, strict=True)]


def running(n: HloEmitter, x: HloTensor, w: Windows, name: str | None) -> HloTensor | None:
    """Running sums and products, which are windows of everything before an element (or after it)."""
    axes = [a for a in range(x.rank) if w.needs(a)]
    if len(axes) != 1 or name not in ("add", "multiply") or x.dtype == "i1":
        return None
    (axis,) = axes
    size = x.shape[axis]
    around = w.low[axis], w.high[axis]
    if (w.sizes[axis], w.strides[axis], w.dilations[axis]) != (size, 1, 1) or sorted(around) != [0, size - 1]:
        return None
    made: HloTensor = n("cumsum" if name == "add" else "cumprod", x, axis=axis, reverse=around[0] == 0)
    return made


def pooled(n: HloEmitter, x: HloTensor, w: Windows, name: str | None) -> HloTensor | None:
    """Pooling, where there is an operator for it: dimensions before and after those of the windows count as one."""
    axes = [a for a in range(x.rank) if w.needs(a)]
    fits = name == "maximum" or (name == "add" and x.is_float)
    if not axes or not fits or x.dtype == "i1":
        return None
    at = range(axes[0], axes[-1] + 1)
    kernel, strides, dilations = (tuple(v[a] for a in at) for v in (w.sizes, w.strides, w.dilations))
    pads = (*(w.low[a] for a in at), *(w.high[a] for a in at))
    if len(at) > 3 or max(kernel) > LONGEST or min(pads) < 0:
        return None
    if any(p >= d * (k - 1) + 1 for p, k, d in zip(pads, kernel * 2, dilations * 2, strict=True)):
        return None  # windows of nothing but what is around x
    sizes = [x.shape[a] for a in at]
    before, after = math.prod(x.shape[: at.start]), math.prod(x.shape[at.stop :])
    last = after > 1
    shaped = n.reshape(x, (before, *sizes, after) if last else (1, before, *sizes))
    attributes: dict[str, Any] = {"kernel": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    attributes["layout"] = "nhwc" if last else "nchw"
    if name == "maximum":
        made = n("max_pool", shaped, **attributes)
    else:
        made = n("mul", n("avg_pool", shaped, count_include_pad=True, **attributes), float(math.prod(kernel)))
    out = made.shape[1:-1] if last else made.shape[2:]
    result: HloTensor = n.reshape(made, (*x.shape[: at.start], *out, *x.shape[at.stop :]))
    return result


@hlo("select_and_scatter")
def select_and_scatter(n: HloOp, x: HloTensor, source: HloTensor, init: HloTensor) -> HloTensor:
    """Every window of x gives its element of `source` to the place that it selects (the gradient of max pooling).

    For each place in a window: which windows select it, and what these give, put where it is in x.
    """
    x, source, init = real(x), real(source), real(init)
    rank = x.rank
    sizes, strides = n.numbers("window_dimensions", [1] * rank), n.numbers("window_strides", [1] * rank)
    pads = n.numbers("padding", [0] * 2 * rank)
    low, high = pads[0::2], pads[1::2]
    places = [_unravel(i, sizes) for i in range(math.prod(sizes))]
    n.need(len(places) <= LONGEST * LONGEST, f"with windows of {len(places)} elements")
    n.need(simple(n.block(1)) == "add" and is_neutral("add", init), "that does not add to zeros")
    none = [0] * rank
    around = padded(n, x, init, low, high, none)
    outside = padded(n, n.full(x.shape, True, "i1"), n.full((), False, "i1"), low, high, none)

    def taken(v: HloTensor, at: Sequence[int]) -> HloTensor:
        made: HloTensor = n("slice", v, starts=tuple(at), sizes=source.shape, steps=tuple(strides))
        return made

    best, inside = taken(around, places[0]), taken(outside, places[0])
    chosen = n.full(source.shape, 0, "i32")
    for k, at in enumerate(places[1:], 1):
        value, here = taken(around, at), taken(outside, at)
        (keep,) = n.importer.lifted(n.block(0), [best, value])
        better = n("and", here, n("or", n("not", inside), n("not", keep)))
        best = n("where", better, value, best)
        chosen = n("where", better, n.full((), k, "i32"), chosen)
        inside = n("or", inside, here)
    total = n.full(around.shape, 0, source.dtype)
    for k, at in enumerate(places):
        part = n("where", n("equal", chosen, k), source, n.full((), 0, source.dtype))
        after = [a - p - (o - 1) * s - 1 for a, p, o, s in zip(around.shape, at, source.shape, strides, strict=True)]
        spread = padded(n, part, init, at, after, [s - 1 for s in strides])
        total = n("add", total, spread) if k else spread
    return padded(n, total, init, [-p for p in low], [-p for p in high], none)


def _unravel(i: int, sizes: Sequence[int]) -> list[int]:
    at = []
    for size in reversed(sizes):
        at.append(i % size)
        i //= size
    return at[::-1]
