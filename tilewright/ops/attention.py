"""Scaled dot-product attention."""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..support.dtypes import wide
from ..support.errors import OpError
from .common import broadcast_shapes, fits, need, same_dtype, widen
from .nn import softmax


class Attention(Operator):
    """softmax(q kᵀ * scale + mask) v for q [B, H, Sq, D], k [B, Hk, Sk, D], v [B, Hk, Sk, Dv].

    Hk divides H: query head h uses key head h // (H / Hk). The mask is added and broadcasts to [B, H, Sq, Sk]; that of
    halves may be f32. With `causal`, query i sees the keys j <= i + offset (`offset` is the number of cached keys
    before the first query). A query that sees no key (all its scores -inf) gives zeros. Opaque: it has a direct
    kernel; `decompose` builds it from linalg.

    ``"tw.attention"(%q, %k, %v) {scale = 1.25e-01, causal = true} : (tensor<1x2x4x8xf32>, ...) -> tensor<1x2x4x8xf32>``
    """

    kind = "opaque"

    @staticmethod
    def infer(q, k, v, mask=None, *, scale: float, causal: bool = False, offset: int = 0):
        need("float", q, k, v, mask)
        same_dtype(q, k, v)
        if mask is not None and wide(mask.dtype) != wide(q.dtype):
            raise OpError(f"the mask {mask} must have the dtype of q {q}, or its wide one")
        if not q.rank == k.rank == v.rank == 4:
            raise OpError(f"q, k and v need four dimensions [B, H, S, D], got {q}, {k} and {v}")
        if not fits((k.shape[0], k.shape[3]), (q.shape[0], q.shape[3])):
            raise OpError(f"batch or head size of k {k} differ from q {q}")
        if not fits(v.shape[:3], k.shape[:3]):
            raise OpError(f"batch, heads or length of v {v} differ from k {k}")
        if q.shape[1] is not None and k.shape[1] is not None and (k.shape[1] == 0 or q.shape[1] % k.shape[1]):
            raise OpError(f"the {k.shape[1]} heads of k do not divide the {q.shape[1]} heads of q")
        scores = (*q.shape[:3], k.shape[2])
        if mask is not None and not fits(broadcast_shapes(mask.shape, scores), scores):
            raise OpError(f"mask {mask} does not broadcast to {scores}")
        return q.with_shape((*q.shape[:3], v.shape[3]))

    @staticmethod
    def reference(q, k, v, mask=None, *, scale, causal, offset):
        dtype = q.dtype
        q, k, v, mask = widen(q, k, v, mask)
        k, v = (np.repeat(t, q.shape[1] // t.shape[1], axis=1) for t in (k, v))
        scores = np.matmul(q, np.swapaxes(k, -1, -2)) * np.asarray(scale, q.dtype)
        if mask is not None:
            scores = scores + mask
        if causal:
            rows, columns = np.indices(scores.shape[-2:], sparse=True)
            scores = np.where(columns <= rows + offset, scores, np.asarray(-np.inf, scores.dtype))
        top = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        e = np.exp(scores - np.where(top == -np.inf, np.zeros((), scores.dtype), top))
        s = e.sum(axis=-1, keepdims=True)
        return np.matmul(e / np.where(s == 0, np.ones((), s.dtype), s), v).astype(dtype)

    @staticmethod
    def decompose(b, q, k, v, mask=None, *, scale, causal, offset):
        dtype, acc = q.dtype, wide(q.dtype)
        n, heads, rows, depth = q.shape
        shared = k.shape[1]  # heads of k and v; each serves heads // shared heads of q
        q = b.reshape(q, (n, shared, heads // shared, rows, depth))
        scores = b.contract("bhgqd,bhkd->bhgqk", q, k, dtype=acc)
        scores = b.reshape(scores, (n, heads, rows, k.shape[2]))

        def body(s, m=None):
            s = s * scale
            if m is not None:
                s = s + b.cast(m, acc)
            return b.select(b.index(3) <= b.index(2) + offset, s, -np.inf) if causal else s

        scores = b.elementwise(body, scores, *([] if mask is None else [mask]))
        if mask is None and not (causal and offset < 0):
            weights = softmax(b, scores, -1)
        else:
            weights = _guarded_softmax(b, scores)
        weights = b.reshape(weights, (n, shared, heads // shared, rows, k.shape[2]))
        out = b.contract("bhgqk,bhkd->bhgqd", weights, v, dtype=acc)
        return b.cast_tensor(b.reshape(out, (n, heads, rows, v.shape[3])), dtype)


def _guarded_softmax(b, x):
    """Softmax over the last dimension that gives zeros where all of it is -inf."""
    top = b.reduce(lambda v, m: b.larger(v, m), -np.inf, x, [x.rank - 1], keepdims=True)
    top = b.elementwise(lambda v: b.select(v.eq(-np.inf), 0.0, v), top)
    e = b.elementwise(lambda v, m: b.unary("exp", v - m), x, top)
    s = b.reduce(lambda v, s: v + s, 0, e, [x.rank - 1], keepdims=True)
    return b.elementwise(lambda v, s: v / b.select(s.eq(0.0), 1.0, s), e, s)
