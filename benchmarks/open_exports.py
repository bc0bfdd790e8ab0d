"""Six kinds of models as PyTorch exports them with dynamic axes: small ones, with weights drawn from a seed.

What `open_default.py` measures. Each has names for its open axes; nothing says between which sizes they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import models_tiny
import torch
from models import OPSET, SEED, Fields, Model, hf, quiet, resnet, token_ids
from models_tiny import VOCABULARY, DecodeStep
from torch import nn

#: names of the open axes of an input
Axes = Mapping[int, str]
BATCH: Axes = {0: "batch"}
TOKENS: Axes = {0: "batch", 1: "seq"}


@dataclass(frozen=True)
class Export:
    """A module, and the axes of its inputs that are open."""

    model: Model
    axes: Mapping[str, Axes]


def bert() -> Export:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        max_position_embeddings=128,
    )
    ids = token_ids(19, VOCABULARY).repeat(2, 1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    return Export(hf(BertModel(config), inputs, ["last_hidden_state"]), dict.fromkeys(inputs, TOKENS))


def gpt2() -> Export:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCABULARY, n_positions=128, n_embd=256, n_layer=2, n_head=4, **models_tiny.ENDS)
    ids = token_ids(17, VOCABULARY).repeat(2, 1)
    return Export(hf(GPT2LMHeadModel(config), {"input_ids": ids}, ["logits"], use_cache=False), {"input_ids": TOKENS})


def llama() -> Export:
    """Some tokens after a cache, which comes in and goes out."""
    from transformers import LlamaForCausalLM

    config, past, seq = models_tiny.llama_config(), 15, 3
    config.hidden_size, config.intermediate_size, config.head_dim = 256, 512, 64
    places = torch.arange(past, past + seq)[None].repeat(2, 1)
    inputs = {"input_ids": token_ids(seq, VOCABULARY).repeat(2, 1), "position_ids": places}
    axes: dict[str, Axes] = dict.fromkeys(inputs, TOKENS)
    outputs = ["logits"]
    for layer in range(config.num_hidden_layers):
        for kind in ("key", "value"):
            inputs[f"past_{kind}_{layer}"] = torch.randn(
                2, config.num_key_value_heads, past, config.hidden_size // config.num_attention_heads
            )
            axes[f"past_{kind}_{layer}"] = {0: "batch", 2: "past"}
            outputs.append(f"present_{kind}_{layer}")
    return Export(Model(DecodeStep(LlamaForCausalLM(config)), inputs, outputs), axes)


def resnet50() -> Export:
    """As deep as ResNet-50, an eighth as wide."""
    made = resnet(64, depths=[3, 4, 6, 3], hidden_sizes=[32, 64, 128, 256], embedding_size=16, layer_type="bottleneck")
    made.inputs = {"pixel_values": torch.randn(2, 3, 64, 64)}
    return Export(made, {"pixel_values": BATCH})


class UNet(nn.Module):
    """Halves an image three times, and joins what it doubles again with what was halved."""

    def __init__(self, widths: tuple[int, ...] = (8, 16, 32)) -> None:
        super().__init__()
        first, last = widths[0], widths[-1]
        self.down = nn.ModuleList(self.two(a, b) for a, b in zip((3, *widths), widths, strict=False))
        self.middle = self.two(last, 2 * last)
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * b, b, 2, 2) for b in reversed(widths))
        self.join = nn.ModuleList(self.two(2 * b, b) for b in reversed(widths))
        self.last = nn.Conv2d(first, 4, 1)

    @staticmethod
    def two(a: int, b: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for down in self.down:
            x = down(x)
            kept.append(x)
            x = torch.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([kept.pop(), up(x)], 1))
        return self.last(x)


def unet() -> Export:
    return Export(Model(UNet(), {"x": torch.randn(2, 3, 32, 64)}, ["y"]), {"x": {0: "batch", 2: "height", 3: "width"}})


class Speech(nn.Module):
    """A Whisper without what its caller needs."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_features=features, decoder_input_ids=ids, use_cache=False).last_hidden_state


def whisper() -> Export:
    from transformers import WhisperConfig, WhisperModel

    layers = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("ffn_dim", 256))}
    config = WhisperConfig(
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        d_model=128,
        max_source_positions=100,
        max_target_positions=64,
        pad_token_id=0,
        decoder_start_token_id=1,
        **layers,
        **models_tiny.ENDS,
    )
    inputs = {"features": torch.randn(2, 16, 200), "ids": token_ids(7, VOCABULARY).repeat(2, 1)}
    return Export(Model(Speech(WhisperModel(config)), inputs, ["y"]), {"features": BATCH, "ids": TOKENS})


EXPORTS: dict[str, Callable[[], Export]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "resnet50": resnet50,
    "unet": unet,
    "whisper": whisper,
}


def ensure(name: str, folder: Path) -> Path:
    """The path of ``NAME.onnx`` in a folder, exported now if it is not there."""
    path = folder / f"{name}.onnx"
    if path.exists():
        return path
    quiet()
    torch.manual_seed(SEED)
    made = EXPORTS[name]()
    module, inputs = made.model.module.eval().requires_grad_(False), made.model.inputs
    axes = tuple(dict(made.axes[n]) for n in inputs)
    shapes = (axes,) if isinstance(module, Fields) else axes
    if isinstance(module, DecodeStep):
        shapes = (*axes[:2], axes[2:])
    program = torch.onnx.export(
        module,
        tuple(inputs.values()),
        dynamo=True,
        opset_version=OPSET,
        input_names=list(inputs),
        output_names=list(made.model.outputs),
        dynamic_shapes=shapes,
        external_data=False,
        verbose=False,
    )
    assert program is not None
    program.save(str(path))
    return path
