"""`com.microsoft` attention: all of them become `tw.attention` with a mask that is added to the scores."""

from __future__ import annotations

import math

import numpy as np

from ...ir.types import NUMPY
from .contrib import MS, swapped
from .nn import split_heads
from .registry import onnx_op
from .shape import split
from .values import OnnxNotImported


def joined(n, x):
    """[B, H, S, D] to [B, S, H * D]."""
    batch, heads, length, width = x.shape
    return n.reshape(n.transpose(x, (0, 2, 1, 3)), (batch, length, heads * width))


def blocked(n, keep, dtype, low):
    """0 where `keep` holds, `low` elsewhere."""
    kind = NUMPY[dtype]
    return n("where", keep, n.constant(np.zeros((), kind)), n.constant(np.array(low, kind)))


def plus(n, x, y):
    return x if y is None else y if x is None else n("add", x, y)


def key_mask(n, mask, batch, queries, keys, dtype, low):
    """The mask of Attention and MultiHeadAttention as something to add to scores [B, H, Sq, Sk].

    By shape: [B] keys that count, [2 B] ends and starts, [3 B + 2] is refused, [B, Sk], [B, Sq, Sk] or [B, 1, M, M].
    """
    if mask is None:
        return None
    if mask.rank == 1:
        place = n.constant(np.arange(keys, dtype=np.int32)[None])
        if mask.shape[0] == batch:
            keep = n("less", place, n.reshape(n.cast(mask, "i32"), (batch, 1)))
        elif mask.shape[0] == 2 * batch:
            ends, starts = split(n, n.cast(mask, "i32"), [batch, batch], 0)
            keep = n(
                "and",
                n("less", place, n.reshape(ends, (batch, 1))),
                n("greater_equal", place, n.reshape(starts, (batch, 1))),
            )
        else:
            raise OnnxNotImported(f"with a mask {mask.type}")
        return blocked(n, n.reshape(keep, (batch, 1, 1, keys)), dtype, low)
    keep = n.cast(mask, "i1")
    if mask.rank == 2:
        keep = n.reshape(keep, (mask.shape[0], 1, 1, mask.shape[1]))
    elif mask.rank == 3:
        keep = n.reshape(keep, (mask.shape[0], 1, *mask.shape[1:]))
    elif mask.rank == 4:  # the rows of the last queries
        keep = n.slice(n.slice(keep, 2, keys - queries, queries), 3, 0, keys)
    return blocked(n, keep, dtype, low)


def attend(n, q, k, v, bias, *, causal, offset):
    scale = float(n.attr("scale", 0.0)) or 1 / math.sqrt(q.shape[3])
    return n("attention", q, k, v, bias, scale=scale, causal=causal, offset=offset)


