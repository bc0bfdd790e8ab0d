"""LSTM, GRU and RNN recurrences over a sequence; the input projections are separate matrix products.

The products with the inputs of all steps are one matrix product outside: every operator takes `x` of shape [time,
batch, gates * H] with the biases added, and the recurrent weights `r` transposed, [H, gates * H]. `lengths` (i32) ends
sequences early: results after the end are 0. Opaque: each has a loop nest of its own
(`schedule.rules.custom.recurrent`).
"""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import Type
from ..support.errors import OpError
from .common import need, need_shape, same_dtype

#: activation -> f(x, alpha, beta)
ACTIVATIONS = {
    "affine": lambda x, a, b: a * x + b,
    "elu": lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0))),
    "hard_sigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "leaky_relu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "relu": lambda x, a, b: np.maximum(x, 0),
    "scaled_tanh": lambda x, a, b: a * np.tanh(b * x),
    "sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "softplus": lambda x, a, b: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "tanh": lambda x, a, b: np.tanh(x),
    "thresholded_relu": lambda x, a, b: np.where(x > a, x, 0),
}


class Recurrent(Operator, abstract=True):
    """Base: type rule and the walk over steps."""

    kind = "opaque"
    multiple = True
    gates = 1
    #: how many activations the cell has
    functions = 1

    @classmethod
    def check(cls, x, r, h, lengths, activations, alphas, betas):
        need("float", x)
        same_dtype(x, r, h)
        if x.rank != 3 or r.rank != 2 or h.rank != 2:
            raise OpError(
                f"takes x [time, batch, gates], r [hidden, gates] and h [batch, hidden], got {x}, {r} and {h}"
            )
        hidden = r.shape[0]
        need_shape("r", r, (hidden, cls.gates * hidden))
        need_shape("x", x, (x.shape[0], x.shape[1], cls.gates * hidden))
        need_shape("h", h, (x.shape[1], hidden))
        if lengths is not None and (lengths.dtype != "i32" or lengths.rank != 1):
            raise OpError(f"lengths are i32 for every sequence of the batch, got {lengths}")
        need_shape("lengths", lengths, (x.shape[1],))
        if not len(activations) == len(alphas) == len(betas) == cls.functions:
            raise OpError(f"takes {cls.functions} activations with as many alphas and betas")
        unknown = [a for a in activations if a not in ACTIVATIONS]
        if unknown:
            raise OpError(f"unknown activation {unknown[0]!r}")
        return [Type((x.shape[0], x.shape[1], hidden), x.dtype), h]


def _functions(activations, alphas, betas, clip):
    def make(name, a, b):
        def f(x):
            x = np.clip(x, -clip, clip) if clip > 0 else x
            with np.errstate(all="ignore"):
                return ACTIVATIONS[name](x, a, b)

        return f

    return [make(*t) for t in zip(activations, alphas, betas, strict=True)]


def _walk(x, states, lengths, reverse, step):
    """Apply step(x_t, states of the sequences still going) along time; gives y and the last states."""
    states = [s.astype(np.float64) for s in states]
    y = np.zeros((*x.shape[:2], states[0].shape[1]))
    for b in range(x.shape[1]):
        length = x.shape[0] if lengths is None else min(max(int(lengths[b]), 0), x.shape[0])
        own = [s[b : b + 1] for s in states]
        for t in range(length)[::-1] if reverse else range(length):
            own = step(x[t, b : b + 1].astype(np.float64), own)
            y[t, b] = own[0][0]
        for s, new in zip(states, own, strict=True):
            s[b] = new[0]
    return y, states


