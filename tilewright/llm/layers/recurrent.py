"""Recurrent mixers: Gated DeltaNet and Mamba 2, a short convolution and a gated linear attention each.

Their states are pools of snapshots, ``conv`` and ``state``: see `batch.Batch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...ir.types import Type

if TYPE_CHECKING:
    from torch_mlir import ir

    from ..config import CachePool
    from ..scope import LayerScope


def convolved(at: LayerScope, x: ir.Value) -> ir.Value:
    """silu of the convolution along tokens of x [T, C]: weight ``conv.weight`` [C, 1, K] (and ``conv.bias``)."""
    weight = np.asarray(at.weight("conv.weight"), np.float32)
    weights = at.make.constant(np.ascontiguousarray(weight.reshape(weight.shape[0], -1).T), f"{at.name}.conv")
    bias = (at / "conv").vector("bias") if at.has("conv.bias") else None
    places = _places(at)
    y, pool = at.make("ragged_conv", x, weights, at.state("conv"), *places, bias, silu=True, place=f"{at.name}.conv")
    at.set_state("conv", pool)
    return y


def attended(at: LayerScope, q: ir.Value, k: ir.Value, v: ir.Value, gate: ir.Value, beta: ir.Value | None) -> ir.Value:
    """The recurrence, see `GatedLinearAttention`."""
    y, pool = at.make("gated_linear_attention", q, k, v, gate, at.state("state"), *_places(at), beta, place=at.name)
    at.set_state("state", pool)
    return y


def _places(at: LayerScope) -> tuple[ir.Value, ir.Value, ir.Value]:
    inputs = at.step.inputs
    return inputs["starts"], inputs["initial"], inputs["keep"]


def _decay(at: LayerScope) -> ir.Value:
    """-exp(``A_log``) [1, heads]."""
    return at.make.constant(-np.exp(np.asarray(at.weight("A_log"), np.float32))[None], f"{at.name}.decay")


def _steps(at: LayerScope, dt: ir.Value) -> ir.Value:
    """softplus(dt + ``dt_bias``)."""
    return at.make("softplus", at.make("add", dt, at.vector("dt_bias")))


@dataclass(frozen=True)
class GatedDeltaNet:
    """The gated delta rule with `heads` heads of `head_dim` numbers of values; `k_heads` heads of `k_head_dim` numbers
    of q and k, normalized, are shared by them. Gated by silu(z) after a norm of each head.

    Weights: ``qkv`` and ``z`` (or ``qkvz``), ``b`` and ``a`` (or ``ba``), ``conv`` of `taps` tokens, ``A_log`` and
    ``dt_bias`` [heads], ``norm.weight`` [head_dim], ``o``.
    """

    heads: int
    k_heads: int
    head_dim: int
    k_head_dim: int
    taps: int = 4
    epsilon: float = 1e-6

    recurrent = True

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Numbers of q, k and v."""
        return (self.k_heads * self.k_head_dim,) * 2 + (self.heads * self.head_dim,)

    def states(self, pool: CachePool) -> dict[str, Type]:
        return {
            "conv": Type((pool.snapshots, self.taps - 1, sum(self.sizes)), "f32"),
            "state": Type((pool.snapshots, self.heads, self.k_head_dim, self.head_dim), "f32"),
        }

    def build(self, at: LayerScope, x: ir.Value) -> ir.Value:
        make, depth = at.make, self.k_head_dim
        qkv, z = make("split", at.linear(x, "qkv", "z"), sizes=(sum(self.sizes), self.sizes[2]), axis=1)
        b, a = make("split", at.linear(x, "b", "a"), sizes=(self.heads, self.heads), axis=1)
        qk, v = make("split", convolved(at, qkv), sizes=(2 * self.sizes[0], self.sizes[2]), axis=1)
        # x / sqrt(sum(x²) + 1e-6), q divided by sqrt(depth) as well
        scales = np.repeat(np.asarray([1 / depth, depth**-0.5], np.float32), self.k_heads)[:, None] * np.ones(
            depth, np.float32
        )
        qk = make("reshape", qk, shape=(-1, 2 * self.k_heads, depth))
        qk = make("rms_norm", qk, make.constant(scales, f"{at.name}.scales"), epsilon=1e-6 / depth)
        q, k = make("split", qk, sizes=(self.k_heads, self.k_heads), axis=1)
        v = make("reshape", v, shape=(-1, self.heads, self.head_dim))
        y = attended(at, q, k, v, make("mul", _steps(at, a), _decay(at)), make("sigmoid", b))
        y = make("rms_norm", y, (at / "norm").vector("weight"), epsilon=self.epsilon)
        y = make("mul", y, make("silu", make("reshape", z, shape=(-1, self.heads, self.head_dim))))
        return at.linear(make("reshape", y, shape=(-1, self.sizes[2])), "o")


@dataclass(frozen=True)
class Mamba2:
    """A state space model (SSD) with `heads` heads of `head_dim` numbers and states of `state` for each of these; B and
    C are shared by the heads of a group. Gated by silu(z), then a norm of each of `groups` groups of numbers.

    dt is softplus(dt + ``dt_bias``), at least `least_dt` and at most `most_dt`. Weights: ``in`` for z, x, B, C and dt,
    ``conv`` of `taps` tokens, ``A_log``, ``D`` and ``dt_bias`` [heads], ``norm.weight``, ``o``.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    taps: int = 4
    epsilon: float = 1e-5
    least_dt: float = 0.0
    most_dt: float = float("inf")

    recurrent = True

    @property
    def inner(self) -> int:
        """Numbers of x and z."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Numbers of x, B and C."""
        return self.inner + 2 * self.groups * self.state

    def states(self, pool: CachePool) -> dict[str, Type]:
        return {
            "conv": Type((pool.snapshots, self.taps - 1, self.channels), "f32"),
            "state": Type((pool.snapshots, self.heads, self.state, self.head_dim), "f32"),
        }

    def build(self, at: LayerScope, x: ir.Value) -> ir.Value:
        make, shared = at.make, self.groups * self.state
        z, xbc, dt = make("split", at.linear(x, "in"), sizes=(self.inner, self.channels, self.heads), axis=1)
        x, b, c = make("split", convolved(at, xbc), sizes=(self.inner, shared, shared), axis=1)
        b, c = (make("reshape", v, shape=(-1, self.groups, self.state)) for v in (b, c))
        x = make("reshape", x, shape=(-1, self.heads, self.head_dim))
        dt = _steps(at, dt)
        if self.least_dt > 0 or self.most_dt != float("inf"):
            dt = make("clip", dt, low=self.least_dt, high=self.most_dt)
        v = make("mul", x, make("reshape", dt, shape=(-1, self.heads, 1)))
        y = attended(at, c, b, v, make("mul", dt, _decay(at)), None)
        skip = np.asarray(at.weight("D"), np.float32)[None, :, None]
        y = make("add", y, make("mul", x, make.constant(skip, f"{at.name}.D")))
        y = make("mul", make("reshape", y, shape=(-1, self.inner)), make("silu", z))
        weight = np.asarray(at.weight("norm.weight"), np.float32).reshape(self.groups, -1)
        y = make("reshape", y, shape=(-1, *weight.shape))
        y = make("rms_norm", y, make.constant(weight, f"{at.name}.norm"), epsilon=self.epsilon)
        return at.linear(make("reshape", y, shape=(-1, self.inner)), "o")


__all__ = ["GatedDeltaNet", "Mamba2"]
