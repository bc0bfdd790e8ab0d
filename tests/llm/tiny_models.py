"""Very small models with random weights: a dense one, and one with recurrent layers of both kinds."""

from __future__ import annotations

import numpy as np

from tilewright.llm.config import DecoderLayer, DecoderModel, Norm, Rope, Sublayer, SublayerBody
from tilewright.llm.layers.attention import SelfAttention
from tilewright.llm.layers.experts import Experts, Router
from tilewright.llm.layers.mlp import Mlp
from tilewright.llm.layers.recurrent import GatedDeltaNet, Mamba2

HIDDEN = 16
VOCABULARY = 50


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def hybrid(experts: bool = True) -> tuple[DecoderModel, dict[str, np.ndarray]]:
    """A model of one layer of each kind; with a mixture of experts, whose choice may flip by the rounding of sums."""
    router = Router(8, 2, "sigmoid", groups=4, top_groups=2, pairs=True, scale=1.5)
    delta, mamba = GatedDeltaNet(4, 2, 6, 8), Mamba2(3, 8, 1, 5, most_dt=2.0)
    bodies = [delta, SelfAttention(2, 1, 8), mamba, Experts(router, 12, "relu2", gated=False, shared=8)]
    shapes = {
        "0": {
            "qkv.weight": (56, HIDDEN), "z.weight": (24, HIDDEN), "b.weight": (4, HIDDEN), "a.weight": (4, HIDDEN),
            "conv.weight": (56, 1, 4), "A_log": (4,), "dt_bias": (4,), "norm.weight": (6,), "o.weight": (HIDDEN, 24),
        },
        "1": {f"{n}.weight": (16 if n in "qo" else 8, HIDDEN) for n in "qkvo"},
        "2": {
            "in.weight": (24 + 34 + 3, HIDDEN), "conv.weight": (34, 1, 4), "conv.bias": (34,), "A_log": (3,), "D": (3,),
            "dt_bias": (3,), "norm.weight": (24,), "o.weight": (HIDDEN, 24),
        },
        "3": {
            "router.weight": (8, HIDDEN), "router.correction": (8,), "experts.up": (8, 12, HIDDEN),
            "experts.down": (8, HIDDEN, 12), "shared.up.weight": (8, HIDDEN), "shared.down.weight": (HIDDEN, 8),
        },
    }  # fmt: skip
    count = 4 if experts else 3
    return _model("hybrid", bodies[:count], dict(list(shapes.items())[:count]))


def dense() -> tuple[DecoderModel, dict[str, np.ndarray]]:
    """A model of two layers of attention, the second one of which sees few positions, with an MLP between them."""
    rope = Rope(8)
    bodies = [SelfAttention(2, 1, 8, rope=rope), Mlp(24), SelfAttention(2, 2, 8, rope=rope, window=9)]
    shapes = {
        "0": {f"{n}.weight": (16 if n in "qo" else 8, HIDDEN) for n in "qkvo"},
        "1": {"gate.weight": (24, HIDDEN), "up.weight": (24, HIDDEN), "down.weight": (HIDDEN, 24)},
        "2": {f"{n}.weight": (16, HIDDEN) for n in "qkvo"},
    }
    return _model("dense", bodies, shapes)


def _model(
    name: str, bodies: list[SublayerBody], shapes: dict[str, dict[str, tuple[int, ...]]]
) -> tuple[DecoderModel, dict[str, np.ndarray]]:
    norm, rng = Norm("rms"), np.random.default_rng(3)
    layers = tuple(DecoderLayer((Sublayer("mixer", body, norm),)) for body in bodies)
    weights = {"embedding.weight": drawn(rng, VOCABULARY, HIDDEN), "norm.weight": 1 + drawn(rng, HIDDEN) / 8}
    for i, parts in shapes.items():
        weights[f"layers.{i}.mixer.before.weight"] = 1 + drawn(rng, HIDDEN) / 8
        weights |= {f"layers.{i}.mixer.{n}": drawn(rng, *s) / max(s[-1], 4) ** 0.5 for n, s in parts.items()}
    return DecoderModel(name, VOCABULARY, HIDDEN, 64, layers, norm, tied=True), weights
