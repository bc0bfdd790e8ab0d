"""Qwen 2 and 3 with mixtures of experts; some layers may have a plain MLP."""

from ..config import Block, Layer, Model, Norm
from ..layers.attention import Attention
from ..layers.experts import Experts, Router
from ..layers.mlp import Mlp
from ..settings import Settings
from . import Architecture
from .llama import TENSORS as PLAIN

PARTS = ("gate", "up", "down")
#: names of weights of mixtures of experts, in most architectures
TENSORS = {
    **PLAIN,
    "layers.{}.mlp.gate": "layers.{}.mlp.router",
    "layers.{}.mlp.experts.gate_up_proj": "layers.{}.mlp.experts.gateup",
    "layers.{}.mlp.experts.down_proj": "layers.{}.mlp.experts.down",
    **{f"layers.{{}}.mlp.experts.{{}}.{n}_proj": f"layers.{{}}.mlp.experts.{{}}.{n}" for n in PARTS},
    **{f"layers.{{}}.mlp.shared_expert.{n}_proj": f"layers.{{}}.mlp.shared.{n}" for n in PARTS},
    "layers.{}.mlp.shared_expert_gate": "layers.{}.mlp.shared_gate",
}


def mlps(s: Settings, layers: int, *, shared: bool, normalized: bool) -> list[Mlp | Experts]:
    """The MLP of each layer. `shared`: experts have a part for all tokens. `normalized`: unless the file says."""
    s.ignore("router_aux_loss_coef", "output_router_logits")
    activation = s.get("hidden_act", "silu")
    router = Router(
        s.need("num_experts"), s.need("num_experts_per_tok"), normalized=s.get("norm_topk_prob", normalized)
    )
    common = s.need("shared_expert_intermediate_size") if shared else 0
    experts = Experts(router, s.need("moe_intermediate_size"), activation, shared=common)
    plain, step = s.get("mlp_only_layers", []), s.get("decoder_sparse_step", 1)
    size = s.get("intermediate_size")
    return [Mlp(size, activation) if i in plain or (i + 1) % step else experts for i in range(layers)]


def windows(s: Settings, layers: int) -> list[int]:
    """The positions that a token sees in each layer, 0: all."""
    window = s.get("sliding_window", 0) if s.get("use_sliding_window", False) else 0
    first = s.get("max_window_layers", 28)
    kinds = s.layer_kinds(layers, "")
    return [window if (k == "sliding_attention" if k else i >= first) else 0 for i, k in enumerate(kinds)]


def model(s: Settings, name: str, *, qk_norm: bool, shared: bool) -> Model:
    hidden, heads, layers = s.need("hidden_size"), s.need("num_attention_heads"), s.need("num_hidden_layers")
    depth = s.get("head_dim", hidden // heads)
    s.ignore("attention_bias", "qkv_bias")  # the checkpoint says it
    norm = Norm("rms", s.get("rms_norm_eps", 1e-6))
    rope, shared_heads = s.rope(depth), s.get("num_key_value_heads", heads)
    return Model(
        name,
        s.need("vocab_size"),
        hidden,
        s.get("max_position_embeddings", 32768),
        tuple(
            Layer(
                (
                    Block(
                        "attention",
                        Attention(
                            heads, shared_heads, depth, rope=rope, window=window, qk_norm=norm if qk_norm else None
                        ),
                        norm,
                    ),
                    Block("mlp", mlp, norm),
                )
            )
            for window, mlp in zip(windows(s, layers), mlps(s, layers, shared=shared, normalized=False), strict=True)
        ),
        norm,
        tied=s.get("tie_word_embeddings", False),
    )


NORMS = {f"layers.{{}}.self_attn.{n}_norm": f"layers.{{}}.attention.{n}_norm" for n in "qk"}
ARCHITECTURES = [
    Architecture("qwen2_moe", lambda s: model(s, "qwen2_moe", qk_norm=False, shared=True), TENSORS),
    Architecture("qwen3_moe", lambda s: model(s, "qwen3_moe", qk_norm=True, shared=False), TENSORS | NORMS),
]
