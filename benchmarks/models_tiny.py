"""Small versions of the transformers architectures: few layers, small widths, seconds to export, compile and run."""

from __future__ import annotations

import torch
from models import Model, hf, model, settle_batch_norms, token_ids
from torch import nn

VOCABULARY = 211  # an odd size, so that no dimension is a multiple of a vector


ENDS = {"bos_token_id": 1, "eos_token_id": 2}


@model("tiny")
def bert_tiny() -> Model:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=32,
    )
    ids = token_ids(19, VOCABULARY)
    mask = torch.ones_like(ids)
    mask[0, 15:] = 0
    kinds = torch.zeros_like(ids)
    kinds[0, 9:] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
    return hf(BertModel(config), inputs, ["last_hidden_state", "pooler_output"])


@model("tiny")
def gpt2_tiny() -> Model:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=32, n_embd=48, n_layer=2, n_head=4, **ENDS)
    return hf(GPT2LMHeadModel(config), {"input_ids": token_ids(17, VOCABULARY)}, ["logits"], use_cache=False)


@model("tiny")
def vit_tiny() -> Model:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        num_labels=10,
    )
    return hf(ViTForImageClassification(config), {"pixel_values": torch.randn(1, 3, 32, 32)}, ["logits"])


@model("tiny")
def resnet_tiny() -> Model:
    from models import resnet

    return resnet(64, depths=[1, 2], hidden_sizes=[32, 64], embedding_size=16, layer_type="bottleneck")


@model("tiny")
def mobilenet_v2_tiny() -> Model:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    config = MobileNetV2Config(num_labels=10, depth_multiplier=0.35, image_size=64, tf_padding=False)
    inner = MobileNetV2ForImageClassification(config)
    made = hf(inner, {"pixel_values": torch.randn(1, 3, 64, 64)}, ["logits"])
    settle_batch_norms(made.module, torch.randn(4, 3, 64, 64))
    return made


def llama_config():
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,  # grouped queries
        max_position_embeddings=64,
    )


@model("tiny")
def llama_prefill_tiny() -> Model:
    from transformers import LlamaForCausalLM

    inner = LlamaForCausalLM(llama_config())
    return hf(inner, {"input_ids": token_ids(17, VOCABULARY)}, ["logits"], use_cache=False)


class DecodeStep(nn.Module):
    """One token through a causal language model whose cache comes in and goes out as tensors."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, input_ids, position_ids, *past):
        from transformers import DynamicCache

        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        result = self.inner(input_ids=input_ids, position_ids=position_ids, past_key_values=cache, use_cache=True)
        grown = [t for layer in result.past_key_values.layers for t in (layer.keys, layer.values)]
        return result.logits, *grown


@model("tiny")
def llama_decode_tiny() -> Model:
    from transformers import LlamaForCausalLM

    config, past = llama_config(), 15
    inputs = {"input_ids": token_ids(1, VOCABULARY), "position_ids": torch.full((1, 1), past)}
    shape = (1, config.num_key_value_heads, past, config.hidden_size // config.num_attention_heads)
    outputs = ["logits"]
    for layer in range(config.num_hidden_layers):
        for kind in ("key", "value"):
            inputs[f"past_{kind}.{layer}"] = torch.randn(shape)
            outputs.append(f"present_{kind}.{layer}")
    return Model(DecodeStep(LlamaForCausalLM(config)), inputs, outputs)


@model("tiny")
def t5_tiny() -> Model:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4, decoder_start_token_id=0
    )
    ids = token_ids(13, VOCABULARY)
    mask = torch.ones_like(ids)
    mask[0, 11:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": token_ids(7, VOCABULARY)}
    return hf(T5ForConditionalGeneration(config), inputs, ["logits"], use_cache=False)


@model("tiny")
def swin_tiny() -> Model:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=32, patch_size=2, embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4, num_labels=10
    )
    return hf(SwinForImageClassification(config), {"pixel_values": torch.randn(1, 3, 32, 32)}, ["logits"])


@model("tiny")
def detr_tiny() -> Model:
    from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

    backbone = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 24, 32, 48],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    config = DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        num_queries=11,
        d_model=48,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_ffn_dim=96,
        num_labels=7,
    )
    inputs = {"pixel_values": torch.randn(1, 3, 96, 64)}
    made = hf(DetrForObjectDetection(config), inputs, ["logits", "pred_boxes"])
    settle_batch_norms(made.module, torch.randn(2, 3, 96, 64))
    return made


@model("tiny")
def convnext_tiny() -> Model:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[16, 32], depths=[2, 2], num_stages=2, image_size=64, num_labels=10)
    return hf(ConvNextForImageClassification(config), {"pixel_values": torch.randn(1, 3, 64, 64)}, ["logits"])


@model("tiny")
def whisper_encoder_tiny() -> Model:
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=20,
        d_model=48,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=96,
        decoder_layers=1,
        decoder_attention_heads=4,
        decoder_ffn_dim=96,
        max_source_positions=30,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    inner = WhisperModel(config).get_encoder()
    return hf(inner, {"input_features": torch.randn(1, 20, 60)}, ["last_hidden_state"])
