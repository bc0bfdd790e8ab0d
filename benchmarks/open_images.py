"""One program for all image sizes and lengths, beside programs made for each size and ONNX Runtime.

    python benchmarks/open_images.py                          # one thread, two minutes or so on a machine of its own

A residual network with open batch, height and width, one of depthwise convolutions, a U-Net (sizes by 8), and an
encoder of spectrograms as Whisper's with open batch and length, made here with weights drawn from a seed. Timing and
the form of the results are those of `open_dimensions.py`.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from bench import HERE, grid, machine, write
from onnx import TensorProto, helper, numpy_helper
from open_dimensions import ALLOWED, Graph, mean, race

import tilewright as tw

Shape = tuple[int | tw.Dim, ...]
BATCH = tw.Dim("batch", 1, 8)
IMAGE: Shape = (BATCH, 3, tw.Dim("height", 32, 256), tw.Dim("width", 32, 256))
EIGHTS: Shape = (BATCH, 3, tw.Dim("height", 32, 256, 8), tw.Dim("width", 32, 256, 8))
MELS, LENGTH = 80, tw.Dim("frames", 16, 1500)
#: sizes of calls: round ones and odd ones, small and large
IMAGES = ((1, 32, 32), (1, 224, 224), (2, 97, 131), (4, 64, 64), (1, 255, 33), (8, 56, 56))
BY_EIGHT = ((1, 32, 32), (1, 128, 128), (2, 64, 96), (4, 40, 56), (1, 256, 200))
LENGTHS = ((1, 16), (1, 100), (2, 333), (1, 1500), (4, 250), (1, 777))


class Network(Graph):
    """With convolutions."""

    def conv(self, x: str, channels: int, filters: int, kernel: int, stride: int = 1, groups: int = 1) -> str:
        each = channels // groups
        w = self.rng.standard_normal((filters, each, kernel, kernel)) * (2 / (each * kernel**2)) ** 0.5
        more = {"strides": [stride] * 2, "pads": [kernel // 2] * 4, "group": groups}
        return self.op("Conv", x, self.constant(w.astype(np.float32)), self.weight(filters), **more)

    def conv1(self, x: str, channels: int, filters: int, stride: int) -> str:
        w = self.constant(
            (self.rng.standard_normal((filters, channels, 3)) * (3 * channels) ** -0.5).astype(np.float32)
        )
        return self.op("Conv", x, w, self.weight(filters), strides=[stride], pads=[1, 1])

    def relu(self, x: str) -> str:
        return self.op("Relu", x)

    def gelu(self, x: str) -> str:
        root, one, half = (self.constant(np.float32(n)) for n in (2**0.5, 1, 0.5))
        return self.op("Mul", self.op("Mul", x, self.op("Add", self.op("Erf", self.op("Div", x, root)), one)), half)

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
    at = {i: g.constant(np.array([i], np.int64)) for i in (0, 1)}
    x = g.gelu(g.conv1(g.gelu(g.conv1("x", MELS, width, 1)), width, width, 2))
    x = g.op("Transpose", x, perm=(0, 2, 1))
    batch, length = (g.op("Gather", g.op("Shape", x), at[i]) for i in (0, 1))
    x = g.op("Add", x, g.op("Slice", g.weight(750, width), at[0], length, at[0]))
    split = g.op("Concat", batch, length, g.constant(np.array([heads, width // heads], np.int64)), axis=0)
    joined = g.op("Concat", batch, length, g.constant(np.array([width], np.int64)), axis=0)
    for _ in range(2):
        h = g.norm(x, width)
        q, k, v = (g.op("Reshape", g.linear(h, width, width), split) for _ in range(3))
        q, v, k = (g.op("Transpose", t, perm=p) for t, p in ((q, (0, 2, 1, 3)), (v, (0, 2, 1, 3)), (k, (0, 2, 3, 1))))
        scores = g.op("Div", g.op("MatMul", q, k), g.constant(np.float32(math.sqrt(width // heads))))
        seen = g.op("Transpose", g.op("MatMul", g.op("Softmax", scores, axis=-1), v), perm=(0, 2, 1, 3))
        x = g.op("Add", x, g.linear(g.op("Reshape", seen, joined), width, width))
        x = g.op("Add", x, g.linear(g.gelu(g.linear(g.norm(x, width), width, inner)), inner, width))
    return g.norm(x, width)


MODELS: dict[str, tuple[Callable[[Network], str], Shape, tuple[tuple[int, ...], ...]]] = {
    "residual network": (residual, IMAGE, IMAGES),
    "depthwise network": (depthwise, IMAGE, IMAGES),
    "U-Net": (unet, EIGHTS, BY_EIGHT),
    "Whisper encoder": (whisper, (BATCH, MELS, LENGTH), LENGTHS),
}


def model_of(name: str, seed: int) -> onnx.ModelProto:
    """x: f32 of the shape in MODELS -> y."""
    make, shape, _ = MODELS[name]
    g = Network(np.random.default_rng(seed))
    y = make(g)
    dims = [d.name if isinstance(d, tw.Dim) else d for d in shape]
    rank = {"residual network": 2, "depthwise network": 2}.get(name, len(shape))
    graph = helper.make_graph(
        [*g.nodes, helper.make_node("Identity", [y], ["y"])],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(a, n) for n, a in g.weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measure(name: str, threads: int, turns: int, burst: float, seed: int) -> dict[str, Any]:
    """A model at all sizes."""
    model, (_, shape, sizes) = model_of(name, seed), MODELS[name]
    begin = time.perf_counter()
    run = tw.compile(model, inputs={"x": shape}, threads=threads, cache=False)
    found: dict[str, Any] = {"model": name, "compile_s": time.perf_counter() - begin, "sizes": []}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    ort = onnxruntime.InferenceSession(model.SerializeToString(), options)
    rng = np.random.default_rng(seed)
    for size in sizes:
        given = iter(size)
        dims = [next(given) if isinstance(d, tw.Dim) else d for d in shape]
        feeds = {"x": rng.standard_normal(dims).astype(np.float32)}
        (y,), (expected,) = run(feeds), ort.run(None, feeds)
        special = tw.compile(model, inputs={"x": tuple(dims)}, threads=threads, cache=False)
        runs = {"open": partial(run, feeds), "fixed": partial(special, feeds), "ort": partial(ort.run, None, feeds)}
        ms = race(runs, turns, burst)
        error = float(np.abs(y - expected).max() / np.abs(expected).max())
        found["sizes"].append({"size": " x ".join(map(str, size)), **ms, "error": error})
        print(f"{name} {size}: " + ", ".join(f"{k} {v:.3f} ms" for k, v in ms.items()), flush=True)
        if not error <= ALLOWED:
            raise SystemExit(f"wrong: error {error}")
    return found


def markdown(report: dict[str, Any]) -> str:
    """The report as tables."""
    m = report["machine"]
    lines = [
        f"{m['cpu']}, {m['cores']} cores, {report['threads']} threads, ONNX Runtime {report['onnxruntime']}.",
        "Open: one program for all sizes. Fixed: a program for each size.",
    ]
    for model in report["models"]:
        rows = [["size", "open (ms)", "fixed", "ONNX Runtime", "open / fixed", "open / ORT"]]
        for s in model["sizes"]:
            times = [f"{s[k]:.3f}" for k in ("open", "fixed", "ort")]
            rows.append([s["size"], *times, *(f"{s['open'] / s[k]:.2f}" for k in ("fixed", "ort"))])
        to = {k: mean([s["open"] / s[k] for s in model["sizes"]]) for k in ("fixed", "ort")}
        lines += ["", f"## {model['model']} (compiled in {model['compile_s']:.1f} s)", "", *grid(rows)]
        lines += ["", f"Geometric mean: {to['fixed']:.3f} of fixed, {to['ort']:.3f} of ONNX Runtime."]
    return "\n".join(lines) + "\n"


def main(
    threads: Annotated[int, typer.Option(help="Threads of every runtime.")] = 1,
    turns: Annotated[int, typer.Option(help="Turns of each runtime.")] = 5,
    burst: Annotated[float, typer.Option(help="Seconds of a turn.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the weights.")] = 1,
    only: Annotated[str, typer.Option(help="A part of the names of the models to run.")] = "",
    name: Annotated[str, typer.Option(help="Name of the result files.")] = "open_images",
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = HERE / "results",
) -> None:
    """Race programs with open image sizes against programs for each size and ONNX Runtime."""
    report: dict[str, Any] = {"machine": machine(), "onnxruntime": onnxruntime.__version__, "threads": threads}
    report["models"] = [measure(m, threads, turns, burst, seed) for m in MODELS if only.lower() in m.lower()]
    write(results / f"{name}.json", json.dumps(report, indent=1) + "\n")
    write(results / f"{name}.md", markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    typer.run(main)
