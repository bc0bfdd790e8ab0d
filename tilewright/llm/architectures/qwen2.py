"""Qwen 2 and 2.5: biases of q, k and v; windows in the later layers, where they are switched on."""

from ..config import DecoderModel
from ..settings import ModelSettings
from . import Architecture
from .common import FULL, SLIDING, TENSORS, attention_of, decoder, mlp_of, pre_norm, rms, windows


def layer_windows(s: ModelSettings) -> list[int]:
    """The window of each layer."""
    count, first = s.need("num_hidden_layers"), s.get("max_window_layers", 28)
    used = s.get("use_sliding_window", False)
    usual = [SLIDING if used and i >= first else FULL for i in range(count)]
    s.ignore("sliding_window")
    return windows(s, s.layer_kinds(usual), 4096)


def read(s: ModelSettings) -> DecoderModel:
    layers = [pre_norm(attention_of(s, window=w), mlp_of(s), rms(s)) for w in layer_windows(s)]
    return decoder(s, layers, rms(s))


ARCHITECTURE = Architecture("qwen2", read, TENSORS)
