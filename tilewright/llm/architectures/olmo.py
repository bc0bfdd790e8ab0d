"""OLMo: norms without weights, q, k and v within limits. OLMo 2 and 3: norms after blocks, q and k normalized whole."""

from ..config import DecoderLayer, DecoderModel, Norm, Sublayer
from ..settings import ModelSettings
from . import Architecture
from .common import FULL, HEAD_NORMS, SLIDING, TENSORS, attention_of, decoder, mlp_of, pre_norm, rms, windows

AFTER = {
    **{n: name for n, name in TENSORS.items() if "layernorm" not in n},
    **HEAD_NORMS,
    "layers.{}.post_attention_layernorm": "layers.{}.attention.after",
    "layers.{}.post_feedforward_layernorm": "layers.{}.mlp.after",
}


def read(s: ModelSettings) -> DecoderModel:
    norm = Norm("layer", 1e-5, weight=False)
    layer = pre_norm(attention_of(s, clip=s.get("clip_qkv", 0.0)), mlp_of(s), norm)
    return decoder(s, [layer] * s.need("num_hidden_layers"), norm)


def read_after(s: ModelSettings) -> DecoderModel:
    """OLMo 2 and 3."""
    norm, count = rms(s, 1e-5), s.need("num_hidden_layers")
    third = s.kind == "olmo3"
    base = 500000.0 if third else 10000.0
    kinds, layers = s.layer_kinds([SLIDING if third and (i + 1) % 4 else FULL for i in range(count)]), []
    for kind, window in zip(kinds, windows(s, kinds, 4096), strict=True):
        local = s.get("rope_theta", base) if kind == SLIDING else None  # scaling is for layers that see all
        attention = attention_of(s, kind=kind, theta=base, local=local, window=window, qk_norm=norm, whole_norm=True)
        layers.append(
            DecoderLayer((Sublayer("attention", attention, after=norm), Sublayer("mlp", mlp_of(s), after=norm)))
        )
    return decoder(s, layers, norm)


ARCHITECTURES = [
    Architecture("olmo", read, TENSORS),
    Architecture("olmo2", read_after, AFTER),
    Architecture("olmo3", read_after, AFTER),
]
