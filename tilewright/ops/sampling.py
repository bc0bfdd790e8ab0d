"""Image sampling: grid sampling, regions, deformed windows, and windows put back together.

All but `RoiAlign` are linalg with computed reads; it has a loop nest of its own, because how many samples a bin takes
depends on data.
"""

from __future__ import annotations

import itertools
import math

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import Type
from ..support.dtypes import wide
from ..support.errors import OpError
from .common import need, need_shape, same_dtype

CUBIC = -0.75
MODES = ("nearest", "linear", "cubic")
PADDINGS = ("zeros", "border", "reflection")


class GridSample(Operator):
    """x [N, C, *in] read at the places of `grid` [N, *out, r] (from -1 to 1, the last dimension of x first).

    `mode` is nearest, linear or cubic (images of two dimensions only); `padding` says what is read outside: zeros, the
    border, or the reflection of the inside. With `align_corners` -1 and 1 are the centres of the first and last
    element. A place that is infinite is outside; where it is NaN the result is too, but for `nearest` (zero outside)
    and a linear border or reflection (the first element).
    """

    @staticmethod
    def infer(x, grid, *, mode: str = "linear", padding: str = "zeros", align_corners: bool = False):
        need("float", x, grid)
        r = x.rank - 2
        if r < 1 or grid.rank != x.rank or grid.shape[-1] != r:
            raise OpError(f"grid {grid} does not fit {x}")
        need_shape("grid", grid, (x.shape[0], *grid.shape[1:]))
        if mode not in MODES or padding not in PADDINGS:
            raise OpError(f"mode {mode!r} or padding {padding!r} is not known")
        if mode == "cubic" and r != 2:
            raise OpError("cubic sampling needs images of two dimensions")
        return x.with_shape((*x.shape[:2], *grid.shape[1:-1]))

    @staticmethod
    def reference(x, grid, *, mode, padding, align_corners):
        r, sizes = x.ndim - 2, x.shape[2:]
        out = np.zeros((*x.shape[:2], *grid.shape[1:-1]), np.float64)
        at = []
        for d, size in enumerate(sizes):
            v = grid[..., r - 1 - d].astype(np.float64)
            p = (v + 1) / 2 * (size - 1) if align_corners else ((v + 1) * size - 1) / 2
            at.append(p)
        lows = [(-0.5, s - 0.5) if not align_corners else (0.0, s - 1.0) for s in sizes]
        if mode != "cubic" and padding == "reflection":
            at = [_reflect(p, *low) for p, low in zip(at, lows, strict=True)]
        if mode != "cubic" and padding != "zeros":
            at = [np.clip(np.where(np.isnan(p), 0, p), 0, s - 1) for p, s in zip(at, sizes, strict=True)]
        for offsets in itertools.product(*[_offsets(mode)] * r):
            weight, index, outside = np.ones(grid.shape[:-1]), [], np.zeros(grid.shape[:-1], bool)
            for p, o, s, low in zip(at, offsets, sizes, lows, strict=True):
                base = np.rint(p) if mode == "nearest" else np.floor(p)
                i = base + o
                weight = weight * _weight(mode, p - base, o)
                if padding == "reflection":
                    i = _reflect(i, *low)
                if padding != "zeros":
                    i = np.clip(np.trunc(i) if padding == "reflection" else i, 0, s - 1)
                outside |= (i < 0) | (i > s - 1) | ((mode == "nearest") & np.isnan(i))
                index.append(np.clip(np.nan_to_num(i), 0, s - 1).astype(np.int64))
            for b in range(x.shape[0]):
                picked = x[b][(slice(None), *[i[b] for i in index])]
                out[b] += np.where(outside[b], 0, picked * weight[b])
        return out.astype(x.dtype)

    @staticmethod
    def lower(b, x, grid, *, mode, padding, align_corners):
        t = GridSample.infer(x.type, grid.type, mode=mode, padding=padding, align_corners=align_corners)
        r, sizes, acc = x.rank - 2, x.shape[2:], wide(x.dtype)

        def body(*out):
            at = []
            for d, size in enumerate(sizes):
                v = b.cast(b.load(grid, [out[0], *out[2:], b.constant(r - 1 - d, "index")]), acc)
                at.append((v + 1.0) * ((size - 1) / 2) if align_corners else ((v + 1.0) * float(size) - 1.0) * 0.5)
            lows = [(-0.5, s - 0.5) if not align_corners else (0.0, s - 1.0) for s in sizes]
            if mode != "cubic" and padding == "reflection":
                at = [_reflect_scalar(b, p, *low) for p, low in zip(at, lows, strict=True)]
            if mode != "cubic" and padding != "zeros":
                at = [_clamp(b, p, 0.0, s - 1.0) for p, s in zip(at, sizes, strict=True)]
            total = None
            for offsets in itertools.product(*[_offsets(mode)] * r):
                weight, index, outside = None, [], None
                for p, o, s, low in zip(at, offsets, sizes, lows, strict=True):
                    base = b.unary("roundeven" if mode == "nearest" else "floor", p)
                    i, w = base + float(o), _weight_scalar(mode, p - base, o)
                    weight = w if weight is None or w is None else weight * w
                    if mode == "cubic" and padding == "reflection":
                        i = b.unary("trunc", _reflect_scalar(b, i, *low))
                    test = (i < 0.0) | (i > s - 1.0)
                    test = test | i.ne(i) if mode == "nearest" else test
                    outside = test if outside is None else outside | test
                    index.append(b.cast(b.cast(_clamp(b, i, 0.0, s - 1.0), "i64"), "index"))
                value = b.cast(b.load(x, [out[0], out[1], *index]), acc)
                value = value if weight is None else value * weight
                if padding == "zeros":  # after the weight, which is NaN for an infinite place
                    value = b.select(outside, 0, value)
                total = value if total is None else total + value
            return b.cast(total, x.dtype)

        return b.compute(t, body)


