"""Rotary positions: angles by token, with the scalings of longer contexts, and the rotation itself."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch_mlir import ir

    from ...ir.graph_builder import Maker
    from ..config import Rope, Scaling


def frequencies(rope: Rope, context: int) -> np.ndarray:
    """The angle of each pair at position 1, f32 [dim / 2], for contexts of so many positions.

    >>> from tilewright.llm.config import Rope
    >>> frequencies(Rope(4, 100.0), 10).tolist()
    [1.0, 0.10000000149011612]
    """
    waves = np.float32(rope.theta) ** (np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim))
    if rope.scaling is None:
        return np.float32(1) / waves
    return _SCALED[rope.scaling.kind](rope, rope.scaling, waves, context).astype(np.float32)


def _linear(rope: Rope, scaling: Scaling, waves: np.ndarray, context: int) -> np.ndarray:
    return 1 / waves / np.float32(scaling.factor)


def _llama3(rope: Rope, scaling: Scaling, waves: np.ndarray, context: int) -> np.ndarray:
    plain = 1 / waves
    turns = scaling.original / (2 * math.pi / plain)  # in the original context
    smooth = (turns - scaling.low) / (scaling.high - scaling.low)
    between = (1 - smooth) * plain / scaling.factor + smooth * plain
    return np.where(turns < scaling.low, plain / scaling.factor, np.where(turns > scaling.high, plain, between))


def _yarn(rope: Rope, scaling: Scaling, waves: np.ndarray, context: int) -> np.ndarray:
    def dimension(turns: float) -> float:
        return rope.dim * math.log(scaling.original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(scaling.fast), dimension(scaling.slow)
    if scaling.rounded:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    high += 0.001 if low == high else 0
    ramp = np.clip((np.arange(rope.dim // 2, dtype=np.float32) - low) / (high - low), 0, 1)
    return 1 / (scaling.factor * waves) * ramp + 1 / waves * (1 - ramp)


def _longrope(rope: Rope, scaling: Scaling, waves: np.ndarray, context: int) -> np.ndarray:
    return 1 / (np.array(scaling.long if context > scaling.original else scaling.short, np.float32) * waves)


_SCALED = {"linear": _linear, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope}


def angles(make: Maker, positions: ir.Value, rope: Rope, context: int) -> tuple[ir.Value, ir.Value]:
    """Cosine and sine of the angles of each token, f32 [T, dim / 2]."""
    at = make("reshape", make("cast", positions, to="f32"), shape=(-1, 1))
    turned = make("mul", at, make.constant(frequencies(rope, context)[None], "frequencies"))
    found = [make(f, turned, place="rope") for f in ("cos", "sin")]
    if rope.scaling is not None and rope.scaling.attention != 1:
        scale = make.constant(np.float32(rope.scaling.attention))
        found = [make("mul", x, scale) for x in found]
    return found[0], found[1]


def rotated(make: Maker, x: ir.Value, cosine: ir.Value, sine: ir.Value, rope: Rope) -> ir.Value:
    """x [T, heads, depth] with the first `dim` numbers of each head rotated; cosine and sine as `angles` gives them."""
    return make("rotary", x, cosine, sine, interleaved=rope.interleaved)


__all__ = ["angles", "frequencies", "rotated"]