@onnx_op("Attention", since=1, domain=MS)
def attention(n, x, weights, bias=None, mask=None, past=None, scores=None, past_length=None):
    if past_length is not None or n.attr("past_present_share_buffer", 0):
        raise OnnxNotImported("with a buffer that past and present share")
    if n.attr("do_rotary", 0):
        raise OnnxNotImported("with do_rotary")
    sizes = n.attr("qkv_hidden_sizes") or [weights.shape[1] // 3] * 3
    product = n("matmul", x, weights)
    product = product if bias is None else n("add", product, bias)
    return attend_projected(n, product, sizes, mask, past, scores)


def attend_projected(n, product, sizes, mask, past, scores):
    """What follows the product [B, S, q + k + v] of Attention: the result, and keys and values for the next step."""
    heads, low = n.required("num_heads"), float(n.attr("mask_filter_value", -10000.0))
    q, k, v = (split_heads(n, part, heads) for part in split(n, product, sizes, 2))
    offset = 0
    if past is not None:
        offset = past.shape[3]
        old = [n.reshape(p, past.shape[1:]) for p in split(n, past, [1, 1], 0)]
        k, v = n.concat([old[0], k], 2), n.concat([old[1], v], 2)
    added = plus(n, key_mask(n, mask, q.shape[0], q.shape[2], k.shape[2], q.dtype, low), scores)
    out = joined(n, attend(n, q, k, v, added, causal=bool(n.attr("unidirectional", 0)), offset=offset))
    present = n.concat([n.unsqueeze(k, 0), n.unsqueeze(v, 0)], 0) if n.wants(1) and k.shape == v.shape else None
    return [out, present]


@onnx_op("MultiHeadAttention", since=1, domain=MS)
def multi_head_attention(n, q, k=None, v=None, bias=None, padding=None, scores=None, past_k=None, past_v=None, *rest):
    if any(r is not None for r in rest):
        raise OnnxNotImported("with past_sequence_length or cache_indirection")
    if n.wants(3):
        raise OnnxNotImported("with the scores as an output")
    heads, low = n.required("num_heads"), float(n.attr("mask_filter_value", -10000.0))
    if q.rank == 5:  # [B, S, heads, 3, D]
        parts = [n.reshape(p, (*q.shape[:3], q.shape[4])) for p in split(n, q, [1, 1, 1], 3)]
        q, k, v = (n.reshape(p, (*p.shape[:2], p.shape[2] * p.shape[3])) for p in parts)
    elif k is not None and k.rank == 5:
        parts = [n.reshape(p, (*k.shape[:3], k.shape[4])) for p in split(n, k, [1, 1], 3)]
        k, v = (n.reshape(p, (*p.shape[:2], p.shape[2] * p.shape[3])) for p in parts)
    if k is None or v is None:
        raise OnnxNotImported("without keys and values")
    if bias is not None:
        width = q.shape[2]
        parts = split(n, bias, [width, width, bias.shape[0] - 2 * width], 0)
        q = n("add", q, parts[0])
        k, v = (n("add", t, p) if t.rank == 3 else t for t, p in zip((k, v), parts[1:], strict=True))
    q = split_heads(n, q, heads)
    k, v = (split_heads(n, t, heads) if t.rank == 3 else t for t in (k, v))
    offset = 0
    if past_k is not None and past_v is not None:
        offset = past_k.shape[2]
        k, v = n.concat([past_k, k], 2), n.concat([past_v, v], 2)
    added = plus(n, key_mask(n, padding, q.shape[0], q.shape[2], k.shape[2], q.dtype, low), scores)
    out = attend(n, q, k, v, added, causal=bool(n.attr("unidirectional", 0)), offset=offset)
    return [joined(n, out), k, v]


# ---- rotary --------------------------------------------------------------------------------------------------------


def rotate(n, x, cos, sin, interleaved, width=0):
    """x [B, H, S, D] rotated by tables [B, 1, S, W / 2] over its first W elements (0: all)."""
    width = width or x.shape[3]
    rest = n.slice(x, 3, width, x.shape[3] - width) if width < x.shape[3] else None
    x = n.slice(x, 3, 0, width) if rest is not None else x
    half = width // 2
    if interleaved:
        pairs = n.reshape(x, (*x.shape[:3], half, 2))
        first, second = (n.reshape(p, (*x.shape[:3], half)) for p in split(n, pairs, [1, 1], 4))
    else:
        first, second = split(n, x, [half, half], 3)
    a = n("sub", n("mul", first, cos), n("mul", second, sin))
    b = n("add", n("mul", first, sin), n("mul", second, cos))
    if interleaved:
        out = n.reshape(n.concat([n.unsqueeze(a, 4), n.unsqueeze(b, 4)], 4), x.shape)
    else:
        out = n.concat([a, b], 3)
    return out if rest is None else n.concat([out, rest], 3)


def tables(n, cos, sin, places, dtype):
    """Rows of the caches at positions [B, S], as [B, 1, S, W / 2]."""
    found = (n.cast(n("gather", t, places, axis=0), dtype) for t in (cos, sin))
    return [n.unsqueeze(t, 1) for t in found]


@onnx_op("RotaryEmbedding", since=1, domain=MS)
def rotary_embedding(n, x, places, cos, sin):
    heads = rotary_heads(n, x, cos)
    batch, _, length, _ = heads.shape
    if places.type.size == 1 and not (batch == length == 1):  # the position of the first
        places = n("add", n.reshape(places, (1, 1)), n.constant(np.arange(length, dtype=np.int64)[None]))
    places = n.expand(n.reshape(places, (places.type.size // length, length)), (batch, length))
    return rotated(n, x, heads, *tables(n, cos, sin, places, x.dtype))


@onnx_op("MRotaryEmbedding", since=1, domain=MS)
def multimodal_rotary_embedding(n, x, places, cos, sin):
    """RotaryEmbedding with three positions [3, B, S], each of which rules a part of the angles (`mrope_section`)."""
    if float(n.attr("scale", 1.0)) != 1:
        raise OnnxNotImported("with a scale")
    sections, half = n.required("mrope_section"), cos.shape[1]
    if len(sections) != 3 or sum(sections) != half:
        raise n.error(f"mrope_section {sections} does not divide the {half} angles")
    if n.attr("mrope_layout", 0):  # interleaved: the first, but every third from 1 and from 2
        ruler = np.zeros(half, np.int64)
        for i in (1, 2):
            ruler[i : sections[i] * 3 : 3] = i
    else:
        ruler = np.repeat(np.arange(3), sections)
    heads = rotary_heads(n, x, cos)
    batch, _, length, _ = heads.shape
    found = []
    for table in (cos, sin):
        rows = n.cast(n("gather", table, places, axis=0), x.dtype)  # [3, B, S, half]
        at = n.expand(n.constant(ruler.reshape(1, 1, 1, half)), (1, batch, length, half))
        found.append(n.reshape(n("gather_elements", rows, at, axis=0), (batch, 1, length, half)))
    return rotated(n, x, heads, *found)


def rotary_heads(n, x, cos):
    """x as [B, H, S, D]."""
    if n.attr("is_packed_batching", 0):
        raise OnnxNotImported("with packed batches")
    if x.rank != 3:
        return x
    width = n.attr("rotary_embedding_dim", 0)
    return split_heads(n, x, n.attr("num_heads", 0) or x.shape[2] // (width or 2 * cos.shape[1]))


def rotated(n, x, heads, cosines, sines):
    out = rotate(n, heads, cosines, sines, bool(n.attr("interleaved", 0)), n.attr("rotary_embedding_dim", 0))
    return joined(n, out) if x.rank == 3 else out


@onnx_op("GroupQueryAttention", since=1, domain=MS)
def group_query_attention(
    n,
    q,
    k=None,
    v=None,
    past_k=None,
    past_v=None,
    last=None,
    total=None,
    cos=None,
    sin=None,
    places=None,
    scores=None,
    sink=None,
):
    """A decode or prefill step with a cache; `last` [B] is the number of valid keys after this step, less one."""
    cap = float(n.attr("softcap", 0.0))
    if sink is None and n.attr("smooth_softmax", 0) == 1:
        sink = n.constant(np.zeros(n.required("num_heads"), NUMPY[q.dtype]))
    if last is None or total is None:
        raise n.error("seqlens_k and total_sequence_length are needed")
    heads, shared = n.required("num_heads"), n.required("kv_num_heads")
    if k is None:
        width = q.shape[2] // (heads + 2 * shared)
        q, k, v = split(n, q, [heads * width, shared * width, shared * width], 2)
    q, k, v = split_heads(n, q, heads), split_heads(n, k, shared), split_heads(n, v, shared)
    batch, _, length, _ = q.shape
    room = past_k.shape[2] if past_k is not None else 0
    # of a cache with room to spare only the room decides shapes, not how much of it is in use
    size = int(n.scalar(n("max", n.reshape(total, ()), room), "total_sequence_length"))
    whole = total.known()
    if size < length or (whole is not None and whole.item() < length):
        raise n.error(
            f"total_sequence_length {size if whole is None else whole.item()} is less than the {length} new positions"
        )
    valid = n.cast(n.reshape(last, (batch, 1)), "i64")  # positions before the last one
    steps = n.constant(np.arange(length, dtype=np.int64)[None])
    start = n("sub", valid, length - 1)
    first = n("equal", n.reshape(total, ()), length)  # a first prompt: every row starts at 0
    if first.known() is None:
        start = n("where", first, n.zero(start), start)
    elif first.known().item():
        start = n.constant(np.zeros((batch, 1), np.int64))
    if n.attr("do_rotary", 0):
        if cos is None or sin is None:
            raise n.error("do_rotary needs cos_cache and sin_cache")
        where = n("max", n("add", start, steps), 0) if places is None else places
        cosines, sines = tables(n, cos, sin, n.expand(where, (batch, length)), q.dtype)
        interleaved, width = bool(n.attr("rotary_interleaved", 0)), 2 * cos.shape[1]
        q, k = (rotate(n, t, cosines, sines, interleaved, width) for t in (q, k))
    k, v = (cached(n, old, new, start, size) for old, new in ((past_k, k), (past_v, v)))
    present = [k, v]
    key = n.constant(np.arange(size, dtype=np.int64).reshape(1, 1, 1, size))
    query = n.reshape(n("add", start, steps), (batch, 1, length, 1))
    keep = n("less_equal", key, query)
    window = n.attr("local_window_size", -1)
    if window > 0:
        keep = n("and", keep, n("greater", key, n("sub", query, window)))
    bias = blocked(n, keep, q.dtype, -np.inf)
    if scores is not None:
        missing = size - scores.shape[3]
        scores = n("pad", scores, low=(0,) * 4, high=(0, 0, 0, missing)) if missing else scores
        bias = n("add", bias, scores)
    plain = not cap and sink is None
    out = attend(n, q, k, v, bias, causal=False, offset=0) if plain else capped(n, q, k, v, bias, cap, sink)
    return [joined(n, out), *present]


def capped(n, q, k, v, bias, cap, sink):
    """Attention whose scores are limited to `cap` (0: are not), and with a `sink` [H]: one more score for each head,
    whose share of the weights goes nowhere."""
    batch, heads, length, width = q.shape
    shared, keys = k.shape[1], k.shape[2]
    dtype, each = q.dtype, heads // shared
    scale = float(n.attr("scale", 0.0)) or 1 / math.sqrt(width)
    grouped = n.reshape(q, (batch, shared, each * length, width))
    scores = n.reshape(n("mul", n("matmul", grouped, swapped(n, k)), scale), (batch, heads, length, keys))
    scores = n("mul", n("tanh", n("div", scores, cap)), cap) if cap else scores
    scores = n("add", n.cast(scores, "f32"), n.cast(bias, "f32"))
    if sink is not None:
        column = n.expand(n.reshape(n.cast(sink, "f32"), (1, heads, 1, 1)), (batch, heads, length, 1))
        scores = n.concat([scores, column], 3)
    weights = n.cast(n("softmax", scores, axis=3), dtype)
    weights = n.slice(weights, 3, 0, keys) if sink is not None else weights
    out = n("matmul", n.reshape(weights, (batch, shared, each * length, keys)), v)
    return n.reshape(out, (batch, heads, length, v.shape[3]))


def cached(n, old, new, start, size):
    """`new` written at `start` [B, 1] into a cache of `size` positions that begins with `old`; zeros after it."""
    batch, heads, length, width = new.shape
    if old is None:
        old = n.expand(n.zero(new), (batch, heads, 0, width))
    missing = size - old.shape[2]
    wide = n("pad", old, low=(0,) * 4, high=(0, 0, missing, 0)) if missing else old
    place = n("sub", n.constant(np.arange(size, dtype=np.int64)[None]), start)
    written = n("and", n("greater_equal", place, 0), n("less", place, length))
    at = n.expand(n.reshape(n("min", n("max", place, 0), length - 1), (batch, 1, size, 1)), (batch, heads, size, width))
    picked = n("gather_elements", new, at, axis=2)
    kept = n("where", n.reshape(n("less", place, 0), (batch, 1, size, 1)), wide, n.zero(new))
    return n("where", n.reshape(written, (batch, 1, size, 1)), picked, kept)
