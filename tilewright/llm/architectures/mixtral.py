"""Mixtral: Mistral with eight MLPs a layer, of which a token goes through two."""

from ..config import Block, Layer, Model, Norm
from ..layers.attention import Attention
from ..layers.experts import Experts, Router
from ..settings import Settings
from . import Architecture
from .llama import TENSORS

#: names of an expert's weights
NAMES = {"w1": "gate", "w3": "up", "w2": "down"}


def read(s: Settings) -> Model:
    hidden, heads = s.need("hidden_size"), s.need("num_attention_heads")
    depth = s.get("head_dim", hidden // heads)
    s.ignore("router_aux_loss_coef", "router_jitter_noise", "output_router_logits")
    norm = Norm("rms", s.get("rms_norm_eps", 1e-5))
    rope, window = s.rope(depth, theta=1e6), s.get("sliding_window", 0)
    attention = Attention(heads, s.get("num_key_value_heads", heads), depth, rope=rope, window=window)
    router = Router(s.get("num_local_experts", 8), s.get("num_experts_per_tok", 2))
    experts = Experts(router, s.need("intermediate_size"), s.get("hidden_act", "silu"))
    return Model(
        "mixtral",
        s.need("vocab_size"),
        hidden,
        s.get("max_position_embeddings", 4096 * 32),
        (Layer((Block("attention", attention, norm), Block("mlp", experts, norm))),) * s.need("num_hidden_layers"),
        norm,
        tied=s.get("tie_word_embeddings", False),
    )


ARCHITECTURE = Architecture(
    "mixtral",
    read,
    TENSORS
    | {f"layers.{{}}.{m}.gate": "layers.{}.mlp.router" for m in ("block_sparse_moe", "mlp")}
    | {f"layers.{{}}.block_sparse_moe.experts.{{}}.{n}": f"layers.{{}}.mlp.experts.{{}}.{m}" for n, m in NAMES.items()}
    | {"layers.{}.mlp.experts.gate_up_proj": "layers.{}.mlp.experts.gateup"}
    | {"layers.{}.mlp.experts.down_proj": "layers.{}.mlp.experts.down"},
)
