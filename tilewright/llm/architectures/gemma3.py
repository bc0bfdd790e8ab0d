"""Gemma 3, its text model: five of six layers see a window and rotate by another base; heads of q and k are normalized.

Of a model that sees images too, the text model is read."""

from ..config import DecoderModel
from ..settings import ModelSettings
from . import Architecture
from .common import FULL, HEAD_NORMS, SLIDING, attention_of, decoder, mlp_of, rms, windows
from .gemma2 import GEMMA_TENSORS, sandwich


def read(s: ModelSettings) -> DecoderModel:
    norm, count = rms(s, offset=1.0), s.need("num_hidden_layers")
    s.only("use_bidirectional_attention", False)
    for name, usual in (("head_dim", 256), ("num_attention_heads", 8), ("num_key_value_heads", 4)):
        s.fields.setdefault(name, usual)
    mlp = mlp_of(s, "hidden_activation", "gelu_pytorch_tanh")
    each = s.get("sliding_window_pattern", s.get("_sliding_window_pattern", 6))
    kinds = s.layer_kinds([SLIDING if (i + 1) % each else FULL for i in range(count)])
    scale, softcap = s.get("query_pre_attn_scalar", 256) ** -0.5, s.get("attn_logit_softcapping", 0.0)
    local = s.get("rope_local_base_freq", 10000.0)
    layers = []
    for kind, window in zip(kinds, windows(s, kinds, 4096), strict=True):
        more = {"window": window, "scale": scale, "softcap": softcap, "qk_norm": norm}
        own = local if kind == SLIDING else None
        layers.append(sandwich(attention_of(s, kind=kind, theta=1e6, local=own, **more), mlp, norm))
    cap, wide = s.get("final_logit_softcapping", 0.0), s.need("hidden_size") ** 0.5
    return decoder(s, layers, norm, tied=True, embedding_scale=wide, logits_softcap=cap)


def read_text(s: ModelSettings) -> DecoderModel:
    """Of a model with images."""
    text = ModelSettings({"vocab_size": 262208, "hidden_size": 2304, **s.need("text_config"), "model_type": "gemma3"})
    model = read(text)
    text.finish()
    s.ignore(*s.fields)
    return model


TENSORS = {**GEMMA_TENSORS, **HEAD_NORMS}
IMAGES = (r"(model\.)?vision_tower\..*", r"(model\.)?multi_modal_projector\..*")
ARCHITECTURES = [
    Architecture("gemma3_text", read, TENSORS),
    Architecture(
        "gemma3", read_text, TENSORS,
        prefixes=("model.language_model.", "language_model.model.", "language_model.", "model."), unused=IMAGES,
    ),
]  # fmt: skip
