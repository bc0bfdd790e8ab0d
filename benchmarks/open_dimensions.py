"""One program for all sizes of open dimensions, beside programs made for each size and ONNX Runtime.

    python benchmarks/open_dimensions.py                                  # one thread
    python benchmarks/open_dimensions.py --threads 2 --name open_dimensions_2

Encoders of transformers with open batch and length, made here with weights drawn from a seed: token and position
embeddings, a mask, attention, GELU, layer norms. Each is compiled once with open dimensions, once for every size, and
given to ONNX Runtime with its dynamic axes. All run in one process, by turns in short bursts; a ratio is of medians.
Results are compared with ONNX Runtime's.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import onnxruntime
import typer
from bench import HERE, grid, machine, write
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw

#: (width, heads, inner width, layers)
MODELS = {"small encoder": (256, 4, 1024, 4), "base encoder": (768, 12, 3072, 2)}
BATCH, LENGTH = tw.Dim("batch", 1, 16), tw.Dim("seq", 1, 512)
#: sizes of calls: round ones, primes, one row, the largest length
SIZES = ((1, 16), (1, 17), (1, 31), (1, 64), (1, 128), (1, 512), (2, 48), (2, 97), (4, 100), (8, 64), (16, 5), (1, 1))
TOKENS = 1000
#: the largest error relative to the largest result
ALLOWED = 1e-4


@dataclass
class Graph:
    """The nodes and weights of a model as it is written."""

    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) * 0.1).astype(np.float32))

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def linear(self, x: str, rows: int, columns: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(rows, columns)), self.weight(columns))

    def norm(self, x: str, width: int) -> str:
        return self.op("LayerNormalization", x, self.weight(width), self.weight(width), axis=-1)


def encoder(width: int, heads: int, inner: int, layers: int, seed: int) -> onnx.ModelProto:
    """ids, mask: i64[batch, seq] -> f32[batch, seq, width]."""
    g = Graph(np.random.default_rng(seed))
    number = {n: g.constant(np.array(n, np.float32)) for n in (1.0, 0.5, 2**0.5, 1e4)}
    at = {i: g.constant(np.array([i], np.int64)) for i in (0, 1)}
    shape = g.op("Shape", "ids")
    batch, length = (g.op("Gather", shape, at[i]) for i in (0, 1))
    places = g.op("Range", g.constant(np.int64(0)), g.op("Squeeze", length), g.constant(np.int64(1)))
    tokens = g.op("Gather", g.weight(TOKENS, width), "ids")
    x = g.op("Add", tokens, g.op("Gather", g.weight(LENGTH.high, width), places))
    hidden = g.op("Mul", g.op("Sub", g.op("Cast", "mask", to=TensorProto.FLOAT), number[1.0]), number[1e4])
    mask = g.op("Unsqueeze", hidden, g.constant(np.array([1, 2], np.int64)))
    split = g.op("Concat", batch, length, g.constant(np.array([heads, width // heads], np.int64)), axis=0)
    joined = g.op("Concat", batch, length, g.constant(np.array([width], np.int64)), axis=0)
    for _ in range(layers):
        q, k, v = (g.op("Reshape", g.linear(x, width, width), split) for _ in range(3))
        q, v, k = (g.op("Transpose", t, perm=p) for t, p in ((q, (0, 2, 1, 3)), (v, (0, 2, 1, 3)), (k, (0, 2, 3, 1))))
        scores = g.op("Div", g.op("MatMul", q, k), g.constant(np.float32(math.sqrt(width // heads))))
        seen = g.op("MatMul", g.op("Softmax", g.op("Add", scores, mask), axis=-1), v)
        seen = g.op("Reshape", g.op("Transpose", seen, perm=(0, 2, 1, 3)), joined)
        x = g.norm(g.op("Add", x, g.linear(seen, width, width)), width)
        f = g.linear(x, width, inner)
        gelu = g.op("Add", g.op("Erf", g.op("Div", f, number[2**0.5])), number[1.0])
        gelu = g.op("Mul", g.op("Mul", f, gelu), number[0.5])
        x = g.norm(g.op("Add", x, g.linear(gelu, inner, width)), width)
    g.nodes.append(helper.make_node("Identity", [x], ["y"]))
    graph = helper.make_graph(
        g.nodes,
        "encoder",
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "seq"]) for n in ("ids", "mask")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", "seq", width])],
        [numpy_helper.from_array(a, n) for n, a in g.weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def race(runs: dict[str, Callable[[], Any]], turns: int, burst: float) -> dict[str, float]:
    """The median milliseconds of each, by turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns):
        for name in list(runs)[:: 1 if turn % 2 else -1]:
            runs[name]()
            end = time.perf_counter() + burst
            while time.perf_counter() < end:
                begin = time.perf_counter()
                runs[name]()
                times[name].append(time.perf_counter() - begin)
    return {name: statistics.median(t) * 1e3 for name, t in times.items()}


