"""Qwen 2 and 3 with mixtures of experts; some layers may have a plain MLP."""

from ..config import DecoderModel
from ..layers.experts import Experts, Router
from ..layers.mlp import Mlp
from ..settings import ModelSettings
from . import Architecture
from .common import HEAD_NORMS, activation_of, attention_of, decoder, pre_norm, rms
from .common import TENSORS as PLAIN
from .qwen2 import layer_windows

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


def mlps(s: ModelSettings, *, shared: bool, normalized: bool = False) -> list[Mlp | Experts]:
    """The MLP of each layer. `shared`: experts have a part for all tokens. `normalized`: unless the file says."""
    s.ignore("router_aux_loss_coef", "output_router_logits")
    count, activation = s.get("num_experts") or s.need("num_local_experts"), activation_of(s)
    router = Router(count, s.need("num_experts_per_tok"), normalized=s.get("norm_topk_prob", normalized))
    common = s.need("shared_expert_intermediate_size") if shared else 0
    experts = Experts(router, s.need("moe_intermediate_size"), activation, shared=common)
    plain, step = s.get("mlp_only_layers", []), s.get("decoder_sparse_step", 1)
    size, layers = s.get("intermediate_size"), range(s.need("num_hidden_layers"))
    return [Mlp(size, activation) if i in plain or (i + 1) % step else experts for i in layers]


def qwen2(s: ModelSettings) -> DecoderModel:
    s.ignore("qkv_bias")  # the checkpoint says it
    layers = zip(layer_windows(s), mlps(s, shared=True), strict=True)
    return decoder(s, [pre_norm(attention_of(s, window=w), mlp, rms(s)) for w, mlp in layers], rms(s))


def qwen3(s: ModelSettings) -> DecoderModel:
    layers = zip(layer_windows(s), mlps(s, shared=False), strict=True)
    return decoder(s, [pre_norm(attention_of(s, window=w, qk_norm=rms(s)), mlp, rms(s)) for w, mlp in layers], rms(s))


ARCHITECTURES = [
    Architecture("qwen2_moe", qwen2, TENSORS),
    Architecture("qwen3_moe", qwen3, TENSORS | HEAD_NORMS),
]
