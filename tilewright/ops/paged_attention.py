"""Paged attention: keys and values in pages, addressed by a block table."""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..support.dtypes import wide
from ..support.errors import OpError
from .attention import Attention
from .common import need, need_shape, same_dtype
from .index import wrap, wrap_scalar

#: dtypes of page numbers and of lengths
INTEGERS = ("i32", "i64")


class PagedAttention(Operator):
    """Attention of q [B, H, Sq, D] to keys [P, L, Hk, D] and values [P, L, Hk, Dv] in P pages of L positions: position
    j of sequence b is row j % L of page ``table[b, j // L]``, for a table [B, N] of i32 or i64.

    With `lengths` [B], sequence b has so many positions, the last Sq of which are its queries': each sees the positions
    up to its own. What the table says of pages beyond that does not matter. Without it all N * L positions are there,
    and `causal` and `offset` are as in `attention`. So is the mask, which broadcasts to [B, H, Sq, N * L]. Negative
    numbers of pages count from the last one, as in `gather`.

    Opaque: where there is a direct kernel pages are read where they lie. `decompose` gathers them.

    ``"tw.paged_attention"(%q, %k, %v, %table, %lengths) {scale = 1.25e-01} : (tensor<2x8x1x64xf16>,
    tensor<100x16x2x64xf16>, tensor<100x16x2x64xf16>, tensor<2x32xi32>, tensor<2xi32>) -> tensor<2x8x1x64xf16>``
    """

    kind = "opaque"

    @staticmethod
    def infer(q, k, v, table, lengths=None, mask=None, *, scale: float, causal: bool = False, offset: int = 0):
        need("float", q, k, v, mask)
        same_dtype(q, k, v)
        check_pages(q, k, v, table, lengths)
        if lengths is not None and (causal or offset):
            raise OpError("with lengths each query sees the positions up to its own: causal and offset are not for it")
        k, v = gathered_types(k, v, table)
        return Attention.infer(q, k, v, mask, scale=scale, causal=causal, offset=offset)

    @staticmethod
    def reference(q, k, v, table, lengths=None, mask=None, *, scale, causal, offset):
        k, v = (gathered(x, table) for x in (k, v))
        if lengths is not None:
            mask = seen(q, k, lengths, mask)
        return Attention.reference(q, k, v, mask, scale=scale, causal=causal, offset=offset)

    @staticmethod
    def decompose(b, q, k, v, table, lengths=None, mask=None, *, scale, causal, offset):
        k, v = (_gather(b, x, table) for x in (k, v))
        if lengths is not None:
            mask = _seen(b, q, k, lengths, mask)
        return Attention.decompose(b, q, k, v, mask, scale=scale, causal=causal, offset=offset)


def check_pages(q, k, v, table, lengths) -> None:
    """OpError unless pages, table and lengths fit each other and the queries."""
    if k.rank != 4 or v.rank != 4 or q.rank != 4:
        raise OpError(f"q needs four dimensions [B, H, S, D], k and v [pages, L, Hk, D], got {q}, {k} and {v}")
    if k.shape[:3] != v.shape[:3] and None not in (*k.shape[:3], *v.shape[:3]):
        raise OpError(f"pages of v {v} differ from those of k {k}")
    if k.shape[0] == 0:
        raise OpError(f"there are no pages in {k}")
    if table.dtype not in INTEGERS or table.rank != 2:
        raise OpError(f"the table has numbers of pages [B, N] of i32 or i64, got {table}")
    need_shape("table", table, (q.shape[0], None))
    if lengths is not None:
        if lengths.dtype not in INTEGERS:
            raise OpError(f"lengths are of i32 or i64, got {lengths}")
        need_shape("lengths", lengths, (q.shape[0],))


def gathered_types(k, v, table):
    """The types of keys and values [B, Hk, N * L, D] as `gathered` has them."""
    (_, length, heads, _), (batch, pages) = k.shape, table.shape
    size = None if length is None or pages is None else length * pages
    return [x.with_shape((batch, heads, size, x.shape[3])) for x in (k, v)]


def gathered(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Pages [P, L, Hk, D] in the order of a table [B, N], as [B, Hk, N * L, D].

    >>> gathered(np.arange(6).reshape(3, 2, 1, 1), np.array([[2, 0]])).ravel()
    array([4, 5, 0, 1])
    """
    found = x[wrap(table, len(x))]
    return np.ascontiguousarray(np.moveaxis(found.reshape(len(table), -1, *x.shape[2:]), 2, 1))


def seen(q: np.ndarray, k: np.ndarray, lengths: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """The mask with -inf where a query does not see a position."""
    last = lengths.reshape(-1, 1, 1, 1) - q.shape[2] + np.arange(q.shape[2]).reshape(1, 1, -1, 1)
    sees = np.arange(k.shape[2]) <= last
    dtype = np.float64 if q.dtype == np.float64 else np.float32
    return np.where(sees, 0 if mask is None else mask.astype(dtype), np.asarray(-np.inf, dtype))


def _gather(b, x, table):
    """`gathered` at level 3."""
    (pages, length, heads, width), (batch, count) = x.shape, table.shape

    def element(n, h, j, d):
        page = wrap_scalar(b, b.load(table, [n, j // length]), pages)
        return b.load(x, [page, j % length, h, d])

    return b.compute(x.type.with_shape((batch, heads, count * length, width)), element)


def _seen(b, q, k, lengths, mask):
    """`seen` at level 3."""
    acc = wide(q.dtype)
    shape = (q.shape[0], 1, q.shape[2], k.shape[2]) if mask is None else (*q.shape[:3], k.shape[2])

    def element(n, h, i, j):
        last = b.cast(b.load(lengths, [n]), "index") + i - q.shape[2]
        value = b.constant(0.0, acc)
        if mask is not None:
            at = zip(mask.shape, (n, h, i, j)[4 - mask.rank :], strict=True)
            value = b.cast(b.load(mask, [b.constant(0, "index") if m == 1 else x for m, x in at]), acc)
        return b.select(j <= last, value, -np.inf)

    return b.compute(q.type.with_shape(shape).with_dtype(acc), element)


__all__ = ["PagedAttention", "check_pages", "gathered", "gathered_types", "seen"]
