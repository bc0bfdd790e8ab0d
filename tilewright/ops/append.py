"""Append of rows to a tensor with spare capacity (KV caches)."""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..support.errors import OpError
from ..support.sizes import less
from .common import axis_of, fits, same_dtype


class Append(Operator):
    """x with `rows` in place of its elements from `start` on along `axis`.

    What a state that grows becomes: x has its largest length, `start` is how long it is now, which may be a size that
    is not known yet. Who calls the program sees to it that the rows fit. Opaque: where the result lies in the memory of
    x, the rows alone are written.

    ``"tw.append"(%x, %rows) {axis = 1 : i64, start = 4 : i64} : (tensor<2x9x8xf32>, tensor<2x1x8xf32>) -> ...``
    """

    kind = "opaque"

    @staticmethod
    def infer(x, rows, *, axis: int, start: int):
        same_dtype(x, rows)
        if x.rank != rows.rank:
            raise OpError(f"rows {rows} need the rank of {x}")
        axis = axis_of(axis, x.rank)
        others = [tuple(d for i, d in enumerate(t.shape) if i != axis) for t in (x, rows)]
        if not fits(*others):
            raise OpError(f"rows {rows} differ from {x} in more than dimension {axis}")
        n, count = x.shape[axis], rows.shape[axis]
        if less(start, 0) or (n is not None and count is not None and less(n, start + count)):
            raise OpError(f"rows {start} to {start + count - 1} are outside of {x}")
        return x

    @staticmethod
    def reference(x, rows, *, axis, start):
        out = x.copy()
        np.moveaxis(out, axis, 0)[start : start + rows.shape[axis]] = np.moveaxis(rows, axis, 0)
        return out

    @staticmethod
    def decompose(b, x, rows, *, axis, start):
        axis, count = axis % x.rank, rows.shape[axis]
        if count == 0:
            return x

        def element(*at):
            i = at[axis] - start
            inside = b.larger(b.minimum(i, count - 1), 0)
            new = b.load(rows, [inside if d == axis else j for d, j in enumerate(at)])
            return b.select(inside.eq(i), new, b.load(x, list(at)))

        return b.compute(x.type, element)
