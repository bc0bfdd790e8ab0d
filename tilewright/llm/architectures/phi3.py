"""Phi-3 and Phi-4: q, k, v and gate, up lie together; long contexts by a factor for each frequency."""

from ..config import DecoderModel
from ..settings import ModelSettings
from . import Architecture
from .common import TENSORS, attention_of, decoder, mlp_of, pre_norm, rms

PHI_TENSORS = {
    **TENSORS,
    "layers.{}.self_attn.qkv_proj": "layers.{}.attention.qkv",
    "layers.{}.mlp.gate_up_proj": "layers.{}.mlp.gateup",
}


def read(s: ModelSettings) -> DecoderModel:
    s.only("full_attn_mod", 1)
    s.only("interpolate_factor", 1)
    s.ignore("lm_head_bias")  # the checkpoint says it
    attention = attention_of(s, window=s.get("sliding_window", 0))
    norm = rms(s, 1e-5)
    return decoder(s, [pre_norm(attention, mlp_of(s), norm)] * s.need("num_hidden_layers"), norm)


ARCHITECTURE = Architecture("phi3", read, PHI_TENSORS)
