"""What recurrent layers of a language model compute for tokens of several sequences that lie one after the other.

All take ``starts`` (i32 [B + 1]): sequence b has the tokens ``starts[b]`` to ``starts[b + 1]``. States are kept in a
pool of S snapshots. ``initial`` (i32 [B]) says which snapshot a sequence begins from, -1: from zeros; ``keep`` (i32
[T]) which one the state after a token is written to, -1: none. A snapshot that a sequence begins from may be written
by that sequence only. The last result is the pool; where it takes the place of the operand, other snapshots are not
touched, else they are copied.
"""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import Type
from ..support.dtypes import wide
from ..support.errors import OpError
from .common import need, need_shape, same_dtype, widen


def _check(x: Type, pool: Type, starts: Type, initial: Type, keep: Type, *others: Type | None) -> None:
    need("float", x, pool)
    same_dtype(x, *others)
    if wide(pool.dtype) != wide(x.dtype):
        raise OpError(f"snapshots {pool} are of another precision than {x}")
    if 0 in pool.shape:
        raise OpError(f"there are no snapshots, or nothing in them: {pool}")
    for name, t in (("starts", starts), ("initial", initial), ("keep", keep)):
        if t.dtype != "i32" or t.rank != 1:
            raise OpError(f"{name} is a list of i32, got {t}")
    need_shape("keep", keep, (x.shape[0],))
    if starts.shape[0] is not None and initial.shape[0] is not None and starts.shape[0] != initial.shape[0] + 1:
        raise OpError(f"starts has one number more than there are sequences, got {starts} for {initial}")


def _sequences(starts: np.ndarray, initial: np.ndarray, pool: np.ndarray):
    """(tokens, first state) of each sequence."""
    (states,) = widen(pool)
    for b, first in enumerate(initial):
        yield range(starts[b], starts[b + 1]), states[max(first, 0)] * states.dtype.type(first >= 0)


class RaggedConv(Operator):
    """A causal convolution along tokens of each sequence, of every channel by itself: x [T, C] with weights [K, C]
    (and bias [C]) becomes y [T, C], y[t] = bias + sum_j weights[j] * x[t - K + 1 + j]. With `silu` that of y.

    pool: [S, K - 1, C], the tokens that come before, the oldest first. See the head of this file for the rest.

    ``"tw.ragged_conv"(%x, %w, %pool, %starts, %initial, %keep) : (tensor<6x64xf32>, tensor<4x64xf32>,
    tensor<9x3x64xf32>, tensor<3xi32>, tensor<2xi32>, tensor<6xi32>) -> ...``
    """

    kind = "opaque"
    multiple = True

    @staticmethod
    def infer(x, weights, pool, starts, initial, keep, bias=None, *, silu: bool = False):
        _check(x, pool, starts, initial, keep, weights, bias)
        if x.rank != 2 or weights.rank != 2 or (weights.shape[0] or 2) < 2:
            raise OpError(f"takes x [T, C] and weights [K, C] of K > 1, got {x} and {weights}")
        taps, channels = weights.shape
        need_shape("x", x, (x.shape[0], channels))
        need_shape("bias", bias, (channels,))
        need_shape("pool", pool, (None, None if taps is None else taps - 1, channels))
        return [x, pool]

    @staticmethod
    def reference(x, weights, pool, starts, initial, keep, bias=None, *, silu):
        new, dtype = pool.copy(), x.dtype
        x, weights, bias = widen(x, weights, bias)
        y = np.zeros_like(x)
        for tokens, window in _sequences(starts, initial, pool):
            for t in tokens:
                window = np.concatenate([window, x[t : t + 1]])
                y[t] = (0 if bias is None else bias) + (window * weights).sum(0)
                window = window[1:]
                if keep[t] >= 0:
                    new[keep[t]] = window
        return [(y / (1 + np.exp(-y)) if silu else y).astype(dtype), new]

    @staticmethod
    def decompose(b, x, weights, pool, starts, initial, keep, bias=None, *, silu):
        tokens, taps, sequences, acc = x.shape[0], weights.shape[0], initial.shape[0], wide(x.dtype)
        ends = b.compute(
            Type((tokens, sequences), "i32"),
            lambda t, n: b.cast(b.cast(b.load(starts, [n + 1]), "index") <= t, "i32"),
        )
        sequence = b.reduce(lambda v, s: v + s, 0, ends, [1])  # of each token

        def before(t, back, c):
            """x of the token `back` before t, which may be one of the window that its sequence began with."""
            n = b.cast(b.load(sequence, [t]), "index")
            first, snapshot = b.cast(b.load(starts, [n]), "index"), b.load(initial, [n])
            at = t - back
            place = b.larger(b.minimum(at - first + (taps - 1), taps - 2), 0)
            old = b.cast(b.load(pool, [b.larger(b.cast(snapshot, "index"), 0), place, c]), acc)
            old = b.select(snapshot >= 0, old, 0.0)
            return b.select(first <= at, b.cast(b.load(x, [b.larger(at, 0), c]), acc), old)

        def convolved(t, c):
            total = b.constant(0.0, acc) if bias is None else b.cast(b.load(bias, [c]), acc)
            for j in range(taps):
                weight = b.cast(b.load(weights, [b.constant(j, "index"), c]), acc)
                total = total + weight * before(t, taps - 1 - j, c)
            return b.cast(total / (b.unary("exp", -total) + 1.0) if silu else total, x.dtype)

        def written(s, t):
            here = b.cast(b.load(keep, [t]), "index").eq(s)
            return b.select(here, b.cast(t, "i32"), b.constant(-1, "i32"))

        latest = b.compute(Type((pool.shape[0], tokens), "i32"), written)
        latest = b.reduce(lambda v, m: b.larger(v, m), -1, latest, [1])  # the token whose state goes to a snapshot

        def kept(s, j, c):
            t = b.load(latest, [s])
            new = before(b.larger(b.cast(t, "index"), 0), (taps - 2) - j, c)
            return b.select(t >= 0, b.cast(new, pool.dtype), b.load(pool, [s, j, c]))

        return [b.compute(x.type, convolved), b.compute(pool.type, kept)]


