"""Attention of tokens of several sequences that lie one after the other, to keys and values in pages: what a step of a
language model server computes, whatever mixture of prompts and single tokens it has."""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import Type
from ..support.dtypes import wide
from ..support.errors import OpError
from .common import fits, need, need_shape, same_dtype
from .write_quantized_pages import bits_of, rotated, rotation, unquantized

#: the length of a part of the keys is a multiple of this
STEP = 64


class RaggedAttention(Operator):
    """Attention of q [T, H, D] to keys [P, L, Hk, D] and values [P, L, Hk, Dv] in P pages of L positions: [T, H, Dv].

    The T tokens are those of B sequences one after the other: sequence b has tokens ``starts[b]`` to ``starts[b + 1]``
    (starts: i32 [B + 1], starts[0] = 0, starts[B] = T). They are the last of its ``lengths[b]`` positions (i32 [B]),
    whose keys and values are in pages already: position j is row j % L of page ``table[b, j // L]`` (i32 [B, N]). A
    token sees the positions up to its own; with `window` > 0 only the last `window` of them, itself included. Head h
    uses key head h // (H / Hk). With `softcap` > 0 a score s becomes softcap * tanh(s / softcap). `sinks` (f32 [H]) is
    a score for each head that takes part in the softmax, and has no value.

    Without v the values are the first `width` numbers of the keys (multi-head latent attention in absorbed form).

    Keys and values of i8 have `k_scales` and `v_scales` [P, L, Hk], as `write_quantized_pages` makes them of 8 or 4
    bits a number. These are rotated; then so is q, and the result is rotated back.

    Opaque: the direct kernel reads pages where they lie; `decompose` gathers them.

    ``"tw.ragged_attention"(%q, %k, %v, %table, %starts, %lengths) {scale = 1.25e-01} : (tensor<6x8x64xf32>,
    tensor<100x16x2x64xf32>, tensor<100x16x2x64xf32>, tensor<2x32xi32>, tensor<3xi32>, tensor<2xi32>) -> ...``
    """

    kind = "opaque"

    @staticmethod
    def infer(
        q, k, v=None, table=None, starts=None, lengths=None, sinks=None, k_scales=None, v_scales=None,
        *, scale: float, window: int = 0, softcap: float = 0.0, width: int = 0,
    ):  # fmt: skip
        if table is None or starts is None or lengths is None:
            raise OpError("needs table, starts and lengths")
        need("float", q, sinks, k_scales, v_scales)
        if v is not None:
            same_dtype(k, v)
        if q.rank != 3 or k.rank != 4 or (v is not None and v.rank != 4):
            raise OpError(f"q is [T, H, D], k and v are [pages, L, Hk, D], got {q}, {k} and {v}")
        if v is not None and not fits(v.shape[:3], k.shape[:3]):
            raise OpError(f"pages of v {v} differ from those of k {k}")
        heads, shared, depth = q.shape[1], k.shape[2], q.shape[2]
        if shared == 0 or (None not in (heads, shared) and heads % shared):
            raise OpError(f"{heads} heads of q do not share the {shared} of k")
        if (v is None) != (width > 0) or (depth is not None and width > depth):
            raise OpError(f"without v, width says how much of k [..., {depth}] the values are; got {width}")
        bits = _numbers(k, v, k_scales, v_scales, depth)
        if bits and width and depth is not None and width % rotation(depth):
            raise OpError(f"the first {width} of {depth} numbers are not rotated among themselves")
        for name, t in (("table", table), ("starts", starts), ("lengths", lengths)):
            if t.dtype != "i32":
                raise OpError(f"{name} is of i32, got {t}")
        need_shape("table", table, (None, None))
        need_shape("lengths", lengths, (table.shape[0],))
        if starts.rank != 1 or (
            None not in (starts.shape[0], table.shape[0]) and starts.shape[0] != table.shape[0] + 1
        ):
            raise OpError(f"starts of {table.shape[0]} sequences are one more, got {starts}")
        need_shape("sinks", sinks, (heads,))
        if v is None:
            return Type((q.shape[0], heads, width), q.dtype)
        return Type((q.shape[0], heads, None if v.shape[3] is None else v.shape[3] * (2 if bits == 4 else 1)), q.dtype)

    @staticmethod
    def reference(
        q, k, v, table, starts, lengths, sinks=None, k_scales=None, v_scales=None, *, scale, window, softcap, width
    ):
        k, v = floats(q, k, v, k_scales, v_scales, width)
        values, _, total = attended(q, k, v, table, starts, lengths, sinks, scale, window, softcap)
        return (values[:, :, 0] / total[:, :, 0, None]).astype(q.dtype)

    @staticmethod
    def decompose(
        b, q, k, v, table, starts, lengths, sinks=None, k_scales=None, v_scales=None, *, scale, window, softcap, width
    ):
        if k_scales is not None:
            raise OpError("pages with scales have a loop nest only")
        acc, (tokens, heads, depth), (_, length, shared, _), (count, pages) = (
            wide(q.dtype), q.shape, k.shape, table.shape,
        )  # fmt: skip
        after = b.compute(
            Type((tokens, count), "i32"),
            lambda t, n: b.cast(b.cast(b.load(starts, [n + 1]), "index") <= t, "i32"),
        )
        sequence = b.reduce(lambda x, s: x + s, 0, after, [1])  # of each token

        def element(x):
            def at(t, h, j, d):
                n = b.cast(b.load(sequence, [t]), "index")
                page = b.cast(b.load(table, [n, j // length]), "index")
                return b.load(x, [page, j % length, h, d])

            return at

        gathered = k.type.with_shape((tokens, shared, pages * length, depth))
        keys = b.compute(gathered, element(k))
        values = b.compute(gathered.with_shape((*gathered.shape[:3], width or v.shape[3])), element(k if width else v))
        grouped = b.reshape(q, (tokens, shared, heads // shared, depth))
        scores = b.contract("thgd,thjd->thgj", grouped, keys, dtype=acc)
        scores = b.reshape(scores, (tokens, heads, pages * length))

        def score(t, h, j):
            n = b.cast(b.load(sequence, [t]), "index")
            ends = b.cast(b.load(starts, [n + 1]), "index")
            at = b.cast(b.load(lengths, [n]), "index") + t - ends
            s = b.load(scores, [t, h, j]) * scale
            if softcap:
                s = b.unary("tanh", s * (1.0 / softcap)) * softcap
            s = b.select(j <= at, s, -np.inf)
            return b.select(at - window < j, s, -np.inf) if window else s

        scores = b.compute(scores.type, score)
        top = b.reduce(lambda x, m: b.larger(x, m), -np.inf, scores, [2], keepdims=True)
        if sinks is not None:
            top = b.elementwise(lambda m, s: b.larger(m, b.cast(s, acc)), top, b.reshape(sinks, (1, heads, 1)))
        weights = b.elementwise(lambda s, m: b.unary("exp", s - m), scores, top)
        total = b.reduce(lambda x, s: x + s, 0, weights, [2], keepdims=True)
        if sinks is not None:
            own = b.reshape(sinks, (1, heads, 1))
            total = b.elementwise(lambda x, m, s: x + b.unary("exp", b.cast(s, acc) - m), total, top, own)
        weights = b.elementwise(lambda e, s: e / s, weights, total)
        weights = b.reshape(weights, (tokens, shared, heads // shared, pages * length))
        out = b.contract("thgj,thjd->thgd", weights, values, dtype=acc)
        return b.cast_tensor(b.reshape(out, (tokens, heads, width or v.shape[3])), q.dtype)


def _numbers(k, v, k_scales, v_scales, depth: int | None) -> int:
    """Bits of a number of keys and values with scales, 0 of floats; OpError if they do not fit."""
    scaled = k_scales is not None
    if scaled != (v_scales is not None) and v is not None:
        raise OpError("keys and values both have scales, or none of them")
    if scaled != (k.dtype == "i8"):
        raise OpError(f"pages of i8 have scales, others none; got {k}")
    need_shape("k_scales", k_scales, k.shape[:3])
    need_shape("v_scales", v_scales, k.shape[:3])
    if scaled:
        return bits_of(k, depth)
    need("float", k, v)
    need_shape("k", k, (*k.shape[:3], depth))
    return 0


def floats(q, k, v, k_scales, v_scales, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values as they were before they were rotated and cut to few bits."""
    if k_scales is not None:
        dtype = np.float64 if q.dtype == np.float64 else np.float32
        if v is not None:
            v = rotated(unquantized(v, v_scales, v.shape[3] * q.shape[2] // k.shape[3]).astype(dtype))
        k = rotated(unquantized(k, k_scales, q.shape[2]).astype(dtype))
    return k, k[..., :width] if v is None else v


def attended(
    q, k, v, table, starts, lengths, sinks, scale: float, window: int, softcap: float, parts: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weighted sums of values [T, H, parts, Dv], the largest scores, and the sums of weights [T, H, parts]: of keys in
    parts (`part_length`), of which the first has the sinks."""
    dtype = np.float64 if q.dtype == np.float64 else np.float32
    tops = np.full((*q.shape[:2], parts), -np.inf, dtype)
    totals, out = np.zeros_like(tops), np.zeros((*tops.shape, v.shape[3]), dtype)
    group = q.shape[1] // k.shape[2]
    for b, length in enumerate(lengths):
        own, run = slice(starts[b], starts[b + 1]), part_length(int(length), parts)
        keys, values = (
            np.repeat(x[table[b]].reshape(-1, *x.shape[2:])[:length].astype(dtype), group, axis=1) for x in (k, v)
        )
        scores = np.einsum("thd,jhd->htj", q[own].astype(dtype), keys) * dtype(scale)
        if softcap:
            scores = dtype(softcap) * np.tanh(scores / dtype(softcap))
        at = np.arange(length - (own.stop - own.start), length)[:, None]
        j = np.arange(length)[None]
        seen = (j <= at) & ((j > at - window) if window else True)
        for p in range(parts):
            part = np.where(seen & (j >= p * run) & (j < (p + 1) * run), scores, -np.inf)
            top = part.max(-1, initial=-np.inf)
            if sinks is not None and p == 0:
                top = np.maximum(top, sinks.astype(dtype)[:, None])
            finite = np.where(top == -np.inf, 0, top)
            e = np.exp(part - finite[..., None])
            total = e.sum(-1)
            if sinks is not None and p == 0:
                total = total + np.exp(sinks.astype(dtype)[:, None] - finite)
            tops[own, :, p], totals[own, :, p] = top.T, total.T
            out[own, :, p] = np.einsum("htj,jhd->thd", e, values)
    return out, tops, totals


def part_length(length, parts: int):
    """Positions of one of so many parts of a sequence."""
    return (length + (parts * STEP - 1)) // (parts * STEP) * STEP


class RaggedAttentionParts(Operator):
    """`ragged_attention` with the positions of each sequence in parts of `part_length`, each with a softmax of its own:
    the sums of its values, times exp(score - top) [T, H, parts, 1, Dv], top, the largest score, and the sum of the
    weights [T, H, parts, 1]; for `attention_join`.

    ``"tw.ragged_attention_parts"(%q, %k, %v, %table, %starts, %lengths) {parts = 4, scale = 1.25e-01} : ...``
    """

    kind = "opaque"
    multiple = True

    @staticmethod
    def infer(
        q, k, v=None, table=None, starts=None, lengths=None, sinks=None, k_scales=None, v_scales=None,
        *, scale: float, window: int = 0, softcap: float = 0.0, width: int = 0, parts: int,
    ):  # fmt: skip
        whole = RaggedAttention.infer(
            q, k, v, table, starts, lengths, sinks, k_scales, v_scales,
            scale=scale, window=window, softcap=softcap, width=width,
        )  # fmt: skip
        if parts < 1:
            raise OpError(f"keys cannot be in {parts} parts")
        rows = Type((*whole.shape[:2], parts, 1), wide(whole.dtype))
        return [rows.with_shape((*rows.shape, whole.shape[2])), rows, rows]

    @staticmethod
    def reference(
        q, k, v, table, starts, lengths, sinks=None, k_scales=None, v_scales=None,
        *, scale, window, softcap, width, parts,
    ):  # fmt: skip
        k, v = floats(q, k, v, k_scales, v_scales, width)
        values, top, total = attended(q, k, v, table, starts, lengths, sinks, scale, window, softcap, parts)
        return values[:, :, :, None], top[..., None], total[..., None]


__all__ = ["RaggedAttention", "RaggedAttentionParts", "part_length"]
