"""A decoder that appends to its cache, as one program for all lengths, beside programs made for each length and ONNX
Runtime.

    python benchmarks/open_decoder.py                                  # one thread
    python benchmarks/open_decoder.py --threads 2 --name open_decoder_2

Decoders like Llama, made here with weights drawn from a seed: RMSNorm, rotary embedding, keys and values shared by
groups of queries, SwiGLU. Past keys and values are inputs, these and the new ones outputs. Each is compiled once with
an open length, once for every length, and given to ONNX Runtime with its dynamic axes. All run in one process, by turns
in short bursts; a ratio is of medians. Results are compared with those of ONNX Runtime.
"""

from __future__ import annotations

import json
import time
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

#: (width, heads, heads of keys and values, inner width, layers)
MODELS = {"small decoder": (256, 4, 2, 768, 4), "base decoder": (512, 8, 4, 1536, 6)}
PAST = tw.Dim("past", 1, 1024)
#: lengths of the cache: the smallest and the largest, round ones and primes
LENGTHS = (1, 2, 5, 8, 16, 17, 31, 64, 100, 127, 128, 200, 256, 311, 400, 512, 613, 768, 1000, 1024)
TOKENS = 1000
#: ways to keep the cache between tokens
GENERATED = {"states": "caches as states that grow", "open": "caches as inputs and outputs", "ort": "ONNX Runtime"}


