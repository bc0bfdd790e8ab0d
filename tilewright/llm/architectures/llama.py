"""Llama 2 and 3, and what is made like them (SmolLM, TinyLlama, Mistral-like models without a window)."""

from ..config import Block, Layer, Model, Norm
from ..layers.attention import Attention
from ..layers.mlp import Mlp
from ..settings import Settings
from . import Architecture

#: names of weights that most architectures use
TENSORS = {
    "embed_tokens": "embedding",
    "norm": "norm",
    "lm_head": "head",
    "layers.{}.input_layernorm": "layers.{}.attention.before",
    **{f"layers.{{}}.self_attn.{n}_proj": f"layers.{{}}.attention.{n}" for n in "qkvo"},
    "layers.{}.post_attention_layernorm": "layers.{}.mlp.before",
    **{f"layers.{{}}.mlp.{n}_proj": f"layers.{{}}.mlp.{n}" for n in ("gate", "up", "down")},
}


def read(s: Settings) -> Model:
    hidden, heads, layers = s.need("hidden_size"), s.need("num_attention_heads"), s.need("num_hidden_layers")
    depth = s.get("head_dim", hidden // heads)
    s.only("rope_interleaved", False)
    s.ignore("attention_bias", "mlp_bias")  # the checkpoint says it
    norm = Norm("rms", s.get("rms_norm_eps", 1e-6))
    attention = Attention(heads, s.get("num_key_value_heads", heads), depth, rope=s.rope(depth))
    mlp = Mlp(s.need("intermediate_size"), s.get("hidden_act", "silu"))
    layer = Layer((Block("attention", attention, norm), Block("mlp", mlp, norm)))
    return Model(
        "llama",
        s.need("vocab_size"),
        hidden,
        s.get("max_position_embeddings", 2048),
        (layer,) * layers,
        norm,
        tied=s.get("tie_word_embeddings", False),
    )


ARCHITECTURE = Architecture("llama", read, TENSORS)
