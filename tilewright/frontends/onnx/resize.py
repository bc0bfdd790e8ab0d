"""Resize and Upsample: one gather or one `resample` a dimension, its tables computed here."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from ...ir.types import NUMPY, is_float
from ...support.sizes import Undecided, highest, is_open, surely
from .open_resize import open_resize
from .registry import onnx_op

#: elements along an axis of a result at most: where each comes from is computed ahead
LARGEST = 1 << 28


def before_11(n, x, scales):
    """Resize-10 and Upsample: results lie at i / scale, and their nearest elements are those below, or above where a
    dimension shrinks."""
    return Resize(n, x, scales=scales, coordinates="asymmetric", rounding="outward").run()


@onnx_op("Upsample", since=7)
def upsample_7(n, x):
    return before_11(n, x, n.required("scales"))


@onnx_op("Upsample", since=9)
@onnx_op("Resize", since=10)
def resize_10(n, x, scales):
    return before_11(n, x, n.known(scales, "scales").tolist())


@onnx_op("Resize", since=11)
def resize(n, x, roi=None, scales=None, sizes=None):
    if n.attr("coordinate_transformation_mode") != "tf_crop_and_resize":
        roi = None  # nothing reads it
    values = [None if v is None else n.known(v, "roi, scales and sizes").tolist() for v in (roi, scales)]
    values.append(None if sizes is None else n.ints(sizes, "sizes"))
    return Resize(n, x, *[v or None for v in values]).run()


class Resize:
    """The attributes of one Resize, and the tables that follow from them."""

    def __init__(self, n, x, roi=None, scales=None, sizes=None, *, coordinates=None, rounding=None):
        self.n, self.x = n, x
        self.mode = {"bilinear": "linear"}.get(n.attr("mode", "nearest"), n.attr("mode", "nearest"))
        if self.mode not in ("nearest", "linear", "cubic"):
            raise n.error(f"mode {self.mode!r} is not known")
        self.coordinates = coordinates or n.attr("coordinate_transformation_mode", "half_pixel")
        self.rounding = rounding or n.attr("nearest_mode", "round_prefer_floor")
        self.cubic = n.attr("cubic_coeff_a", -0.75)
        self.exclude = bool(n.attr("exclude_outside", 0))
        self.antialias = bool(n.attr("antialias", 0)) and self.mode != "nearest"
        self.outside = n.attr("extrapolation_value", 0.0)
        self.axes = [a % x.rank for a in n.attr("axes") or range(x.rank)]
        self.roi = roi
        if (scales is None) == (sizes is None):
            raise n.error("needs either scales or sizes")
        given = scales if scales is not None else sizes
        if len(given) != len(self.axes):
            raise n.error(f"{len(given)} scales or sizes for {len(self.axes)} axes")
        self.targets = self._targets(scales, sizes)

    def _targets(self, scales, sizes):
        """(axis, size of the result, scale) of every axis."""
        shape = [self.x.shape[a] for a in self.axes]
        if scales is not None:
            if min(scales, default=1) <= 0:
                raise self.n.error(f"scales {scales} are not positive")
            self._check([s * highest(d) for s, d in zip(scales, shape, strict=True)], f"scales {scales}")
            return [(a, _scaled(d, s), s) for a, d, s in zip(self.axes, shape, scales, strict=True)]
        self._check(list(map(highest, sizes)), f"sizes {sizes}")
        policy = self.n.attr("keep_aspect_ratio_policy", "stretch")
        ratios = [_ratio(s, d) for s, d in zip(sizes, shape, strict=True)]
        if policy != "stretch" and None in ratios:
            raise Undecided(f"{self.n.label} keeps the aspect ratio of an image whose size is not known")
        if policy != "stretch":
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            return [(a, int(np.floor(d * ratio + 0.5)), ratio) for a, d in zip(self.axes, shape, strict=True)]
        return [(a, s, r) for a, s, r in zip(self.axes, sizes, ratios, strict=True)]

    def _check(self, sizes, what):
        if not all(size <= LARGEST for size in sizes):  # nor is a NaN
            raise self.n.error(f"{what} give more than {LARGEST:,} elements along an axis")

    def run(self):
        n, x, dtype = self.n, self.x, self.x.dtype
        if self.mode != "nearest" and not is_float(dtype):
            x = n.cast(x, "f32")
        for i, (axis, size, scale) in enumerate(self.targets):
            if size == x.shape[axis] and scale == 1 and self.coordinates != "tf_crop_and_resize":
                continue
            if is_open(size, x.shape[axis]):
                x = self._open(x, axis, size, scale)
                continue
            position = self._positions(i, x.shape[axis], size, scale)
            along = self._nearest if self.mode == "nearest" else self._weighted
            x = along(x, axis, position, scale)
            if self.coordinates == "tf_crop_and_resize":
                x = self._extrapolate(x, axis, position, self.x.shape[axis])
        return [n.cast(x, dtype)]

    def _open(self, x, axis, size, scale):
        """Along a dimension of open size: nearest neighbours of a whole multiple are repetitions, all else takes tables
        that the program computes."""
        if self.mode == "nearest" and scale is not None and float(scale).is_integer():
            places = {"asymmetric", "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "tf_half_pixel_for_nn"}
            if self.coordinates in places and self._repeats(int(scale)):
                return self._repeated(x, axis, int(scale))
        return open_resize(self, x, axis, size, scale)

    def _repeats(self, factor):
        """Whether each element becomes `factor` ones, however many there are: so do the inner ones of a few."""
        some = 5
        index = self._nearest_of(self._positions(0, some, some * factor, factor), some, factor)
        return np.array_equal(index, np.repeat(np.arange(some), factor))

    def _repeated(self, x, axis, factor):
        n, shape, size = self.n, x.shape, x.shape[axis]
        wide = n.expand(n.unsqueeze(x, axis + 1), (*shape[: axis + 1], factor, *shape[axis + 1 :]))
        return n.reshape(wide, (*shape[:axis], size * factor, *shape[axis + 1 :]))

    def _positions(self, i, before, after, scale):
        """The place in the source of every element of the result."""
        at = np.arange(after, dtype=np.float64)
        length, mode = before * scale, self.coordinates
        if mode == "asymmetric":
            return at / scale
        if mode == "align_corners":
            return at * (before - 1) / (length - 1) if length != 1 else at * 0
        if mode == "tf_crop_and_resize":
            if self.roi is None or len(self.roi) != 2 * len(self.axes):
                raise self.n.error("tf_crop_and_resize needs a roi with a start and an end for each axis")
            start, end = self.roi[i], self.roi[len(self.axes) + i]
            inside = (
                at * (end - start) * (before - 1) / (length - 1)
                if length != 1
                else at * 0 + (end - start) * (before - 1) / 2
            )
            return start * (before - 1) + inside
        if mode == "pytorch_half_pixel" and after == 1:
            return at * 0
        if mode in ("half_pixel", "pytorch_half_pixel"):
            return (at + 0.5) / scale - 0.5
        if mode == "half_pixel_symmetric":
            return before / 2 * (1 - after / length) + (at + 0.5) / scale - 0.5
        if mode == "tf_half_pixel_for_nn":
            return (at + 0.5) / scale
        raise self.n.error(f"coordinate_transformation_mode {mode!r} is not known")

    def _nearest_of(self, position, size, scale):
        """The element nearest to each position."""
        rounding: dict[str, Callable] = {
            "round_prefer_floor": lambda p: np.ceil(p - 0.5),
            "round_prefer_ceil": lambda p: np.floor(p + 0.5),
            "floor": np.floor,
            "ceil": np.ceil,
        }
        name = self.rounding_of(scale)
        if name not in rounding:
            raise self.n.error(f"nearest_mode {name!r} is not known")
        return np.clip(rounding[name](position), 0, size - 1).astype(np.int64)

    def rounding_of(self, scale):
        """How positions along a dimension are rounded: by its scale before opset 11."""
        return self.rounding if self.rounding != "outward" else "ceil" if scale < 1 else "floor"

    def _nearest(self, x, axis, position, scale):
        n, size = self.n, x.shape[axis]
        index = self._nearest_of(position, size, scale)
        factor = len(index) // size
        if factor and np.array_equal(index, np.repeat(np.arange(size), factor)):  # plain repetition: no gather
            return self._repeated(x, axis, factor)
        return n("gather", x, n.constant(index), axis=axis)

    def _weighted(self, x, axis, position, scale):
        """Linear or cubic: a few neighbours of every position with their weights."""
        n, size = self.n, x.shape[axis]
        shrink = min(scale, 1.0) if self.antialias else 1.0
        reach = int(np.ceil((1 if self.mode == "linear" else 2) / shrink))
        start = np.floor(position).astype(np.int64)
        index = start[:, None] + np.arange(1 - reach, 1 + reach)
        distance = np.abs(index - position[:, None]) * shrink
        weights = np.clip(1 - distance, 0, 1) if self.mode == "linear" else cubic(distance, self.cubic)
        if self.antialias:
            weights = weights / weights.sum(1, keepdims=True)
        if self.exclude:
            weights = np.where((index < 0) | (index >= size), 0, weights)
            weights = weights / weights.sum(1, keepdims=True)
        table = n.constant(np.clip(index, 0, size - 1))
        return n("resample", x, table, n.constant(weights, x.dtype), axis=axis)

    def _extrapolate(self, x, axis, position, size):
        inside = (position >= 0) & (position <= size - 1)
        if inside.all():
            return x
        n = self.n
        mask = n.constant(inside.reshape([-1 if i == axis else 1 for i in range(x.rank)]))
        return n("where", mask, x, n.constant(np.array(self.outside, NUMPY[x.dtype])))


def _scaled(size, scale):
    """floor(size * scale), the product rounded to f32, as ONNX infers shapes: 10 * f32(0.7) is 7."""
    if not is_open(size):
        return int(np.floor(np.float32(size) * np.float32(scale)))
    near = Fraction(scale).limit_denominator(1000)
    exact = near if np.float32(float(near)) == np.float32(scale) else Fraction(scale)
    return size * exact.numerator // exact.denominator


def _ratio(after, before):
    """after / before; None if it is another one for every size."""
    if not is_open(after, before):
        return after / before
    if after == before:
        return 1.0
    return float(after // before) if surely(lambda: after % before == 0) else None


def cubic(distance, a):
    """Weights of the cubic convolution kernel."""
    near = (a + 2) * distance**3 - (a + 3) * distance**2 + 1
    far = a * distance**3 - 5 * a * distance**2 + 8 * a * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))
