"""Normalizations of a decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch_mlir import ir

    from ..config import Norm
    from ..scope import LayerScope


def normalized(at: LayerScope, norm: Norm | None, x: ir.Value) -> ir.Value:
    """x normalized; x itself without a norm. Weights ``weight`` and ``bias`` of `at`, as wide as x or to be broadcast
    to it."""
    if norm is None:
        return x
    weight = at.vector("weight", norm.offset) if norm.weight else None
    if norm.kind == "rms":
        return at.make("rms_norm", x, weight, epsilon=norm.epsilon, place=at.name)
    bias = at.vector("bias") if norm.bias else None
    return at.make("layer_norm", x, weight, bias, epsilon=norm.epsilon, place=at.name)


def normalized_heads(at: LayerScope, norm: Norm, x: ir.Value, heads: dict[str, int]) -> ir.Value:
    """x [T, all heads, width] with each head normalized, by one operator; so many heads have the weights of each name
    in `at`."""

    def joined(name: str, offset: float = 0.0) -> ir.Value:
        each = [(np.asarray((at / n).weight(name), np.float32) + np.float32(offset), c) for n, c in heads.items()]
        weights = [np.broadcast_to(w, (count, w.shape[-1])) for w, count in each]
        return at.make.constant(np.concatenate(weights), f"{at.name}.{name}")

    weight = joined("weight", norm.offset) if norm.weight else None
    if norm.kind == "rms":
        return at.make("rms_norm", x, weight, epsilon=norm.epsilon, place=at.name)
    bias = joined("bias") if norm.bias else None
    return at.make("layer_norm", x, weight, bias, epsilon=norm.epsilon, place=at.name)


__all__ = ["normalized", "normalized_heads"]
