"""Activation-aware scales (AWQ; Lin et al., 2023): columns that are multiplied with large activations are made larger
before they are rounded, and the activations smaller in the same measure, where something before the product can be
scaled: a norm, or the rows of another product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..config import DecoderLayer, Sublayer
from ..layers.attention import SelfAttention
from ..layers.mlp import Mlp
from .rounding import Format

#: powers of the activations' size that are tried
POWERS = [i / 10 for i in range(11)]
#: rows of activations by which they are judged
ROWS = 512


@dataclass(frozen=True)
class _Before:
    """What makes the input of a product: rows of weights (``name.weight``, and ``name.bias`` where there is one) that
    can be scaled, from `first` on; `offset` is added to them. Each row makes `group` columns of the input, `width`
    columns apart."""

    name: str
    first: int = 0
    last: int | None = None
    offset: float = 0.0
    group: int = 1
    width: int = 1

    def folded(self, columns: np.ndarray) -> np.ndarray:
        """A number for each row, of one for each column."""
        return columns.reshape(-1, self.group, self.width).mean(1).ravel()

    def spread(self, rows: np.ndarray) -> np.ndarray:
        """The inverse."""
        return np.repeat(rows.reshape(-1, 1, self.width), self.group, 1).ravel()


def scaled(
    layer: DecoderLayer,
    number: int,
    weights: Mapping[str, Any],
    given: Mapping[tuple[str, ...], np.ndarray],
    form: Format,
) -> tuple[dict[str, np.ndarray], dict[tuple[str, ...], np.ndarray]]:
    """Weights of a layer, by name, that compute the same and are rounded with smaller errors; what the inputs of
    products are divided by then.

    given: inputs [T, K] of products, by the names of their weights.
    """
    made: dict[str, np.ndarray] = {}
    scales: dict[tuple[str, ...], np.ndarray] = {}
    for block in layer.blocks:
        at = f"layers.{number}.{block.name}"
        for names, x in given.items():
            before = _before(block, at, names, weights) if names[0].startswith(f"{at}.") else None
            fitting = form.fitting(x.shape[1])
            if before is None or fitting is None:
                continue
            rows = _best([np.asarray(weights[n], np.float32) for n in names], x, before, fitting)
            scales[names] = before.spread(rows)
            for name in names:
                made[name] = made.get(name, np.asarray(weights[name], np.float32)) * scales[names]
            for name in (f"{before.name}.weight", f"{before.name}.bias"):
                if name not in weights:
                    continue
                array = np.array(made.get(name, weights[name]), np.float32)
                offset = before.offset if name.endswith(".weight") else 0
                which = slice(before.first, before.last)
                part = array[which] + offset
                array[which] = part / (rows[:, None] if part.ndim > 1 else rows) - offset
                made[name] = array
    return made, scales


def _before(block: Sublayer, at: str, names: Sequence[str], weights: Mapping[str, Any]) -> _Before | None:
    """What can be scaled before the product with these weights."""
    body, last = block.body, names[0].split(".")[-2]
    if isinstance(body, SelfAttention) and last == "o":
        if body.clip:
            return None
        more = {"group": body.heads // body.kv_heads, "width": body.value_dim}
        if f"{at}.v.weight" in weights:
            return _Before(f"{at}.v", **more)
        first = (body.heads + body.kv_heads) * body.head_dim
        return _Before(f"{at}.qkv", first, first + body.kv_heads * body.value_dim, **more)
    if isinstance(body, Mlp) and last == "down":
        if not body.gated:
            return None
        joined = f"{at}.gateup.weight" in weights
        return _Before(f"{at}.gateup", body.size) if joined else _Before(f"{at}.up")
    if isinstance(body, SelfAttention | Mlp) and block.before is not None and block.before.weight:
        return _Before(f"{at}.before", offset=block.before.offset)
    return None


def _best(each: Sequence[np.ndarray], x: np.ndarray, before: _Before, form: Format) -> np.ndarray:
    """The scales of rows with the smallest error of products of x."""
    size = before.folded(np.abs(x).mean(0)) + 1e-8
    x = x[:: max(1, len(x) // ROWS)]
    w = np.concatenate(each)
    exact, least, best = x @ w.T, np.inf, np.ones(len(size), np.float32)
    for power in POWERS:
        rows = (size**power).astype(np.float32)
        rows /= np.sqrt(rows.max() * rows.min())
        s = before.spread(rows)
        error = float((((x / s) @ form.rounded(w * s).dequantized().T - exact) ** 2).sum())
        if error < least:
            least, best = error, rows
    return best


__all__ = ["scaled"]