class Decoder(Graph):
    """The nodes of a decoder; `number` makes constants once."""

    def number(self, value: Any, dtype: Any = np.float32) -> str:
        return self.constant(np.array(value, dtype))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def rms_norm(self, x: str, width: int) -> str:
        square = self.op("ReduceMean", self.op("Pow", x, self.number(2.0)), axes=[-1], keepdims=1)
        scale = self.op("Reciprocal", self.op("Sqrt", self.op("Add", square, self.number(1e-6))))
        return self.op("Mul", self.weight(width), self.op("Mul", x, scale))

    def product(self, x: str, rows: int, columns: int) -> str:
        return self.op("MatMul", x, self.weight(rows, columns))

    def rotary(self, x: str, cos: str, sin: str, depth: int) -> str:
        low = self.op("Slice", x, self.ints(0), self.ints(depth // 2), self.ints(3))
        high = self.op("Slice", x, self.ints(depth // 2), self.ints(2**63 - 1), self.ints(3))
        turned = self.op("Concat", self.op("Neg", high), low, axis=-1)
        return self.op("Add", self.op("Mul", x, cos), self.op("Mul", turned, sin))


def decoder(width: int, heads: int, shared: int, inner: int, layers: int, seed: int) -> onnx.ModelProto:
    """ids: i64[batch, seq], past_k0 ...: f32[batch, shared, past, depth] -> y: f32[batch, seq, TOKENS], and the keys
    and values of all positions, present_k0 ...: f32[batch, shared, past + seq, depth]."""
    g = Decoder(np.random.default_rng(seed))
    depth = width // heads
    at = {i: g.ints(i) for i in range(4)}
    zero, one = g.number(0, np.int64), g.number(1, np.int64)
    shape = g.op("Shape", "ids")
    batch, new = (g.op("Gather", shape, at[i]) for i in (0, 1))
    past = g.op("Gather", g.op("Shape", "past_k0"), at[2])
    total = g.op("Add", past, new)
    places = g.op("Range", g.op("Squeeze", past), g.op("Squeeze", total), one)
    keys = g.op("Range", zero, g.op("Squeeze", total), one)
    seen = g.op("LessOrEqual", keys, g.op("Unsqueeze", places, g.ints(1)))
    mask = g.op("Where", seen, g.number(0.0), g.number(np.finfo(np.float32).min))
    frequencies = g.constant((1e4 ** -(np.arange(0, depth, 2) / depth)).astype(np.float32)[None])
    angles = g.op("Mul", g.op("Unsqueeze", g.op("Cast", places, to=TensorProto.FLOAT), g.ints(1)), frequencies)
    angles = g.op("Concat", angles, angles, axis=-1)
    cos, sin = g.op("Cos", angles), g.op("Sin", angles)
    split = {h: g.op("Concat", batch, new, g.ints(h, depth), axis=0) for h in {heads, shared}}
    joined = g.op("Concat", batch, new, g.ints(width), axis=0)
    repeated = g.op("Concat", batch, g.ints(shared, heads // shared), total, g.ints(depth), axis=0)
    merged = g.op("Concat", batch, g.ints(heads), total, g.ints(depth), axis=0)
    x = g.op("Gather", g.weight(TOKENS, width), "ids")
    for i in range(layers):
        h = g.rms_norm(x, width)
        q, k, v = (g.op("Reshape", g.product(h, width, n * depth), split[n]) for n in (heads, shared, shared))
        q, k, v = (g.op("Transpose", t, perm=(0, 2, 1, 3)) for t in (q, k, v))
        q, k = (g.rotary(t, cos, sin, depth) for t in (q, k))
        for kind, t in (("k", k), ("v", v)):
            g.nodes.append(helper.make_node("Concat", [f"past_{kind}{i}", t], [f"present_{kind}{i}"], axis=2))
        k, v = (
            g.op("Reshape", g.op("Expand", g.op("Unsqueeze", f"present_{kind}{i}", at[2]), repeated), merged)
            for kind in "kv"
        )
        scores = g.op("MatMul", q, g.op("Transpose", k, perm=(0, 1, 3, 2)))
        scores = g.op("Add", g.op("Mul", scores, g.number(depth**-0.5)), mask)
        out = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
        out = g.op("Reshape", g.op("Transpose", out, perm=(0, 2, 1, 3)), joined)
        x = g.op("Add", x, g.product(out, width, width))
        h = g.rms_norm(x, width)
        gate, up = g.product(h, width, inner), g.product(h, width, inner)
        x = g.op("Add", x, g.product(g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up), inner, width))
    g.nodes.append(helper.make_node("MatMul", [g.rms_norm(x, width), g.weight(width, TOKENS)], ["y"]))
    caches = [f"{kind}{i}" for i in range(layers) for kind in "kv"]

    def floats(name: str, *dims: str | int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)

    graph = helper.make_graph(
        g.nodes,
        "decoder",
        [
            helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "seq"]),
            *(floats(f"past_{c}", "batch", shared, "past", depth) for c in caches),
        ],
        [
            floats("y", "batch", "seq", TOKENS),
            *(floats(f"present_{c}", "batch", shared, "total", depth) for c in caches),
        ],
        [numpy_helper.from_array(a, n) for n, a in g.weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def shapes(name: str, past: Any) -> dict[str, tuple[Any, ...]]:
    """The shapes of the inputs for one token after a cache of this length."""
    width, heads, shared, _, layers = MODELS[name]
    cache = (1, shared, past, width // heads)
    return {"ids": (1, 1), **{f"past_{kind}{i}": cache for i in range(layers) for kind in "kv"}}


def measure(name: str, threads: int, turns: int, burst: float, seed: int) -> dict[str, Any]:
    """A model at all lengths."""
    model = decoder(*MODELS[name], seed)
    begin = time.perf_counter()
    run = tw.compile(model, inputs=shapes(name, PAST), threads=threads, cache=False)
    found: dict[str, Any] = {"model": name, "compile_s": time.perf_counter() - begin, "sizes": []}
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    ort = onnxruntime.InferenceSession(model.SerializeToString(), options)
    rng = np.random.default_rng(seed)
    for past in LENGTHS:
        fixed = shapes(name, past)
        feeds = {n: rng.standard_normal(s, np.float32) for n, s in fixed.items() if n != "ids"}
        feeds["ids"] = rng.integers(0, TOKENS, (1, 1))
        begin = time.perf_counter()
        outputs = run(feeds)
        first = time.perf_counter() - begin
        begin = time.perf_counter()
        run(feeds)
        second = time.perf_counter() - begin
        expected = ort.run(None, feeds)
        error = max(float(np.abs(a - e).max() / np.abs(e).max()) for a, e in zip(outputs, expected, strict=True))
        if not error <= ALLOWED:
            raise SystemExit(f"wrong at {past}: error {error}")
        special = tw.compile(model, inputs=fixed, threads=threads, cache=False)
        runs = {"open": partial(run, feeds), "fixed": partial(special, feeds), "ort": partial(ort.run, None, feeds)}
        ms = race(runs, turns, burst)
        found["sizes"].append({"past": past, **ms, "extra_ms": (first - second) * 1e3, "error": error})
        print(f"{name} {past}: " + ", ".join(f"{k} {v:.3f} ms" for k, v in ms.items()), flush=True)
    found["generate"] = generate(name, threads, PAST.high, seed)
    return found


def generate(name: str, threads: int, steps: int, seed: int) -> dict[str, float]:
    """Seconds for so many tokens one after the other, the cache empty at first: with the caches as states that grow,
    with caches that go out of each call and into the next, and in ONNX Runtime so."""
    model = decoder(*MODELS[name], seed)
    inputs = shapes(name, tw.Dim("past", 0, PAST.high))
    caches = {n: n.replace("past", "present") for n in inputs if n != "ids"}
    states = tw.compile(model, inputs=inputs, states=caches, threads=threads, cache=False)
    plain = tw.compile(model, inputs=inputs, threads=threads, cache=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    ort = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [o.name for o in ort.get_outputs()]
    tokens = np.random.default_rng(seed).integers(0, TOKENS, (steps, 1, 1))
    runs = {"states": states.run, "open": plain.run, "ort": partial(ort.run, None)}
    kept = {run: {n: np.zeros(shapes(name, 0)[n], np.float32) for n in caches} for run in ("open", "ort")}
    seconds = dict.fromkeys(runs, 0.0)
    for ids in tokens:
        outputs = {}
        for run, call in runs.items():
            begin = time.perf_counter()
            outputs[run] = call({"ids": ids, **kept.get(run, {})})
            seconds[run] += time.perf_counter() - begin
        for run, cache in kept.items():
            found = dict(zip(names, outputs[run], strict=True))
            cache.update({n: found[present] for n, present in caches.items()})
        expected = outputs["ort"][0]
        if not np.abs(outputs["states"][0] - expected).max() <= ALLOWED * np.abs(expected).max():
            raise SystemExit("wrong with states")
    return seconds


def markdown(report: dict[str, Any]) -> str:
    """The report as tables."""
    m = report["machine"]
    lines = [
        f"{m['cpu']}, {m['cores']} cores, {report['threads']} threads, ONNX Runtime {report['onnxruntime']}.",
        f"One token after a cache of `past` positions. Open: one program for {PAST.low} to {PAST.high}. Fixed: a "
        "program for each length.",
    ]
    every: list[dict[str, Any]] = []
    for model in report["models"]:
        heads = "past, open (ms), fixed, ONNX Runtime, open / fixed, open / ORT, first call more (ms)"
        rows = [heads.split(", ")]
        for s in model["sizes"]:
            every.append(s)
            times = (f"{s[k]:.3f}" for k in ("open", "fixed", "ort"))
            ratios = (f"{s['open'] / s[k]:.2f}" for k in ("fixed", "ort"))
            rows.append([str(s["past"]), *times, *ratios, f"{s['extra_ms']:.2f}"])
        lines += ["", f"## {model['model']} (compiled in {model['compile_s']:.1f} s)", "", *grid(rows)]
        made = ", ".join(f"{text} {model['generate'][k]:.2f} s" for k, text in GENERATED.items())
        lines += ["", f"{PAST.high} tokens one after the other, from an empty cache: {made}."]
    to = {k: mean([s["open"] / s[k] for s in every]) for k in ("fixed", "ort")}
    worst = {k: max(s["open"] / s[k] for s in every) for k in ("fixed", "ort")}
    lines += [
        "",
        f"Geometric mean: {to['fixed']:.3f} of the programs made for each length (worst {worst['fixed']:.2f}), "
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
    name: Annotated[str, typer.Option(help="Name of the result files.")] = "open_decoder",
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = HERE / "results",
) -> None:
    """Race a decoder with an open cache against programs for each length and ONNX Runtime."""
    report: dict[str, Any] = {"machine": machine(), "onnxruntime": onnxruntime.__version__, "threads": threads}
    report["models"] = [measure(m, threads, turns, burst, seed) for m in MODELS]
    write(results / f"{name}.json", json.dumps(report, indent=1) + "\n")
    write(results / f"{name}.md", markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    typer.run(main)
