"""DeepSeek V2 and V3: latent attention, and experts of which some see all tokens."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

from ..config import DecoderModel, Norm
from ..layers.experts import Experts, Router
from ..layers.latent_attention import LatentAttention
from ..settings import ModelSettings
from . import Architecture
from .common import decoder, mlp_of, pre_norm, rms
from .qwen_moe import PARTS
from .qwen_moe import TENSORS as EXPERTS

#: names of weights of the attention
ATTENTION = {"q_a_proj": "q_a", "q_a_layernorm": "q_a_norm", "q_b_proj": "q_b", "kv_b_proj": "kv_b"}
ATTENTION |= {"kv_a_proj_with_mqa": "kv_a", "kv_a_layernorm": "kv_a_norm"}
TENSORS = (
    EXPERTS
    | {f"layers.{{}}.self_attn.{n}": f"layers.{{}}.attention.{m}" for n, m in ATTENTION.items()}
    | {f"layers.{{}}.mlp.shared_experts.{n}_proj": f"layers.{{}}.mlp.shared.{n}" for n in PARTS}
    | {"layers.{}.mlp.gate.e_score_correction_bias": "layers.{}.mlp.router.correction"}
)


def model(s: ModelSettings, router: Router, *, interleaved: bool) -> DecoderModel:
    s.ignore("num_key_value_heads", "head_dim", "qk_head_dim", "attention_bias", "mlp_bias", "pretraining_tp")
    s.ignore("num_nextn_predict_layers", "num_mtp_layers", "ep_size", "aux_loss_alpha", "seq_aux")
    s.ignore("output_router_logits", "router_aux_loss_coef")
    s.only("moe_layer_freq", 1)
    nope, turned, norm = s.get("qk_nope_head_dim", 128), s.get("qk_rope_head_dim", 64), rms(s)
    attention = LatentAttention(
        s.need("num_attention_heads"),
        s.get("kv_lora_rank", 512),
        nope,
        s.get("v_head_dim", 128),
        replace(s.rope(turned), interleaved=interleaved),
        (nope + turned) ** -0.5 * _magnitude(s) ** 2,
        Norm("rms", 1e-6),
        low_rank_q=s.get("q_lora_rank") is not None,
    )
    plain, size = mlp_of(s), s.get("moe_intermediate_size", 0)
    experts = Experts(router, size, plain.activation, shared=size * s.get("n_shared_experts", 0))
    first, count = s.get("first_k_dense_replace", 0), s.need("num_hidden_layers")
    return decoder(s, [pre_norm(attention, plain if i < first else experts, norm) for i in range(count)], norm)


def _magnitude(s: ModelSettings) -> float:
    """What scores grow by in longer contexts: queries and keys are scaled by it."""
    given = s.get("rope_parameters") or s.get("rope_scaling") or {}
    factor, share = given.get("factor", 1.0), given.get("mscale_all_dim", 0)
    if (given.get("rope_type") or given.get("type") or "default") == "default" or not share or factor <= 1:
        return 1.0
    return float(0.1 * share * math.log(factor) + 1)


def read_v2(s: ModelSettings) -> DecoderModel:
    grouped = s.only("topk_method", "greedy", "group_limited_greedy") == "group_limited_greedy"
    s.only("scoring_func", "softmax")
    s.only("norm_topk_prob", False)
    router = Router(
        s.get("n_routed_experts", 64),
        s.need("num_experts_per_tok"),
        normalized=False,
        scale=s.get("routed_scaling_factor", 1.0),
        groups=s.get("n_group", 1) if grouped else 1,
        top_groups=s.get("topk_group", 1),
    )
    s.ignore("n_group", "topk_group")
    return model(s, router, interleaved=True)


def router_v3(s: ModelSettings) -> Router:
    """Sigmoids with a correction for the choice, which goes by groups."""
    return Router(
        s.need("n_routed_experts"),
        s.get("num_experts_per_tok", 8),
        "sigmoid",
        normalized=s.get("norm_topk_prob", True),
        epsilon=1e-20,
        scale=s.get("routed_scaling_factor", 1.0),
        groups=s.get("n_group", 1),
        top_groups=s.get("topk_group", 1),
        pairs=True,
    )


def read_v3(s: ModelSettings) -> DecoderModel:
    s.only("topk_method", "noaux_tc")
    s.only("scoring_func", "sigmoid")
    return model(s, router_v3(s), interleaved=s.get("rope_interleave", True))


def convert(model: DecoderModel, weights: dict[str, Any]) -> dict[str, Any]:
    """Without the layers behind the last, which predict further tokens."""
    number = re.compile(r"layers\.(\d+)\.")
    return {n: w for n, w in weights.items() if not (m := number.match(n)) or int(m[1]) < len(model.layers)}


UNUSED = (r".*rotary_emb\.inv_freq", r"layers\.\d+\.(embed_tokens|enorm|hnorm|eh_proj|shared_head\.\w+)\.weight")
ARCHITECTURES = [
    Architecture("deepseek_v2", read_v2, TENSORS),
    Architecture("deepseek_v3", read_v3, TENSORS, unused=(*UNUSED, r"model\." + UNUSED[1]), convert=convert),
]
