"""Data movement: reshape, transpose, slice, join, pad, repeat."""

from __future__ import annotations

import math

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import Type, is_float
from ..support.errors import OpError
from ..support.sizes import at_most, larger, less, smaller
from .common import axis_of, broadcast_shapes, same_dtype


class Reshape(Operator):
    """The same elements in row-major order under `shape`; one entry may be -1.

    ``"tw.reshape"(%x) {shape = array<i64: 2, 6>} : (tensor<3x4xf32>) -> tensor<2x6xf32>``
    """

    @staticmethod
    def infer(x, *, shape: tuple[int, ...]):
        if any(d < -1 for d in shape) or shape.count(-1) > 1:
            raise OpError(f"shape {shape} is not valid: sizes, and -1 at most once")
        if not x.static:
            return x.with_shape([None if d == -1 else d for d in shape])
        known = math.prod(d for d in shape if d != -1)
        if -1 in shape and known and x.size % known == 0:
            shape = tuple(x.size // known if d == -1 else d for d in shape)
        elif -1 in shape and known == 0 and x.size == 0:
            shape = tuple(0 if d == -1 else d for d in shape)
        if -1 in shape or math.prod(shape) != x.size:
            raise OpError(f"{x.size} elements of {x} do not fit shape {shape}")
        return x.with_shape(shape)

    @staticmethod
    def reference(x, *, shape):
        if x.size == 0:
            return x.reshape(Reshape.infer(Type(x.shape, "f32"), shape=tuple(shape)).dims)
        return x.reshape(shape)

    @staticmethod
    def lower(b, x, *, shape):
        return b.reshape(x, Reshape.infer(x.type, shape=shape).dims)


class Transpose(Operator):
    """Dimension permutation[i] of x becomes dimension i.

    ``"tw.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<3x4xf32>) -> tensor<4x3xf32>``
    """

    @staticmethod
    def infer(x, *, permutation: tuple[int, ...]):
        if sorted(permutation) != list(range(x.rank)):
            raise OpError(f"{tuple(permutation)} is not a permutation of the {x.rank} dimensions of {x}")
        return x.with_shape([x.shape[p] for p in permutation])

    @staticmethod
    def reference(x, *, permutation):
        return np.transpose(x, permutation)

    @staticmethod
    def lower(b, x, *, permutation):
        return b.transpose(x, permutation)


class Expand(Operator):
    """x repeated along size-1 and missing leading dimensions to `shape`, as np.broadcast_to."""

    @staticmethod
    def infer(x, *, shape: tuple[int, ...]):
        if broadcast_shapes(x.shape, shape) != tuple(shape):
            raise OpError(f"{x} does not broadcast to {tuple(shape)}")
        return x.with_shape(shape)

    @staticmethod
    def reference(x, *, shape):
        return np.broadcast_to(x, shape)

    @staticmethod
    def lower(b, x, *, shape):
        return b.broadcast(x, shape)


class Concat(Operator):
    """Tensors joined along `axis`."""

    @staticmethod
    def infer(*xs, axis: int):
        if not xs:
            raise OpError("needs at least one operand")
        same_dtype(*xs)
        axis = axis_of(axis, xs[0].rank)
        for x in xs:
            if x.rank != xs[0].rank:
                raise OpError(f"operands have different ranks: {xs[0]} and {x}")
        shape: list[int | None] = []
        for i in range(xs[0].rank):
            sizes = [x.shape[i] for x in xs]
            if i == axis:
                shape.append(None if None in sizes else sum(sizes))
                continue
            known = {s for s in sizes if s is not None}
            if len(known) > 1:
                raise OpError(f"dimension {i} differs: {' and '.join(map(str, xs))}")
            shape.append(known.pop() if known else None)
        return xs[0].with_shape(shape)

    @staticmethod
    def reference(*xs, axis):
        return np.concatenate(xs, axis)

    @staticmethod
    def lower(b, *xs, axis):
        return b.concat(xs, axis % xs[0].rank)


class Split(Operator):
    """x cut along `axis` into pieces of the given sizes."""

    multiple = True

    @staticmethod
    def infer(x, *, sizes: tuple[int, ...], axis: int = 0):
        axis = axis_of(axis, x.rank)
        n = x.shape[axis]
        if any(s < 0 for s in sizes) or (n is not None and sum(sizes) != n):
            raise OpError(f"sizes {tuple(sizes)} do not add up to dimension {axis} of {x}")
        return [x.with_shape([s if i == axis else d for i, d in enumerate(x.shape)]) for s in sizes]

    @staticmethod
    def reference(x, *, sizes, axis):
        return np.split(x, np.cumsum(sizes)[:-1], axis)

    @staticmethod
    def lower(b, x, *, sizes, axis):
        axis, out, at = axis % x.rank, [], 0
        for s in sizes:
            starts = [at if i == axis else 0 for i in range(x.rank)]
            shape = [s if i == axis else d for i, d in enumerate(x.shape)]
            out.append(b.slice(x, starts, shape, [1] * x.rank))
            at += s
        return out


class Slice(Operator):
    """out[i, ...] = x[starts[0] + steps[0] * i, ...] for i below sizes[0] and so on; one entry a dimension.

    Steps may be negative. ``"tw.slice"(%x) {starts = array<i64: 3>, sizes = array<i64: 4>, steps = array<i64: -1>}``
    reverses a vector of 4.
    """

    @staticmethod
    def infer(x, *, starts: tuple[int, ...], sizes: tuple[int, ...], steps: tuple[int, ...]):
        if not len(starts) == len(sizes) == len(steps) == x.rank:
            raise OpError(f"starts, sizes and steps need {x.rank} entries each, one a dimension of {x}")
        for i, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
            n = x.shape[i]
            if step == 0 or less(size, 0):
                raise OpError(f"dimension {i}: step {step}, size {size} is not valid")
            last = start + (size - 1) * step
            if size and (less(smaller(start, last), 0) or (n is not None and at_most(n, larger(start, last)))):
                raise OpError(f"dimension {i}: elements {start} to {last} are outside of {x}")
        return x.with_shape(sizes)

    @staticmethod
    def reference(x, *, starts, sizes, steps):
        index = [start + np.arange(n) * step for start, n, step in zip(starts, sizes, steps, strict=True)]
        return x[np.ix_(*index)] if index else x

    @staticmethod
    def lower(b, x, *, starts, sizes, steps):
        return b.slice(x, starts, sizes, steps)


PAD_MODES = ("constant", "reflect", "edge", "wrap")


class Pad(Operator):
    """x with low[i] and high[i] elements added before and after dimension i.

    The new elements are `value` (mode "constant"), mirrored without repeating the border ("reflect"), copies of the
    border ("edge"), or x repeated ("wrap"). `value` is a float, or for integers one of 64 bits.
    """

    @staticmethod
    def infer(x, *, low: tuple[int, ...], high: tuple[int, ...], mode: str = "constant", value: float | int = 0.0):
        if mode not in PAD_MODES:
            raise OpError(f"mode is one of {', '.join(PAD_MODES)}, not {mode!r}")
        if not len(low) == len(high) == x.rank or any(p < 0 for p in (*low, *high)):
            raise OpError(f"low {tuple(low)} and high {tuple(high)} need one entry >= 0 a dimension of {x}")
        for n, a, c in zip(x.shape, low, high, strict=True):
            if mode != "constant" and n == 0 and a + c:
                raise OpError(f"an empty dimension of {x} cannot be padded with its own elements")
        return x.with_shape([None if d is None else a + d + c for a, d, c in zip(low, x.shape, high, strict=True)])

    @staticmethod
    def reference(x, *, low, high, mode, value):
        width = list(zip(low, high, strict=True))
        if mode != "constant":
            return np.pad(x, width, mode)
        return np.pad(x, width, constant_values=np.asarray(value).astype(x.dtype))

    @staticmethod
    def lower(b, x, *, low, high, mode, value):
        if mode == "constant":
            return b.pad(x, low, high, value if is_float(x.dtype) else int(value))

        for axis, (n, before, after) in enumerate(zip(x.shape, low, high, strict=True)):
            if before or after:  # the inside is copied as it is; few elements need arithmetic to find theirs
                left, right = (
                    _border(b, x, axis, range(-before, 0), mode),
                    _border(b, x, axis, range(n, n + after), mode),
                )
                x = b.concat([piece for piece in (left, x, right) if piece is not None], axis)
        return x


def _border(b, x, axis, places, mode):
    """What lies at some places outside of a dimension; None for no places."""
    if not places:
        return None
    n = x.shape[axis]

    def source(i):
        if mode == "edge":
            return b.minimum(b.maximum(i, 0), n - 1)
        if mode == "wrap" or n == 1:
            return i % n
        i = i % (2 * n - 2)  # a period there and back
        return b.minimum(i, (2 * n - 2) - i)

    shape = [len(places) if d == axis else m for d, m in enumerate(x.shape)]
    return b.compute(
        x.type.with_shape(shape),
        lambda *at: b.load(x, [source(i + places[0]) if d == axis else i for d, i in enumerate(at)]),
    )


class Tile(Operator):
    """x repeated repeats[i] times along dimension i."""

    @staticmethod
    def infer(x, *, repeats: tuple[int, ...]):
        if len(repeats) != x.rank or any(r < 0 for r in repeats):
            raise OpError(f"repeats {tuple(repeats)} need one entry >= 0 a dimension of {x}")
        return x.with_shape([None if d is None else d * r for d, r in zip(x.shape, repeats, strict=True)])

    @staticmethod
    def reference(x, *, repeats):
        return np.tile(x, repeats)

    @staticmethod
    def lower(b, x, *, repeats):
        single, full = [], []
        for d, r in zip(x.shape, repeats, strict=True):
            single += [1, d] if r != 1 else [d]
            full += [r, d] if r != 1 else [d]
        out = [d * r for d, r in zip(x.shape, repeats, strict=True)]
        return b.reshape(b.broadcast(b.reshape(x, single), full), out)


class DepthToSpace(Operator):
    """[N, C, H, W] to [N, C / block², H * block, W * block]; mode "DCR" (depth first) or "CRD"."""

    @staticmethod
    def infer(x, *, block: int, mode: str = "DCR"):
        if mode not in ("DCR", "CRD"):
            raise OpError(f"mode is DCR or CRD, not {mode!r}")
        if x.rank != 4 or block < 1 or (x.shape[1] or 0) % (block * block):
            raise OpError(f"needs 4 dimensions and channels divisible by {block}², got {x}")
        n, c, h, w = x.shape
        return x.with_shape(
            [n, c and c // (block * block), None if h is None else h * block, None if w is None else w * block]
        )

    @staticmethod
    def _steps(shape, block, mode):
        n, c, h, w = shape
        k = c // (block * block)
        if mode == "DCR":
            return (n, block, block, k, h, w), (0, 3, 4, 1, 5, 2), (n, k, h * block, w * block)
        return (n, k, block, block, h, w), (0, 1, 4, 2, 5, 3), (n, k, h * block, w * block)

    @staticmethod
    def reference(x, *, block, mode):
        inner, order, out = DepthToSpace._steps(x.shape, block, mode)
        return x.reshape(inner).transpose(order).reshape(out)

    @staticmethod
    def lower(b, x, *, block, mode):
        inner, order, out = DepthToSpace._steps(x.shape, block, mode)
        return b.reshape(b.transpose(b.reshape(x, inner), order), out)


class SpaceToDepth(Operator):
    """[N, C, H, W] to [N, C * block², H / block, W / block], the inverse of depth_to_space; mode "DCR" or "CRD"."""

    @staticmethod
    def infer(x, *, block: int, mode: str = "DCR"):
        if mode not in ("DCR", "CRD"):
            raise OpError(f"mode is DCR or CRD, not {mode!r}")
        if x.rank != 4 or block < 1 or (x.shape[2] or 0) % block or (x.shape[3] or 0) % block:
            raise OpError(f"needs 4 dimensions and height and width divisible by {block}, got {x}")
        n, c, h, w = x.shape
        return x.with_shape([n, None if c is None else c * block * block, h and h // block, w and w // block])

    @staticmethod
    def _steps(shape, block, mode):
        n, c, h, w = shape
        out = (n, c * block * block, h // block, w // block)
        return (
            (n, c, h // block, block, w // block, block),
            (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4),
            out,
        )

    @staticmethod
    def reference(x, *, block, mode):
        inner, order, out = SpaceToDepth._steps(x.shape, block, mode)
        return x.reshape(inner).transpose(order).reshape(out)

    @staticmethod
    def lower(b, x, *, block, mode):
        inner, order, out = SpaceToDepth._steps(x.shape, block, mode)
        return b.reshape(b.transpose(b.reshape(x, inner), order), out)
