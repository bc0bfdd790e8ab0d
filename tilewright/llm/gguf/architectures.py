"""Architectures in GGUF files: metadata as the config.json of Hugging Face, names of tensors as those of
`DecoderModel`, and what llama.cpp's conversion changes in weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...support.errors import UnsupportedError
from .reader import GgufFile

#: names of a layer's tensors -> names in `DecoderModel`
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
    rows: a name in `DecoderModel` and the config -> the rows of the tensor that become weights of these names; None:
    all as they lie. norm_offset: is in the weights of norms but those that `own_norms` names.
    """

    model_type: str
    fields: Mapping[str, str | None] = field(default_factory=dict)
    layer: Mapping[str, str] = field(default_factory=dict)
    more: Callable[[GgufFile, Config], None] | None = None
    rows: Callable[[str, Config], Mapping[str, np.ndarray] | None] = lambda to, config: None
    norm_offset: float = 0.0
    own_norms: str = ""

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
        """The name in `DecoderModel`; None for tensors that are not weights. KeyError for one that has no place."""
        stem, _, suffix = tensor.rpartition(".")
        if suffix not in ("weight", "bias"):
            stem, suffix = tensor, ""
        if stem in BESIDE:
            return None
        if not stem.startswith("blk."):
            return f"{WHOLE[stem]}.{suffix}"
        _, number, rest = stem.split(".", 2)
        layer, whole = {**LAYER, **self.layer}, f"{rest}.{suffix}"
        if rest in UNUSED:
            return None
        at = f"layers.{number}."
        return at + (layer[whole] if whole in layer else f"{layer[rest]}.{suffix}".rstrip("."))


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


def _turned(to: str, config: Config) -> dict[str, np.ndarray] | None:
    """Rows of heads of q and k in which halves are rotated together, of those where neighbours are."""
    which = to.split(".")[-2]
    if which not in ("q", "k") or ".attention." not in to:
        return None
    heads = config["num_attention_heads" if which == "q" else "num_key_value_heads"]
    depth = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return {to: np.arange(heads * depth).reshape(heads, -1, 2).swapaxes(1, 2).ravel()}


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


def _layers_with(file: GgufFile, tensor: str) -> set[int]:
    return {int(n.split(".")[1]) for n in file.tensors if n.endswith(f".{tensor}.weight")}


