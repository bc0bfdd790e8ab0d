"""Models of transformers in the zoo: configurations of their own sizes in width, with few layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from zoo_models import Made, entry, image

TOKENS = 48


def wrapped(inner: Any, names: Sequence[str], fields: Sequence[str], **fixed: Any) -> Any:
    """A model seen as a function from tensors to the named fields of its result."""
    from models import Fields

    return Fields(inner, names, fields, **fixed).eval()


def ids(vocabulary: int, count: int = TOKENS, batch: int = 1):
    import torch

    return torch.randint(4, vocabulary, (batch, count))


def text(model: str, config: str, field: str = "last_hidden_state", fixed: dict | None = None, **options) -> Made:
    """A model over token ids and their mask."""
    import torch
    import transformers

    made = getattr(transformers, config)(**{"vocab_size": 1000, **options})
    inner = getattr(transformers, model)(made).eval()
    tokens = ids(made.vocab_size)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    return Made(wrapped(inner, list(inputs), [field], **(fixed or {})), inputs)


SMALL = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 1024}
CAUSAL = {"use_cache": False}
LLAMA = {**SMALL, "intermediate_size": 704, "num_key_value_heads": 2}

#: name -> how `text` makes it
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {"model": "BertModel", "config": "BertConfig", **SMALL},
    "distilbert": {"model": "DistilBertModel", "config": "DistilBertConfig", "dim": 256, "n_layers": 3, "n_heads": 4},
    "albert": {"model": "AlbertModel", "config": "AlbertConfig", **SMALL, "embedding_size": 64},
    "electra": {"model": "ElectraModel", "config": "ElectraConfig", **SMALL, "embedding_size": 64},
    "mpnet": {"model": "MPNetModel", "config": "MPNetConfig", **SMALL},
    "deberta_v2": {"model": "DebertaV2Model", "config": "DebertaV2Config", **SMALL, "relative_attention": True,
                   "pos_att_type": ["p2c", "c2p"], "position_buckets": 32},
    "squeezebert": {"model": "SqueezeBertModel", "config": "SqueezeBertConfig", **SMALL, "embedding_size": 256},
    "mobilebert": {"model": "MobileBertModel", "config": "MobileBertConfig", "num_hidden_layers": 3},
    "convbert": {"model": "ConvBertModel", "config": "ConvBertConfig", **SMALL, "embedding_size": 256},
    "roformer": {"model": "RoFormerModel", "config": "RoFormerConfig", **SMALL, "embedding_size": 256},
    "modernbert": {"model": "ModernBertModel", "config": "ModernBertConfig", **SMALL, "pad_token_id": 0,
                   "local_attention": 16, "attn_implementation": "eager"},
    "t5_encoder": {"model": "T5EncoderModel", "config": "T5Config", "d_model": 256, "d_kv": 64, "d_ff": 704,
                   "num_layers": 3, "num_heads": 4, "feed_forward_proj": "gated-gelu"},
}  # fmt: skip
DECODERS: dict[str, dict[str, Any]] = {
    "gpt2": {"model": "GPT2Model", "config": "GPT2Config", "n_embd": 256, "n_layer": 3, "n_head": 4},
    "gpt_neox": {"model": "GPTNeoXModel", "config": "GPTNeoXConfig", **SMALL},
    "bloom": {"model": "BloomModel", "config": "BloomConfig", "hidden_size": 256, "n_layer": 3, "n_head": 4},
    "opt": {"model": "OPTModel", "config": "OPTConfig", "hidden_size": 256, "num_hidden_layers": 3, "ffn_dim": 1024,
            "num_attention_heads": 4, "word_embed_proj_dim": 256},
    "llama": {"model": "LlamaModel", "config": "LlamaConfig", **LLAMA},
    "mistral": {"model": "MistralModel", "config": "MistralConfig", **LLAMA, "sliding_window": 16},
    "qwen3": {"model": "Qwen3Model", "config": "Qwen3Config", **LLAMA, "head_dim": 64},
    "gemma3": {"model": "Gemma3TextModel", "config": "Gemma3TextConfig", **LLAMA, "head_dim": 64},
    "phi3": {"model": "Phi3Model", "config": "Phi3Config", **LLAMA, "pad_token_id": 0},
    "falcon": {"model": "FalconModel", "config": "FalconConfig", "hidden_size": 256, "num_hidden_layers": 3,
               "num_attention_heads": 4},
    "olmo2": {"model": "Olmo2Model", "config": "Olmo2Config", **LLAMA},
    "granite": {"model": "GraniteModel", "config": "GraniteConfig", **LLAMA},
}  # fmt: skip

for _name, _how in ENCODERS.items():
    entry("transformers", f"hf_{_name}")(lambda how=_how: text(**how))
for _name, _how in DECODERS.items():
    entry("transformers", f"hf_{_name}")(lambda how=_how: text(**how, fixed=CAUSAL))

BATCH_AND_LENGTH = {"input_ids": {0: "batch", 1: "seq"}, "attention_mask": {0: "batch", 1: "seq"}}
entry("transformers", "hf_bert_dynamic", "torchscript", BATCH_AND_LENGTH)(lambda: text(**ENCODERS["bert"]))


@entry("transformers", exporter="torchscript")
def hf_llama_decode() -> Made:
    """One token after a cache of 96, three layers; the new cache is an output."""
    import torch
    from transformers import DynamicCache, LlamaConfig, LlamaModel

    inner = LlamaModel(LlamaConfig(vocab_size=1000, **LLAMA)).eval()

    class Step(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, input_ids, position_ids, *past):
            cache = DynamicCache()
            for layer in range(len(past) // 2):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            out = self.inner(input_ids, position_ids=position_ids, past_key_values=cache, use_cache=True)
            return out.last_hidden_state, *(t for layer in cache.layers for t in (layer.keys, layer.values))

    past = {f"past_{kind}_{i}": torch.randn(1, 2, 96, 64) for i in range(3) for kind in ("key", "value")}
    return Made(Step().eval(), {"input_ids": ids(1000, 1), "position_ids": torch.tensor([[96]]), **past})


@entry("transformers")
def hf_t5() -> Made:
    """Encoder and decoder together."""
    from transformers import T5Config, T5Model

    config = T5Config(vocab_size=1000, d_model=256, d_kv=64, d_ff=512, num_layers=2, num_heads=4)
    inputs = {"input_ids": ids(1000), "decoder_input_ids": ids(1000, 16)}
    return Made(wrapped(T5Model(config).eval(), list(inputs), ["last_hidden_state"], use_cache=False), inputs)


@entry("transformers")
def hf_bart() -> Made:
    from transformers import BartConfig, BartModel

    config = BartConfig(vocab_size=1000, d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                        decoder_attention_heads=4, encoder_ffn_dim=1024, decoder_ffn_dim=1024)  # fmt: skip
    inputs = {"input_ids": ids(1000), "decoder_input_ids": ids(1000, 16)}
    return Made(wrapped(BartModel(config).eval(), list(inputs), ["last_hidden_state"], use_cache=False), inputs)


# ---- sound ----


@entry("transformers")
def hf_whisper_encoder() -> Made:
    import torch
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(d_model=256, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=1024,
                           max_source_positions=150)  # fmt: skip
    inputs = {"input_features": torch.randn(1, 80, 300)}
    return Made(wrapped(WhisperEncoder(config).eval(), list(inputs), ["last_hidden_state"]), inputs)


@entry("transformers", exporter="torchscript")
def hf_wav2vec2() -> Made:
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(**SMALL, conv_dim=(128,) * 7, num_conv_pos_embeddings=32, num_conv_pos_embedding_groups=8)
    inputs = {"input_values": torch.randn(1, 8000)}
    return Made(wrapped(Wav2Vec2Model(config).eval(), list(inputs), ["last_hidden_state"]), inputs)


@entry("transformers")
def hf_ast() -> Made:
    import torch
    from transformers import ASTConfig, ASTModel

    inputs = {"input_values": torch.randn(1, 256, 128)}
    inner = ASTModel(ASTConfig(**SMALL, max_length=256)).eval()
    return Made(wrapped(inner, list(inputs), ["last_hidden_state"]), inputs)


@entry("transformers", exporter="torchscript")
def hf_encodec_decoder() -> Made:
    """The vocoder half of EnCodec: transposed convolutions and LSTMs."""
    import torch
    from transformers import EncodecConfig, EncodecModel

    decoder = EncodecModel(EncodecConfig(num_filters=16, upsampling_ratios=[8, 5, 4, 2])).decoder
    return Made(decoder.eval(), {"codes": torch.randn(1, 128, 50)})


# ---- images ----


def vision(model: str, config: str, size: int, fields: Sequence[str] = ("last_hidden_state",), **options) -> Made:
    import transformers
    from zoo_models import settled

    inner = getattr(transformers, model)(getattr(transformers, config)(**options))
    inputs = {"pixel_values": image(size)}
    return Made(settled(wrapped(inner, list(inputs), fields), image(size, batch=2)), inputs)


VISION: dict[str, Callable[[], Made]] = {
    "dinov2": lambda: vision("Dinov2Model", "Dinov2Config", 224, hidden_size=256, num_hidden_layers=3,
                             num_attention_heads=4, image_size=224),
    "siglip_vision": lambda: vision("SiglipVisionModel", "SiglipVisionConfig", 224, **SMALL, image_size=224),
    "clip_vision": lambda: vision("CLIPVisionModel", "CLIPVisionConfig", 224, **SMALL, image_size=224),
    "yolos": lambda: vision("YolosForObjectDetection", "YolosConfig", 192, ["logits", "pred_boxes"], **SMALL,
                            image_size=[192, 192], num_detection_tokens=20),
    "segformer": lambda: vision("SegformerForSemanticSegmentation", "SegformerConfig", 224, ["logits"]),
    "dpt": lambda: vision("DPTForDepthEstimation", "DPTConfig", 192, ["predicted_depth"], **{**SMALL,
                          "num_hidden_layers": 4}, image_size=192, backbone_out_indices=[0, 1, 2, 3],
                          neck_hidden_sizes=[48, 96, 128, 128], fusion_hidden_size=64),
    "depth_anything": lambda: _depth_anything(),
    "swin2sr": lambda: vision("Swin2SRForImageSuperResolution", "Swin2SRConfig", 48, ["reconstruction"], image_size=48,
                              embed_dim=60, depths=[2, 2], num_heads=[6, 6], window_size=8, upscale=2,
                              upsampler="pixelshuffle"),
    "mobilevit": lambda: vision("MobileViTModel", "MobileViTConfig", 192, image_size=192),
    "efficientnet": lambda: vision("EfficientNetModel", "EfficientNetConfig", 224, image_size=224,
                                   width_coefficient=1.0, depth_coefficient=1.0, hidden_dim=1280),
    "cvt": lambda: vision("CvtModel", "CvtConfig", 224),
    "levit": lambda: vision("LevitModel", "LevitConfig", 224),
    "poolformer": lambda: vision("PoolFormerModel", "PoolFormerConfig", 224),
    "glpn": lambda: vision("GLPNForDepthEstimation", "GLPNConfig", 192, ["predicted_depth"]),
    "upernet_convnext": lambda: _upernet(),
}  # fmt: skip
for _name, _make in VISION.items():
    entry("transformers", f"hf_{_name}")(_make)


def _depth_anything() -> Made:
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation, Dinov2Config

    backbone = Dinov2Config(hidden_size=192, num_hidden_layers=4, num_attention_heads=3, image_size=196,
                            out_features=["stage1", "stage2", "stage3", "stage4"], reshape_hidden_states=False,
                            apply_layernorm=True)  # fmt: skip
    config = DepthAnythingConfig(backbone_config=backbone, reassemble_hidden_size=192, fusion_hidden_size=64,
                                 neck_hidden_sizes=[48, 96, 192, 192], patch_size=14)  # fmt: skip
    inputs = {"pixel_values": image(196)}
    inner = DepthAnythingForDepthEstimation(config).eval()
    return Made(wrapped(inner, list(inputs), ["predicted_depth"]), inputs)


def _upernet() -> Made:
    from transformers import ConvNextConfig, UperNetConfig, UperNetForSemanticSegmentation
    from zoo_models import settled

    backbone = ConvNextConfig(depths=[1, 1, 2, 1], hidden_sizes=[40, 80, 160, 320],
                              out_features=["stage1", "stage2", "stage3", "stage4"])  # fmt: skip
    inner = UperNetForSemanticSegmentation(UperNetConfig(backbone_config=backbone, hidden_size=96, num_labels=20,
                                                         auxiliary_in_channels=160))  # fmt: skip
    inputs = {"pixel_values": image(192)}
    return Made(settled(wrapped(inner, list(inputs), ["logits"]), image(192, batch=2)), inputs)


@entry("transformers")
def hf_videomae() -> Made:
    import torch
    from transformers import VideoMAEConfig, VideoMAEModel

    inner = VideoMAEModel(VideoMAEConfig(**SMALL, image_size=112, num_frames=8)).eval()
    inputs = {"pixel_values": torch.randn(1, 8, 3, 112, 112)}
    return Made(wrapped(inner, list(inputs), ["last_hidden_state"]), inputs)


@entry("transformers", exporter="torchscript")
def hf_detr() -> Made:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig
    from zoo_models import settled

    backbone = ResNetConfig(depths=[1, 1, 1, 1], hidden_sizes=[64, 128, 256, 512], layer_type="basic",
                            out_features=["stage4"])  # fmt: skip
    config = DetrConfig(use_timm_backbone=False, backbone_config=backbone, backbone=None, d_model=128,
                        use_pretrained_backbone=False, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=512,
                        decoder_ffn_dim=512, num_queries=30)  # fmt: skip
    inner, inputs = DetrForObjectDetection(config), {"pixel_values": image(224)}
    return Made(settled(wrapped(inner, list(inputs), ["logits", "pred_boxes"]), image(224)), inputs)


@entry("transformers", exporter="dynamo")  # the other one writes a Concat along a wrong axis
def hf_patchtst() -> Made:
    """Forecasting of seven series."""
    import torch
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = PatchTSTConfig(num_input_channels=7, context_length=336, prediction_length=96, patch_length=16,
                            patch_stride=8, d_model=128, num_attention_heads=8, ffn_dim=256)  # fmt: skip
    inputs = {"past_values": torch.randn(1, 336, 7)}
    return Made(wrapped(PatchTSTForPrediction(config).eval(), list(inputs), ["prediction_outputs"]), inputs)
