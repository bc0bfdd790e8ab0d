"""Gather and scatter. Negative indices count from the end; indices out of range are clamped."""

from __future__ import annotations

import math

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import NUMPY, Type, is_float
from ..support import sizes
from ..support.dtypes import wide
from ..support.errors import OpError
from .common import axis_of, fits, need, need_shape, same_dtype, widen
from .reduce import highest, lowest


def _need_indices(x: Type) -> None:
    if x.dtype not in ("i64", "i32"):
        raise OpError(f"indices are i64 or i32, got {x}")


def wrap(indices: np.ndarray, size: int) -> np.ndarray:
    """Indices counted from the front, clamped to the dimension."""
    i = np.asarray(indices).astype(np.int64)
    return np.clip(np.where(i < 0, i + size, i), 0, max(size - 1, 0))


def wrap_scalar(b, i, size: int):
    """`wrap` inside a linalg body: an ``index`` Scalar that is safe to load from."""
    i = b.cast(i, "index")
    return b.minimum(b.maximum(b.select(i < 0, i + size, i), 0), max(size - 1, 0))


class Gather(Operator):
    """Slices of x along `axis` picked by `indices`, whose shape replaces that dimension (np.take).

    ``"tw.gather"(%table, %ids) {axis = 0} : (tensor<100x8xf32>, tensor<1x4xi64>) -> tensor<1x4x8xf32>``
    """

    @staticmethod
    def infer(x, indices, *, axis: int = 0):
        _need_indices(indices)
        axis = axis_of(axis, x.rank)
        if x.shape[axis] == 0 and 0 not in indices.shape:
            raise OpError(f"dimension {axis} of {x} is empty: nothing to pick")
        return x.with_shape(x.shape[:axis] + indices.shape + x.shape[axis + 1 :])

    @staticmethod
    def reference(x, indices, *, axis):
        return np.take(x, wrap(indices, x.shape[axis]), axis)

    @staticmethod
    def lower(b, x, indices, *, axis):
        axis, r = axis % x.rank, indices.rank
        t = Gather.infer(x.type, indices.type, axis=axis)

        def body(i, _):
            before = [b.index(d) for d in range(axis)]
            after = [b.index(d + r) for d in range(axis, x.rank - 1)]
            return b.load(x, [*before, wrap_scalar(b, i, x.shape[axis]), *after])

        picked = [b.dim(axis + d) for d in range(r)]
        out = (b.empty(t), [b.dim(d) for d in range(t.rank)])
        return b.generic([(indices, picked)], [out], "p" * t.rank, body)[0]


class GatherElements(Operator):
    """out[i, j, ...] = x with coordinate `axis` replaced by indices[i, j, ...] (np.take_along_axis)."""

    @staticmethod
    def infer(x, indices, *, axis: int = 0):
        _need_indices(indices)
        axis = axis_of(axis, x.rank)
        if indices.rank != x.rank:
            raise OpError(f"indices {indices} need the rank of {x}")
        for d, (i, n) in enumerate(zip(indices.shape, x.shape, strict=True)):
            if d != axis and i is not None and n is not None and i > n:
                raise OpError(f"dimension {d} of indices {indices} is larger than that of {x}")
        return x.with_shape(indices.shape)

    @staticmethod
    def reference(x, indices, *, axis):
        at = list(np.indices(indices.shape, sparse=True))
        at[axis] = wrap(indices, x.shape[axis])
        return x[tuple(at)]

    @staticmethod
    def lower(b, x, indices, *, axis):
        axis = axis % x.rank

        def body(i):
            at = [b.index(d) for d in range(x.rank)]
            at[axis] = wrap_scalar(b, i, x.shape[axis])
            return b.load(x, at)

        return b.elementwise(body, indices, dtype=x.dtype)


class GatherNd(Operator):
    """The last dimension of `indices` addresses the dimensions of x after the first `batch` ones, which both share."""

    @staticmethod
    def infer(x, indices, *, batch: int = 0):
        _need_indices(indices)
        if not 0 <= batch < min(x.rank, indices.rank) or indices.shape[-1] is None:
            raise OpError(f"batch {batch} does not fit {x} and {indices}")
        if not 1 <= indices.shape[-1] <= x.rank - batch:
            raise OpError(f"the last dimension of indices {indices} does not address {x}")
        if not fits(x.shape[:batch], indices.shape[:batch]):
            raise OpError(f"the first {batch} dimensions of {x} and {indices} differ")
        return x.with_shape(indices.shape[:-1] + x.shape[batch + indices.shape[-1] :])

    @staticmethod
    def reference(x, indices, *, batch):
        depth = indices.shape[-1]
        shared = np.indices(indices.shape[:-1], sparse=True)[:batch]
        return x[(*shared, *[wrap(indices[..., k], x.shape[batch + k]) for k in range(depth)])]

    @staticmethod
    def lower(b, x, indices, *, batch):
        t = GatherNd.infer(x.type, indices.type, batch=batch)
        outer, depth = indices.rank - 1, indices.shape[-1]

        def body(*at):
            picked = []
            for k in range(depth):
                i = b.load(indices, [*at[:outer], b.constant(k, "index")])
                picked.append(wrap_scalar(b, i, x.shape[batch + k]))
            return b.load(x, [*at[:batch], *picked, *at[outer:]])

        return b.compute(t, body)


