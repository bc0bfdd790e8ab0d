"""Training through ``torch.compile(backend="tilewright")`` against eager PyTorch and inductor.

    python benchmarks/torch_training.py [--steps 50] [--threads 1] [--backends eager,tilewright,inductor]

A small ResNet and a small transformer are trained from equal weights on equal batches of random data; all contenders do
the same step before any does the next, so that what else the machine does meets all of them. Printed are the largest
difference of the losses from eager's, the fastest and the median step. Then a tiny model is called without gradients,
which shows what a call costs.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tilewright.compat.torch_backend import backend


class Block(nn.Module):
    """Two convolutions and what goes around them (He et al., 2015)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        plain = inputs == outputs and stride == 1
        self.around = (
            nn.Identity()
            if plain
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.around(x))


def resnet() -> nn.Module:
    """ResNet for images of 32 x 32: 16, 32 and 64 channels, one block each."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


class Transformer(nn.Module):
    """A decoder of two layers: 128 wide, 4 heads, 256 words."""

    def __init__(self, width: int = 128, heads: int = 4, layers: int = 2, words: int = 256, length: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict({
                "norm1": nn.LayerNorm(width), "norm2": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width),
                "out": nn.Linear(width, width), "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width),
            })
            for _ in range(layers)
        )  # fmt: skip
        self.norm, self.head, self.heads = nn.LayerNorm(width), nn.Linear(width, words), heads

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for m in self.layers:
            q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in m["qkv"](m["norm1"](x)).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + m["out"](y.transpose(1, 2).flatten(2))
            x = x + m["down"](F.gelu(m["up"](m["norm2"](x))))
        return self.head(self.norm(x))


def batches(name: str, steps: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Inputs and labels of every step, which repeat so that there is something to learn."""
    made = torch.Generator().manual_seed(1)
    if name == "resnet":
        few = [(torch.randn(16, 3, 32, 32, generator=made), torch.randint(0, 10, (16,), generator=made))] * 4
    else:
        ids = [torch.randint(0, 256, (8, 65), generator=made) for _ in range(4)]
        few = [(i[:, :-1].contiguous(), i[:, 1:].flatten()) for i in ids]
    return [few[i % 4] for i in range(steps)]


def compiled(module: nn.Module, contender: str, threads: int) -> Callable:
    if contender == "eager":
        return module
    if contender == "inductor":
        return torch.compile(module)
    return torch.compile(module, backend=backend, options={"threads": threads})


def train(
    name: str, make: Callable[[], nn.Module], contenders: list[str], steps: int, threads: int, rate: float
) -> None:
    torch.manual_seed(0)
    first = make()
    modules = {c: copy.deepcopy(first) for c in contenders}
    runs = {c: compiled(m, c, threads) for c, m in modules.items()}
    steppers = {c: torch.optim.SGD(m.parameters(), rate, momentum=0.9) for c, m in modules.items()}
    losses: dict[str, list[float]] = {c: [] for c in contenders}
    seconds: dict[str, list[float]] = {c: [] for c in contenders}
    for x, label in batches(name, steps):
        for c in contenders:
            begin = time.perf_counter()
            steppers[c].zero_grad(set_to_none=True)
            loss = F.cross_entropy(runs[c](x).flatten(0, -2), label)
            loss.backward()
            steppers[c].step()
            seconds[c].append(time.perf_counter() - begin)
            losses[c].append(loss.item())
    eager = losses[contenders[0]]
    print(f"{name}: loss {eager[0]:.4f} -> {eager[-1]:.4f}")
    for c in contenders:
        apart = max(abs(a - b) for a, b in zip(losses[c], eager, strict=True))
        rest = seconds[c][3:]
        best, middle = min(rest), statistics.median(rest)
        ratio = middle / statistics.median(seconds[contenders[0]][3:])
        print(
            f"  {c:11} first step {seconds[c][0]:6.2f} s, best {best * 1e3:7.2f} ms, median {middle * 1e3:7.2f} ms "
            f"({ratio:.2f} of {contenders[0]}), losses at most {apart:.1e} apart"
        )


def calls(contenders: list[str], threads: int, repeats: int = 2000) -> None:
    """Microseconds of a call of a tiny model."""
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), torch.randn(2, 8)
    runs = {c: compiled(copy.deepcopy(module), c, threads) for c in contenders}
    best = dict.fromkeys(contenders, float("inf"))
    with torch.no_grad():
        for _ in range(repeats // 100):
            for c, run in runs.items():
                run(x)
                begin = time.perf_counter()
                for _ in range(100):
                    run(x)
                best[c] = min(best[c], (time.perf_counter() - begin) / 100)
    print("a call: " + ", ".join(f"{c} {s * 1e6:.1f} us" for c, s in best.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backends", default="eager,tilewright,inductor")
    parser.add_argument("--models", default="resnet,transformer,call")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    contenders = given.backends.split(",")
    models = given.models.split(",")
    if "resnet" in models:
        train("resnet", resnet, contenders, given.steps, given.threads, 0.01)
    if "transformer" in models:
        train("transformer", Transformer, contenders, given.steps, given.threads, 0.05)
    if "call" in models:
        calls(contenders, given.threads)


if __name__ == "__main__":
    main()
