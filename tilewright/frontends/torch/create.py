"""Tensor creation: full, arange, random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir.types import NUMPY
from ...support.sizes import is_open
from .node import FxNode, FxTensor, Operand
from .registry import aten


@aten("full", "full_like", "new_full", "fill.Scalar", "fill.Tensor", "scalar_tensor")
def full(n: FxNode, *arguments: Any, **_: object) -> FxTensor:
    value = arguments[0] if n.overload.endswith("scalar_tensor") else arguments[2 if "new_full" in n.overload else 1]
    if isinstance(value, FxTensor):
        return n.expand(n.cast(value, n.dtype), n.shape)
    return n.full(n.shape, value, n.dtype)


@aten("zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "empty.memory_format", "empty_strided",
      "empty_like", "new_empty", "new_empty_strided", "empty_permuted")  # fmt: skip
def constant(n: FxNode, *_: object, **__: object) -> FxTensor:
    return n.full(n.shape, "ones" in n.overload, n.dtype)


@aten("arange.start_step", "arange.start", "arange")
def arange(n: FxNode, *numbers: int, **_: object) -> FxTensor:
    start, step = (numbers[0] if len(numbers) > 1 else 0), (numbers[2] if len(numbers) > 2 else 1)
    floats = any(isinstance(v, float | FxTensor) for v in (start, step))
    if is_open(n.shape[0], start, step):
        if not floats:
            return n.cast(n.count(n.shape[0], start, step), n.dtype)
        at = n.cast(n.count(n.shape[0]), "f64")
        return n.cast(n("add", n("mul", at, n.tensor(step, "f64")), n.tensor(start, "f64")), n.dtype)
    kind = np.float64 if floats else np.int64
    return n.constant((np.asarray(start, kind) + np.arange(n.shape[0]) * np.asarray(step, kind)).astype(NUMPY[n.dtype]))


@aten("prims.iota")
def iota(n: FxNode, length: int, *, start: int, step: int, **_: object) -> FxTensor:
    return n.cast(n.count(length, start, step), n.dtype)


@aten("eye", "eye.m")
def eye(n: FxNode, *_: object, **__: object) -> FxTensor:
    if is_open(*n.shape):
        return n.cast(n("equal", n.unsqueeze(n.count(n.shape[0]), 1), n.count(n.shape[1])), n.dtype)
    return n.constant(np.eye(n.shape[0], n.shape[1]).astype(NUMPY[n.dtype]))


@aten("tril_indices", "triu_indices")
def triangle_indices(n: FxNode, row: int, col: int, offset: int = 0, **_: object) -> FxTensor:
    n.known(row, col)
    find = np.tril_indices if "tril" in n.overload else np.triu_indices
    return n.constant(np.stack(find(row, offset, col)).astype(NUMPY[n.dtype]))


@aten("linspace")
def linspace(n: FxNode, start: float, end: float, steps: int, **_: object) -> FxTensor:
    """From both ends, as PyTorch does it."""
    n.known(steps)
    kind = np.float64 if n.dtype in ("f64", "i64", "i32") else np.float32
    step = kind(kind(end) - kind(start)) / kind(max(steps - 1, 1))
    at = np.arange(steps)
    line = np.where(at < steps // 2, kind(start) + step * at, kind(end) - step * (steps - 1 - at))
    return n.constant(line.astype(NUMPY[n.dtype]))


# ---- random --------------------------------------------------------------------------------------------------------


def random(n: FxNode, kind: str, shape: Sequence[int], dtype: str) -> FxTensor:
    """Other numbers in every run."""
    make = "f64" if dtype == "f64" else "f32"
    if not math.prod(shape):
        return n.full(shape, 0, dtype)
    return n.cast(n.random(kind, shape, make), dtype)


@aten("rand", "rand_like", "randn", "randn_like")
def rand(n: FxNode, *_: object, **__: object) -> FxTensor:
    return random(n, "normal" if "randn" in n.overload else "uniform", n.shape, n.dtype)


@aten("native_dropout", "dropout")
def dropout(n: FxNode, x: FxTensor, p: float, train: bool | None = True) -> FxTensor | list[FxTensor]:
    made, mask = dropped(n, x, p, train)
    return [made, mask] if "native" in n.overload else made


def dropped(n: FxNode, x: FxTensor, p: float, train: bool | None = True) -> tuple[FxTensor, FxTensor]:
    """x with a share p of its elements forgotten, and which are kept."""
    if not train or p == 0:
        made, mask = x, n.full(x.shape, True, "i1")
    elif p == 1:
        made, mask = n("mul", x, 0.0), n.full(x.shape, False, "i1")
    else:
        mask = n("greater_equal", random(n, "uniform", x.shape, "f32"), float(p))
        made = n("mul", n("mul", x, n.cast(mask, x.dtype)), 1 / (1 - p))
    return made, mask


@aten("bernoulli", "bernoulli.p")
def bernoulli(n: FxNode, x: FxTensor, p: float | None = None, **_: object) -> FxTensor:
    level = n.cast(x, "f32") if p is None else float(p)
    return n.cast(n("less", random(n, "uniform", x.shape, "f32"), level), n.dtype)


@aten("uniform")
def uniform(n: FxNode, x: FxTensor, low: float = 0, high: float = 1, **_: object) -> FxTensor:
    return n("add", n("mul", random(n, "uniform", x.shape, x.dtype), float(high - low)), float(low))


@aten("normal_functional")
def normal(n: FxNode, x: FxTensor, mean: float = 0, std: float = 1, **_: object) -> FxTensor:
    return n("add", n("mul", random(n, "normal", x.shape, x.dtype), float(std)), float(mean))


@aten("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor", "normal.float_float")
def normal_of(n: FxNode, mean: Operand, std: Operand = 1.0, *_: object, **__: object) -> FxTensor:
    mean, std = n.tensor(mean, n.dtype), n.tensor(std, n.dtype)
    return n("add", n("mul", random(n, "normal", n.shape, n.dtype), std), mean)


@aten("exponential", "cauchy", "log_normal", "geometric")
def distribution(
    n: FxNode, x: FxTensor, first: float | None = None, second: float | None = None, **_: object
) -> FxTensor:
    """By the inverse of the distribution function; log_normal by normal numbers."""
    name = n.overload.removeprefix("aten.")
    a = {"exponential": 1.0, "cauchy": 0.0, "log_normal": 1.0}.get(name, 0.5) if first is None else float(first)
    b = {"cauchy": 1.0, "log_normal": 2.0}.get(name, 0.0) if second is None else float(second)
    if name == "log_normal":
        return n("exp", n("add", n("mul", random(n, "normal", x.shape, x.dtype), b), a))
    u = random(n, "uniform", x.shape, x.dtype)
    if name == "cauchy":
        return n("add", n("mul", n("tan", n("mul", n("add", u, -0.5), math.pi)), b), a)
    tail = n("log", n("add", n("neg", u), 1.0))
    return n("mul", tail, -1 / a) if name == "exponential" else n("ceil", n("mul", tail, 1 / math.log1p(-a)))


@aten("rrelu_with_noise_functional")
def rrelu(n: FxNode, x: FxTensor, noise: FxTensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
          generator: object = None) -> list[FxTensor]:  # fmt: skip
    if not training:
        return [n("leaky_relu", x, alpha=(lower + upper) / 2), noise]
    slopes = n("add", n("mul", random(n, "uniform", x.shape, x.dtype), float(upper - lower)), float(lower))
    factor = n("where", n("greater", x, 0.0), n.full((), 1, x.dtype), slopes)
    return [n("mul", x, factor), factor]


@aten("multinomial")
def multinomial(n: FxNode, x: FxTensor, num_samples: int, replacement: bool = False, **_: object) -> FxTensor:
    """With replacement by the inverse of the distribution function; without, the largest quotients of the weights and
    exponential numbers."""
    work = "f64" if x.dtype == "f64" else "f32"
    last = x.rank - 1
    p = n.cast(x, work)
    if not replacement:
        u = n("sub", n.full((), 1, work), random(n, "uniform", x.shape, work))
        return n("top_k", n("div", p, n("neg", n("log", u))), k=num_samples, axis=last, largest=True)[1]
    running = n("cumsum", p, axis=last)
    whole = n.slice(running, last, x.shape[last] - 1, 1)
    level = n("mul", random(n, "uniform", (*x.shape[:-1], num_samples), work), whole)
    below = n("less_equal", n.unsqueeze(running, last), n.unsqueeze(level, last + 1))
    at = n("reduce_sum", n.cast(below, "i64"), axes=(last + 1,))
    # what rounding takes beyond the end is the last one with a weight
    places = n.count(x.shape[last])
    end = n("reduce_max", n("where", n("greater", p, 0.0), places, n.full((), 0, "i64")), axes=(last,), keepdims=True)
    return n("min", at, end)


@aten("randint", "randint.low", "randint_like", "randint_like.low_dtype")
def randint(n: FxNode, *numbers: object, **_: object) -> FxTensor:
    limits = [v for v in numbers if isinstance(v, int)]
    low, high = (0, limits[0]) if len(limits) == 1 else limits[:2]
    n.need(high - low <= 1 << 24, "of more than 2 ** 24 numbers")
    floats = n("mul", random(n, "uniform", n.shape, "f32"), float(high - low))
    return n("add", n.cast(n.cast(floats, "i64"), n.dtype), low)
