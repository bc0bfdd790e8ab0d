"""GPT-2: learned positions, norms with biases, weights that lie as [inputs, outputs]."""

from ..config import DecoderModel, Norm
from ..layers.attention import SelfAttention
from ..layers.mlp import Mlp
from ..settings import ModelSettings
from . import Architecture
from .common import activation_of, decoder, pre_norm

GPT_TENSORS = {
    "wte": "embedding",
    "wpe": "positions",
    "ln_f": "norm",
    "lm_head": "head",
    "h.{}.ln_1": "layers.{}.attention.before",
    "h.{}.attn.c_attn": "layers.{}.attention.qkv",
    "h.{}.attn.c_proj": "layers.{}.attention.o",
    "h.{}.ln_2": "layers.{}.mlp.before",
    "h.{}.mlp.c_fc": "layers.{}.mlp.up",
    "h.{}.mlp.c_proj": "layers.{}.mlp.down",
}


def read(s: ModelSettings) -> DecoderModel:
    hidden, heads, positions = s.get("n_embd", 768), s.get("n_head", 12), s.get("n_positions", 1024)
    s.fields.update(hidden_size=hidden, max_position_embeddings=positions)
    s.ignore("n_ctx", *(n for n in s.fields if n.startswith("summary_")), "reorder_and_upcast_attn")
    s.only("add_cross_attention", False)
    norm = Norm("layer", s.get("layer_norm_epsilon", 1e-5), bias=True)
    mlp = Mlp(s.get("n_inner", 4 * hidden), activation_of(s, "activation_function", "gelu_new"), gated=False)
    by_layer, scaled = s.get("scale_attn_by_inverse_layer_idx", False), s.get("scale_attn_weights", True)
    layers = []
    for i in range(s.get("n_layer", 12)):
        scale = ((hidden // heads) ** -0.5 if scaled else 1.0) / (i + 1 if by_layer else 1)
        layers.append(pre_norm(SelfAttention(heads, heads, hidden // heads, scale=scale), mlp, norm))
    return decoder(s, layers, norm, tied=True, positions=positions)


ARCHITECTURE = Architecture(
    "gpt2",
    read,
    GPT_TENSORS,
    prefixes=("transformer.",),
    transposed=frozenset(n for n in GPT_TENSORS if ".c_" in n),
    unused=(r".*\.attn\.(masked_)?bias",),
)
