"""Scaled dot-product attention."""

from __future__ import annotations

import math

import numpy as np

from ...support.sizes import is_open
from .create import dropped
from .node import FxNode, FxTensor, Operand, broadcast
from .registry import aten


@aten("scaled_dot_product_attention")
def attention(n: FxNode, q: FxTensor, k: FxTensor, v: FxTensor, attn_mask: FxTensor | None = None,
              dropout_p: float = 0.0, is_causal: bool = False, *, scale: Operand | None = None,
              enable_gqa: bool = False) -> FxTensor:  # fmt: skip
    n.need(all(math.prod(t.shape) for t in (q, k, v)), "of nothing")
    scale = factor_of(n, q, scale)
    mask = attn_mask
    if mask is not None and mask.dtype == "i1":
        mask = n("where", mask, n.full((), 0, q.dtype), n.full((), -np.inf, q.dtype))
    q, k, v = (_four(n, t) for t in (q, k, v))
    mask = None if mask is None else _four(n, n.cast(mask, q.dtype))
    batch = broadcast(q.shape[:1], k.shape[:1], v.shape[:1])
    heads = q.shape[1]
    if not enable_gqa:
        heads = max(t.shape[1] for t in (q, k, v))
    q = n.expand(q, (*batch, heads, *q.shape[2:]))
    shared = max(k.shape[1], v.shape[1]) if enable_gqa else heads
    k, v = (n.expand(t, (*batch, shared, *t.shape[2:])) for t in (k, v))
    if dropout_p or isinstance(scale, FxTensor):
        return n.reshape(_written_out(n, q, k, v, mask, scale, is_causal, dropout_p), n.shape)
    made = n("attention", q, k, v, mask, scale=scale, causal=is_causal)
    return n.reshape(made, n.shape)


def factor_of(n: FxNode, q: FxTensor, scale: Operand | None) -> Operand:
    """What scores are multiplied by: a float, or a tensor where it depends on an open size."""
    if scale is None and is_open(q.shape[-1]):
        return n("rsqrt", n.tensor(q.shape[-1], "f64" if q.dtype == "f64" else "f32"))
    if isinstance(scale, FxTensor):
        return scale
    return 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)


def _written_out(n: FxNode, q: FxTensor, k: FxTensor, v: FxTensor, mask: FxTensor | None, scale: Operand, causal: bool,
                 p: float) -> FxTensor:  # fmt: skip
    """Attention of heads of any size, or that forgets some of the weights, others in every run."""
    if k.shape[1] != q.shape[1]:
        times = q.shape[1] // k.shape[1]
        at = n.constant(np.repeat(np.arange(k.shape[1]), times))
        k, v = (n("gather", t, at, axis=1) for t in (k, v))
    scores = n("mul", n("matmul", q, n.transpose(k, (0, 1, 3, 2))), n.tensor(scale, q.dtype))
    if causal:
        seen = lower_triangle(n, *scores.shape[-2:])
        scores = n("where", seen, scores, n.full((), -np.inf, q.dtype))
    scores = scores if mask is None else n("add", scores, mask)
    weights = n("softmax", scores, axis=3)
    weights = dropped(n, weights, p)[0] if p else weights
    return n("matmul", weights, v)


def lower_triangle(n: FxNode, rows: int, columns: int) -> FxTensor:
    """[rows, columns]: which columns are at most as far as the row."""
    if is_open(rows, columns):
        made: FxTensor = n("greater_equal", n.unsqueeze(n.count(rows), 1), n.count(columns))
        return made
    return n.constant(np.tril(np.ones((rows, columns), bool)))


def _four(n: FxNode, x: FxTensor) -> FxTensor:
    """With four dimensions: outer ones become one, missing ones are added."""
    if x.rank > 4:
        return n.reshape(x, (math.prod(x.shape[:-3]), *x.shape[-3:]))
    return n.ranks(x, 4)
