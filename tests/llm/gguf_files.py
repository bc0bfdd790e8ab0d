"""GGUF files of Hugging Face folders, as llama.cpp's conversion writes them; names are those of the package `gguf`."""

import json
import re
from pathlib import Path

import gguf
import numpy as np

from tilewright.llm.checkpoint import Checkpoint

#: model_type -> general.architecture, where they differ
NAMES = {
    "gemma3_text": "gemma3", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "mistral": "llama", "mixtral": "llama",
    "qwen3_next": "qwen3next", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
}  # fmt: skip
TURNED = ("llama", "mistral", "mixtral", "olmo", "granite")


def write(folder: Path, path: Path, kind: str = "F32") -> None:
    """kind: of products; norms and biases stay F32."""
    checkpoint = Checkpoint(folder)
    c = dict(checkpoint.config)
    name = NAMES.get(c["model_type"], c["model_type"])
    writer = gguf.GGUFWriter(path, name)
    _metadata(writer, c)
    for tensor, array in _tensors(checkpoint, c, name).items():
        type_ = gguf.GGMLQuantizationType[kind]
        fits = array.shape[-1] % gguf.GGML_QUANT_SIZES[type_][0] == 0
        if array.ndim < 2 or not fits or re.search(r"ffn_gate_inp|conv1d|position_embd|ssm", tensor):
            type_ = gguf.GGMLQuantizationType.F32
        writer.add_tensor(tensor, gguf.quantize(np.ascontiguousarray(array), type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _metadata(w: gguf.GGUFWriter, c: dict) -> None:
    heads = c.get("num_attention_heads", c.get("n_head"))
    hidden = c.get("hidden_size", c.get("n_embd"))
    w.add_context_length(c.get("max_position_embeddings", c.get("n_positions")))
    w.add_vocab_size(c["vocab_size"])
    w.add_embedding_length(hidden)
    w.add_block_count(c.get("num_hidden_layers", c.get("n_layer")))
    w.add_feed_forward_length(c.get("intermediate_size") or 4 * hidden)
    w.add_head_count(heads)
    w.add_head_count_kv(c.get("num_key_value_heads") or heads)
    if "rms_norm_eps" in c:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    for key in ("layer_norm_epsilon", "norm_epsilon"):
        if key in c:
            w.add_layer_norm_eps(c[key])
    depth = c.get("head_dim") or hidden // heads
    if c.get("head_dim"):
        w.add_key_length(depth)
        w.add_value_length(depth)
    if c.get("sliding_window") and c.get("use_sliding_window", True):
        w.add_sliding_window(c["sliding_window"])
    if c.get("attn_logit_softcapping"):
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    if c.get("clip_qkv"):
        w.add_clamp_kqv(c["clip_qkv"])
    if c["model_type"] == "granite":
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    for key, add in (
        ("num_experts", w.add_expert_count), ("num_local_experts", w.add_expert_count),
        ("num_experts_per_tok", w.add_expert_used_count), ("moe_intermediate_size", w.add_expert_feed_forward_length),
        ("shared_expert_intermediate_size", w.add_expert_shared_feed_forward_length),
    ):  # fmt: skip
        if c.get(key):
            add(c[key])
    _rope(w, c, depth)


def _rope(w: gguf.GGUFWriter, c: dict, depth: int) -> None:
    rope = c.get("rope_parameters") or {}
    if "full_attention" in rope:
        w.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
        rope = rope["full_attention"]
    if "rope_theta" not in rope:
        return
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(depth * rope.get("partial_rotary_factor", 1)))
    kind = rope["rope_type"]
    if kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif kind == "longrope":
        w.add_rope_scaling_orig_ctx_len(c["original_max_position_embeddings"])
        w.add_rope_scaling_attn_factors(1.0)
        for which in ("long", "short"):
            w.add_tensor(f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], np.float32))
    elif kind == "llama3":
        waves = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, depth, 2) / depth)
        low, high, original = (
            rope["low_freq_factor"],
            rope["high_freq_factor"],
            rope["original_max_position_embeddings"],
        )
        smooth = np.clip((original / waves - low) / (high - low), 0, 1)
        w.add_tensor("rope_freqs.weight", (1 / ((1 - smooth) / rope["factor"] + smooth)).astype(np.float32))


def _tensors(checkpoint: Checkpoint, c: dict, arch: str) -> dict[str, np.ndarray]:
    count = c.get("num_hidden_layers", c.get("n_layer"))
    number = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch)
    names = gguf.get_tensor_name_map(number, count)
    heads = {"q_proj": c.get("num_attention_heads"), "k_proj": c.get("num_key_value_heads") or 0}
    made, experts = {}, {}
    for name, tensor in checkpoint.tensors.items():
        array, part = np.asarray(tensor, np.float32), name.split(".")[-2]
        if c["model_type"] in TURNED and part in heads:
            rest = array.shape[1:]
            array = array.reshape(heads[part], 2, -1, *rest).swapaxes(1, 2).reshape(-1, *rest)
        if arch.startswith("gemma") and "norm" in part:
            array = array + np.float32(1)
        if arch == "gpt2" and part in ("c_attn", "c_proj", "c_fc") and array.ndim > 1:
            array = array.T
        if part == "shared_expert_gate":
            array = array[0]
        if one := re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name):
            experts.setdefault(f"{one[1]}.{one[3]}", {})[int(one[2])] = array
            continue
        made[_name(names, name)] = array
    for name, each in experts.items():
        made[_name(names, name)] = np.stack([each[i] for i in sorted(each)])
    return made


def _name(names, name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    found = names.get_name(stem)
    assert found, name
    return f"{found}.{suffix}"


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())
