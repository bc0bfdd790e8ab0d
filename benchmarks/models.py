"""The models that tests and benchmarks use: real architectures, random weights from a fixed seed, exported to ONNX.

    python benchmarks/models.py                          # all of them, to benchmarks/models/
    python benchmarks/models.py --models resnet18,gpt2_tiny --out DIR
    python benchmarks/models.py --group tiny             # big | edge | tiny
    python benchmarks/models.py --list

For each model: ``NAME.onnx``, ``NAME.inputs.npz`` (keys are the input names), ``NAME.expected.npz`` (PyTorch's own
float32 outputs; keys are the output names), and one entry in ``manifest.json``. Files are written under a temporary
name and renamed, so a model that is there is whole. Models that are there already are kept unless ``--force``.

Needs the packages of the `bench` extra: torch, transformers, onnxscript.

To add a model: a function that returns a `Model`, decorated with ``@model(group)``, here or in `models_tiny.py`.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import logging
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

HERE = Path(__file__).resolve().parent
DEFAULT_OUT = HERE / "models"
OPSET = 18
SEED = 1234


@dataclass
class Model:
    """A module in evaluation mode, its inputs by name in the order of `forward`, and the names of its outputs."""

    module: nn.Module
    inputs: dict[str, torch.Tensor]
    outputs: Sequence[str]


#: name -> (group, function)
REGISTRY: dict[str, tuple[str, Callable[[], Model]]] = {}


def model(group: str):
    """Register the decorated function under its own name."""

    def register(function: Callable[[], Model]):
        REGISTRY[function.__name__] = (group, function)
        return function

    return register


def build(name: str) -> Model:
    """The model `name`, with the same weights and inputs on every call."""
    import models_tiny  # noqa: F401  (registers the small versions)

    if name not in REGISTRY:
        raise SystemExit(f"no model {name!r}; there are: {', '.join(REGISTRY)}")
    torch.manual_seed(SEED)
    made = REGISTRY[name][1]()
    made.module.eval().requires_grad_(False)
    return made


class Fields(nn.Module):
    """A transformers model seen as a function from tensors to the named fields of its result."""

    def __init__(self, inner: nn.Module, arguments: Sequence[str], fields: Sequence[str], **fixed) -> None:
        super().__init__()
        self.inner, self.arguments, self.fields, self.fixed = inner, list(arguments), list(fields), fixed

    def forward(self, *tensors):
        result = self.inner(**dict(zip(self.arguments, tensors, strict=True)), **self.fixed)
        values = tuple(getattr(result, name) for name in self.fields)
        return values[0] if len(values) == 1 else values


def hf(inner: nn.Module, inputs: dict[str, torch.Tensor], outputs: Sequence[str], **fixed) -> Model:
    """A transformers model as a `Model`."""
    return Model(Fields(inner, list(inputs), outputs, **fixed), inputs, outputs)


def settle_batch_norms(module: nn.Module, sample: torch.Tensor) -> None:
    """Give batch norms statistics that fit the random weights, so that activations neither vanish nor explode."""
    norms = [m for m in module.modules() if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d))]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
        nn.init.uniform_(norm.weight, 0.7, 1.3)
        nn.init.normal_(norm.bias, 0.0, 0.1)
    module.eval()
    for norm in norms:
        norm.train()
    with torch.no_grad():
        module(sample)
    module.eval()


def token_ids(count: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (1, count))


# ---- the six of the speed comparison ----


def resnet(size: int, **config) -> Model:
    from transformers import ResNetConfig, ResNetForImageClassification

    inner = ResNetForImageClassification(ResNetConfig(num_labels=1000, **config))
    made = Fields(inner, ["pixel_values"], ["logits"])
    settle_batch_norms(made, torch.randn(4, 3, size, size))
    return Model(made, {"pixel_values": torch.randn(1, 3, size, size)}, ["logits"])


@model("big")
def bert_base() -> Model:
    from transformers import BertConfig, BertModel

    inner = BertModel(BertConfig(), add_pooling_layer=True)
    ids = token_ids(128, 30522)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    return hf(inner, inputs, ["last_hidden_state", "pooler_output"])


@model("big")
def resnet18() -> Model:
    return resnet(224, depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic")


@model("big")
def resnet50() -> Model:
    return resnet(224, depths=[3, 4, 6, 3], hidden_sizes=[256, 512, 1024, 2048], layer_type="bottleneck")


@model("big")
def vit_b16() -> Model:
    from transformers import ViTConfig, ViTForImageClassification

    inner = ViTForImageClassification(ViTConfig(num_labels=1000))
    return hf(inner, {"pixel_values": torch.randn(1, 3, 224, 224)}, ["logits"])


@model("big")
def gpt2_prefill() -> Model:
    from transformers import GPT2Config, GPT2LMHeadModel

    inner = GPT2LMHeadModel(GPT2Config())
    return hf(inner, {"input_ids": token_ids(128, 50257)}, ["logits"], use_cache=False)


@model("big")
def mobilenet_v2() -> Model:
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    config = MobileNetV2Config(num_labels=1000, depth_multiplier=1.0, image_size=224, tf_padding=False)
    made = Fields(MobileNetV2ForImageClassification(config), ["pixel_values"], ["logits"])
    settle_batch_norms(made, torch.randn(4, 3, 224, 224))
    return Model(made, {"pixel_values": torch.randn(1, 3, 224, 224)}, ["logits"])


# ---- models for microcontrollers (the shapes of MLPerf Tiny) ----


@model("edge")
def bert_two_layers() -> Model:
    """Two layers of BERT's base size, with a small vocabulary: what one would fetch for a page."""
    from transformers import BertConfig, BertModel

    ids = token_ids(128, 4096)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    inner = BertModel(BertConfig(num_hidden_layers=2, vocab_size=4096), add_pooling_layer=True)
    return hf(inner, inputs, ["last_hidden_state", "pooler_output"])