def _qwen3next(file: GgufFile, config: Config) -> None:
    full, heads = _layers_with(file, "attn_q"), config["linear_num_value_heads"]
    kinds = ["full_attention" if i in full else "linear_attention" for i in range(config["num_hidden_layers"])]
    config.update(layer_types=kinds, linear_value_head_dim=config.pop("inner") // heads)


def _qwen3next_rows(to: str, config: Config) -> dict[str, np.ndarray] | None:
    """Heads of q lie beside those of its gate; b and a of the heads that share one of k beside each other."""
    at, which = to.split(".attention.")[0] + ".attention.", to.split(".")[-2]
    if which == "q":
        heads, depth = config["num_attention_heads"], config["head_dim"]
        rows = np.arange(2 * heads * depth).reshape(heads, 2, depth)
        return {f"{at}q.weight": rows[:, 0].ravel(), f"{at}gate.weight": rows[:, 1].ravel()}
    if which == "ba":
        heads = config["linear_num_key_heads"]
        return {to: np.arange(2 * config["linear_num_value_heads"]).reshape(heads, 2, -1).swapaxes(0, 1).ravel()}
    return None


def _deepseek(file: GgufFile, config: Config) -> None:
    """V3 chooses experts by sigmoids. A factor for long contexts stands for both of config.json."""
    get = file.get
    config["rope_parameters"].pop("partial_rotary_factor", None)
    turned = get("{}.rope.dimension_count")
    config["qk_rope_head_dim"] = turned
    config["qk_nope_head_dim"] = (get("{}.attention.key_length_mla") or get("{}.attention.key_length")) - turned
    config["v_head_dim"] = get("{}.attention.value_length_mla") or get("{}.attention.value_length")
    multiplier = get("{}.rope.scaling.yarn_log_multiplier")
    if multiplier:
        config["rope_parameters"] |= dict.fromkeys(("mscale", "mscale_all_dim"), round(multiplier * 10, 6))
    if get("{}.expert_gating_func") == 2:
        config["model_type"] = "deepseek_v3"
    else:
        config["topk_method"] = "group_limited_greedy" if config.get("n_group", 1) > 1 else "greedy"


def _nemotron(file: GgufFile, config: Config) -> None:
    """Which kind a layer is, its tensors say."""
    kinds = ["-"] * config["num_hidden_layers"]
    for letter, tensor in (("M", "ssm_in"), ("*", "attn_q"), ("E", "ffn_gate_inp")):
        for i in _layers_with(file, tensor):
            kinds[i] = letter
    config["hybrid_override_pattern"] = "".join(kinds)
    for name in ("num_key_value_heads", "num_attention_heads"):
        config[name] = max(config[name]) if isinstance(config[name], list) else config[name]
    sizes = config["intermediate_size"]
    plain = [n for n, kind in zip(sizes, kinds, strict=True) if kind == "-"] if isinstance(sizes, list) else [sizes]
    config["intermediate_size"] = max(plain, default=0)
    config["mamba_head_dim"] = config.pop("inner") // config["mamba_num_heads"]


def _moe_norm(file: GgufFile, config: Config) -> None:
    """Whether weights of the chosen experts sum up to 1."""
    config["norm_topk_prob"] = config["model_type"] == "qwen3_moe"


DEEPSEEK = {
    **EXPERTS,
    "attention.head_count_kv": None,
    "attention.key_length": None,
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "leading_dense_block_count": "first_k_dense_replace",
    "expert_count": "n_routed_experts",
    "expert_shared_count": "n_shared_experts",
    "expert_shared_feed_forward_length": None,
    "expert_weights_scale": "routed_scaling_factor",
    "expert_weights_norm": "norm_topk_prob",
    "expert_group_count": "n_group",
    "expert_group_used_count": "topk_group",
}
LATENT = {f"attn_{n}": f"attention.{n}" for n in ("q_a", "q_a_norm", "q_b", "kv_b", "k_b", "v_b", "kv_a_norm")}
LATENT |= {"attn_kv_a_mqa": "attention.kv_a", "exp_probs_b.bias": "mlp.router.correction"}
RECURRENT = {"ssm_a": "A_log", "ssm_dt.bias": "dt_bias", "ssm_conv1d": "conv", "ssm_norm": "norm", "ssm_out": "o"}
DELTA = {
    "ssm.conv_kernel": "linear_conv_kernel_dim",
    "ssm.state_size": "linear_key_head_dim",
    "ssm.group_count": "linear_num_key_heads",
    "ssm.time_step_rank": "linear_num_value_heads",
    "ssm.inner_size": "inner",
}
MAMBA = {
    **{k: v for k, v in DEEPSEEK.items() if k.startswith("expert_")},
    "expert_shared_feed_forward_length": "moe_shared_expert_intermediate_size",
    "moe_latent_size": "moe_latent_size",
    "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "ssm_state_size",
    "ssm.group_count": "n_groups",
    "ssm.time_step_rank": "mamba_num_heads",
    "ssm.inner_size": "inner",
}
MIXER = {
    **{n: f"mixer.{to.split('.', 1)[1]}" for n, to in LAYER.items()},
    "attn_norm": "mixer.before",
    **{n: f"mixer.{to}" for n, to in RECURRENT.items()},
    "ssm_in": "mixer.in",
    "ssm_d": "mixer.D",
    "exp_probs_b.bias": "mixer.router.correction",
    "ffn_latent_down": "mixer.into",
    "ffn_latent_up": "mixer.outof",
}
ARCHITECTURES: dict[str, GgufArchitecture] = {
    "llama": GgufArchitecture("llama", more=_llama, rows=_turned),
    "llama with experts": GgufArchitecture("mixtral", EXPERTS, more=_mixtral, rows=_turned),
    "qwen2": GgufArchitecture("qwen2"),
    "qwen3": GgufArchitecture("qwen3"),
    "qwen2moe": GgufArchitecture("qwen2_moe", EXPERTS, more=_moe_norm),
    "qwen3moe": GgufArchitecture("qwen3_moe", EXPERTS, more=_moe_norm),
    "gemma2": GgufArchitecture("gemma2", more=_gemma2, norm_offset=1.0),
    "gemma3": GgufArchitecture("gemma3_text", more=_gemma3, norm_offset=1.0),
    "phi3": GgufArchitecture("phi3", layer={"ffn_up": "mlp.gateup"}),
    "gpt2": GgufArchitecture("gpt2", _norms("layer_norm_epsilon"), more=_gpt2),
    "starcoder2": GgufArchitecture("starcoder2", _norms("norm_epsilon")),
    "olmo": GgufArchitecture("olmo", {"attention.layer_norm_epsilon": None}, more=_olmo, rows=_turned),
    "olmo2": GgufArchitecture("olmo2"),
    "qwen3next": GgufArchitecture(
        "qwen3_next",
        EXPERTS | DELTA,
        {n: f"attention.{to}" for n, to in {**RECURRENT, "ssm_ba": "ba", "attn_gate": "z"}.items()}
        | {"post_attention_norm": "mlp.before"},
        _qwen3next,
        _qwen3next_rows,
        norm_offset=1.0,
        own_norms=r".*\.attention\.norm\.weight",
    ),
    "deepseek2": GgufArchitecture("deepseek_v2", DEEPSEEK, LATENT, _deepseek),
    "nemotron_h": GgufArchitecture("nemotron_h", MAMBA, MIXER, _nemotron),
    "nemotron_h_moe": GgufArchitecture("nemotron_h", MAMBA, MIXER, _nemotron),
    "granite": GgufArchitecture("granite", more=_granite, rows=_turned),
}

__all__ = ["ARCHITECTURES", "GgufArchitecture", "find"]
