"""Encoders of transformers as one program for all sizes, beside programs made for each size and ONNX Runtime.

    python benchmarks/open_dimensions.py                                  # one thread
    python benchmarks/open_dimensions.py --threads 2 --name open_dimensions_2

With open batch and length, made here with weights drawn from a seed: token and position embeddings, a mask, attention,
GELU, layer norms. `open_race.py` says how they are timed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto
from onnx_writer import Graph
from open_race import OpenModel, start

import tilewright as tw

#: (width, heads, inner width, layers)
MODELS = {"small encoder": (256, 4, 1024, 4), "base encoder": (768, 12, 3072, 2)}
BATCH, LENGTH = tw.Dim("batch", 1, 16), tw.Dim("seq", 1, 512)
INPUTS = dict.fromkeys(("ids", "mask"), (BATCH, LENGTH))
#: sizes of calls: round ones, primes, one row, the largest length
SIZES = (
    *((1, n) for n in (1, 2, 7, 16, 17, 31, 64, 100, 128, 211, 256, 512)),
    *((2, 48), (2, 97), (3, 33), (4, 100), (5, 12), (8, 64), (16, 5), (16, 32)),
)
TOKENS = 1000


def encoder(width: int, heads: int, inner: int, layers: int, seed: int) -> onnx.ModelProto:
    """ids, mask: i64[batch, seq] -> f32[batch, seq, width]."""
    g = Graph(np.random.default_rng(seed))
    one, large = g.number(1), g.number(1e4)
    at = {i: g.ints(i) for i in (0, 1)}
    shape = g.op("Shape", "ids")
    batch, length = (g.op("Gather", shape, at[i]) for i in (0, 1))
    places = g.op("Range", g.constant(np.int64(0)), g.op("Squeeze", length), g.constant(np.int64(1)))
    tokens = g.op("Gather", g.weight(TOKENS, width), "ids")
    x = g.op("Add", tokens, g.op("Gather", g.weight(LENGTH.high, width), places))
    hidden = g.op("Mul", g.op("Sub", g.op("Cast", "mask", to=TensorProto.FLOAT), one), large)
    mask = g.op("Unsqueeze", hidden, g.ints(1, 2))
    split, joined = g.heads_apart(batch, length, width, heads)
    for _ in range(layers):
        seen = g.self_attention(x, split, joined, width, heads, mask)
        x = g.norm(g.op("Add", x, g.linear(seen, width, width)), width)
        f = g.linear(g.gelu(g.linear(x, width, inner)), inner, width)
        x = g.norm(g.op("Add", x, f), width)
    g.op("Identity", x, output="y")
    ids = ("batch", "seq")
    return g.model({"ids": ids, "mask": ids}, {"y": (*ids, width)}, integers=("ids", "mask"))


def feeds(batch: int, length: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The inputs of a call; the last quarter of each row is masked."""
    mask = np.ones((batch, length), np.int64)
    mask[:, length - length // 4 :] = 0
    return {"ids": rng.integers(0, TOKENS, (batch, length)), "mask": mask}


def models(seed: int) -> Iterator[OpenModel]:
    rng = np.random.default_rng(seed)
    calls = [(f"{b} x {n}", feeds(b, n, rng)) for b, n in SIZES]
    for name, sizes in MODELS.items():
        yield OpenModel(name, encoder(*sizes, seed), INPUTS, calls)


if __name__ == "__main__":
    start(
        models,
        "open_dimensions",
        f"Sizes are batch x seq, of {BATCH.low} to {BATCH.high} and {LENGTH.low} to {LENGTH.high}.",
    )
