"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .node import Node, Tensor
from .registry import aten


@aten("scaled_dot_product_attention")
def attention(n: Node, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
              is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False) -> Any:  # fmt: skip
    n.need(dropout_p == 0, "with dropout")
    n.need(all(math.prod(t.shape) for t in (q, k, v)), "of nothing")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else float(scale)
    mask = attn_mask
    if mask is not None and mask.dtype == "i1":
        mask = n("where", mask, n.full((), 0, q.dtype), n.full((), -np.inf, q.dtype))
    q, k, v = (_four(n, t) for t in (q, k, v))
    mask = None if mask is None else _four(n, n.cast(mask, q.dtype))
    batch = np.broadcast_shapes(q.shape[:1], k.shape[:1], v.shape[:1])
    heads = q.shape[1]
    if not enable_gqa:
        heads = max(t.shape[1] for t in (q, k, v))
    q = n.expand(q, (*batch, heads, *q.shape[2:]))
    shared = max(k.shape[1], v.shape[1]) if enable_gqa else heads
    k, v = (n.expand(t, (*batch, shared, *t.shape[2:])) for t in (k, v))
    made = n("attention", q, k, v, mask, scale=scale, causal=is_causal)
    return n.reshape(made, n.shape)


def _four(n: Node, x: Tensor) -> Tensor:
    """With four dimensions: outer ones become one, missing ones are added."""
    if x.rank > 4:
        return n.reshape(x, (math.prod(x.shape[:-3]), *x.shape[-3:]))
    return n.ranks(x, 4)
