"""Gradients of reading images at other places: resizing, sampling by a grid, padding with the border, the largest of
windows whose places are known."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .backward import spread
from .conv import INTERPOLATIONS, Scale, interpolation, nearest, ratios, repetitions
from .node import Each, FxNode, FxTensor
from .registry import aten

# ---- resizing and padding --------------------------------------------------------------------------------------------


@aten(*(f"{mode}{r}d_backward" for mode in ("upsample_nearest", "_upsample_nearest_exact") for r in (1, 2, 3)))
def upsample_nearest_backward(n: FxNode, dy: FxTensor, output_size: Each, input_size: Sequence[int], *scales: Scale,
                              **named: object) -> FxTensor:  # fmt: skip
    """Every element adds up the gradients of those that it was copied to."""
    for i, ratio in enumerate(ratios(n, input_size[2:], dy.shape[2:], scales, named)):
        size, axis = input_size[2 + i], 2 + i
        at = nearest(n.overload, size, dy.shape[axis], ratio)
        if np.array_equal(at, np.arange(size)):
            continue
        if factor := repetitions(at, size):
            runs = n.reshape(dy, (*dy.shape[:axis], size, factor, *dy.shape[axis + 1 :]))
            dy = n("reduce_sum", runs, axes=(axis + 1,))
        else:
            dy = spread(n, dy, axis, at[:, None], np.ones((len(at), 1)), size)
    return dy


@aten(*(f"{name}_backward" for name in INTERPOLATIONS))
def upsample_backward(n: FxNode, dy: FxTensor, output_size: Each, input_size: Sequence[int], align_corners: bool,
                      *scales: Scale, **named: object) -> FxTensor:  # fmt: skip
    for i, ratio in enumerate(ratios(n, input_size[2:], dy.shape[2:], scales, named, dy.dtype)):
        axis = 2 + i
        taps = interpolation(n.overload, input_size[axis], dy.shape[axis], ratio, align_corners)
        if taps is not None:
            dy = spread(n, dy, axis, *taps, input_size[axis])
    return dy


@aten("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def replication_pad_backward(n: FxNode, dy: FxTensor, x: FxTensor, padding: Sequence[int]) -> FxTensor:
    """`padding` begins with the last dimension: what comes before it and after it, which may be less than nothing."""
    n.known(*x.shape)
    n.need(math.prod(dy.shape), "of nothing")
    for i in range(len(padding) // 2):
        axis = x.rank - 1 - i
        low, size = int(padding[2 * i]), x.shape[axis]
        at = np.clip(np.arange(dy.shape[axis]) - low, 0, size - 1)
        if not np.array_equal(at, np.arange(size)):
            dy = spread(n, dy, axis, at[:, None], np.ones((len(at), 1)), size)
    return dy


@aten("adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward")
def adaptive_max_pool_backward(n: FxNode, dy: FxTensor, x: FxTensor, indices: FxTensor) -> FxTensor:
    """`indices` count the elements of an image."""
    r = int(n.overload.split("max_pool")[1][0])
    n.need(math.prod(dy.shape), "of nothing")
    outer, axis = x.shape[:-r], x.rank - r
    flat = [n.reshape(v, (*outer, math.prod(v.shape[-r:]))) for v in (indices, dy)]
    nothing = n.full((*outer, math.prod(x.shape[-r:])), 0, dy.dtype)
    return n.reshape(n("scatter_elements", nothing, *flat, axis=axis, reduction="add"), x.shape)


# ---- sampling by a grid ----------------------------------------------------------------------------------------------

LINEAR, NEAREST, CUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
#: elements before and after a place that it is read from
OFFSETS = {LINEAR: (0, 1), NEAREST: (0,), CUBIC: (-1, 0, 1, 2)}
#: the free coefficient of the cubic kernel
SHARPNESS = -0.75


@aten("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def grid_sampler_backward(n: FxNode, dy: FxTensor, x: FxTensor, grid: FxTensor, mode: int, padding: int,
                          align_corners: bool, mask: Sequence[bool]) -> list[FxTensor | None]:  # fmt: skip
    """The gradients of x [N, C, *in] and of the grid [N, *out, r], as far as `mask` asks for them.

    A place of the grid is the weighted sum of elements around it, weights and elements being products and combinations
    of one table for each dimension, [offsets, places].
    """
    r, acc = x.rank - 2, "f64" if x.dtype == "f64" else "f32"
    n.need(all(math.prod(t.shape) for t in (dy, x, grid)), "of nothing")
    batch, channels, sizes = x.shape[0], x.shape[1], x.shape[2:]
    places = math.prod(grid.shape[:-1])
    n.known(batch, places)
    flat = n.cast(n.reshape(grid, (places, r)), acc)
    axes = [
        _Axis(n, n.reshape(n.slice(flat, 1, r - 1 - d, 1), (1, places)), size, mode, padding, align_corners)
        for d, size in enumerate(sizes)
    ]
    image = np.repeat(np.arange(batch), places // batch)
    at = n.reshape(n.constant(image), (*(1,) * r, places))
    for d, (axis, size) in enumerate(zip(axes, sizes, strict=True)):
        at = n("add", n("mul", at, size), _placed(n, axis.index, d, r))
    at = n.reshape(at, (math.prod(at.shape), 1))
    last = [0, *range(2, x.rank), 1]
    rows = n.reshape(n.transpose(n.cast(dy, acc), last), (places, channels))
    dx = dgrid = None
    if mask[0]:
        weights = n.reshape(_product(n, [a.weight for a in axes]), (at.shape[0] // places, places, 1))
        given = n.reshape(n("mul", weights, n.unsqueeze(rows, 0)), (at.shape[0], channels))
        nothing = n.full((batch * math.prod(sizes), channels), 0, acc)
        made = n("scatter_nd", nothing, at, given, reduction="add")
        back = [0, x.rank - 1, *range(1, x.rank - 1)]
        dx = n.cast(n.transpose(n.reshape(made, (batch, *sizes, channels)), back), x.dtype)
    if mask[1]:
        dgrid = n.cast(_of_grid(n, x, grid, rows, at, axes, mode), grid.dtype)
    return [dx, dgrid]


def _of_grid(
    n: FxNode, x: FxTensor, grid: FxTensor, rows: FxTensor, at: FxTensor, axes: Sequence[_Axis], mode: int
) -> FxTensor:
    """The sum over the elements around a place of what they are worth to the loss, times how fast their weights grow
    with the place."""
    r = len(axes)
    if mode == NEAREST:
        return n.full(grid.shape, 0, grid.dtype)
    places, channels = rows.shape
    pixels = n.cast(n.transpose(x, [0, *range(2, x.rank), 1]), rows.dtype)
    pixels = n.reshape(pixels, (math.prod(pixels.shape[:-1]), channels))
    count = len(OFFSETS[mode])
    picked = n("gather", pixels, n.reshape(at, (count**r, places)), axis=0)
    worth = n.reshape(n("reduce_sum", n("mul", picked, rows), axes=(2,)), (*(count,) * r, places))
    parts = []
    for d, axis in reversed(list(enumerate(axes))):  # the grid begins with the last dimension
        weights = _product(n, [axis.growth if i == d else a.weight for i, a in enumerate(axes)])
        parts.append(n("reduce_sum", n("mul", worth, weights), axes=tuple(range(r))))
    return n.reshape(n.concat([n.unsqueeze(p, 1) for p in parts], 1), grid.shape)


def _placed(n: FxNode, table: FxTensor, d: int, r: int) -> FxTensor:
    """A table [offsets, places] of dimension d among r: [1, ..., offsets, ..., 1, places]."""
    return n.reshape(table, (*(1,) * d, table.shape[0], *(1,) * (r - 1 - d), table.shape[1]))


def _product(n: FxNode, tables: Sequence[FxTensor]) -> FxTensor:
    """[offsets, ..., offsets, places]: all products of entries of one table a dimension."""
    made = _placed(n, tables[0], 0, len(tables))
    for d, table in enumerate(tables[1:], 1):
        made = n("mul", made, _placed(n, table, d, len(tables)))
    return made


class _Axis:
    """Where places [1, P] (from -1 to 1) lie in a dimension of an image. All are [offsets, P]: `index` of the elements
    around them, their `weight` (0 for those outside), and the `growth` of that with the number in the grid."""

    def __init__(self, n: FxNode, given: FxTensor, size: int, mode: int, padding: int, align_corners: bool) -> None:
        self.n, self.size = n, size
        self.low, self.high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        step = (size - 1) / 2 if align_corners else size / 2
        shifted = n("mul", n("add", given, 1.0), step)
        place = shifted if align_corners else n("sub", shifted, 0.5)
        slope = n.full(place.shape, step, place.dtype)
        if mode != CUBIC and padding == REFLECTION:
            place, turn = self._reflected(place)
            slope = n("mul", slope, turn)
        if mode != CUBIC and padding != ZEROS:
            inner = n("and", n("greater", place, 0.0), n("less", place, size - 1.0))
            slope = n("where", inner, slope, n.full((), 0, place.dtype))
            place = self._clamped(place)
        base = n("round" if mode == NEAREST else "floor", place)
        offsets = n.constant(np.array(OFFSETS[mode], np.float64)[:, None], place.dtype)
        element = n("add", base, offsets)
        distance = n("sub", place, element)
        if mode == CUBIC and padding == REFLECTION:
            element, _ = self._reflected(element)
        weight, growth = self._kernel(mode, distance)
        if padding == ZEROS:
            inside = n("and", n("greater_equal", element, 0.0), n("less_equal", element, size - 1.0))
            weight, growth = (n("where", inside, v, n.full((), 0, v.dtype)) for v in (weight, growth))
        self.index = n.cast(self._clamped(element), "i64")
        self.weight, self.growth = weight, n("mul", growth, slope)

    def _clamped(self, x: FxTensor) -> FxTensor:
        """x within the image; what is no number is put at its begin, for it becomes an index."""
        n, zero = self.n, self.n.full((), 0, x.dtype)
        made: FxTensor = n("min", n("where", n("greater_equal", x, 0.0), x, zero), self.size - 1.0)
        return made

    def _reflected(self, x: FxTensor) -> tuple[FxTensor, FxTensor]:
        """x folded into the image, and the sign of its direction there (0 in an image of one place)."""
        n, span = self.n, self.high - self.low
        if span <= 0:
            return n.full(x.shape, self.low, x.dtype), n.full(x.shape, 0, x.dtype)
        away = n("sub", x, self.low)
        far = n("abs", away)
        turns = n("floor", n("div", far, span))
        rest = n("sub", far, n("mul", turns, span))
        half = n("mul", turns, 0.5)
        even = n("equal", half, n("floor", half))
        made = n("where", even, n("add", rest, self.low), n("sub", n.tensor(self.high, x.dtype), rest))
        one, less = n.tensor(1.0, x.dtype), n.tensor(-1.0, x.dtype)
        sign = n("mul", n("where", even, one, less), n("where", n("less", away, 0.0), less, one))
        return made, sign

    def _kernel(self, mode: int, distance: FxTensor) -> tuple[FxTensor, FxTensor]:
        """The weight of elements so far before a place, and its derivative."""
        n, a = self.n, SHARPNESS
        if mode == NEAREST:
            return n.full(distance.shape, 1, distance.dtype), n.full(distance.shape, 0, distance.dtype)
        far, one = n("abs", distance), n.tensor(1.0, distance.dtype)
        sign = n("where", n("less", distance, 0.0), n.tensor(-1.0, distance.dtype), one)
        first = n.constant(np.array([o <= 0 for o in OFFSETS[LINEAR]])[:, None])
        if mode == LINEAR:
            return n("sub", one, far), n("where", first, n.tensor(-1.0, distance.dtype), one)

        def polynomial(coefficients: Sequence[float]) -> FxTensor:
            made = n.tensor(coefficients[0], distance.dtype)
            for c in coefficients[1:]:
                made = n("add", n("mul", made, far), c)
            return made

        close = n.constant(np.array([o in (0, 1) for o in OFFSETS[CUBIC]])[:, None])
        weight = n("where", close, polynomial((a + 2, -a - 3, 0, 1)), polynomial((a, -5 * a, 8 * a, -4 * a)))
        growth = n("where", close, polynomial((3 * a + 6, -2 * a - 6, 0)), polynomial((3 * a, -10 * a, 8 * a)))
        return weight, n("mul", growth, sign)


__all__: list[str] = []
