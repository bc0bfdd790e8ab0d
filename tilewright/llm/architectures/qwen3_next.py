"""Qwen3-Next: three layers of Gated DeltaNet and one of gated attention by turns, each with a mixture of experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..config import Block, Layer, Model, Norm
from ..layers.attention import Attention
from ..layers.recurrent import GatedDeltaNet
from ..settings import Settings
from . import Architecture
from .qwen_moe import NORMS, mlps
from .qwen_moe import TENSORS as EXPERTS

#: names of weights of Gated DeltaNet
MIXER = {"in_proj_qkvz": "qkvz", "in_proj_ba": "ba", "out_proj": "o", "conv1d": "conv"}
MIXER |= {n: n for n in ("A_log", "dt_bias", "norm")}


def read(s: Settings) -> Model:
    hidden, heads, layers = s.need("hidden_size"), s.need("num_attention_heads"), s.need("num_hidden_layers")
    depth, every = s.get("head_dim", 256), s.get("full_attention_interval", 4)
    s.ignore("attention_bias", "rope_parameters")
    kinds = s.get("layer_types") or ["linear_attention" if (i + 1) % every else "full_attention" for i in range(layers)]
    epsilon = s.get("rms_norm_eps", 1e-6)
    norm = Norm("rms", epsilon, offset=1.0)
    mixer = GatedDeltaNet(
        s.get("linear_num_value_heads", 32),
        s.get("linear_num_key_heads", 16),
        s.get("linear_value_head_dim", 128),
        s.get("linear_key_head_dim", 128),
        s.get("linear_conv_kernel_dim", 4),
        epsilon,
    )
    attention = Attention(
        heads,
        s.get("num_key_value_heads", heads),
        depth,
        rope=s.rope(depth, partial=0.25),
        qk_norm=norm,
        gated=True,
    )
    bodies = {"linear_attention": mixer, "full_attention": attention}
    return Model(
        "qwen3_next",
        s.need("vocab_size"),
        hidden,
        s.get("max_position_embeddings", 32768),
        tuple(
            Layer((Block("attention", bodies[kind], norm), Block("mlp", mlp, norm)))
            for kind, mlp in zip(kinds, mlps(s, layers, shared=True, normalized=True), strict=True)
        ),
        norm,
        tied=s.get("tie_word_embeddings", False),
    )


def convert(model: Model, weights: dict[str, Any]) -> dict[str, Any]:
    """Rows that lie by heads of q and k become those of q, k, v and z one after the other, and of b and a; rows of q
    and its gate, which lie by heads too, become weights of their own."""
    for i, layer in enumerate(model.layers):
        body, at = layer.blocks[0].body, f"layers.{i}.attention"
        if isinstance(body, Attention):
            both = weights.pop(f"{at}.q.weight", None)
            if both is not None:
                parts = both.reshape(body.heads, 2, body.head_dim, -1)
                for k, name in enumerate(("q", "gate")):
                    weights[f"{at}.{name}.weight"] = parts[:, k].reshape(body.heads * body.head_dim, -1)
        elif isinstance(body, GatedDeltaNet):
            each = body.heads // body.k_heads
            sizes = (*(body.k_head_dim,) * 2, *(each * body.head_dim,) * 2)
            for name, cuts in (("qkvz", sizes), ("ba", (each, each))):
                if (w := weights.get(f"{at}.{name}.weight")) is not None:
                    weights[f"{at}.{name}.weight"] = _by_parts(w, body.k_heads, cuts)
    return weights


def _by_parts(w: np.ndarray, heads: int, sizes: tuple[int, ...]) -> np.ndarray:
    """Rows [heads * sum(sizes), ...] in the order of the parts.

    >>> _by_parts(np.arange(6)[:, None], 2, (1, 2)).ravel().tolist()
    [0, 3, 1, 2, 4, 5]
    """
    parts = np.split(w.reshape(heads, sum(sizes), -1), np.cumsum(sizes)[:-1], axis=1)
    return np.concatenate([p.reshape(-1, w.shape[1]) for p in parts])


ARCHITECTURE = Architecture(
    "qwen3_next",
    read,
    EXPERTS | NORMS | {f"layers.{{}}.linear_attn.{n}": f"layers.{{}}.attention.{m}" for n, m in MIXER.items()},
    unused=(r".*rotary_emb\.inv_freq", r"mtp\..*"),
    convert=convert,
)