REDUCTIONS = {
    "none": None,
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def _scatter_rows(b, x, target, new, reduction):
    """Rows new[u] written to x[target[u]] for x [places, rest]."""
    out, row = [b.dim(0), b.dim(1)], [b.dim(2)]
    return _scatter(
        b, x, (target, row), (new, [b.dim(2), b.dim(1)]), (out, 0, 2), lambda u: b.load(new, [u, b.index(1)]), reduction
    )


def _scatter(b, x, target, new, loops, pick, reduction):
    """Scatter in linalg: every element of x looks at all updates whose target it may be (quadratic, any order of them).

    `target` and `new` pair tensors with their index expressions; `loops` is (indices of x, the dimension that the
    target counts, the loop over updates); `pick(u)` reads update u at the current element.
    """
    out, axis, loop = loops
    kinds = "p" * x.rank + "r"

    def here(t):
        return b.cast(b.index(axis), "i64").eq(t)

    if reduction == "none":  # the last update that hits, found by a maximum
        start = b.fill(-1, x.type.with_dtype("i64"))

        def last(t, u):
            return b.select(here(t), b.maximum(b.cast(b.index(loop), "i64"), u), u)

        # the new values give the loop its length where the target has no dimension of its own for it
        found = b.generic([target], [(start, out)], kinds, last)[0]

        def choose(v, u):
            safe = b.cast(b.maximum(u, 0), "index")
            return b.select(u >= 0, pick(safe), v)

        return b.elementwise(choose, x, found)
    combine = {
        "add": lambda v, s: v + s,
        "mul": lambda v, s: v * s,
        "max": lambda v, s: b.maximum(v, s),
        "min": lambda v, s: b.minimum(v, s),
    }[reduction]
    identity = {"add": 0, "mul": 1, "max": lowest(NUMPY[x.dtype]), "min": highest(NUMPY[x.dtype])}[reduction]
    acc = wide(x.dtype)
    start = b.fill(identity, x.type.with_dtype(acc))

    def body(t, v, s):
        return b.select(here(t), combine(b.cast(v, acc), s), s)

    total = b.generic([target, new], [(start, out)], kinds, body)[0]
    return b.elementwise(lambda v, s: b.cast(combine(b.cast(v, acc), s), x.dtype), x, total)


def _need_reduction(reduction: str) -> None:
    if reduction not in REDUCTIONS:
        raise OpError(f"reduction is one of {', '.join(REDUCTIONS)}, not {reduction!r}")


def _write(out, at, updates, reduction):
    ufunc = REDUCTIONS[reduction]
    if ufunc is None:
        out[at] = updates
    else:
        ufunc.at(out, at, updates)
    return out


class ScatterNd(Operator):
    """A copy of x in which slices addressed by the last dimension of `indices` are replaced by (or combined with)
    `updates`.

    Updates are applied in row-major order, so of several to one place the last one wins.
    """

    kind = "opaque"

    @staticmethod
    def infer(x, indices, updates, *, reduction: str = "none"):
        _need_indices(indices)
        _need_reduction(reduction)
        same_dtype(x, updates)
        depth = indices.shape[-1] if indices.rank else None
        if depth is None or not 0 <= depth <= x.rank:
            raise OpError(f"the last dimension of indices {indices} does not address {x}")
        need_shape("updates", updates, indices.shape[:-1] + x.shape[depth:])
        return x

    @staticmethod
    def reference(x, indices, updates, *, reduction):
        at = tuple(wrap(indices[..., k], x.shape[k]) for k in range(indices.shape[-1]))
        return _write(x.copy(), at, updates, reduction)

    @staticmethod
    def decompose(b, x, indices, updates, *, reduction):
        depth, rows = indices.shape[-1], math.prod(indices.shape[:-1])
        places, rest = math.prod(x.shape[:depth]), math.prod(x.shape[depth:])
        table = b.reshape(indices, (rows, depth))

        def place(row):
            at = b.constant(0, "index")
            for k in range(depth):
                i = b.load(table, [row, b.constant(k, "index")])
                at = at * x.shape[k] + wrap_scalar(b, i, x.shape[k])
            return b.cast(at, "i64")

        target = b.compute(Type((rows,), "i64"), place)
        flat, new = b.reshape(x, (places, rest)), b.reshape(updates, (rows, rest))
        return b.reshape(_scatter_rows(b, flat, target, new, reduction), x.shape)


class ScatterElements(Operator):
    """A copy of x in which the element whose coordinate `axis` is indices[i, j, ...] becomes updates[i, j, ...]."""

    kind = "opaque"

    @staticmethod
    def infer(x, indices, updates, *, axis: int = 0, reduction: str = "none"):
        _need_indices(indices)
        _need_reduction(reduction)
        same_dtype(x, updates)
        axis_of(axis, x.rank)
        if indices.rank != x.rank:
            raise OpError(f"indices {indices} need the rank of {x}")
        need_shape("updates", updates, indices.shape)
        return x

    @staticmethod
    def reference(x, indices, updates, *, axis, reduction):
        at = list(np.indices(indices.shape, sparse=True))
        at[axis] = wrap(indices, x.shape[axis])
        return _write(x.copy(), tuple(np.broadcast_arrays(*at)), updates, reduction)

    @staticmethod
    def decompose(b, x, indices, updates, *, axis, reduction):
        n, axis = x.rank, axis % x.rank
        high = [
            0 if d == axis else x.shape[d] - indices.shape[d] for d in range(n)
        ]  # beyond the indices nothing is written
        target = b.elementwise(lambda i: b.cast(wrap_scalar(b, i, x.shape[axis]), "i64"), indices, dtype="i64")
        target, new = b.pad(target, [0] * n, high, -1), b.pad(updates, [0] * n, high)
        out = [b.dim(d) for d in range(n)]
        source = [b.dim(n) if d == axis else b.dim(d) for d in range(n)]

        def pick(j):
            return b.load(new, [j if d == axis else b.index(d) for d in range(n)])

        return _scatter(b, x, (target, source), (new, source), (out, axis, n), pick, reduction)


class TopK(Operator):
    """The `k` largest (or smallest) elements along `axis` in order, and their i64 positions; of equal ones the first.

    NaN counts as the largest number. Opaque: sorting is not an iteration domain.
    """

    kind = "opaque"
    multiple = True

    @staticmethod
    def infer(x, *, k: int, axis: int = -1, largest: bool = True):
        need("number", x)
        axis = axis_of(axis, x.rank)
        n = x.shape[axis]
        if k < 0 or (n is not None and k > n):
            raise OpError(f"k = {k} does not fit dimension {axis} of {x}")
        shape = tuple(k if i == axis else d for i, d in enumerate(x.shape))
        return [x.with_shape(shape), Type(shape, "i64")]

    @staticmethod
    def reference(x, *, k, axis, largest):
        key = widen(x)[0]  # bfloat16 does not sort NaN last
        if largest:  # a stable ascending sort of the reversed sequence, read backwards, keeps the first of equal ones
            order = np.flip(x.shape[axis] - 1 - np.argsort(np.flip(key, axis), axis, kind="stable"), axis)
        else:
            order = np.argsort(key, axis, kind="stable")
        order = np.take(order, np.arange(k), axis)
        return [np.take_along_axis(x, order, axis), order.astype(np.int64)]

    @staticmethod
    def decompose(b, x, *, k, axis, largest):
        """By counting for each element how many come before it: quadratic in the length of the axis."""
        n, axis = x.rank, axis % x.rank
        size = x.shape[axis]
        here = [b.dim(d) for d in range(n)]
        other = [b.dim(n) if d == axis else b.dim(d) for d in range(n)]

        def count(v, w, s):
            mine, theirs = b.index(axis), b.index(n)
            ahead = w > v if largest else w < v
            tie = w.eq(v)
            if is_float(x.dtype):  # NaN counts as the largest number
                nan_v, nan_w = v.ne(v), w.ne(w)
                ahead = ahead | ((nan_w & ~nan_v) if largest else (nan_v & ~nan_w))
                tie = tie | (nan_v & nan_w)
            return b.select(ahead | (tie & (theirs < mine)), s + 1, s)

        zero = b.fill(0, x.type.with_dtype("i64"))
        rank = b.generic([(x, here), (x, other)], [(zero, here)], "p" * n + "r", count)[0]
        shape = tuple(k if d == axis else s for d, s in enumerate(x.shape))

        def find(r, at):
            return b.select(r.eq(b.cast(b.index(axis), "i64")), b.maximum(b.cast(b.index(n), "i64"), at), at)

        start = b.fill(0, Type(shape, "i64"))
        at = b.generic([(rank, other)], [(start, here)], "p" * n + "r", find)[0]

        def read(i):
            place = [b.index(d) for d in range(n)]
            place[axis] = wrap_scalar(b, i, size)
            return b.load(x, place)

        return [b.elementwise(read, at, dtype=x.dtype), at]


class OneHot(Operator):
    """values[1] where the new dimension `axis` of size `depth` equals the index, values[0] elsewhere.

    Indices count from the end where negative; those out of range give values[0] everywhere.
    """

    @staticmethod
    def infer(indices, values, *, depth: int, axis: int = -1):
        need("number", indices)
        need_shape("values", values, (2,))
        if depth < 1:
            raise OpError(f"depth {depth} is not positive")
        axis = axis_of(axis, indices.rank + 1)
        return Type((*indices.shape[:axis], depth, *indices.shape[axis:]), values.dtype)

    @staticmethod
    def reference(indices, values, *, depth, axis):
        i = indices.astype(np.int64)
        i = np.expand_dims(np.where(i < 0, i + depth, i), axis)
        shape = [1] * i.ndim
        shape[axis] = depth
        return np.where(i == np.arange(depth).reshape(shape), values[1], values[0])

    @staticmethod
    def lower(b, indices, values, *, depth, axis):
        t = OneHot.infer(indices.type, values.type, depth=depth, axis=axis)
        axis = axis % t.rank

        def body(i, _):
            i = b.cast(b.cast(i, "i64"), "index")
            hit = b.index(axis).eq(b.select(i < 0, i + depth, i))
            return b.load(values, [b.select(hit, b.constant(1, "index"), 0)])

        index = [b.dim(d) for d in range(t.rank)]
        source = index[:axis] + index[axis + 1 :]
        return b.generic([(indices, source)], [(b.empty(t), index)], "p" * t.rank, body)[0]


class Trilu(Operator):
    """The upper or lower triangle of the last two dimensions, zero elsewhere; `k` shifts the diagonal."""

    @staticmethod
    def infer(x, *, upper: bool = True, k: int = 0):
        if x.rank < 2:
            raise OpError(f"needs at least two dimensions, got {x}")
        return x

    @staticmethod
    def reference(x, *, upper, k):
        rows, columns = np.indices(x.shape[-2:], sparse=True)
        keep = columns - rows >= k if upper else columns - rows <= k
        return np.where(keep, x, np.zeros((), x.dtype))

    @staticmethod
    def lower(b, x, *, upper, k):
        most = sizes.highest(x.shape[-2] + x.shape[-1])
        k = max(min(k, most), -most)

        def body(v):
            distance = b.index(x.rank - 1) - b.index(x.rank - 2)
            return b.select(distance >= k if upper else distance <= k, v, 0)

        return b.elementwise(body, x)


class Resample(Operator):
    """One axis resampled: out[..., o, ...] = sum over t of weights[o, t] * x[..., indices[o, t], ...].

    Resizing by any rule (nearest, linear, cubic, antialiased) is one of these a dimension; the tables are constants.
    """

    @staticmethod
    def infer(x, indices, weights, *, axis: int):
        need("float", x)
        _need_indices(indices)
        same_dtype(x, weights)
        axis = axis_of(axis, x.rank)
        need_shape("weights", weights, indices.shape)
        if indices.rank != 2:
            raise OpError(f"indices need two dimensions [out, taps], got {indices}")
        return x.with_shape([indices.shape[0] if i == axis else d for i, d in enumerate(x.shape)])

    @staticmethod
    def reference(x, indices, weights, *, axis):
        picked = np.moveaxis(x, axis, -1)[..., wrap(indices, x.shape[axis])]
        return np.moveaxis((picked * weights).sum(-1), -1, axis).astype(x.dtype)

    @staticmethod
    def lower(b, x, indices, weights, *, axis):
        axis, n, acc = axis % x.rank, x.rank, "f32" if x.dtype in ("f16", "bf16") else x.dtype
        t = Resample.infer(x.type, indices.type, weights.type, axis=axis).with_dtype(acc)

        def body(i, w, s):
            at = [b.index(d) for d in range(n)]
            at[axis] = wrap_scalar(b, i, x.shape[axis])
            return s + b.cast(b.load(x, at), acc) * b.cast(w, acc)

        table = [b.dim(axis), b.dim(n)]
        out = (b.fill(0, t), [b.dim(d) for d in range(n)])
        return b.cast_tensor(b.generic([(indices, table), (weights, table)], [out], "p" * n + "r", body)[0], x.dtype)
