"""OPT: learned positions (the first two are not used), norms and products with biases."""

from ..config import DecoderModel, Norm
from ..layers.attention import SelfAttention
from ..layers.mlp import Mlp
from ..settings import ModelSettings
from . import Architecture
from .common import TENSORS, activation_of, decoder, pre_norm

OPT_TENSORS = {
    **{n: name for n, name in TENSORS.items() if n in ("embed_tokens", "lm_head") or "self_attn" in n},
    "embed_positions": "positions",
    "final_layer_norm": "norm",
    "layers.{}.self_attn.out_proj": "layers.{}.attention.o",
    "layers.{}.self_attn_layer_norm": "layers.{}.attention.before",
    "layers.{}.final_layer_norm": "layers.{}.mlp.before",
    "layers.{}.fc1": "layers.{}.mlp.up",
    "layers.{}.fc2": "layers.{}.mlp.down",
}
#: of learned positions
OFFSET = 2


def read(s: ModelSettings) -> DecoderModel:
    hidden, heads = s.need("hidden_size"), s.need("num_attention_heads")
    s.only("word_embed_proj_dim", hidden)
    s.only("do_layer_norm_before", True)
    s.only("_remove_final_layer_norm", False)
    affine = s.get("layer_norm_elementwise_affine", True)
    s.ignore("enable_bias", "init_std")  # the checkpoint says which biases there are
    norm = Norm("layer", 1e-5, weight=affine, bias=affine)
    mlp = Mlp(s.need("ffn_dim"), activation_of(s, "activation_function", "relu"), gated=False)
    layer = pre_norm(SelfAttention(heads, heads, hidden // heads), mlp, norm)
    count = s.get("max_position_embeddings", 2048)
    layers = [layer] * s.need("num_hidden_layers")
    return decoder(s, layers, norm, tied=True, positions=count, position_offset=OFFSET)


ARCHITECTURE = Architecture("opt", read, OPT_TENSORS, prefixes=("model.decoder.", "decoder.", "model."))
