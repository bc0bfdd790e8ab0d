"""Decoders that append to their caches as one program for all lengths, beside programs made for each length and ONNX
Runtime.

    python benchmarks/open_decoder.py                                  # one thread
    python benchmarks/open_decoder.py --threads 2 --name open_decoder_2

Like Llama, made here with weights drawn from a seed: RMSNorm, rotary embedding, keys and values shared by groups of
queries, SwiGLU. Past keys and values are inputs, these and the new ones outputs. `open_race.py` says how they are
timed. Besides, as many tokens as the cache takes are computed one after the other, with caches that are states too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from onnx_writer import Graph
from open_race import ALLOWED, OpenModel, ort_session, start

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
    """With what decoders are made of."""

    def rms_norm(self, x: str, width: int) -> str:
        square = self.op("ReduceMean", self.op("Pow", x, self.number(2)), axes=[-1], keepdims=1)
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
    zero, one = (g.constant(np.int64(i)) for i in (0, 1))
    shape = g.op("Shape", "ids")
    batch, new = (g.op("Gather", shape, at[i]) for i in (0, 1))
    past = g.op("Gather", g.op("Shape", "past_k0"), at[2])
    total = g.op("Add", past, new)
    places = g.op("Range", g.op("Squeeze", past), g.op("Squeeze", total), one)
    keys = g.op("Range", zero, g.op("Squeeze", total), one)
    seen = g.op("LessOrEqual", keys, g.op("Unsqueeze", places, g.ints(1)))
    mask = g.op("Where", seen, g.number(0), g.number(float(np.finfo(np.float32).min)))
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
            g.op("Concat", f"past_{kind}{i}", t, output=f"present_{kind}{i}", axis=2)
        k, v = (
            g.op("Reshape", g.op("Expand", g.op("Unsqueeze", f"present_{kind}{i}", at[2]), repeated), merged)
            for kind in "kv"
        )
        out = g.attention(q, g.op("Transpose", k, perm=(0, 1, 3, 2)), v, depth**-0.5, mask)
        out = g.op("Reshape", g.op("Transpose", out, perm=(0, 2, 1, 3)), joined)
        x = g.op("Add", x, g.product(out, width, width))
        h = g.rms_norm(x, width)
        gate, up = g.product(h, width, inner), g.product(h, width, inner)
        x = g.op("Add", x, g.product(g.op("Mul", g.op("Mul", gate, g.op("Sigmoid", gate)), up), inner, width))
    g.op("MatMul", g.rms_norm(x, width), g.weight(width, TOKENS), output="y")
    caches = [f"{kind}{i}" for i in range(layers) for kind in "kv"]
    inputs = {f"past_{c}": ("batch", shared, "past", depth) for c in caches}
    outputs = {f"present_{c}": ("batch", shared, "total", depth) for c in caches}
    ids = ("batch", "seq")
    return g.model({"ids": ids, **inputs}, {"y": (*ids, TOKENS), **outputs}, integers=("ids",))


def shapes(name: str, past: Any) -> dict[str, tuple[Any, ...]]:
    """The shapes of the inputs for one token after a cache of this length."""
    width, heads, shared, _, layers = MODELS[name]
    cache = (1, shared, past, width // heads)
    return {"ids": (1, 1), **{f"past_{kind}{i}": cache for i in range(layers) for kind in "kv"}}


def generate(name: str, threads: int, steps: int, seed: int) -> dict[str, float]:
    """Seconds for so many tokens one after the other, the cache empty at first: with the caches as states that grow,
    with caches that go out of each call and into the next, and in ONNX Runtime so."""
    model = decoder(*MODELS[name], seed)
    inputs = shapes(name, tw.Dim("past", 0, PAST.high))
    caches = {n: n.replace("past", "present") for n in inputs if n != "ids"}
    states = tw.compile(model, inputs=inputs, states=caches, threads=threads, cache=False)
    plain = tw.compile(model, inputs=inputs, threads=threads, cache=False)
    ort = ort_session(model, threads)
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


def generated(name: str, seed: int, threads: int) -> list[str]:
    """What `generate` measured, for the report."""
    found = generate(name, threads, PAST.high, seed)
    made = ", ".join(f"{text} {found[k]:.2f} s" for k, text in GENERATED.items())
    return [f"{PAST.high} tokens one after the other, from an empty cache: {made}."]


def models(seed: int) -> Iterator[OpenModel]:
    rng = np.random.default_rng(seed)
    for name, sizes in MODELS.items():
        calls: list[tuple[str, dict[str, np.ndarray]]] = []
        for past in LENGTHS:
            caches = {n: rng.standard_normal(s, np.float32) for n, s in shapes(name, past).items() if n != "ids"}
            calls.append((str(past), {"ids": rng.integers(0, TOKENS, (1, 1)), **caches}))
        yield OpenModel(name, decoder(*sizes, seed), shapes(name, PAST), calls, partial(generated, name, seed))


if __name__ == "__main__":
    start(
        models,
        "open_decoder",
        f"The size is that of the cache before the token, {PAST.low} to {PAST.high}.",
    )
