"""IBM Granite: Llama with four factors."""

from ..config import DecoderModel
from ..settings import ModelSettings
from . import Architecture
from .common import TENSORS, attention_of, decoder, mlp_of, pre_norm, rms


def read(s: ModelSettings) -> DecoderModel:
    attention = attention_of(s, scale=float(s.get("attention_multiplier", 1.0)))
    layer = pre_norm(attention, mlp_of(s), rms(s), float(s.get("residual_multiplier", 1.0)))
    return decoder(
        s,
        [layer] * s.need("num_hidden_layers"),
        rms(s),
        embedding_scale=float(s.get("embedding_multiplier", 1.0)),
        logits_scale=1 / s.get("logits_scaling", 1.0),
    )


ARCHITECTURE = Architecture("granite", read, TENSORS)
