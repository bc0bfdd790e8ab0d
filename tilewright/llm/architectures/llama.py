"""Llama 2 and 3, and what is made like them: SmolLM, TinyLlama, Yi and others."""

from ..config import DecoderModel
from ..settings import ModelSettings
from . import Architecture
from .common import TENSORS, attention_of, decoder, mlp_of, pre_norm, rms


def read(s: ModelSettings) -> DecoderModel:
    s.only("rope_interleaved", False)
    layer = pre_norm(attention_of(s), mlp_of(s), rms(s))
    return decoder(s, [layer] * s.need("num_hidden_layers"), rms(s))


ARCHITECTURE = Architecture("llama", read, TENSORS)