class Rnn(Recurrent):
    """h = f(x + h r) for every step; results are all h [time, batch, H] and the last one [batch, H]."""

    @classmethod
    def infer(
        cls, x, r, h, lengths=None, *, reverse: bool = False, activations: tuple = ("tanh",), alphas: tuple = (0.0,),
        betas: tuple = (0.0,), clip: float = 0.0,
    ):  # fmt: skip
        return cls.check(x, r, h, lengths, activations, alphas, betas)

    @staticmethod
    def reference(x, r, h, lengths=None, *, reverse, activations, alphas, betas, clip):
        (f,) = _functions(activations, alphas, betas, clip)
        y, (last,) = _walk(x, [h], lengths, reverse, lambda v, s: [f(v + s[0] @ r.astype(np.float64))])
        return [y.astype(x.dtype), last.astype(x.dtype)]


class Gru(Recurrent):
    """Gates in the order z, r, h: h' = (1 - z) * g + z * h with g = f2(x_h + (r * h) r_h).

    With `bias` [H] the reset gate is applied after the product: g = f2(x_h + r * (h r_h + bias)).
    """

    gates = 3
    functions = 2

    @classmethod
    def infer(
        cls, x, r, h, bias=None, lengths=None, *, reverse: bool = False, activations: tuple = ("sigmoid", "tanh"),
        alphas: tuple = (0.0, 0.0), betas: tuple = (0.0, 0.0), clip: float = 0.0,
    ):  # fmt: skip
        same_dtype(x, bias)
        need_shape("bias", bias, (h.shape[-1],))
        return cls.check(x, r, h, lengths, activations, alphas, betas)

    @staticmethod
    def reference(x, r, h, bias=None, lengths=None, *, reverse, activations, alphas, betas, clip):
        f, g = _functions(activations, alphas, betas, clip)
        n, w = h.shape[1], r.astype(np.float64)

        def step(v, states):
            (old,) = states
            z, reset = f(v[:, :n] + old @ w[:, :n]), f(v[:, n : 2 * n] + old @ w[:, n : 2 * n])
            if bias is None:
                new = g(v[:, 2 * n :] + (reset * old) @ w[:, 2 * n :])
            else:
                new = g(v[:, 2 * n :] + reset * (old @ w[:, 2 * n :] + bias))
            return [(1 - z) * new + z * old]

        y, (last,) = _walk(x, [h], lengths, reverse, step)
        return [y.astype(x.dtype), last.astype(x.dtype)]


class Lstm(Recurrent):
    """Gates in the order i, o, f, c: c' = f * c + i * g, h' = o * f3(c'); `peephole` [3 * H] adds p * c to i, o and f.

    Results are all h [time, batch, H], the last h and the last c. With `coupled` f is 1 - i.
    """

    gates = 4
    functions = 3

    @classmethod
    def infer(
        cls, x, r, h, c, peephole=None, lengths=None, *, reverse: bool = False, coupled: bool = False,
        activations: tuple = ("sigmoid", "tanh", "tanh"), alphas: tuple = (0.0, 0.0, 0.0),
        betas: tuple = (0.0, 0.0, 0.0),
        clip: float = 0.0,
    ):  # fmt: skip
        same_dtype(x, c, peephole)
        need_shape("c", c, h.shape)
        need_shape("peephole", peephole, (3 * h.shape[-1],))
        return [*cls.check(x, r, h, lengths, activations, alphas, betas), c]

    @staticmethod
    def reference(x, r, h, c, peephole=None, lengths=None, *, reverse, coupled, activations, alphas, betas, clip):
        f, g, out = _functions(activations, alphas, betas, clip)
        n, w = h.shape[1], r.astype(np.float64)
        p = np.zeros(3 * n) if peephole is None else peephole.astype(np.float64)

        def step(v, states):
            old, cell = states
            i, o, forget, new = np.split(v + old @ w, 4, axis=1)
            i = f(i + p[:n] * cell)
            forget = 1 - i if coupled else f(forget + p[2 * n :] * cell)
            cell = forget * cell + i * g(new)
            return [f(o + p[n : 2 * n] * cell) * out(cell), cell]

        y, (last, cell) = _walk(x, [h, c], lengths, reverse, step)
        return [y.astype(x.dtype), last.astype(x.dtype), cell.astype(x.dtype)]
