"""Mistral: Llama with a sliding window, in versions that have one."""

from ..config import DecoderModel
from ..settings import ModelSettings
from . import Architecture
from .common import TENSORS, attention_of, decoder, mlp_of, pre_norm, rms


def read(s: ModelSettings) -> DecoderModel:
    layer = pre_norm(attention_of(s, window=s.get("sliding_window", 0)), mlp_of(s), rms(s))
    return decoder(s, [layer] * s.need("num_hidden_layers"), rms(s))


ARCHITECTURE = Architecture("mistral", read, TENSORS)
