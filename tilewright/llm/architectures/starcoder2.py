"""StarCoder 2: rotary positions, norms and products with biases, a plain MLP."""

from ..config import DecoderModel, Norm
from ..layers.mlp import Mlp
from ..settings import ModelSettings
from . import Architecture
from .common import TENSORS, activation_of, attention_of, decoder, pre_norm

STAR_TENSORS = {
    **{n: name for n, name in TENSORS.items() if ".mlp." not in n},
    "layers.{}.mlp.c_fc": "layers.{}.mlp.up",
    "layers.{}.mlp.c_proj": "layers.{}.mlp.down",
    "layers.{}.post_attention_layernorm": "layers.{}.mlp.before",
}


def read(s: ModelSettings) -> DecoderModel:
    s.only("norm_type", "layer_norm")
    s.only("mlp_type", "default")
    s.ignore("use_bias")  # the checkpoint says it
    norm = Norm("layer", s.get("norm_epsilon", 1e-5), bias=True)
    mlp = Mlp(s.need("intermediate_size"), activation_of(s, default="gelu_pytorch_tanh"), gated=False)
    layer = pre_norm(attention_of(s, window=s.get("sliding_window", 0)), mlp, norm)
    return decoder(s, [layer] * s.need("num_hidden_layers"), norm, tied=True)


ARCHITECTURE = Architecture("starcoder2", read, STAR_TENSORS)
