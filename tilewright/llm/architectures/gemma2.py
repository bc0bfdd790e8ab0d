"""Gemma 2: every other layer sees a window, scores and logits are capped, blocks are normalized before and after."""

from ..config import DecoderLayer, DecoderModel, Norm, Sublayer
from ..layers.attention import SelfAttention
from ..layers.mlp import Mlp
from ..settings import ModelSettings
from . import Architecture
from .common import FULL, SLIDING, TENSORS, attention_of, decoder, mlp_of, rms, windows

#: names of weights of both Gemma 2 and 3
GEMMA_TENSORS = {
    **TENSORS,
    "layers.{}.post_attention_layernorm": "layers.{}.attention.after",
    "layers.{}.pre_feedforward_layernorm": "layers.{}.mlp.before",
    "layers.{}.post_feedforward_layernorm": "layers.{}.mlp.after",
}


def sandwich(attention: SelfAttention, mlp: Mlp, norm: Norm) -> DecoderLayer:
    """A layer whose blocks are normalized before and after."""
    return DecoderLayer((Sublayer("attention", attention, norm, norm), Sublayer("mlp", mlp, norm, norm)))


def read(s: ModelSettings) -> DecoderModel:
    norm, count = rms(s, offset=1.0), s.need("num_hidden_layers")
    s.only("use_bidirectional_attention", False)
    s.fields.setdefault("head_dim", 256)
    mlp = mlp_of(s, "hidden_activation", "gelu_pytorch_tanh")
    s.ignore("hidden_act")  # what released models say there is not what they are
    kinds = s.layer_kinds([FULL if i % 2 else SLIDING for i in range(count)])
    scale, softcap = s.get("query_pre_attn_scalar", 256) ** -0.5, s.get("attn_logit_softcapping", 0.0)
    layers = [
        sandwich(attention_of(s, window=w, scale=scale, softcap=softcap), mlp, norm) for w in windows(s, kinds, 4096)
    ]
    cap, wide = s.get("final_logit_softcapping", 0.0), s.need("hidden_size") ** 0.5
    return decoder(s, layers, norm, tied=True, embedding_scale=wide, logits_softcap=cap)


ARCHITECTURE = Architecture("gemma2", read, GEMMA_TENSORS)
