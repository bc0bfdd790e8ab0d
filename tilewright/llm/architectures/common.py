"""What many architectures have in common: names of weights, and fields of config.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ops.block_weights import BlockWeights
from ...support.errors import UnsupportedError
from ..config import DecoderLayer, DecoderModel, Norm, Sublayer, SublayerBody
from ..layers.attention import SelfAttention
from ..layers.mlp import ACTIVATIONS, Mlp
from ..settings import ModelSettings

#: names of weights, in checkpoints and in `DecoderModel`
TENSORS = {
    "embed_tokens": "embedding",
    "norm": "norm",
    "lm_head": "head",
    "layers.{}.input_layernorm": "layers.{}.attention.before",
    **{f"layers.{{}}.self_attn.{n}_proj": f"layers.{{}}.attention.{n}" for n in "qkvo"},
    "layers.{}.post_attention_layernorm": "layers.{}.mlp.before",
    **{f"layers.{{}}.mlp.{n}_proj": f"layers.{{}}.mlp.{n}" for n in ("gate", "up", "down")},
}
#: weights of norms of heads
HEAD_NORMS = {f"layers.{{}}.self_attn.{n}": f"layers.{{}}.attention.{n}" for n in ("q_norm", "k_norm")}
FULL, SLIDING = "full_attention", "sliding_attention"


def attention_of(
    s: ModelSettings, *, theta: float = 10000.0, kind: str | None = None, local: float | None = None, **more: Any
) -> SelfAttention:
    """Attention with rotary positions; `theta`, `kind` and `local` as in `Settings.rope`. `more`: other fields of
    `SelfAttention`."""
    heads = s.need("num_attention_heads")
    depth = s.get("head_dim", s.need("hidden_size") // heads)
    s.ignore("attention_bias")  # the checkpoint says it
    shared = s.get("num_key_value_heads", heads)
    return SelfAttention(heads, shared, depth, rope=s.rope(depth, kind=kind, theta=theta, local=local), **more)


def activation_of(s: ModelSettings, name: str = "hidden_act", default: str = "silu") -> str:
    """The activation of an MLP; UnsupportedError for one that is not known."""
    return str(s.only(name, default, *ACTIVATIONS))


def mlp_of(s: ModelSettings, activation: str = "hidden_act", default: str = "silu") -> Mlp:
    """A gated MLP."""
    s.ignore("mlp_bias")  # the checkpoint says it
    return Mlp(s.need("intermediate_size"), activation_of(s, activation, default))


def rms(s: ModelSettings, epsilon: float = 1e-6, **more: Any) -> Norm:
    """The norm of ``rms_norm_eps``."""
    return Norm("rms", s.get("rms_norm_eps", epsilon), **more)


def windows(s: ModelSettings, kinds: Sequence[str], default: int | None = None) -> list[int]:
    """The window of each layer of these kinds, 0 for full attention."""
    size = s.get("sliding_window", default)
    if unknown := set(kinds) - {FULL, SLIDING}:
        raise UnsupportedError(
            f"config.json of this {s.kind} model has layers {', '.join(sorted(unknown))}",
            stage="import",
            hint=f"layer_types may be {FULL} and {SLIDING}",
        )
    if SLIDING in kinds and not size:
        raise UnsupportedError(f"config.json has layers {SLIDING} and no sliding_window", stage="import")
    return [size if kind == SLIDING else 0 for kind in kinds]


def pre_norm(attention: SublayerBody, mlp: SublayerBody, norm: Norm, scale: float = 1.0) -> DecoderLayer:
    """A layer whose blocks normalize what they are given."""
    return DecoderLayer((Sublayer("attention", attention, norm, scale=scale), Sublayer("mlp", mlp, norm, scale=scale)))


def decoder(
    s: ModelSettings, layers: Sequence[DecoderLayer], norm: Norm, *, tied: bool = False, **more: Any
) -> DecoderModel:
    """The model of these layers; `tied`, where config.json does not say it. `more`: other fields of `DecoderModel`."""
    return DecoderModel(
        s.kind,
        s.need("vocab_size"),
        s.need("hidden_size"),
        s.get("max_position_embeddings", 2048),
        tuple(layers),
        norm,
        tied=bool(s.get("tie_word_embeddings", tied)),
        **more,
    )


def as_array(weight: Any) -> np.ndarray:
    """A weight whose rows are to be put in another order, in memory; as floats, where it is quantized."""
    return weight.dequantized() if isinstance(weight, BlockWeights) else np.asarray(weight)
