"""Networks of images and spectrograms as one program for all sizes, beside programs made for each size and ONNX
Runtime.

    python benchmarks/open_images.py                          # one thread
    python benchmarks/open_images.py --only u-net

A residual network with open batch, height and width, one of depthwise convolutions, a U-Net (sizes by 8), and an
encoder of spectrograms as Whisper's with open batch and length, made here with weights drawn from a seed.
`open_race.py` says how they are timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from onnx_writer import Graph
from open_race import OpenModel, Shape, start

import tilewright as tw

BATCH = tw.Dim("batch", 1, 8)
IMAGE: Shape = (BATCH, 3, tw.Dim("height", 32, 256), tw.Dim("width", 32, 256))
EIGHTS: Shape = (BATCH, 3, tw.Dim("height", 32, 256, 8), tw.Dim("width", 32, 256, 8))
MELS, FRAMES = 80, tw.Dim("frames", 16, 1500)
#: sizes of calls: round ones and odd ones, small and large
IMAGES = (
    *((1, 32, 32), (1, 224, 224), (2, 97, 131), (4, 64, 64), (1, 255, 33), (8, 56, 56), (1, 33, 33), (1, 48, 64)),
    *((1, 100, 100), (1, 128, 128), (1, 160, 120), (1, 192, 256), (1, 256, 256), (2, 40, 200), (2, 64, 64)),
    *((3, 77, 91), (4, 112, 112), (5, 35, 35), (8, 32, 32), (8, 96, 128)),
)
BY_EIGHT = (
    *((1, 32, 32), (1, 128, 128), (2, 64, 96), (4, 40, 56), (1, 256, 200), (1, 40, 40), (1, 48, 64), (1, 64, 64)),
    *((1, 96, 96), (1, 104, 136), (1, 160, 120), (1, 192, 256), (1, 256, 256), (2, 32, 200), (2, 64, 64)),
    *((3, 72, 88), (4, 112, 112), (5, 32, 40), (8, 32, 32), (8, 96, 64)),
)
LENGTHS = (
    *((1, n) for n in (16, 17, 31, 50, 64, 100, 128, 200, 333, 500, 777, 1000, 1499, 1500)),
    *((2, 333), (2, 64), (3, 151), (4, 250), (8, 16), (8, 120)),
)


class Network(Graph):
    """With convolutions."""

    def conv(self, x: str, channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        each = channels // groups
        w = self.rng.standard_normal((filters, each, kernel, kernel)) * (2 / (each * kernel**2)) ** 0.5
        more = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": groups}
        return self.op("Conv", x, self.constant(w.astype(np.float32)), self.weight(filters), **more)

    def conv1(self, x: str, channels: int, filters: int, stride: int) -> str:
        w = self.rng.standard_normal((filters, channels, 3)) * (3 * channels) ** -0.5
        return self.op(
            "Conv", x, self.constant(w.astype(np.float32)), self.weight(filters), strides=[stride], pads=[1, 1]
        )

    def relu(self, x: str) -> str:
        return self.op("Relu", x)

    def head(self, x: str, channels: int) -> str:
        return self.linear(self.op("Flatten", self.op("GlobalAveragePool", x)), channels, 100)


def residual(g: Network) -> str:
    x, channels = g.relu(g.conv("x", 3, 32, 7, 2)), 32
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for filters, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
        y = g.conv(g.relu(g.conv(x, channels, filters, 3, stride)), filters, filters, 3)
        short = x if (stride, channels) == (1, filters) else g.conv(x, channels, filters, 1, stride)
        x, channels = g.relu(g.op("Add", y, short)), filters
    return g.head(x, channels)


def depthwise(g: Network) -> str:
    low, high = g.constant(np.float32(0)), g.constant(np.float32(6))
    x, channels = g.op("Clip", g.conv("x", 3, 16, 3, 2), low, high), 16
    for filters, stride in ((24, 2), (24, 1), (40, 2), (40, 1), (80, 2)):
        y = g.op("Clip", g.conv(x, channels, 4 * channels, 1), low, high)
        y = g.op("Clip", g.conv(y, 4 * channels, 4 * channels, 3, stride, 4 * channels), low, high)
        y = g.conv(y, 4 * channels, filters, 1)
        x, channels = (g.op("Add", x, y) if (stride, channels) == (1, filters) else y), filters
    return g.head(x, channels)


def unet(g: Network) -> str:
    def two(x: str, channels: int, filters: int) -> str:
        return g.relu(g.conv(g.relu(g.conv(x, channels, filters, 3)), filters, filters, 3))

    x, channels, before = "x", 3, []
    for filters in (16, 32, 64):
        x, channels = two(x, channels, filters), filters
        before.append((x, channels))
        x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x, channels = two(x, channels, 128), 128
    for skipped, filters in reversed(before):
        x = g.op("ConvTranspose", x, g.weight(channels, filters, 2, 2), strides=[2, 2])
        x, channels = two(g.op("Concat", skipped, x, axis=1), 2 * filters, filters), filters
    return g.conv(x, channels, 4, 1)


def whisper(g: Network) -> str:
    width, heads, inner = 128, 4, 512
    at = {i: g.ints(i) for i in (0, 1)}
    x = g.gelu(g.conv1(g.gelu(g.conv1("x", MELS, width, 1)), width, width, 2))
    x = g.op("Transpose", x, perm=(0, 2, 1))
    batch, length = (g.op("Gather", g.op("Shape", x), at[i]) for i in (0, 1))
    x = g.op("Add", x, g.op("Slice", g.weight(750, width), at[0], length, at[0]))
    split, joined = g.heads_apart(batch, length, width, heads)
    for _ in range(2):
        seen = g.self_attention(g.norm(x, width), split, joined, width, heads)
        x = g.op("Add", x, g.linear(seen, width, width))
        x = g.op("Add", x, g.linear(g.gelu(g.linear(g.norm(x, width), width, inner)), inner, width))
    return g.norm(x, width)


#: how to write it, the shape of its input, the rank of its output, sizes of calls
MODELS: dict[str, tuple[Callable[[Network], str], Shape, int, tuple[tuple[int, ...], ...]]] = {
    "residual network": (residual, IMAGE, 2, IMAGES),
    "depthwise network": (depthwise, IMAGE, 2, IMAGES),
    "U-Net": (unet, EIGHTS, 4, BY_EIGHT),
    "Whisper encoder": (whisper, (BATCH, MELS, FRAMES), 3, LENGTHS),
}


def model_of(name: str, seed: int) -> onnx.ModelProto:
    """x: f32 of the shape in MODELS -> y."""
    make, shape, rank, _ = MODELS[name]
    g = Network(np.random.default_rng(seed))
    g.op("Identity", make(g), output="y")
    dims = [d.name if isinstance(d, tw.Dim) else d for d in shape]
    return g.model({"x": dims}, {"y": [f"y{i}" for i in range(rank)]})


def models(seed: int) -> Iterator[OpenModel]:
    rng = np.random.default_rng(seed)
    for name, (_, shape, _, sizes) in MODELS.items():
        calls = []
        for size in sizes:
            given = iter(size)
            dims = [next(given) if isinstance(d, tw.Dim) else d for d in shape]
            calls.append((" x ".join(map(str, size)), {"x": rng.standard_normal(dims, np.float32)}))
        yield OpenModel(name, model_of(name, seed), {"x": shape}, calls)


if __name__ == "__main__":
    start(models, "open_images", "Sizes are batch x height x width, or batch x frames.")
