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


def write(folder: Path, path: Path, kind: str = "F32", change=lambda name, array: None) -> None:
    """kind: of products; norms and biases stay F32. change: a tensor -> its type and bytes; None: as they are."""
    checkpoint = Checkpoint(folder)
    c = dict(checkpoint.config)
    name = NAMES.get(c["model_type"], c["model_type"]) + "_moe" * ("moe_latent_size" in c)
    writer = gguf.GGUFWriter(path, name)
    _metadata(writer, c)
    for tensor, array in _tensors(checkpoint, c, name).items():
        if (made := change(tensor, array)) is not None:
            writer.add_tensor(tensor, made[1], raw_dtype=gguf.GGMLQuantizationType[made[0]])
            continue
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
    kinds = c.get("layers_block_type", [])
    w.add_block_count(c.get("num_hidden_layers") or c.get("n_layer") or len(kinds))
    inner = {"mlp": c.get("intermediate_size"), "moe": c.get("moe_intermediate_size")}
    w.add_feed_forward_length([inner.get(k, 0) for k in kinds] or c.get("intermediate_size") or 4 * hidden)
    w.add_head_count(heads)
    shared = c.get("num_key_value_heads") or heads
    w.add_head_count_kv([shared * (k == "full_attention") for k in kinds] or shared)
    if "rms_norm_eps" in c or kinds:
        w.add_layer_norm_rms_eps(c.get("rms_norm_eps", c.get("layer_norm_epsilon")))
    for key in ("layer_norm_epsilon", "norm_epsilon"):
        if key in c:
            w.add_layer_norm_eps(c[key])
    depth = c.get("head_dim") or hidden // heads
    if "kv_lora_rank" in c:
        _latent(w, c)
    elif c.get("head_dim"):
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
        ("n_routed_experts", w.add_expert_count), ("n_shared_experts", w.add_expert_shared_count),
        ("routed_scaling_factor", w.add_expert_weights_scale), ("norm_topk_prob", w.add_expert_weights_norm),
        ("n_group", w.add_expert_group_count), ("topk_group", w.add_expert_group_used_count),
        ("moe_shared_expert_intermediate_size", w.add_expert_shared_feed_forward_length),
        ("moe_latent_size", w.add_moe_latent_size), ("first_k_dense_replace", w.add_leading_dense_block_count),
        ("linear_conv_kernel_dim", w.add_ssm_conv_kernel), ("linear_key_head_dim", w.add_ssm_state_size),
        ("linear_num_key_heads", w.add_ssm_group_count), ("linear_num_value_heads", w.add_ssm_time_step_rank),
        ("conv_kernel", w.add_ssm_conv_kernel), ("ssm_state_size", w.add_ssm_state_size),
        ("n_groups", w.add_ssm_group_count), ("mamba_num_heads", w.add_ssm_time_step_rank),
        ("num_experts_per_tok", w.add_expert_used_count), ("moe_intermediate_size", w.add_expert_feed_forward_length),
        ("shared_expert_intermediate_size", w.add_expert_shared_feed_forward_length),
    ):  # fmt: skip
        if c.get(key):
            add(c[key])
    if "linear_value_head_dim" in c:
        w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    if "mamba_head_dim" in c:
        w.add_ssm_inner_size(c["mamba_head_dim"] * c["mamba_num_heads"])
    _rope(w, c, c.get("qk_rope_head_dim", depth))


def _latent(w: gguf.GGUFWriter, c: dict) -> None:
    w.add_kv_lora_rank(c["kv_lora_rank"])
    if c.get("q_lora_rank"):
        w.add_q_lora_rank(c["q_lora_rank"])
    w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    w.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_value_length_mla(c["v_head_dim"])
    third = c["model_type"] == "deepseek_v3"
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if third else gguf.ExpertGatingFuncType.SOFTMAX)
    if c["rope_parameters"].get("mscale_all_dim"):
        w.add_rope_scaling_yarn_log_mul(0.1 * c["rope_parameters"]["mscale_all_dim"])


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
    count = c.get("num_hidden_layers") or c.get("n_layer") or len(c["layers_block_type"])
    number = next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch)
    names = gguf.get_tensor_name_map(number, count)
    made, experts = {}, {}
    for name, tensor in checkpoint.tensors.items():
        if one := re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name):
            of = f"{one[1]}.{one[3]}".replace("backbone", "model").replace("mixer", "mlp")
            experts.setdefault(of, {})[int(one[2])] = np.asarray(tensor, np.float32)
            continue
        for n, array in _changed(name, np.asarray(tensor, np.float32), c, arch):
            made[_name(names, n)] = array
    for name, each in experts.items():
        made[_name(names, name)] = np.stack([each[i] for i in sorted(each)])
    return made


def _changed(name: str, array: np.ndarray, c: dict, arch: str):
    """What the conversion makes of a tensor: names and arrays."""
    heads = {"q_proj": c.get("num_attention_heads"), "k_proj": c.get("num_key_value_heads") or 0}
    *_, part, suffix = name.split(".")
    if c["model_type"] in TURNED and part in heads:
        rest = array.shape[1:]
        array = array.reshape(heads[part], 2, -1, *rest).swapaxes(1, 2).reshape(-1, *rest)
    if arch.startswith(("gemma", "qwen3next")) and "norm" in part and "linear_attn" not in name:
        array = array + np.float32(1)
    if arch == "gpt2" and part in ("c_attn", "c_proj", "c_fc") and array.ndim > 1:
        array = array.T
    if part == "shared_expert_gate":
        array = array[0]
    if part == "conv1d":
        array = array.squeeze()
    if suffix == "dt_bias":
        name = name.replace("dt_bias", "dt_proj.bias" if "linear_attn" in name else "dt.bias")
    column = (-1, 1) if "mixer" in name else (-1,)
    if suffix in ("A_log", "D"):
        array = (-np.exp(array) if suffix == "A_log" else array).reshape(column)
    if name.endswith("mixer.norm.weight"):
        array = array.reshape(c["n_groups"], -1)
    if suffix == "e_score_correction_bias":
        name = name.replace("_bias", ".bias")
    if part == "in_proj_qkvz":
        k, v, shared = c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_num_key_heads"]
        wide = c["linear_num_value_heads"] // shared * v
        parts = np.split(array.reshape(shared, -1, array.shape[1]), np.cumsum([k, k, wide]), axis=1)
        *qkv, z = (p.reshape(-1, array.shape[1]) for p in parts)
        at = f"blk.{name.split('.')[2]}."
        return [(f"{at}attn_qkv.weight", np.concatenate(qkv)), (f"{at}attn_gate.weight", z)]
    if part == "kv_b_proj":
        both = array.reshape(c["num_attention_heads"], -1, array.shape[1])
        keys, values = np.split(both, [c["qk_nope_head_dim"]], axis=1)
        parts = (("k_b", keys.swapaxes(1, 2)), ("v_b", values))
        return [(name.replace("kv_b", n), np.ascontiguousarray(a)) for n, a in parts]
    return [(name, array)]


def _name(names, name: str) -> str:
    if name.startswith("blk."):
        return name
    stem, _, suffix = name.rpartition(".")
    if suffix not in ("weight", "bias"):
        stem, suffix = name, ""
    found = names.get_name(stem)
    assert found, name
    return f"{found}.{suffix}".rstrip(".")


def config_of(folder: Path) -> dict:
    return json.loads((folder / "config.json").read_text())
