"""`com.microsoft` PagedAttention: tokens of several sequences one after the other, keys and values in pages."""

from __future__ import annotations

import math

import numpy as np

from .contrib import MS
from .contrib_attention import rotate, tables
from .registry import onnx_op
from .shape import split
from .values import OnnxNotImported


@onnx_op("PagedAttention", since=1, domain=MS)
def paged_attention(
    n, q, k=None, v=None, key_pages=None, value_pages=None, ends=None, past=None, table=None, cos=None, sin=None, *rest
):
    """Tokens [T, H * D] of B sequences; those of sequence b begin at ``ends[b]`` and follow its ``past[b]`` positions.
    They are written into the pages that the table [B, N] says, and each sees its sequence up to itself.

    One sequence is one attention of T queries. Of several it is known when the model runs which token is whose, so each
    token is a query with a table of its own: what a decode step has anyway.
    """
    if any(x is not None for x in rest):
        raise OnnxNotImported("with more than ten inputs")
    if None in (key_pages, value_pages, ends, past, table):
        raise n.error("key_cache, value_cache, cumulative_sequence_length, past_seqlens and block_table are needed")
    if n.attr("softcap", 0.0) or n.attr("local_window_size", -1) > 0:
        raise OnnxNotImported("with softcap, or with a window")
    heads, shared, (tokens, width) = n.required("num_heads"), n.required("kv_num_heads"), q.shape
    if k is None:
        depth = width // (heads + 2 * shared)
        q, k, v = split(n, q, [heads * depth, shared * depth, shared * depth], 1)
    depth = q.shape[1] // heads
    sequence, place = _places(n, tokens, ends, past)
    own = n("gather", table, sequence, axis=0)  # the table of each token's sequence
    q, k, v = (n.reshape(x, (tokens, h, 1, depth)) for x, h in ((q, heads), (k, shared), (v, shared)))
    if n.attr("do_rotary", 0):
        if cos is None or sin is None:
            raise n.error("do_rotary needs cos_cache and sin_cache")
        cosines, sines = tables(n, cos, sin, n.reshape(place, (tokens, 1)), q.dtype)
        interleaved, part = bool(n.attr("rotary_interleaved", 0)), 2 * cos.shape[1]
        q, k = (rotate(n, x, cosines, sines, interleaved, part) for x in (q, k))
    where = _slots(n, own, place, key_pages.shape[1])
    kept = [n("scatter_nd", pages, where, n.reshape(x, (tokens, shared, depth)))
            for pages, x in ((key_pages, k), (value_pages, v))]  # fmt: skip
    scale = float(n.attr("scale", 0.0)) or 1 / math.sqrt(depth)
    lengths = n("add", place, 1)
    if past.shape[0] == 1:  # all tokens are queries of one sequence, the last ones of it
        q, own = n.reshape(n.transpose(q, (2, 1, 0, 3)), (1, heads, tokens, depth)), table
        lengths = n("add", past, tokens)
    out = n("paged_attention", q, *kept, own, n.cast(lengths, "i32"), None, scale=scale)
    if past.shape[0] == 1:
        out = n.transpose(out, (0, 2, 1, 3))
    return [n.reshape(out, (tokens, heads * depth)), *kept]


def _places(n, tokens, ends, past):
    """Of each token its sequence, and its place in that; both [T]."""
    count = past.shape[0]
    number = n.constant(np.arange(tokens, dtype=np.int64))
    first = n.cast(ends, "i64")
    if count == 1:
        sequence = n.constant(np.zeros(tokens, np.int64))
    else:
        inner = n.slice(first, 0, 1, count - 1)  # where the sequences but the first one begin
        after = n("greater_equal", n.reshape(number, (tokens, 1)), n.reshape(inner, (1, count - 1)))
        sequence = n("reduce_sum", n.cast(after, "i64"), axes=(1,), keepdims=False)
    own = n("sub", number, n("gather", first, sequence, axis=0))
    return sequence, n("add", own, n("gather", n.cast(past, "i64"), sequence, axis=0))


def _slots(n, own, place, length):
    """Page and row [T, 2] of each token's place."""
    tokens = place.shape[0]
    page = n("gather_elements", own, n.reshape(n("div", place, length), (tokens, 1)), axis=1)
    row = n.reshape(n("mod", place, length), (tokens, 1))
    return n.concat([n.cast(page, "i64"), row], 1)