def _offsets(mode):
    return {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}[mode]


def _weight(mode, f, o):
    """Weight of the neighbour at distance `o` from the one before a place, `f` behind it."""
    if mode == "nearest":
        return 1.0
    if mode == "linear":
        return f if o else 1 - f
    distance = np.abs(f - o)
    near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance * distance + 1
    far = ((CUBIC * distance - 5 * CUBIC) * distance + 8 * CUBIC) * distance - 4 * CUBIC
    return near if o in (0, 1) else far


def _weight_scalar(mode, f, o):
    if mode == "nearest":
        return None
    if mode == "linear":
        return f if o else 1.0 - f
    d = f - float(o) if o <= 0 else float(o) - f
    if o in (0, 1):
        return ((d * (CUBIC + 2)) - (CUBIC + 3)) * d * d + 1.0
    return ((d * CUBIC - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC


def _clamp(b, x, low, high):
    """x between two numbers; NaN becomes `low`."""
    x = b.select(x >= low, x, low)
    return b.select(x <= high, x, high)


def _reflect(x, low, high):
    span = high - low
    if span <= 0:
        return np.full(x.shape, low)
    d = np.abs(x - low)
    turns = np.floor(d / span)
    rest = d - turns * span
    return np.where(turns % 2 == 0, low + rest, high - rest)


def _reflect_scalar(b, x, low, high):
    span = high - low
    if span <= 0:
        return b.constant(low, x.dtype)
    d = b.abs(x - low)
    turns = b.unary("floor", d / span)
    rest = d - turns * span
    even = (turns * 0.5 - b.unary("floor", turns * 0.5)).eq(0.0)
    return b.select(even, rest + low, high - rest)


# ---- bilinear reads ------------------------------------------------------------------------------------------------


def _bilinear(b, read, y, x, height, width):
    """The value at a place between elements; 0 outside. `read(i, j)` loads an element at ``index`` Scalars."""
    total = None
    y0, x0 = b.unary("floor", y), b.unary("floor", x)
    for dy, dx in itertools.product((0, 1), (0, 1)):
        i, j = y0 + float(dy), x0 + float(dx)
        inside = (i >= 0.0) & (i <= height - 1.0) & (j >= 0.0) & (j <= width - 1.0)
        at = [b.cast(b.cast(_clamp(b, v, 0.0, n - 1.0), "i64"), "index") for v, n in ((i, height), (j, width))]
        weight = (y - y0 if dy else 1.0 - (y - y0)) * (x - x0 if dx else 1.0 - (x - x0))
        value = b.select(inside, read(*at) * weight, 0)
        total = value if total is None else total + value
    return total


class DeformColumns(Operator):
    """The windows of a deformable convolution as columns: [N, groups, C / groups * kh * kw, oh * ow].

    Window element k of output place p is read from x [N, C, H, W] at its usual place plus `offset` [N, 2 * G * kh * kw,
    oh, ow] (y, then x), bilinearly, times `mask` [N, G * kh * kw, oh, ow]; G offset groups share the channels.
    """

    @staticmethod
    def infer(
        x, offset, mask=None, *, kernel: tuple, strides: tuple, pads: tuple, dilations: tuple, groups: int = 1,
        offset_groups: int = 1,
    ):  # fmt: skip
        need("float", x)
        same_dtype(x, offset, mask)
        if x.rank != 4 or offset.rank != 4:
            raise OpError(f"takes images of two dimensions, got {x} and {offset}")
        points = offset_groups * kernel[0] * kernel[1]
        out = DeformColumns.places(x.shape, kernel, strides, pads, dilations)
        need_shape("offset", offset, (x.shape[0], 2 * points, *out))
        need_shape("mask", mask, (x.shape[0], points, *out))
        if x.shape[1] % groups or x.shape[1] % offset_groups:
            raise OpError(f"{groups} groups and {offset_groups} offset groups do not divide the channels of {x}")
        return x.with_shape((x.shape[0], groups, x.shape[1] // groups * kernel[0] * kernel[1], math.prod(out)))

    @staticmethod
    def places(shape, kernel, strides, pads, dilations):
        """Height and width of the result."""
        return tuple(
            (shape[2 + i] + pads[i] + pads[2 + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
            for i in (0, 1)
        )

    @staticmethod
    def reference(x, offset, mask=None, *, kernel, strides, pads, dilations, groups, offset_groups):
        (n, c, h, w), (kh, kw) = x.shape, kernel
        oh, ow = DeformColumns.places(x.shape, kernel, strides, pads, dilations)
        out = np.zeros((n, c, kh * kw, oh, ow), np.float64)
        for b, ch, k, i, j in itertools.product(range(n), range(c), range(kh * kw), range(oh), range(ow)):
            g = ch // (c // offset_groups)
            point = g * kh * kw + k
            y = i * strides[0] - pads[0] + k // kw * dilations[0] + float(offset[b, 2 * point, i, j])
            z = j * strides[1] - pads[1] + k % kw * dilations[1] + float(offset[b, 2 * point + 1, i, j])
            y0, z0 = math.floor(y), math.floor(z)
            value = 0.0
            for dy, dz in itertools.product((0, 1), (0, 1)):
                p, q = y0 + dy, z0 + dz
                if 0 <= p < h and 0 <= q < w:
                    weight = (y - y0 if dy else 1 - (y - y0)) * (z - z0 if dz else 1 - (z - z0))
                    value += float(x[b, ch, p, q]) * weight
            out[b, ch, k, i, j] = value * (1.0 if mask is None else float(mask[b, point, i, j]))
        return out.reshape(n, groups, c * kh * kw // groups, oh * ow).astype(x.dtype)

    @staticmethod
    def lower(b, x, offset, mask=None, *, kernel, strides, pads, dilations, groups, offset_groups):
        (n, c, h, w), (kh, kw), acc = x.shape, kernel, wide(x.dtype)
        oh, ow = DeformColumns.places(x.shape, kernel, strides, pads, dilations)

        def body(batch, ch, ky, kx, i, j):
            point = (ch // (c // offset_groups)) * (kh * kw) + ky * kw + kx
            at = []
            for part, (o, k) in enumerate(((i, ky), (j, kx))):
                usual = o * strides[part] + k * dilations[part]
                moved = b.cast(b.load(offset, [batch, point * 2 + part, i, j]), acc)
                at.append(b.cast(usual, acc) + (moved - float(pads[part])))
            y, x_at = at
            value = _bilinear(b, lambda p, q: b.cast(b.load(x, [batch, ch, p, q]), acc), y, x_at, h, w)
            if mask is not None:
                value = value * b.cast(b.load(mask, [batch, point, i, j]), acc)
            return b.cast(value, x.dtype)

        out = b.compute(Type((n, c, kh, kw, oh, ow), x.dtype), body)
        return b.reshape(out, (n, groups, c // groups * kh * kw, oh * ow))


class Col2im(Operator):
    """Windows [N, C * prod(block), L] added up at their places in images [N, C, *image]; what lies in the padding is
    dropped."""

    @staticmethod
    def infer(x, *, image: tuple, block: tuple, strides: tuple, pads: tuple, dilations: tuple):
        need("float", x)
        places = math.prod(Col2im.places(image, block, strides, pads, dilations))
        if x.rank != 3 or x.shape[1] % math.prod(block):
            raise OpError(f"takes [N, C * {math.prod(block)}, {places}], got {x}")
        need_shape("x", x, (x.shape[0], x.shape[1], places))
        return x.with_shape((x.shape[0], x.shape[1] // math.prod(block), *image))

    @staticmethod
    def places(image, block, strides, pads, dilations):
        """How many windows there are along each dimension."""
        r = len(image)
        return tuple(
            (image[i] + pads[i] + pads[r + i] - dilations[i] * (block[i] - 1) - 1) // strides[i] + 1 for i in range(r)
        )

    @staticmethod
    def reference(x, *, image, block, strides, pads, dilations):
        r = len(image)
        places = Col2im.places(image, block, strides, pads, dilations)
        windows = x.reshape(x.shape[0], x.shape[1] // math.prod(block), *block, *places).astype(np.float64)
        padded = np.zeros((*windows.shape[:2], *[n + pads[i] + pads[r + i] for i, n in enumerate(image)]))
        for k in itertools.product(*map(range, block)):
            cut = tuple(
                slice(k[i] * dilations[i], k[i] * dilations[i] + (places[i] - 1) * strides[i] + 1, strides[i])
                for i in range(r)
            )
            padded[(slice(None), slice(None), *cut)] += windows[(slice(None), slice(None), *k)]
        inside = tuple(slice(pads[i], pads[i] + n) for i, n in enumerate(image))
        return padded[(slice(None), slice(None), *inside)].astype(x.dtype)

    @staticmethod
    def lower(b, x, *, image, block, strides, pads, dilations):
        if all(1 in d for d in zip(strides, dilations, strict=True)):
            return _sum_of_phases(b, x, image, block, strides, pads, dilations)
        return Col2im._by_element(b, x, image, block, strides, pads, dilations)

    @staticmethod
    def _by_element(b, x, image, block, strides, pads, dilations):
        """Every element of the image looks at the window elements that may lie on it."""
        r, acc, places = len(image), wide(x.dtype), Col2im.places(image, block, strides, pads, dilations)
        n, c = x.shape[0], x.shape[1] // math.prod(block)
        windows = b.reshape(x, (n, c, *block, *places))
        t = Type((n, c, *image), x.dtype)

        def body(size, s):
            at = [b.index(d) for d in range(2 + 2 * r)]
            index, inside = [], None
            for i in range(r):
                shift = at[2 + i] + pads[i] - at[2 + r + i] * dilations[i]
                safe = b.maximum(shift, 0)
                place = safe // strides[i]
                test = (shift >= 0) & (place * strides[i]).eq(safe) & (place < places[i])
                inside = test if inside is None else inside & test
                index.append(b.minimum(place, places[i] - 1))
            value = b.cast(b.load(windows, [at[0], at[1], *at[2 + r :], *index]), acc)
            return s + b.select(inside, value, 0)

        extents = b.empty(Type(tuple(block), "i1"))  # only gives the reduction its extents
        out = (b.fill(0, t.with_dtype(acc)), [b.dim(d) for d in range(2 + r)])
        over = (extents, [b.dim(2 + r + i) for i in range(r)])
        return b.cast_tensor(b.generic([over], [out], "p" * (2 + r) + "r" * r, body)[0], x.dtype)


def _sum_of_phases(b, x, image, block, strides, pads, dilations):
    """`Col2im` where each dimension has a stride or a dilation of 1.

    The elements r, r + stride, r + 2 stride ... of the padded image are sums of the same window elements (r, r + stride
    ...), each of a window further before: every phase r is a sum of shifted windows, with zeros beside them. The phases
    are put in their places at the end.
    """
    rank, acc = len(image), wide(x.dtype)
    places = Col2im.places(image, block, strides, pads, dilations)
    taps = [-(-k // s) for k, s in zip(block, strides, strict=True)]
    counts = [-(-(n + p) // s) for n, p, s in zip(image, pads, strides, strict=False)]
    low = [(t - 1) * d for t, d in zip(taps, dilations, strict=True)]
    n, c = x.shape[0], x.shape[1] // math.prod(block)
    missing = [t * s - k for t, s, k in zip(taps, strides, block, strict=True)]
    after = [max(q - m, 0) for q, m in zip(counts, places, strict=True)]
    windows = b.reshape(x, (n, c, *block, *places))
    windows = b.pad(windows, [0] * (2 + rank) + low, [0, 0, *missing, *after])
    at = [b.dim(d) for d in range(2 + 3 * rank)]
    phase, place, tap = (at[2 + i * rank : 2 + (i + 1) * rank] for i in range(3))
    element = [r + t * s for r, t, s in zip(phase, tap, strides, strict=True)]
    window = [q + before - t * d for q, before, t, d in zip(place, low, tap, dilations, strict=True)]
    extents = b.empty(Type(tuple(taps), "i1"))  # only gives the reduction its extents
    total = b.generic(
        [(windows, [*at[:2], *element, *window]), (extents, tap)],
        [(b.fill(0, Type((n, c, *strides, *counts), acc)), at[: 2 + 2 * rank])],
        "p" * (2 + 2 * rank) + "r" * rank,
        lambda v, _, s: s + b.cast(v, acc),
    )[0]
    total = b.transpose(total, [0, 1, *[d for i in range(rank) for d in (2 + rank + i, 2 + i)]])
    total = b.reshape(total, (n, c, *[q * s for q, s in zip(counts, strides, strict=True)]))
    total = b.slice(total, (0, 0, *pads[:rank]), (n, c, *image), [1] * (2 + rank))
    return b.cast_tensor(total, x.dtype)


class RoiAlign(Operator):
    """Regions of x [N, C, H, W] pooled to [R, C, height, width]: `rois` [R, 4] are x1, y1, x2, y2, `batch` [R] says of
    which image.

    Every bin averages (or takes the largest of) `samples` x `samples` bilinear reads; 0 samples means as many as the
    bin has elements. With `half_pixel` places are shifted by half an element, otherwise regions are at least of size 1.
    """

    kind = "opaque"

    @staticmethod
    def infer(
        x, rois, batch, *, height: int, width: int, samples: int = 0, scale: float = 1.0, maximum: bool = False,
        half_pixel: bool = True,
    ):  # fmt: skip
        need("float", x)
        same_dtype(x, rois)
        if x.rank != 4 or rois.rank != 2 or rois.shape[1] != 4 or batch.dtype not in ("i64", "i32"):
            raise OpError(f"takes images, regions [R, 4] and their images [R], got {x}, {rois} and {batch}")
        need_shape("batch", batch, (rois.shape[0],))
        if height < 1 or width < 1 or samples < 0:
            raise OpError(f"a result of {height} x {width} with {samples} samples is not possible")
        return x.with_shape((rois.shape[0], x.shape[1], height, width))

    @staticmethod
    def reference(x, rois, batch, *, height, width, samples, scale, maximum, half_pixel):
        _, c, h, w = x.shape
        out = np.zeros((len(rois), c, height, width), np.float64)
        for r, roi in enumerate(rois.astype(np.float64)):
            image = x[np.clip(batch[r], 0, x.shape[0] - 1)].astype(np.float64)
            x1, y1, x2, y2 = roi * scale - (0.5 if half_pixel else 0)
            tall, broad = y2 - y1, x2 - x1
            if not half_pixel:
                tall, broad = max(tall, 1.0), max(broad, 1.0)
            bin_h, bin_w = tall / height, broad / width
            ny, nx = samples or math.ceil(bin_h), samples or math.ceil(bin_w)
            for i, j in itertools.product(range(height), range(width)):
                found = []
                for p, q in itertools.product(range(ny), range(nx)):
                    y, z = y1 + i * bin_h + (p + 0.5) * bin_h / ny, x1 + j * bin_w + (q + 0.5) * bin_w / nx
                    found.append(_roi_sample(image, y, z, h, w, maximum))
                if found:
                    out[r, :, i, j] = np.max(found, 0) if maximum else np.mean(found, 0)
        return out.astype(x.dtype)


def _roi_sample(image, y, x, h, w, maximum):
    """The four weighted neighbours of a place: their sum, or the largest."""
    if y < -1 or y > h or x < -1 or x > w:
        return np.zeros(image.shape[0])
    y, x = max(y, 0.0), max(x, 0.0)
    y0, x0 = min(int(y), h - 1), min(int(x), w - 1)
    y1, x1 = min(y0 + 1, h - 1), min(x0 + 1, w - 1)
    y, x = (y if y0 < h - 1 else float(y0)), (x if x0 < w - 1 else float(x0))
    fy, fx = y - y0, x - x0
    parts = [
        (1 - fy) * (1 - fx) * image[:, y0, x0], (1 - fy) * fx * image[:, y0, x1],
        fy * (1 - fx) * image[:, y1, x0], fy * fx * image[:, y1, x1],
    ]  # fmt: skip
    return np.max(parts, 0) if maximum else np.sum(parts, 0)
