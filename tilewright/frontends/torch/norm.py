"""Normalizations and softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...support.sizes import is_open, larger
from .node import FxNode, FxTensor, dtype_of
from .registry import aten


@aten("layer_norm", "native_layer_norm")
def layer_norm(n: FxNode, x: FxTensor, shape: Sequence[int], weight: FxTensor | None = None,
               bias: FxTensor | None = None, eps: float = 1e-5, *_: object
               ) -> FxTensor | list[FxTensor | None]:  # fmt: skip
    axis = x.rank - len(shape)
    made = n("layer_norm", x, weight, bias, axis=axis, epsilon=float(eps)) if math.prod(x.shape) else x
    return [made, *_statistics(n, x, tuple(range(axis, x.rank)), eps)] if "native" in n.overload else made


def _statistics(n: FxNode, x: FxTensor, axes: tuple[int, ...], eps: float) -> Sequence[FxTensor | None]:
    """Mean and reciprocal deviation, where they are used."""
    used = {u.args[1] for u in n.node.users if u.users}
    if used <= {0}:
        return [None, None]
    n.need(math.prod(x.shape), "with the statistics of nothing")
    mean, variance = _moments(n, x, axes)
    return [n.cast(v, x.dtype) for v in (mean, n("rsqrt", n("add", variance, float(eps))))]


def _moments(n: FxNode, x: FxTensor, axes: tuple[int, ...]) -> list[FxTensor]:
    """Mean and variance, of halves in f32: their squares overflow."""
    x = n.cast(x, "f32") if x.dtype in ("f16", "bf16") else x
    mean = n("reduce_mean", x, axes=axes, keepdims=True)
    centred = n("sub", x, mean)
    return [mean, n("reduce_mean", n("mul", centred, centred), axes=axes, keepdims=True)]


@aten("rms_norm", "_fused_rms_norm")
def rms_norm(
    n: FxNode, x: FxTensor, shape: Sequence[int], weight: FxTensor | None = None, eps: float | None = None
) -> FxTensor | list[FxTensor | None]:
    if eps is None:
        eps = torch.finfo(torch.float64 if x.dtype == "f64" else torch.float32).eps
    n.need(math.prod(x.shape), "of nothing")
    weight = weight if weight is None else n.cast(weight, x.dtype)
    made = n("rms_norm", x, weight, axis=x.rank - len(shape), epsilon=float(eps))
    if "_fused" not in n.overload:
        return made
    n.need({u.args[1] for u in n.node.users if u.users} <= {0}, "with its statistics")
    return [made, None]


@aten("group_norm")
def group_norm(n: FxNode, x: FxTensor, groups: int, weight: FxTensor | None = None, bias: FxTensor | None = None,
               eps: float = 1e-5, *_: object) -> FxTensor:  # fmt: skip
    if not math.prod(x.shape):
        return x
    channels = x.shape[1]
    scale = n.full((channels,), 1, x.dtype) if weight is None else weight
    shift = n.full((channels,), 0, x.dtype) if bias is None else bias
    return n("group_norm", x, scale, shift, groups=groups, epsilon=float(eps))


@aten("native_group_norm")
def native_group_norm(n: FxNode, x: FxTensor, weight: FxTensor | None, bias: FxTensor | None, N: int, C: int, HxW: int,
                      group: int, eps: float) -> list[FxTensor | None]:  # fmt: skip
    made = group_norm(n, x, group, weight, bias, eps)
    if {u.args[1] for u in n.node.users if u.users} <= {0}:
        return [made, None, None]
    n.need(math.prod(x.shape), "with the statistics of nothing")
    flat = n.reshape(x, (N, group, C // group * HxW))
    return [made, *(v and n.reshape(v, (N, group)) for v in _statistics(n, flat, (2,), eps))]


@aten("instance_norm")
def instance_norm(n: FxNode, x: FxTensor, weight: FxTensor | None, bias: FxTensor | None, mean: FxTensor,
                  var: FxTensor, use_input: bool, momentum: float, eps: float, *_: object) -> FxTensor:  # fmt: skip
    if not use_input:
        return _normalized(n, x, weight, bias, mean, var, eps)
    n.need(mean is None, "with running statistics")
    return group_norm(n, x, x.shape[1], weight, bias, eps)


@aten("_native_batch_norm_legit_no_training")
def batch_norm(n: FxNode, x: FxTensor, weight: FxTensor | None, bias: FxTensor | None, mean: FxTensor, var: FxTensor,
               momentum: float, eps: float) -> list[FxTensor]:  # fmt: skip
    nothing = n.full((0,), 0, x.dtype)
    return [_normalized(n, x, weight, bias, mean, var, eps), nothing, nothing]


def _normalized(
    n: FxNode, x: FxTensor, weight: FxTensor | None, bias: FxTensor | None, mean: FxTensor, var: FxTensor, eps: float
) -> FxTensor:
    if not math.prod(x.shape):
        return x
    channels = x.shape[1]
    scale = n.full((channels,), 1, x.dtype) if weight is None else weight
    shift = n.full((channels,), 0, x.dtype) if bias is None else bias
    parameters = [n.cast(p, x.dtype) for p in (scale, shift, mean, var)]
    made: FxTensor = n("batch_norm", x, *parameters, epsilon=float(eps))
    return made


@aten("_native_batch_norm_legit.no_stats", "_native_batch_norm_legit_functional")
def batch_norm_training(
    n: FxNode, x: FxTensor, weight: FxTensor | None, bias: FxTensor | None, *rest: Any
) -> list[FxTensor]:
    """Statistics of this batch; with running ones, also their next values."""
    running, (training, momentum, eps) = rest[:-3], rest[-3:]
    if not training:
        nothing = n.full((0,), 0, x.dtype)
        return [_normalized(n, x, weight, bias, running[0], running[1], eps), nothing, nothing, *running]
    n.need(math.prod(x.shape), "of nothing")
    axes = tuple(i for i in range(x.rank) if i != 1)
    mean, var = (n.reshape(v, (x.shape[1],)) for v in _moments(n, x, axes))
    wide = _normalized(n, n.cast(x, var.dtype), weight, bias, mean, var, eps)
    inverse = n("rsqrt", n("add", var, float(eps)))
    made = [n.cast(v, x.dtype) for v in (wide, mean, inverse)]
    if running:
        count = math.prod(x.shape) // x.shape[1]
        if is_open(count):
            fair = n("div", n("mul", var, count), n.tensor(larger(count - 1, 1), var.dtype))
        else:
            fair = n("mul", var, count / max(count - 1, 1))
        for old, new in zip(running, (mean, fair), strict=True):
            kept = n("mul", n.cast(old, new.dtype), 1 - momentum)
            made.append(n.cast(n("add", kept, n("mul", new, float(momentum))), old.dtype))
    return made


@aten("_batch_norm_with_update_functional")
def batch_norm_with_update(n: FxNode, x: FxTensor, *rest: Any) -> list[FxTensor]:
    """As `batch_norm_training`, with the (empty) reserve tensor that other devices use between the statistics of this
    batch and the running ones."""
    made = batch_norm_training(n, x, *rest[:-2], True, *rest[-2:])
    return [*made[:3], n.full((0,), 0, "ui8"), *made[3:]]


@aten("softmax.int", "_softmax", "log_softmax.int", "_log_softmax", "_safe_softmax")
def softmax(n: FxNode, x: FxTensor, dim: int, dtype: torch.dtype | None = None) -> FxTensor:
    x = n.cast(x, dtype_of(dtype) if isinstance(dtype, torch.dtype) else n.dtype)
    name = "log_softmax" if "log_softmax" in n.overload else "softmax"
    if not x.rank:
        return n.reshape(n(name, n.reshape(x, (1,)), axis=0), ())
    if not math.prod(x.shape):
        return x
    made = n(name, x, axis=x.axis(dim))
    if "safe" in n.overload:  # zeros where everything is -inf
        empty = n("reduce_max", x, axes=(x.axis(dim),), keepdims=True)
        made = n("where", n("equal", empty, -np.inf), n.full((), 0, x.dtype), made)
    return made
