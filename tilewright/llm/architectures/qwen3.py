"""Qwen 3, dense: heads of q and k are normalized."""

from ..config import DecoderModel
from ..settings import ModelSettings
from . import Architecture
from .common import HEAD_NORMS, TENSORS, attention_of, decoder, mlp_of, pre_norm, rms
from .qwen2 import layer_windows


def read(s: ModelSettings) -> DecoderModel:
    s.fields.setdefault("head_dim", 128)
    layers = [pre_norm(attention_of(s, window=w, qk_norm=rms(s)), mlp_of(s), rms(s)) for w in layer_windows(s)]
    return decoder(s, layers, rms(s))


ARCHITECTURE = Architecture("qwen3", read, {**TENSORS, **HEAD_NORMS})