def measure(name: str, threads: int, turns: int, burst: float, seed: int) -> dict[str, Any]:
    """A model at all sizes."""
    model = encoder(*MODELS[name], seed)
    begin = time.perf_counter()
    shape = (BATCH, LENGTH)
    run = tw.compile(model, inputs={"ids": shape, "mask": shape}, threads=threads, cache=False)
    found: dict[str, Any] = {"model": name, "compile_s": time.perf_counter() - begin, "sizes": []}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    ort = onnxruntime.InferenceSession(model.SerializeToString(), options)
    rng = np.random.default_rng(seed)
    for batch, length in SIZES:
        feeds = {"ids": rng.integers(0, TOKENS, (batch, length)), "mask": np.ones((batch, length), np.int64)}
        feeds["mask"][:, length - length // 4 :] = 0
        begin = time.perf_counter()
        (y,) = run(feeds)
        first = time.perf_counter() - begin
        begin = time.perf_counter()
        run(feeds)
        second = time.perf_counter() - begin
        (expected,) = ort.run(None, feeds)
        fixed = {n: a.shape for n, a in feeds.items()}
        special = tw.compile(model, inputs=fixed, threads=threads, cache=False)
        runs = {"open": partial(run, feeds), "fixed": partial(special, feeds), "ort": partial(ort.run, None, feeds)}
        ms = race(runs, turns, burst)
        error = float(np.abs(y - expected).max() / np.abs(expected).max())
        found["sizes"].append({"batch": batch, "seq": length, **ms, "extra_ms": (first - second) * 1e3, "error": error})
        print(f"{name} {batch} x {length}: " + ", ".join(f"{k} {v:.3f} ms" for k, v in ms.items()), flush=True)
        if not error <= ALLOWED:
            raise SystemExit(f"wrong: error {error}")
    return found


def mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def markdown(report: dict[str, Any]) -> str:
    """The report as tables."""
    m = report["machine"]
    lines = [
        f"{m['cpu']}, {m['cores']} cores, {report['threads']} threads, ONNX Runtime {report['onnxruntime']}.",
        f"Open: one program for batch {BATCH.low} to {BATCH.high}, seq {LENGTH.low} to {LENGTH.high}. "
        "Fixed: a program for each size.",
    ]
    every: list[dict[str, Any]] = []
    for model in report["models"]:
        heads = "batch x seq, open (ms), fixed, ONNX Runtime, open / fixed, open / ORT, first call more (ms)"
        rows = [heads.split(", ")]
        for s in model["sizes"]:
            every.append(s)
            rows.append(
                [
                    f"{s['batch']} x {s['seq']}",
                    *(f"{s[k]:.3f}" for k in ("open", "fixed", "ort")),
                    *(f"{s['open'] / s[k]:.2f}" for k in ("fixed", "ort")),
                    f"{s['extra_ms']:.2f}",
                ]
            )
        lines += ["", f"## {model['model']} (compiled in {model['compile_s']:.1f} s)", "", *grid(rows)]
    to = {k: mean([s["open"] / s[k] for s in every]) for k in ("fixed", "ort")}
    worst = {k: max(s["open"] / s[k] for s in every) for k in ("fixed", "ort")}
    lines += [
        "",
        f"Geometric mean: {to['fixed']:.3f} of the programs made for each size (worst {worst['fixed']:.2f}), "
        f"{to['ort']:.3f} of ONNX Runtime (worst {worst['ort']:.2f}).",
        f"Largest error {max(s['error'] for s in every):.1e}; a first call takes at most "
        f"{max(s['extra_ms'] for s in every):.2f} ms more than the second.",
    ]
    return "\n".join(lines) + "\n"


def main(
    threads: Annotated[int, typer.Option(help="Threads of every runtime.")] = 1,
    turns: Annotated[int, typer.Option(help="Turns of each runtime.")] = 5,
    burst: Annotated[float, typer.Option(help="Seconds of a turn.")] = 0.1,
    seed: Annotated[int, typer.Option(help="Of the weights.")] = 1,
    name: Annotated[str, typer.Option(help="Name of the result files.")] = "open_dimensions",
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = HERE / "results",
) -> None:
    """Race programs with open dimensions against programs for each size and ONNX Runtime."""
    report: dict[str, Any] = {"machine": machine(), "onnxruntime": onnxruntime.__version__, "threads": threads}
    report["models"] = [measure(m, threads, turns, burst, seed) for m in MODELS]
    write(results / f"{name}.json", json.dumps(report, indent=1) + "\n")
    write(results / f"{name}.md", markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    typer.run(main)