class GatedLinearAttention(Operator):
    """The recurrence of linear attention with a decay: for each head a state of [D, Dv] numbers, and for each token

        state = exp(gate) * state;   state += outer(k, v);   y = q @ state

    With `beta` the delta rule: k is given (v - k @ state) * beta in place of v, so that what it had is replaced.
    q, k: [T, Hk, D]; v: [T, H, Dv]; gate and beta: [T, H]; y: [T, H, Dv]. Head h uses q and k of h // (H / Hk).
    Gated DeltaNet has beta and normalized q and k; in Mamba 2 (SSD) q is C, k is B, v is dt * x, and gate is dt * A.

    pool: [S, H, D, Dv]. See the head of this file for the rest. Opaque: one loop nest goes from token to token.

    ``"tw.gated_linear_attention"(%q, %k, %v, %gate, %pool, %starts, %initial, %keep) : (tensor<6x2x8xf32>,
    tensor<6x2x8xf32>, tensor<6x4x16xf32>, tensor<6x4xf32>, tensor<9x4x8x16xf32>, tensor<3xi32>, ...) -> ...``
    """

    kind = "opaque"
    multiple = True

    @staticmethod
    def infer(q, k, v, gate, pool, starts, initial, keep, beta=None):
        _check(q, pool, starts, initial, keep, k, v, gate, beta)
        if q.rank != 3 or v.rank != 3:
            raise OpError(f"q is [T, Hk, D] and v [T, H, Dv], got {q} and {v}")
        (tokens, shared, depth), (_, heads, width) = q.shape, v.shape
        if shared == 0 or (heads is not None and shared is not None and heads % shared):
            raise OpError(f"{heads} heads of v do not fit {shared} of q")
        need_shape("k", k, q.shape)
        need_shape("v", v, (tokens, heads, width))
        need_shape("gate", gate, (tokens, heads))
        need_shape("beta", beta, (tokens, heads))
        need_shape("pool", pool, (None, heads, depth, width))
        return [v, pool]

    @staticmethod
    def reference(q, k, v, gate, pool, starts, initial, keep, beta=None):
        new, group, dtype = pool.copy(), v.shape[1] // q.shape[1], v.dtype
        q, k, v, gate, beta = widen(q, k, v, gate, beta)
        y = np.zeros_like(v)
        q, k = (np.repeat(x, group, axis=1) for x in (q, k))
        for tokens, state in _sequences(starts, initial, pool):
            for t in tokens:
                state = state * np.exp(gate[t])[:, None, None]
                value = v[t]
                if beta is not None:
                    value = (value - np.einsum("hd,hde->he", k[t], state)) * beta[t][:, None]
                state = state + k[t][:, :, None] * value[:, None]
                y[t] = np.einsum("hd,hde->he", q[t], state)
                if keep[t] >= 0:
                    new[keep[t]] = state
        return [y.astype(dtype), new]


__all__ = ["GatedLinearAttention", "RaggedConv"]
