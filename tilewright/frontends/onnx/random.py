"""Random numbers. Those of a node with a seed are the same in every run; a node without one gets others in every run,
by the key that the runtime gives (`runtime.random_seed`), and not those of another node.
"""

from __future__ import annotations

import zlib

import numpy as np

from ...support.dtypes import FLOATS
from .reader import DTYPES
from .registry import onnx_op
from .values import OnnxNotImported


def random(n, kind, shape, dtype):
    """Numbers between 0 and 1, or from the normal distribution."""
    if dtype not in FLOATS:
        raise OnnxNotImported(f"of dtype {dtype}")
    work = "f64" if dtype == "f64" else "f32"
    seed = n.attr("seed")
    if seed is None:  # the number of draws: the nodes of an unrolled loop have one name
        key, data = n.importer.random_key(), f"{n.importer.draws} {n.name}".encode()
    else:
        key, data = None, np.float32(seed).tobytes()
    drawn = n("random", key, kind=kind, shape=tuple(shape), dtype=work, seed=zlib.crc32(data) & 0x7FFFFFFF)
    return n.cast(drawn, dtype)


def scaled(n, x, scale, shift):
    return n("add", n("mul", x, float(scale)), float(shift))


def like(n, x):
    dtype = DTYPES.get(n.attr("dtype", 0), x.dtype if x is not None else "f32")
    return random(
        n, "normal" if "Normal" in n.proto.op_type else "uniform", n.attr("shape") if x is None else x.shape, dtype
    )


@onnx_op("RandomNormal", "RandomNormalLike", since=1)
def normal(n, x=None):
    if x is None:
        n.required("shape")
    return scaled(n, like(n, x), n.attr("scale", 1.0), n.attr("mean", 0.0))


@onnx_op("RandomUniform", "RandomUniformLike", since=1)
def uniform(n, x=None):
    if x is None:
        n.required("shape")
    low, high = n.attr("low", 0.0), n.attr("high", 1.0)
    return scaled(n, like(n, x), high - low, low)


@onnx_op("Bernoulli", since=15)
def bernoulli(n, x):
    dtype = DTYPES.get(n.attr("dtype", 0), x.dtype)
    return n.cast(n("less", random(n, "uniform", x.shape, x.dtype), x), dtype)


@onnx_op("Multinomial", since=7)
def multinomial(n, x):
    """Samples from unnormalized log-probabilities: the class whose score plus Gumbel noise is the largest."""
    dtype = DTYPES.get(n.attr("dtype", 6))
    if x.rank != 2 or dtype not in ("i32", "i64"):
        raise n.error(f"takes scores [batch, classes] and gives i32 or i64, got {x.type}")
    shape = (x.shape[0], n.attr("sample_size", 1), x.shape[1])
    noise = random(n, "uniform", shape, "f32")
    gumbel = n("neg", n("log", n("neg", n("log", n("max", noise, float(np.finfo(np.float32).tiny))))))
    scores = n("add", n.unsqueeze(n.cast(x, "f32"), 1), gumbel)
    return n.cast(n("arg_max", scores, axis=2, keepdims=False), dtype)