@model("edge")
def kws_dscnn() -> Model:
    """Depthwise-separable keyword spotter: 49x10 features, 64 channels, four blocks, 12 classes."""

    def unit(channels_in: int, channels_out: int, kernel, **options) -> list[nn.Module]:
        conv = nn.Conv2d(channels_in, channels_out, kernel, bias=False, **options)
        return [conv, nn.BatchNorm2d(channels_out), nn.ReLU()]

    layers = unit(1, 64, (10, 4), stride=(2, 2), padding=(5, 1))
    for _ in range(4):
        layers += unit(64, 64, 3, padding=1, groups=64) + unit(64, 64, 1)
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 12), nn.Softmax(-1))
    settle_batch_norms(module, torch.randn(4, 1, 49, 10))
    return Model(module, {"input": torch.randn(1, 1, 49, 10)}, ["scores"])


@model("edge")
def tiny_ae() -> Model:
    """Fully connected autoencoder: 640 values through a bottleneck of 8."""
    widths = [640, 128, 128, 128, 128, 8, 128, 128, 128, 128]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.BatchNorm1d(b), nn.ReLU()]
    module = nn.Sequential(*layers, nn.Linear(128, 640))
    settle_batch_norms(module, torch.randn(64, 640))
    return Model(module, {"input": torch.randn(1, 640)}, ["output"])


class ResidualPair(nn.Module):
    """Two 3x3 convolutions with a shortcut, as in the small ResNets for CIFAR."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, 1)
        self.norm1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, 1, 1)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride) if stride != 1 else nn.Identity()

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


@model("edge")
def tiny_resnet8() -> Model:
    """ResNet-8 for 32x32 colour images and 10 classes."""
    stem = [nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [ResidualPair(16, 16, 1), ResidualPair(16, 32, 2), ResidualPair(32, 64, 2)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10), nn.Softmax(-1)]
    module = nn.Sequential(*stem, *blocks, *head)
    settle_batch_norms(module, torch.randn(4, 3, 32, 32))
    return Model(module, {"input": torch.randn(1, 3, 32, 32)}, ["scores"])


@model("edge")
def tiny_mobilenet() -> Model:
    """MobileNetV1 with a quarter of its channels, for 96x96 colour images and two classes (is a person there?)."""

    def unit(channels_in: int, channels_out: int, kernel: int, **options) -> list[nn.Module]:
        conv = nn.Conv2d(channels_in, channels_out, kernel, padding=kernel // 2, bias=False, **options)
        return [conv, nn.BatchNorm2d(channels_out), nn.ReLU()]

    layers = unit(3, 8, 3, stride=2)
    widths = [8, 16, 32, 32, 64, 64, 128, 128, 128, 128, 128, 128, 256, 256]
    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1]
    for (a, b), stride in zip(itertools.pairwise(widths), strides, strict=True):
        layers += unit(a, a, 3, stride=stride, groups=a) + unit(a, b, 1)
    module = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 2), nn.Softmax(-1))
    settle_batch_norms(module, torch.randn(4, 3, 96, 96))
    return Model(module, {"input": torch.randn(1, 3, 96, 96)}, ["scores"])


# ---- export ----


def run(made: Model) -> list[torch.Tensor]:
    """PyTorch's own outputs."""
    with torch.no_grad():
        result = made.module(*made.inputs.values())
    return [result] if torch.is_tensor(result) else list(result)


