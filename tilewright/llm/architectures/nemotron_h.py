"""Nemotron-H: each layer is one of Mamba 2, attention, an MLP and a mixture of experts, without positions."""

from ...support.errors import UnsupportedError
from ..config import DecoderLayer, DecoderModel, Norm, Sublayer, SublayerBody
from ..layers.attention import SelfAttention
from ..layers.experts import Experts
from ..layers.mlp import Mlp
from ..layers.recurrent import Mamba2
from ..settings import ModelSettings
from . import Architecture
from .common import activation_of, decoder
from .deepseek import router_v3

#: letters of ``hybrid_override_pattern``, and names in ``layers_block_type``, of kinds of layers
KINDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
NAMES = {"linear_attention": "mamba", "full_attention": "attention", **{k: k for k in KINDS.values()}}
MIXER = {"in_proj": "in", "out_proj": "o", "conv1d": "conv", **{n: n for n in ("A_log", "D", "dt_bias", "norm")}}
MIXER |= {f"{n}_proj": n for n in ("q", "k", "v", "o", "up", "down")}
MIXER |= {"gate": "router", "gate.e_score_correction_bias": "router.correction"}
MIXER |= {f"{e}.{n}_proj": f"{e}.{n}" for e in ("experts", "experts.{}") for n in ("up", "down")}
MIXER |= {f"shared_experts.{n}_proj": f"shared.{n}" for n in ("up", "down")}
MIXER |= {"fc1_latent_proj": "into", "fc2_latent_proj": "outof"}


def kinds_of(s: ModelSettings) -> list[str]:
    """The kind of each layer."""
    s.ignore("num_hidden_layers")
    pattern = s.get("hybrid_override_pattern")
    names = s.get("layers_block_type") or s.get("layer_types")
    found = [NAMES.get(n, n) for n in names] if names else [KINDS.get(c, c) for c in pattern or ""]
    s.ignore("layers_block_type", "layer_types", "hybrid_override_pattern")
    unknown = set(found) - set(KINDS.values())
    if unknown or not found:
        raise UnsupportedError(
            f"config.json of this nemotron_h model has layers of the kinds {sorted(unknown)}",
            stage="import",
            hint=f"kinds: {', '.join(KINDS.values())}",
        )
    return found


def read(s: ModelSettings) -> DecoderModel:
    heads, kinds = s.need("num_attention_heads"), kinds_of(s)
    for names in (
        "attention_bias mlp_bias use_bias use_conv_bias mamba_proj_bias",  # the checkpoint says it
        "chunk_size expand time_step_min time_step_max time_step_floor use_mamba_kernels num_logits_to_keep",
        "mamba_ssm_cache_dtype residual_in_fp32 rescale_prenorm_residual moe_shared_expert_overlap n_shared_experts",
        "num_nextn_predict_layers mtp_layers_block_type mtp_hybrid_override_pattern output_router_logits",
        "rope_theta partial_rotary_factor rope_parameters intermediate_size rms_norm_eps",
    ):
        s.ignore(*names.split())
    s.only("sliding_window", None)
    s.only("mamba_hidden_act", "silu")
    norm, activation = Norm("rms", s.get("layer_norm_epsilon", 1e-5)), activation_of(s, "mlp_hidden_act", "relu2")

    def body(kind: str) -> SublayerBody:
        if kind == "attention":
            return SelfAttention(heads, s.get("num_key_value_heads", heads), s.get("head_dim", 128))
        if kind == "mlp":
            return Mlp(s.need("intermediate_size"), activation, gated=False)
        if kind == "moe":
            size, shared = s.need("moe_intermediate_size"), s.get("moe_shared_expert_intermediate_size", 0)
            latent = s.get("moe_latent_size") is not None
            return Experts(router_v3(s), size, activation, gated=False, shared=shared, latent=latent)
        low, high = s.get("time_step_limit", (0.0, float("inf")))
        return Mamba2(
            s.need("mamba_num_heads"),
            s.need("mamba_head_dim"),
            s.get("n_groups", 8),
            s.get("ssm_state_size", 128),
            s.get("conv_kernel", 4),
            norm.epsilon,
            float(low),
            float(high),
        )

    bodies = {kind: body(kind) for kind in KINDS.values() if kind in kinds}
    for name in NEEDED:
        s.ignore(*name.split())
    return decoder(s, [DecoderLayer((Sublayer("mixer", bodies[kind], norm),)) for kind in kinds], norm)


#: fields of kinds of layers that a model may not have
NEEDED = (
    "num_key_value_heads head_dim mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel time_step_limit",
    "n_routed_experts num_experts_per_tok norm_topk_prob routed_scaling_factor n_group topk_group moe_latent_size",
    "moe_intermediate_size moe_shared_expert_intermediate_size",
)

ARCHITECTURE = Architecture(
    "nemotron_h",
    read,
    {"embeddings": "embedding", "norm_f": "norm", "lm_head": "head", "layers.{}.norm": "layers.{}.mixer.before"}
    | {f"layers.{{}}.mixer.{n}": f"layers.{{}}.mixer.{m}" for n, m in MIXER.items()},
    prefixes=("backbone.", "model."),
    unused=(r"mtp\..*",),
)
