"""Quantized PyTorch modules: eager PyTorch, inductor (with its freezing of weights) and Tilewright by turns.

    python benchmarks/torch_quantized.py [--rounds 15] [--threads 1] [--rows 1,32]

A feed-forward block (1024, 4096, 1024) whose weights torchao quantizes in several ways, and a small convolutional
network quantized by pt2e. CPU time of a call, the smallest of all rounds; the largest difference from eager relative to
the largest result. Needs torchao.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torchao.quantization import (
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    IntxWeightOnlyConfig,
    quantize_,
)
from torchao.quantization.granularity import PerGroup
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

import tilewright as tw

#: seconds that the calls of one turn take together, about
TURN = 0.02


def feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).eval()


def network() -> nn.Module:
    """Convolutions of 32 to 128 channels with batch normalization, and a linear layer."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(128, 10)).eval()


def weights_of(config: Any) -> Callable[[torch.Tensor], nn.Module]:
    def make(x: torch.Tensor) -> nn.Module:
        module = feed_forward()
        if config is not None:
            quantize_(module, config)
        return module

    return make


def by_pt2e(dynamic: bool) -> Callable[[torch.Tensor], nn.Module]:
    def make(x: torch.Tensor) -> nn.Module:
        quantizer = x86.X86InductorQuantizer()
        quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_dynamic=dynamic))
        module = feed_forward() if x.dim() == 2 else network()
        prepared = prepare_pt2e(torch.export.export(module, (x,)).module(), quantizer)
        for _ in range(4):
            prepared(torch.randn_like(x))
        return convert_pt2e(prepared)

    return make


def cases(rows: list[int]) -> dict[str, tuple[Callable[[torch.Tensor], nn.Module], torch.Tensor]]:
    found = {}
    for m in rows:
        x = torch.randn(m, 1024)
        found |= {
            f"f32, {m} rows": (weights_of(None), x),
            f"int8 weights, {m} rows": (weights_of(Int8WeightOnlyConfig()), x),
            f"int4 weights by 32, {m} rows": (
                weights_of(IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(32))), x
            ),
            f"8da8w, {m} rows": (weights_of(Int8DynamicActivationInt8WeightConfig()), x),
            f"pt2e dynamic, {m} rows": (by_pt2e(True), x),
        }  # fmt: skip
    found["pt2e network"] = (by_pt2e(False), torch.randn(1, 3, 32, 32))
    return found


def race(runs: dict[str, Callable], x: torch.Tensor, rounds: int) -> dict[str, float]:
    """The smallest CPU seconds of a call of each, by turns."""
    best, count = dict.fromkeys(runs, float("inf")), {}
    for name, run in runs.items():
        run(x)
        begin = time.process_time()
        run(x)
        count[name] = max(1, int(TURN / max(time.process_time() - begin, 1e-6)))
    for _ in range(rounds):
        for name, run in runs.items():
            begin = time.process_time()
            for _ in range(count[name]):
                run(x)
            best[name] = min(best[name], (time.process_time() - begin) / count[name])
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", default="1,32")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    torch._inductor.config.freezing = True
    print("| module | eager, us | inductor, us | ours, us | ours to inductor | apart from eager |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, (make, x) in cases([int(m) for m in given.rows.split(",")]).items():
        torch.manual_seed(0)
        torch._dynamo.reset()
        module = make(x)
        with torch.no_grad():
            runs = {
                "eager": module,
                "inductor": torch.compile(copy.deepcopy(module)),
                "ours": tw.compile(module, (x,), threads=given.threads),
            }
            want = module(x)
            apart = ((runs["ours"](x) - want).abs().max() / want.abs().max()).item()
            best = {k: s * 1e6 for k, s in race(runs, x, given.rounds).items()}
        ratio, times = best["ours"] / best["inductor"], " | ".join(f"{s:.0f}" for s in best.values())
        print(f"| {name} | {times} | {ratio:.2f} | {apart:.1e} |")


if __name__ == "__main__":
    main()
