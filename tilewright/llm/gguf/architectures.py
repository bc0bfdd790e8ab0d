"""Architectures in GGUF files: metadata as the config.json of Hugging Face, names of tensors as those of
`config.Model`, and what llama.cpp's conversion changes in weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...support.errors import UnsupportedError
from .reader import GgufFile

#: names of a layer's tensors -> names in `Model`
LAYER = {
    "attn_norm": "attention.before",
    "post_attention_norm": "attention.after",
    **{f"attn_{n}": f"attention.{n}" for n in ("q", "k", "v", "qkv", "q_norm", "k_norm")},
    "attn_output": "attention.o",
    "ffn_norm": "mlp.before",
    "post_ffw_norm": "mlp.after",
    **{f"ffn_{n}": f"mlp.{n}" for n in ("gate", "up", "down")},
    "ffn_gate_inp": "mlp.router",
    **{f"ffn_{n}_exps": f"mlp.experts.{n}" for n in ("gate", "up", "down")},
    **{f"ffn_{n}_shexp": f"mlp.shared.{n}" for n in ("gate", "up", "down")},
    "ffn_gate_inp_shexp": "mlp.shared_gate",
}
#: those of the whole
WHOLE = {"token_embd": "embedding", "position_embd": "positions", "output_norm": "norm", "output": "head"}
#: tensors that are read with the metadata, or say nothing
BESIDE = {"rope_freqs", "rope_factors_long", "rope_factors_short"}
UNUSED = {"attn_rot_embd"}

#: metadata -> fields of config.json, in most architectures; None: not in this one
FIELDS: dict[str, str | None] = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
EXPERTS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
Config = dict[str, Any]


@dataclass(frozen=True)
class GgufArchitecture:
    """How files of one ``general.architecture`` are read.

    model_type: Hugging Face's. fields, layer: added to `FIELDS` and `LAYER`. more: adds to the config, or changes it.
    turned: rows of q and k lie so that neighbours are rotated together. norm_offset: is in the weights of norms.
    convert: a tensor by its name in `Model` -> tensors by such names.
    """

    model_type: str
    fields: Mapping[str, str | None] = field(default_factory=dict)
    layer: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[GgufFile, Config], None] | None = None
    turned: bool = False
    norm_offset: float = 0.0

    def config(self, file: GgufFile) -> Config:
        """What config.json would say."""
        made: Config = {"model_type": self.model_type, "vocab_size": file.tensors["token_embd.weight"].shape[0]}
        for key, name in {**FIELDS, **self.fields}.items():
            value = file.get("{}." + key)
            if name is not None and value is not None:
                made[name] = value.tolist() if isinstance(value, np.ndarray) else value
        made["tie_word_embeddings"] = "output.weight" not in file.tensors
        made["rope_parameters"] = _rope(file, made)
        if self.more:
            self.more(file, made)
        return made

    def name(self, tensor: str) -> str | None:
        """The name in `Model`; None for tensors that are not weights. KeyError for one that has no place."""
        stem, _, suffix = tensor.rpartition(".")
        if stem in BESIDE:
            return None
        if not stem.startswith("blk."):
            return f"{WHOLE[stem]}.{suffix}"
        _, number, rest = stem.split(".", 2)
        return None if rest in UNUSED else f"layers.{number}.{({**LAYER, **self.layer})[rest]}.{suffix}"


def find(file: GgufFile) -> GgufArchitecture:
    """The architecture of a file; UnsupportedError that lists those that there are."""
    name = file.get("general.architecture")
    if name == "llama" and file.get("{}.expert_count", 0):
        name = "llama with experts"
    if name not in ARCHITECTURES:
        raise UnsupportedError(
            f"there is no architecture {name!r} of GGUF files",
            stage="import",
            hint=f"there are {', '.join(sorted(ARCHITECTURES))}",
        )
    return ARCHITECTURES[name]


def _rope(file: GgufFile, config: Config) -> Config:
    """``rope_parameters`` of config.json."""
    made: Config = {"rope_theta": file.get("{}.rope.freq_base", 10000.0), "rope_type": "default"}
    depth = config.get("head_dim") or config["hidden_size"] // _first(config["num_attention_heads"])
    turned = file.get("{}.rope.dimension_count", depth)
    if turned != depth:
        made["partial_rotary_factor"] = turned / depth
    kind, get = file.get("{}.rope.scaling.type", "none"), lambda key: file.get("{}.rope.scaling." + key)
    original = get("original_context_length")
    if "rope_freqs.weight" in file.tensors:  # the frequencies of Llama 3 are divided so
        divisors = _numbers(file, "rope_freqs")
        both = dict.fromkeys(("short_factor", "long_factor"), divisors)
        return made | {"rope_type": "longrope", "factor": 1.0, "attention_factor": 1.0} | both
    if "rope_factors_long.weight" in file.tensors:
        for which in ("short", "long"):
            made[f"{which}_factor"] = _numbers(file, f"rope_factors_{which}")
        made |= {"rope_type": "longrope", "original_max_position_embeddings": original}
        return made | ({"attention_factor": get("attn_factor")} if get("attn_factor") else {})
    if kind == "linear":
        return made | {"rope_type": "linear", "factor": get("factor")}
    if kind == "yarn":
        made |= {"rope_type": "yarn", "factor": get("factor"), "original_max_position_embeddings": original}
        more = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow", "attention_factor": "yarn_attn_factor"}
        return made | {name: get(key) for name, key in more.items() if get(key) is not None}
    if kind not in ("none", "default"):
        raise UnsupportedError(
            f"rotary positions are scaled by {kind!r}", stage="import", hint="linear, yarn, longrope"
        )
    return made


def _numbers(file: GgufFile, name: str) -> list[float]:
    """As they were before they were rounded to f32."""
    return [float(str(x)) for x in file.tensors[f"{name}.weight"].array()]


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, Sequence) else value


def _llama(file: GgufFile, config: Config) -> None:
    if "sliding_window" in config:
        config["model_type"] = "mistral"


def _mixtral(file: GgufFile, config: Config) -> None:
    config["num_local_experts"] = config.pop("num_experts")


def _norms(name: str) -> Mapping[str, str]:
    return {"attention.layer_norm_epsilon": name}


def _gemma(file: GgufFile, config: Config) -> None:
    """27B models scale queries by the width of the whole; files do not say it."""
    heads, depth = config["num_attention_heads"], config.get("head_dim", 256)
    largest = config["num_hidden_layers"] == (46 if config["model_type"] == "gemma2" else 62)
    config["query_pre_attn_scalar"] = config["hidden_size"] / heads if largest else depth


def _gemma2(file: GgufFile, config: Config) -> None:
    _gemma(file, config)
    for name, usual in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)):
        config.setdefault(name, usual)


def _gemma3(file: GgufFile, config: Config) -> None:
    _gemma(file, config)
    pattern = file.get("{}.attention.sliding_window_pattern", 6)
    count = config["num_hidden_layers"]
    slides = list(pattern) if np.ndim(pattern) else [(i + 1) % pattern != 0 for i in range(count)]
    config["layer_types"] = ["sliding_attention" if s else "full_attention" for s in slides]
    config["rope_local_base_freq"] = file.get("{}.rope.freq_base_swa", 10000.0)


def _granite(file: GgufFile, config: Config) -> None:
    for key, name in (
        ("attention.scale", "attention_multiplier"),
        ("embedding_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"),
        ("logit_scale", "logits_scaling"),
    ):
        config[name] = file.get("{}." + key, 1.0)


def _gpt2(file: GgufFile, config: Config) -> None:
    inner = config.pop("intermediate_size", None)
    names = {"hidden_size": "n_embd", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}
    made = {names.get(k, k): v for k, v in config.items() if k not in ("rope_parameters", "num_key_value_heads")}
    made["n_positions"] = made.pop("max_position_embeddings")
    config.clear()
    config.update(made, n_inner=inner)


def _olmo(file: GgufFile, config: Config) -> None:
    config["clip_qkv"] = file.get("{}.attention.clamp_kqv")


def _moe_norm(file: GgufFile, config: Config) -> None:
    """Whether weights of the chosen experts sum up to 1."""
    config["norm_topk_prob"] = config["model_type"] == "qwen3_moe"


ARCHITECTURES: dict[str, GgufArchitecture] = {
    "llama": GgufArchitecture("llama", more=_llama, turned=True),
    "llama with experts": GgufArchitecture("mixtral", EXPERTS, more=_mixtral, turned=True),
    "qwen2": GgufArchitecture("qwen2"),
    "qwen3": GgufArchitecture("qwen3"),
    "qwen2moe": GgufArchitecture("qwen2_moe", EXPERTS, more=_moe_norm),
    "qwen3moe": GgufArchitecture("qwen3_moe", EXPERTS, more=_moe_norm),
    "gemma2": GgufArchitecture("gemma2", more=_gemma2, norm_offset=1.0),
    "gemma3": GgufArchitecture("gemma3_text", more=_gemma3, norm_offset=1.0),
    "phi3": GgufArchitecture("phi3", layer={"ffn_up": "mlp.gateup"}),
    "gpt2": GgufArchitecture("gpt2", _norms("layer_norm_epsilon"), more=_gpt2),
    "starcoder2": GgufArchitecture("starcoder2", _norms("norm_epsilon")),
    "olmo": GgufArchitecture("olmo", {"attention.layer_norm_epsilon": None}, more=_olmo, turned=True),
    "olmo2": GgufArchitecture("olmo2"),
    "granite": GgufArchitecture("granite", more=_granite, turned=True),
}

__all__ = ["ARCHITECTURES", "GgufArchitecture", "find"]
