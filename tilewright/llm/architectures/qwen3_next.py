"""Qwen3-Next: three layers of Gated DeltaNet and one of gated attention by turns, each with a mixture of experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...support.errors import UnsupportedError
from ..config import DecoderModel, SublayerBody
from ..layers.attention import SelfAttention
from ..layers.recurrent import GatedDeltaNet
from ..settings import ModelSettings
from . import Architecture
from .common import FULL, HEAD_NORMS, as_array, attention_of, decoder, pre_norm, rms
from .qwen_moe import TENSORS as EXPERTS
from .qwen_moe import mlps

LINEAR = "linear_attention"

#: names of weights of Gated DeltaNet
MIXER = {"in_proj_qkvz": "qkvz", "in_proj_ba": "ba", "out_proj": "o", "conv1d": "conv"}
MIXER |= {n: n for n in ("A_log", "dt_bias", "norm")}


def read(s: ModelSettings) -> DecoderModel:
    count, every = s.need("num_hidden_layers"), s.get("full_attention_interval", 4)
    s.fields.setdefault("head_dim", 256)
    s.fields.setdefault("partial_rotary_factor", 0.25)
    usual = [FULL if (i + 1) % every == 0 else LINEAR for i in range(count)]
    norm = rms(s, offset=1.0)
    mixer = GatedDeltaNet(
        s.get("linear_num_value_heads", 32),
        s.get("linear_num_key_heads", 16),
        s.get("linear_value_head_dim", 128),
        s.get("linear_key_head_dim", 128),
        s.get("linear_conv_kernel_dim", 4),
        norm.epsilon,
    )
    bodies: dict[str, SublayerBody] = {LINEAR: mixer, FULL: attention_of(s, qk_norm=norm, gated=True)}
    kinds = s.layer_kinds(usual)
    if unknown := set(kinds) - set(bodies):
        raise UnsupportedError(
            f"config.json of this qwen3_next model has layers {', '.join(sorted(unknown))}",
            stage="import",
            hint=f"layer_types may be {LINEAR} and {FULL}",
        )
    layers = zip(kinds, mlps(s, shared=True, normalized=True), strict=True)
    return decoder(s, [pre_norm(bodies[kind], mlp, norm) for kind, mlp in layers], norm)


def convert(model: DecoderModel, weights: dict[str, Any]) -> dict[str, Any]:
    """Rows that lie by heads of q and k become those of q, k, v and z one after the other, and of b and a; rows of q
    and its gate, which lie by heads too, become weights of their own."""
    for i, layer in enumerate(model.layers):
        body, at = layer.blocks[0].body, f"layers.{i}.attention"
        if isinstance(body, SelfAttention):
            both = weights.pop(f"{at}.q.weight", None)
            if both is not None:
                both = as_array(both)
                parts = both.reshape(body.heads, 2, body.head_dim, -1)
                for k, name in enumerate(("q", "gate")):
                    weights[f"{at}.{name}.weight"] = parts[:, k].reshape(body.heads * body.head_dim, -1)
        elif isinstance(body, GatedDeltaNet):
            each = body.heads // body.k_heads
            sizes = (*(body.k_head_dim,) * 2, *(each * body.head_dim,) * 2)
            for name, cuts in (("qkvz", sizes), ("ba", (each, each))):
                if (w := weights.get(f"{at}.{name}.weight")) is not None:
                    weights[f"{at}.{name}.weight"] = _by_parts(as_array(w), body.k_heads, cuts)
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
    EXPERTS | HEAD_NORMS | {f"layers.{{}}.linear_attn.{n}": f"layers.{{}}.attention.{m}" for n, m in MIXER.items()},
    unused=(r".*rotary_emb\.inv_freq", r"mtp\..*"),
    convert=convert,
)
