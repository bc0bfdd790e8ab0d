"""Split-K attention (flash decoding): partial softmax over blocks of keys, and the merge of the partial results."""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..support.dtypes import wide
from ..support.errors import OpError
from .attention import Attention
from .common import need
from .paged_attention import PagedAttention, gathered, seen


class AttentionParts(Operator):
    """`attention` to `parts` runs of keys that follow each other: for each run the values weighted by exp(score - top),
    [B, H, parts, Sq, Dv], the largest score `top` of the run, and the sum of the weights, [B, H, parts, Sq] both; all
    in the wide dtype of q. A query that sees no key of a run has the lowest number there, and zeros.

    All runs are as long, but the last one. Opaque: it has a direct kernel.

    ``"tw.attention_parts"(%q, %k, %v) {scale = 1.25e-01, parts = 4} : (tensor<1x2x1x8xf16>, ...) -> (...)``
    """

    kind = "opaque"
    multiple = True

    @staticmethod
    def infer(q, k, v, mask=None, *, scale: float, parts: int, causal: bool = False, offset: int = 0):
        whole = Attention.infer(q, k, v, mask, scale=scale, causal=causal, offset=offset)
        return _types(whole, parts)

    @staticmethod
    def reference(q, k, v, mask=None, *, scale, parts, causal, offset):
        scores = _scores(q, k, mask, scale)
        if causal:
            last = np.arange(scores.shape[-2])[:, None] + offset
            scores = np.where(np.arange(scores.shape[-1]) <= last, scores, np.asarray(-np.inf, scores.dtype))
        return _in_parts(scores, v, parts)


class PagedAttentionParts(Operator):
    """The same of `paged_attention`. With `lengths` a run of a sequence is one of the positions that it has.

    ``"tw.paged_attention_parts"(%q, %k, %v, %table, %lengths) {scale = 1.25e-01, parts = 4} : (...) -> (...)``
    """

    kind = "opaque"
    multiple = True

    @staticmethod
    def infer(
        q, k, v, table, lengths=None, mask=None, *, scale: float, parts: int, causal: bool = False, offset: int = 0
    ):
        whole = PagedAttention.infer(q, k, v, table, lengths, mask, scale=scale, causal=causal, offset=offset)
        return _types(whole, parts)

    @staticmethod
    def reference(q, k, v, table, lengths=None, mask=None, *, scale, parts, causal, offset):
        k, v = (gathered(x, table) for x in (k, v))
        if lengths is None:
            return AttentionParts.reference(q, k, v, mask, scale=scale, parts=parts, causal=causal, offset=offset)
        return _in_parts(_scores(q, k, seen(q, k, lengths, mask), scale), v, parts, lengths)


class AttentionJoin(Operator):
    """What `attention_parts` gives, as the result of the attention, in the dtype `to`.

    ``"tw.attention_join"(%values, %top, %total) {to = "bf16"} : (tensor<1x2x4x1x8xf32>, ...) -> tensor<1x2x1x8xbf16>``
    """

    kind = "opaque"

    @staticmethod
    def infer(values, top, total, *, to: str):
        need("float", values, top, total)
        if values.rank != 5 or top.shape != values.shape[:4] or total.shape != values.shape[:4]:
            raise OpError(f"needs parts [B, H, parts, S, D] and two numbers of each row, got {values}, {top}, {total}")
        if wide(to) != values.dtype or not values.dtype == top.dtype == total.dtype:
            raise OpError(f"parts {values} cannot become {to}")
        return values.with_shape((*values.shape[:2], *values.shape[3:])).with_dtype(to)

    @staticmethod
    def reference(values, top, total, *, to):
        from ..ir.types import NUMPY

        share = np.exp(top - top.max(axis=2, keepdims=True))
        whole = (total * share).sum(axis=2)[..., None]
        found = (values * share[..., None]).sum(axis=2) / np.where(whole == 0, np.ones((), whole.dtype), whole)
        return found.astype(NUMPY[to] if values.dtype != np.float64 else np.float64)


def _types(whole, parts: int):
    if parts < 1:
        raise OpError(f"keys cannot be in {parts} parts")
    b, h, s, d = whole.shape
    acc = whole.with_dtype(wide(whole.dtype))
    return [acc.with_shape((b, h, parts, s, d)), acc.with_shape((b, h, parts, s)), acc.with_shape((b, h, parts, s))]


def _scores(q: np.ndarray, k: np.ndarray, mask: np.ndarray | None, scale: float) -> np.ndarray:
    acc = np.float64 if q.dtype == np.float64 else np.float32
    k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    scores = np.matmul(q.astype(acc), np.swapaxes(k.astype(acc), -1, -2)) * acc(scale)
    return scores if mask is None else scores + mask.astype(acc)


def _in_parts(scores: np.ndarray, v: np.ndarray, parts: int, lengths: np.ndarray | None = None) -> list[np.ndarray]:
    acc, keys = scores.dtype, scores.shape[-1]
    v = np.repeat(v, scores.shape[1] // v.shape[1], axis=1).astype(acc)
    lowest = np.finfo(np.float32).min if acc == np.float32 else np.finfo(acc).min
    there = np.full(len(scores), keys) if lengths is None else np.clip(lengths, 0, keys)
    found: list[list[np.ndarray]] = [[], [], []]
    for p in range(parts):
        length = -(-there // parts)[:, None, None, None]
        place = np.arange(keys)
        part = np.where((place >= p * length) & (place < (p + 1) * length), scores, np.asarray(-np.inf, acc))
        top = np.maximum(part.max(axis=-1, keepdims=True, initial=-np.inf), lowest)
        e = np.exp(part - top)
        for one, x in zip(found, (np.matmul(e, v), top[..., 0], e.sum(axis=-1)), strict=True):
            one.append(x.astype(acc))
    return [np.stack(x, axis=2) for x in found]


__all__ = ["AttentionJoin", "AttentionParts", "PagedAttentionParts"]
