"""Every architecture against Hugging Face: a small random model, prompts in chunks, then greedy steps; in pages that
lie anywhere, two sequences of different lengths at a time."""

import numpy as np
import pytest

from tilewright.llm.batch import Batch
from tilewright.llm.checkpoint import FolderSource
from tilewright.llm.program import CompiledRunner, ModelPlan, compilations, compile_model
from tilewright.support.options import Options

PAGE, PAGES, CONTEXT = 4, 40, 64
SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
}
PLAIN = {n: v for n, v in SIZES.items() if n != "num_key_value_heads"}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 10000.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.5], "long_factor": [2.0, 3.0, 5.0], "rope_theta": 1e4}
GPT = {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
MIXTURE = SIZES | {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}
LATENT = SIZES | {
    "num_key_value_heads": 4, "kv_lora_rank": 24, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_group": 4,
    "topk_group": 2, "n_shared_experts": 2, "first_k_dense_replace": 1,
}  # fmt: skip
#: case -> class of transformers, fields
CASES = {
    "llama": ("Llama", SIZES | {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "llama_yarn_tied": ("Llama", SIZES | {"rope_parameters": YARN, "tie_word_embeddings": True, "head_dim": 12}),
    "mistral": ("Mistral", SIZES | {"sliding_window": 7}),
    "qwen2": ("Qwen2", SIZES | {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 12}),
    "gemma2": ("Gemma2", SIZES | {"head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 12}),
    "gemma3_text": (
        "Gemma3",
        SIZES | {
            "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 12,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
            },
        },
    ),
    "phi3": (
        "Phi3",
        SIZES | {"rope_parameters": {**LONG, "partial_rotary_factor": 0.75}, "original_max_position_embeddings": 64},
    ),
    "gpt2": ("GPT2LMHead", GPT | {"scale_attn_by_inverse_layer_idx": True}),
    "opt": ("OPT", PLAIN | {"ffn_dim": 48, "word_embed_proj_dim": 32}),
    "starcoder2": ("Starcoder2", SIZES | {"sliding_window": 10}),
    "olmo": ("Olmo", SIZES | {"clip_qkv": 0.05}),
    "olmo2": ("Olmo2", SIZES),
    "olmo3": ("Olmo3", SIZES | {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}),
    "granite": (
        "Granite",
        SIZES | {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
                 "attention_multiplier": 0.2},
    ),
    "mixtral": ("Mixtral", SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2_moe": ("Qwen2Moe", MIXTURE | {"shared_expert_intermediate_size": 40, "mlp_only_layers": [1]}),
    "qwen3_moe": ("Qwen3Moe", MIXTURE | {"head_dim": 16, "norm_topk_prob": True}),
    "qwen3_next": (
        "Qwen3Next",
        MIXTURE | {
            "num_hidden_layers": 3, "head_dim": 16, "shared_expert_intermediate_size": 40,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_key_head_dim": 8, "linear_value_head_dim": 12,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        },
    ),
    "deepseek_v2": ("DeepseekV2", LATENT | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 1.5}),
    "deepseek_v3": (
        "DeepseekV3",
        LATENT | {"q_lora_rank": 20, "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "granitemoehybrid": (
        "GraniteMoeHybrid",
        SIZES | {
            "layer_types": ["linear_attention", "full_attention"], "num_local_experts": 4, "num_experts_per_tok": 2,
            "shared_intermediate_size": 40, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8,
            "mamba_n_groups": 2, "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5,
            "attention_multiplier": 0.2,
        },
    ),
    "nemotron_h": (
        "NemotronH",
        SIZES | {
            "num_hidden_layers": 4, "layers_block_type": ["linear_attention", "full_attention", "moe", "mlp"],
            "head_dim": 8, "ssm_state_size": 16, "mamba_num_heads": 6, "mamba_head_dim": 12, "n_groups": 2,
            "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "moe_latent_size": 16,
            "moe_shared_expert_intermediate_size": 20,
        },
    ),
}  # fmt: skip


def saved(case, folder):
    """A random model of Hugging Face, which is in the folder too."""
    torch = pytest.importorskip("torch", reason="needs torch")
    transformers = pytest.importorskip("transformers", reason="needs transformers")
    name, fields = CASES[case]
    fields = {n: v for n, v in fields.items() if n != "intermediate_size" or case != "opt"}
    kind = "Gemma3Text" if name == "Gemma3" else name.removesuffix("LMHead")
    config = getattr(transformers, f"{kind}Config")(**fields)
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}Model" if name.endswith("Head") else f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms too
            parameter.add_(torch.randn_like(parameter) * 0.05)
        for name, buffer in model.named_buffers():
            if "correction" in name:
                buffer.uniform_(-0.2, 0.2)
    for module in model.modules():
        if hasattr(module, "time_step_limit"):  # a bound that it has for prompts and not for single tokens
            module.time_step_limit = (0.0, float("inf"))
    model.save_pretrained(folder)
    return model


def compiled(folder, **more) -> CompiledRunner:
    plan = ModelPlan(CONTEXT, sequences=2, tokens=64, page_length=PAGE, pages=PAGES, **{"dtype": "f32"} | more)
    return compile_model(*FolderSource(folder).read(), plan, Options.of(threads=1))


class Sequences:
    """Several sequences in pages that lie anywhere."""

    def __init__(self, runner: CompiledRunner, count: int) -> None:
        self.runner, self.lengths = runner, [0] * count
        #: the snapshot of each, -1 before the first token
        self.snapshots = [-1] * count
        pages = np.random.default_rng(1).permutation(PAGES).astype(np.int32)
        self.table = pages[: count * (PAGES // count)].reshape(count, -1)

    def step(self, chunks: dict[int, list[int]]) -> dict[int, np.ndarray]:
        """Logits of all new tokens of these sequences."""
        parts, slots = [], []
        for b, tokens in chunks.items():
            at = np.arange(self.lengths[b], self.lengths[b] + len(tokens))
            parts.append(at)
            slots.append(self.table[b, at // PAGE] * PAGE + at % PAGE)
            self.lengths[b] += len(tokens)
        sizes = [len(t) for t in chunks.values()]
        lengths = [self.lengths[b] for b in chunks]
        integers = {
            "tokens": np.concatenate(list(chunks.values())),
            "positions": np.concatenate(parts),
            "slots": np.concatenate(slots),
            "starts": np.cumsum([0, *sizes]),
            "lengths": lengths,
            "table": self.table[list(chunks), : -(-max(lengths) // PAGE)],
            "rows": np.arange(sum(sizes)),
        }
        if self.runner.limits.snapshots:
            integers["initial"] = [self.snapshots[b] for b in chunks]
            integers["keep"] = np.full(sum(sizes), -1)
            for b, end in zip(chunks, np.cumsum(sizes), strict=True):
                self.snapshots[b] = 2 * b + 1
                integers["keep"][end - 1] = 2 * b + 1
        result = self.runner.step(Batch(**{n: np.ascontiguousarray(a, np.int32) for n, a in integers.items()}))
        ends = np.cumsum(sizes)
        return {b: result.logits[e - n : e].copy() for b, n, e in zip(chunks, sizes, ends, strict=True)}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_hugging_face(case, tmp_path):
    torch = pytest.importorskip("torch", reason="needs torch")
    model = saved(case, tmp_path)
    runner = compiled(tmp_path)
    begun = compilations()
    random = np.random.default_rng(0)
    prompts = {0: random.integers(1, 99, 27).tolist(), 1: random.integers(1, 99, 5).tolist()}
    sequences, texts = Sequences(runner, 2), {b: list(p) for b, p in prompts.items()}
    found = {0: [sequences.step({0: prompts[0][:6]})[0]], 1: []}
    for chunks in ({0: prompts[0][6:], 1: prompts[1][:3]}, {1: prompts[1][3:]}):
        for b, logits in sequences.step(chunks).items():
            found[b].append(logits)
    for _ in range(32):
        for b in texts:
            texts[b].append(int(found[b][-1][-1].argmax()))
        for b, logits in sequences.step({b: t[-1:] for b, t in texts.items()}).items():
            found[b].append(logits)
    for b, text in texts.items():
        with torch.no_grad():
            expected = model(torch.tensor([text])).logits[0].numpy()
        np.testing.assert_allclose(np.concatenate(found[b]), expected, atol=1e-4, rtol=0)
        greedy = expected[len(prompts[b]) - 1 : -1].argmax(-1)
        assert greedy.tolist() == text[len(prompts[b]) :]
        assert expected.std() > 0.05
    assert compilations() == begun


def test_smaller_caches(tmp_path):
    """The error of logits relative to those with a cache of f32, of a prompt and of a step after it, and the sizes."""
    saved("llama", tmp_path)
    prompt, found, sizes = np.random.default_rng(0).integers(1, 99, 40).tolist(), {}, {}
    for dtype in ("f32", "bf16", "int8", "int4"):
        runner = compiled(tmp_path, dtype=dtype)
        sequences = Sequences(runner, 1)
        found[dtype] = np.concatenate([sequences.step({0: part})[0] for part in (prompt[:33], prompt[33:])])
        sizes[dtype] = sum(a.nbytes for a in runner.executable.states.values())
    for dtype, most, size in (("bf16", 0.01, 0.5), ("int8", 0.02, 0.375), ("int4", 0.2, 0.25)):
        difference = np.sqrt(np.mean((found[dtype] - found["f32"]) ** 2) / np.mean(found["f32"] ** 2))
        assert 0 < difference < most and sizes[dtype] == size * sizes["f32"]