def keep_translations() -> None:
    """PyTorch reads its table of translations to ONNX for each model, which takes half a second: here once."""
    from torch.onnx._internal.exporter import _registration

    registry = getattr(_registration, "ONNXRegistry", None)
    if hasattr(registry, "from_torchlib"):
        registry.from_torchlib = staticmethod(functools.cache(registry.from_torchlib))


def export(name: str, out: Path) -> dict:
    """Write the three files of one model; its entry for the manifest."""
    import onnx

    start = time.perf_counter()
    made = build(name)
    expected = run(made)
    if len(expected) != len(made.outputs):
        raise ValueError(f"{name} gives {len(expected)} outputs but names {len(made.outputs)}")
    program = torch.onnx.export(
        made.module,
        tuple(made.inputs.values()),
        dynamo=True,
        opset_version=OPSET,
        input_names=list(made.inputs),
        output_names=list(made.outputs),
        external_data=False,
        verbose=False,
    )
    assert program is not None
    arrays = {
        "inputs": {k: v.numpy() for k, v in made.inputs.items()},
        "expected": {k: v.numpy() for k, v in zip(made.outputs, expected, strict=True)},
    }
    for kind, values in arrays.items():
        part = out / f".{os.getpid()}.npz"
        np.savez(part, **values)
        part.replace(out / f"{name}.{kind}.npz")
    part = out / f".{os.getpid()}.onnx"
    program.save(str(part))
    path = out / f"{name}.onnx"
    part.replace(path)  # last: whoever sees the model sees its data too

    graph = onnx.load(path, load_external_data=False)
    return {
        "opset": next(o.version for o in graph.opset_import if o.domain in ("", "ai.onnx")),
        "nodes": len(graph.graph.node),
        "operators": dict(Counter(node.op_type for node in graph.graph.node).most_common()),
        "inputs": [value.name for value in graph.graph.input],
        "outputs": [value.name for value in graph.graph.output],
        "parameters": sum(p.numel() for p in made.module.parameters()),
        "megabytes": round(path.stat().st_size / 1e6, 2),
        "largest_output": [float(value.abs().max()) for value in expected],
        "seconds": round(time.perf_counter() - start, 1),
    }


def quiet() -> None:
    """Silence what the exporter says about packages that are not installed and its own future."""
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=RuntimeWarning)


def ensure(name: str, out: Path | str = DEFAULT_OUT, *, force: bool = False) -> Path:
    """The path of ``NAME.onnx`` under `out`, made now if it is not there."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.onnx"
    if path.exists() and not force:
        return path
    entry = export(name, out)
    manifest = out / "manifest.json"
    known = json.loads(manifest.read_text()) if manifest.exists() else {}
    known[name] = entry
    part = out / f".{os.getpid()}.json"
    part.write_text(json.dumps(known, indent=1) + "\n")
    part.replace(manifest)
    print(f"{name}: {entry['nodes']} nodes, {entry['megabytes']} MB, {entry['seconds']} s", flush=True)
    return path


def names(group: str | None = None) -> list[str]:
    """The models of one group, or all."""
    import models_tiny  # noqa: F401

    return [name for name, (g, _) in REGISTRY.items() if group in (None, g)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder for the files (default: %(default)s)")
    parser.add_argument("--models", default="", help="comma-separated names (default: all)")
    parser.add_argument("--group", choices=["big", "edge", "tiny"], help="only this group")
    parser.add_argument("--force", action="store_true", help="export again what is there")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    options = parser.parse_args()
    keep_translations()
    if options.list:
        print("\n".join(names(options.group)))
        return 0
    quiet()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    failed = []
    for name in options.models.split(",") if options.models else names(options.group):
        try:
            ensure(name, options.out, force=options.force)
        except Exception as error:  # one broken model must not keep the others from being made
            failed.append(name)
            print(f"{name}: {type(error).__name__}: {str(error)[:2000]}", file=sys.stderr, flush=True)
    if failed:
        print(f"could not export: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    # models_tiny imports this file as `models`: both must see one registry
    sys.path.insert(0, str(HERE))
    sys.modules["models"] = sys.modules["__main__"]
    sys.exit(main())
