"""Mixtures of experts: tokens in the order of the experts that they are routed to, and products with the weights of
those experts only."""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import Type
from ..support.dtypes import wide
from ..support.errors import OpError
from .common import need, need_shape, widen


class ExpertOrder(Operator):
    """The pairs of token and expert, sorted by expert: experts is i32 or i64 [T, k], the experts of each token.

    Results, all i32: rows [T * k], the token of each pair in that order; places [T, k], where in the order each pair
    is; starts [count + 1], the first pair of each expert, and T * k. Pairs of one expert stay in the order of their
    tokens. Opaque: a counting sort.

    ``"tw.expert_order"(%experts) {count = 8 : i64} : (tensor<5x2xi32>) -> (tensor<10xi32>, tensor<5x2xi32>,
    tensor<9xi32>)``
    """

    kind = "opaque"
    multiple = True

    @staticmethod
    def infer(experts, *, count: int):
        if experts.dtype not in ("i32", "i64") or experts.rank != 2:
            raise OpError(f"takes experts of i32 or i64 [T, k], got {experts}")
        if count < 1:
            raise OpError(f"there are {count} experts")
        tokens, each = experts.shape
        pairs = None if tokens is None or each is None else tokens * each
        return [Type((pairs,), "i32"), experts.with_dtype("i32"), Type((count + 1,), "i32")]

    @staticmethod
    def reference(experts, *, count):
        order = np.argsort(experts.ravel(), kind="stable")
        places = np.empty(order.size, np.int32)
        places[order] = np.arange(order.size)
        counts = np.bincount(experts.ravel(), minlength=count)[:count]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return [(order // max(experts.shape[1], 1)).astype(np.int32), places.reshape(experts.shape), starts]

    @staticmethod
    def decompose(b, experts, *, count):
        tokens, each = experts.shape
        pairs = tokens * each
        flat = b.reshape(experts, (pairs,))

        def earlier(p, other):
            """Whether a pair comes before pair p."""
            mine, its = b.load(flat, [p]), b.load(flat, [other])
            return b.select(its.eq(mine), b.cast(other < p, "i32"), b.cast(its < mine, "i32"))

        def summed(shape, element):
            return b.reduce(lambda v, s: v + s, 0, b.compute(Type(shape, "i32"), element), [1])

        places = summed((pairs, pairs), earlier)

        def token(r, p):
            here = b.cast(b.load(places, [p]), "index").eq(r)
            return b.select(here, b.cast(p // each, "i32"), b.constant(0, "i32"))

        rows = summed((pairs, pairs), token)
        starts = summed((count + 1, pairs), lambda e, p: b.cast(b.cast(b.load(flat, [p]), "index") < e, "i32"))
        return [rows, b.reshape(places, (tokens, each)), starts]


class ExpertMatmul(Operator):
    """Rows of x [M, K] times the transposed weights [E, N, K] of their experts: [R, N].

    Rows starts[e] to starts[e + 1] of the result are those of expert e (i32 [E + 1], as of `ExpertOrder`). Row r is of
    row ``rows[r]`` (i32 [R]) of x, without `rows` of row r. Weights may be halves where x is f32; sums are
    of f32. Opaque: the weights
    of an expert are read once for all of its rows, those of others not at all.

    ``"tw.expert_matmul"(%x, %w, %starts, %rows) : (tensor<5x64xf32>, tensor<8x32x64xbf16>, tensor<9xi32>,
    tensor<10xi32>) -> tensor<10x32xf32>``
    """

    kind = "opaque"

    @staticmethod
    def infer(x, weights, starts, rows=None):
        need("float", x, weights)
        if wide(x.dtype) != wide(weights.dtype):
            raise OpError(f"weights {weights} are of another precision than {x}")
        if x.rank != 2 or weights.rank != 3 or weights.shape[0] == 0:
            raise OpError(f"takes x [M, K] and weights [E, N, K], got {x} and {weights}")
        experts, columns, depth = weights.shape
        need_shape("x", x, (x.shape[0], depth))
        need_shape("starts", starts, (None if experts is None else experts + 1,))
        for name, t in (("starts", starts), ("rows", rows)):
            if t is not None and (t.dtype != "i32" or t.rank != 1):
                raise OpError(f"{name} is a list of i32, got {t}")
        return Type(((x if rows is None else rows).shape[0], columns), x.dtype)

    @staticmethod
    def reference(x, weights, starts, rows=None):
        dtype, (x,) = x.dtype, widen(x if rows is None else x[rows])
        out = np.zeros((len(x), weights.shape[1]), x.dtype)
        for e, w in enumerate(weights):
            part = slice(starts[e], starts[e + 1])
            out[part] = x[part] @ w.astype(x.dtype).T
        return out.astype(dtype)

    @staticmethod
    def decompose(b, x, weights, starts, rows=None):
        experts, columns, depth = weights.shape
        count, acc = (x if rows is None else rows).shape[0], wide(x.dtype)
        after = b.compute(
            Type((count, experts), "i32"),
            lambda r, e: b.cast(b.cast(b.load(starts, [e + 1]), "index") <= r, "i32"),
        )
        expert = b.reduce(lambda v, s: v + s, 0, after, [1])  # of each row

        def product(r, n, k):
            row = r if rows is None else b.cast(b.load(rows, [r]), "index")
            w = b.load(weights, [b.cast(b.load(expert, [r]), "index"), n, k])
            return b.cast(b.load(x, [row, k]), acc) * b.cast(w, acc)

        products = b.compute(Type((count, columns, depth), acc), product)
        return b.cast_tensor(b.reduce(lambda v, s: v + s, 0, products, [2]), x.dtype)


__all__ = ["ExpertMatmul", "ExpertOrder"]
