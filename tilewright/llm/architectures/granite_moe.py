"""IBM Granite with mixtures of experts, and Granite 4 with layers of Mamba 2 as well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config import DecoderModel, SublayerBody
from ..layers.experts import Experts, Router
from ..layers.mlp import Mlp
from ..layers.recurrent import Mamba2
from ..settings import ModelSettings
from . import Architecture
from .common import TENSORS, activation_of, attention_of, decoder, pre_norm, rms

KINDS = {"mamba": "linear_attention", "attention": "full_attention"}
MIXER = {"in_proj": "in", "out_proj": "o", "conv1d": "conv", **{n: n for n in ("A_log", "D", "dt_bias", "norm")}}
#: names of weights, of both forms that checkpoints have for experts
NAMES = {
    **TENSORS,
    **{f"layers.{{}}.mamba.{n}": f"layers.{{}}.attention.{m}" for n, m in MIXER.items()},
    "layers.{}.block_sparse_moe.router": "layers.{}.mlp.router",
    "layers.{}.block_sparse_moe.router.layer": "layers.{}.mlp.router",
    "layers.{}.block_sparse_moe.input_linear": "layers.{}.mlp.experts.gateup",
    "layers.{}.block_sparse_moe.output_linear": "layers.{}.mlp.experts.down",
    "layers.{}.block_sparse_moe.experts.gate_up_proj": "layers.{}.mlp.experts.gateup",
    "layers.{}.block_sparse_moe.experts.down_proj": "layers.{}.mlp.experts.down",
    "layers.{}.shared_mlp.input_linear": "layers.{}.mlp.shared.gateup",
    "layers.{}.shared_mlp.output_linear": "layers.{}.mlp.shared.down",
}


def read(s: ModelSettings) -> DecoderModel:
    s.ignore("output_router_logits", "router_aux_loss_coef", "mamba_conv_bias", "mamba_proj_bias", "mamba_chunk_size")
    count, activation, norm = s.get("num_local_experts", 8), activation_of(s), rms(s)
    attention = attention_of(s, scale=float(s.get("attention_multiplier", 1.0)))
    bodies: dict[str, SublayerBody] = {"full_attention": attention}
    kinds = [KINDS["attention"]] * s.need("num_hidden_layers")
    if s.kind == "granitemoehybrid":
        if s.only("position_embedding_type", None, "nope", "rope") != "rope":
            bodies["full_attention"] = replace(attention, rope=None)
        kinds = [KINDS.get(k, k) for k in s.get("layer_types") or s.get("layers_block_type") or kinds]
        bodies["linear_attention"] = mamba(s, norm.epsilon)
    shared, size = s.get("shared_intermediate_size", 0), s.get("intermediate_size", 0)
    each = s.get("num_experts_per_tok", 2)
    mlp = Experts(Router(count, each), size, activation, shared=shared) if count else Mlp(shared, activation)
    scale = float(s.get("residual_multiplier", 1.0))
    return decoder(
        s,
        [pre_norm(bodies[kind], mlp, norm, scale) for kind in kinds],
        norm,
        embedding_scale=float(s.get("embedding_multiplier", 1.0)),
        logits_scale=1 / s.get("logits_scaling", 1.0),
    )


def mamba(s: ModelSettings, epsilon: float) -> Mamba2:
    """The mixer of ``mamba_...``."""
    heads, inner = s.get("mamba_n_heads", 128), s.get("mamba_expand", 2) * s.need("hidden_size")
    depth = s.get("mamba_d_head", "auto")
    low, high = s.get("time_step_limit", (0.0, float("inf")))
    return Mamba2(
        heads,
        inner // heads if depth == "auto" else depth,
        s.get("mamba_n_groups", 1),
        s.get("mamba_d_state", 256),
        s.get("mamba_d_conv", 4),
        epsilon,
        float(low),
        float(high),
    )


def convert(model: DecoderModel, weights: dict[str, Any]) -> dict[str, Any]:
    """Experts' names without ``.weight``; what is shared is the MLP where there are no experts."""
    plain = not any(isinstance(b.body, Experts) for layer in model.layers for b in layer.blocks)

    def name(n: str) -> str:
        n = n.removesuffix(".weight") if ".experts." in n else n
        return n.replace(".mlp.shared.", ".mlp.") if plain else n

    return {name(n): w for n, w in weights.items()}


ARCHITECTURES = [
    Architecture(kind, read, NAMES, convert=convert) for kind in ("granitemoe", "granitemoeshared", "granitemoehybrid")
]
