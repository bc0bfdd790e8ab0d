"""Mixtral: Mistral with eight MLPs a layer, of which a token goes through two."""

from ..config import DecoderModel
from ..layers.experts import Experts, Router
from ..settings import ModelSettings
from . import Architecture
from .common import TENSORS, activation_of, attention_of, decoder, pre_norm, rms

#: names of an expert's weights
NAMES = {"w1": "gate", "w3": "up", "w2": "down"}


def read(s: ModelSettings) -> DecoderModel:
    s.ignore("router_aux_loss_coef", "router_jitter_noise", "output_router_logits")
    router = Router(s.get("num_local_experts", 8), s.get("num_experts_per_tok", 2))
    experts = Experts(router, s.need("intermediate_size"), activation_of(s))
    attention = attention_of(s, theta=1e6, window=s.get("sliding_window", 0))
    norm = rms(s, 1e-5)
    return decoder(s, [pre_norm(attention, experts, norm)] * s.need("num_hidden_layers"), norm)


ARCHITECTURE = Architecture(
    "mixtral",
    read,
    TENSORS
    | {f"layers.{{}}.{m}.gate": "layers.{}.mlp.router" for m in ("block_sparse_moe", "mlp")}
    | {f"layers.{{}}.block_sparse_moe.experts.{{}}.{n}": f"layers.{{}}.mlp.experts.{{}}.{m}" for n, m in NAMES.items()}
    | {"layers.{}.mlp.experts.gate_up_proj": "layers.{}.mlp.experts.gateup"}
    | {"layers.{}.mlp.experts.down_proj": "layers.{}.mlp.experts.down"},
)
