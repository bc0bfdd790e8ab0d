"""Gradients of operators that PyTorch's decompositions leave whole."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...support.sizes import is_open, larger
from .attention import factor_of, lower_triangle
from .conv import _each, halved
from .node import Each, FxNode, FxTensor
from .registry import aten

# ---- convolution -----------------------------------------------------------------------------------------------------


@aten("convolution_backward")
def convolution_backward(
    n: FxNode,
    dy: FxTensor,
    x: FxTensor,
    w: FxTensor,
    bias_sizes: object,
    stride: Each,
    padding: Each,
    dilation: Each,
    transposed: bool,
    output_padding: Each,
    groups: int,
    mask: Sequence[bool],
) -> list[FxTensor | None]:
    """What is wanted of the gradients of x, the weights and the bias."""
    r = w.rank - 2
    n.need(x.is_float, "of integers")
    n.need(x.rank == w.rank, "without a batch")
    n.need(all(math.prod(t.shape) for t in (dy, x, w)), "of nothing")
    stride, pads, dilation = (_each(v, r) for v in (stride, padding, dilation))
    how = {"strides": stride, "pads": pads * 2, "dilations": dilation, "groups": groups}
    dx = dw = None
    if mask[0]:
        dx = n("conv", dy, w, **how) if transposed else _back(n, dy, x, w, how)
        dx = _first(n, dx, x.shape)
    if mask[1]:
        small, wide = (x, dy) if transposed else (dy, x)
        dw = n.reshape(_of_weights(n, small, wide, w.shape, stride, pads, dilation, groups), w.shape)
    db = n("reduce_sum", dy, axes=(0, *range(2, dy.rank))) if mask[2] else None
    return [dx, dw, db]


def _back(n: FxNode, dy: FxTensor, x: FxTensor, w: FxTensor, how: dict[str, Any]) -> FxTensor:
    """The gradient of x: a transposed convolution, which also reaches the last elements that the strides left out."""
    r = w.rank - 2
    reach = [
        (dy.shape[2 + i] - 1) * how["strides"][i] + how["dilations"][i] * (w.shape[2 + i] - 1) + 1 - 2 * how["pads"][i]
        for i in range(r)
    ]
    rest = tuple(d - e for d, e in zip(x.shape[2:], reach, strict=True))
    # how many there are is not known for open sizes: as many as there can be, of which the caller takes the first
    rest = tuple(s - 1 if is_open(e) else e for s, e in zip(how["strides"], rest, strict=True))
    made: FxTensor = n("conv_transpose", dy, w, None, output_padding=rest, **how)
    return made


def _first(n: FxNode, x: FxTensor, shape: Sequence[int]) -> FxTensor:
    """The first elements of x in every dimension, as many as `shape` says."""
    for axis, size in enumerate(shape):
        x = n.slice(x, axis, 0, size)
    return x


def _of_weights(n: FxNode, small: FxTensor, wide: FxTensor, shape: Sequence[int], stride: Sequence[int],
                pads: Sequence[int], dilation: Sequence[int], groups: int) -> FxTensor:  # fmt: skip
    """The gradient of weights [groups * a, b, *kernel]: for each place of the kernel, the sum over the batch and the
    positions of `small` [N, groups * a, *] times what lies under that place in `wide` [N, groups * b, *]."""
    r, batch = len(pads), small.shape[0]
    kernel, sizes = shape[2:], small.shape[2:]
    count = math.prod(sizes)
    high = [
        larger((s - 1) * t + d * (k - 1) + 1 - p - e, 0)
        for s, t, d, k, p, e in zip(sizes, stride, dilation, kernel, pads, wide.shape[2:], strict=True)
    ]
    if any(pads) or any(high):
        wide = n("pad", wide, low=(0, 0, *pads), high=(0, 0, *high))
    rows = n.reshape(small, (batch, groups, shape[0] // groups, count))
    taps = []
    for place in itertools.product(*(range(k) for k in kernel)):
        under = wide
        for i in range(r):
            under = n.slice(under, 2 + i, place[i] * dilation[i], sizes[i], stride[i])
        taps.append(n.reshape(under, (batch, groups, 1, shape[1], count)))
    columns = n.reshape(n.concat(taps, 2), (batch, groups, len(taps), shape[1], count))
    made = n("einsum", rows, columns, equation="ngap,ngkbp->gabk")
    return n.reshape(made, shape)


# ---- pooling and resizing --------------------------------------------------------------------------------------------


def _windows(size: int, out: int, kernel: int, stride: int, pad: int, dilation: int) -> np.ndarray:
    """[size, m]: the windows that reach each place, -1 where there are fewer than m."""
    places = np.arange(size)[:, None]
    first = np.arange(out)[None] * stride - pad
    inside = ((places - first) % dilation == 0) & (places >= first) & (places - first <= dilation * (kernel - 1))
    most = max(int(inside.sum(1).max(initial=0)), 1)
    order = np.argsort(~inside, axis=1, kind="stable")[:, :most]
    return np.where(np.take_along_axis(inside, order, 1), order, -1)


@aten("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward")
def max_pool_backward(n: FxNode, dy: FxTensor, x: FxTensor, kernel_size: Each, stride: Each, padding: Each,
                      dilation: Each, ceil_mode: bool, indices: FxTensor) -> FxTensor:  # fmt: skip
    """Every place adds up the gradients of those windows around it that chose it: in one order, by all threads."""
    r = int(n.overload.split("max_pool")[1][0])
    n.need(math.prod(x.shape) and math.prod(dy.shape), "of nothing")
    kernel = _each(kernel_size, r)
    stride = _each(stride, r) if stride not in (None, [], ()) else kernel
    pads, dilation = _each(padding, r), _each(dilation, r)
    outer, sizes, outs = x.shape[:-r], x.shape[-r:], dy.shape[-r:]
    n.known(*sizes, *outs)
    tables = [_windows(*a) for a in zip(sizes, outs, kernel, stride, pads, dilation, strict=True)]
    expected = np.zeros((1,) * 2 * r, np.int64)  # [size, m, size, m ...]: the number of the place, -1 without a window
    valid = np.ones((1,) * 2 * r, bool)
    for i, (size, table) in enumerate(zip(sizes, tables, strict=True)):
        shape = (*(1,) * 2 * i, *table.shape, *(1,) * 2 * (r - 1 - i))
        expected = expected * size + np.arange(size).reshape(*(1,) * 2 * i, size, *(1,) * (2 * (r - i) - 1))
        valid = valid & (table >= 0).reshape(shape)
    for i, table in enumerate(tables):
        at = n.constant(np.maximum(table, 0))
        axis = len(outer) + 2 * i
        dy, indices = n("gather", dy, at, axis=axis), n("gather", indices, at, axis=axis)
    chosen = n("equal", indices, n.constant(np.where(valid, expected, -1)))
    sums = n("where", chosen, dy, n.full((), 0, dy.dtype))
    axes = tuple(len(outer) + 2 * i + 1 for i in range(r))
    return n.reshape(n("reduce_sum", sums, axes=axes), n.shape)


def spread(n: FxNode, dy: FxTensor, axis: int, table: np.ndarray, weights: np.ndarray, size: int) -> FxTensor:
    """The gradient of ``resample(x, table, weights, axis)`` for an x of this size."""
    n.known(size, len(table))
    out, taps = table.shape
    matrix = np.zeros((size, out))
    np.add.at(matrix, (table.reshape(-1), np.repeat(np.arange(out), taps)), weights.reshape(-1))
    used = matrix != 0
    most = max(int(used.sum(1).max(initial=0)), 1)
    order = np.argsort(~used, axis=1, kind="stable")[:, :most]
    order, weights = halved(order, np.take_along_axis(matrix, order, 1), np.maximum(used.sum(1), 1))
    made: FxTensor = n("resample", dy, n.constant(order), n.constant(weights, dy.dtype), axis=axis)
    return made


@aten("avg_pool2d_backward", "avg_pool3d_backward")
def avg_pool_backward(n: FxNode, dy: FxTensor, x: FxTensor, kernel_size: Each, stride: Each, padding: Each,
                      ceil_mode: bool, count_include_pad: bool, divisor_override: int | None) -> FxTensor:  # fmt: skip
    r = int(n.overload.split("avg_pool")[1][0])
    n.need(math.prod(x.shape) and math.prod(dy.shape), "of nothing")
    kernel = _each(kernel_size, r)
    stride = _each(stride, r) if stride not in (None, [], ()) else kernel
    for i, (k, s, p) in enumerate(zip(kernel, stride, _each(padding, r), strict=True)):
        axis = x.rank - r + i
        size, out = x.shape[axis], dy.shape[axis]
        n.known(size, out)
        first = np.arange(out) * s - p
        table = first[:, None] + np.arange(k)
        inside = (table >= 0) & (table < size)
        if divisor_override is not None:
            count = np.full(out, float(divisor_override) if i == 0 else 1.0)
        elif count_include_pad:
            count = np.minimum(first + k, size + p) - first
        else:
            count = inside.sum(1)
        dy = spread(n, dy, axis, np.clip(table, 0, size - 1), inside / np.maximum(count, 1)[:, None], size)
    return dy


@aten("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def adaptive_avg_pool_backward(n: FxNode, dy: FxTensor, x: FxTensor) -> FxTensor:
    r = int(n.overload.split("avg_pool")[1][0])
    n.need(math.prod(x.shape) and math.prod(dy.shape), "of nothing")
    for axis in range(x.rank - r, x.rank):
        size, out = x.shape[axis], dy.shape[axis]
        n.known(size, out)
        low, high = np.arange(out) * size // out, -(-(np.arange(out) + 1) * size // out)
        table = low[:, None] + np.arange(int((high - low).max()))
        weights = (table < high[:, None]) / (high - low)[:, None]
        dy = spread(n, dy, axis, np.minimum(table, size - 1), weights, size)
    return dy


# ---- attention -------------------------------------------------------------------------------------------------------


def _weights(n: FxNode, q: FxTensor, k: FxTensor, causal: bool, mask: FxTensor | None, scale: float | None) -> FxTensor:
    """The scores [N, heads, rows, columns] before the softmax."""
    scores = n("mul", n("matmul", q, n.transpose(k, (0, 1, 3, 2))), n.tensor(factor_of(n, q, scale), q.dtype))
    if mask is not None:
        scores = n("add", scores, n.cast(mask, scores.dtype))
    if causal:
        scores = n("where", lower_triangle(n, q.shape[2], k.shape[2]), scores, n.full((), -np.inf, scores.dtype))
    made: FxTensor = scores
    return made


@aten("_scaled_dot_product_flash_attention_for_cpu")
def flash_attention(n: FxNode, q: FxTensor, k: FxTensor, v: FxTensor, dropout_p: float = 0.0, is_causal: bool = False,
                    *, attn_mask: FxTensor | None = None, scale: float | None = None
                    ) -> list[FxTensor | None]:  # fmt: skip
    """Attention, and the logarithm of the sums of the exponents [N, heads, rows], where it is used."""
    n.need(dropout_p == 0, "with dropout")
    n.need(all(math.prod(t.shape) for t in (q, k, v)), "of nothing")
    factor = factor_of(n, q, scale)
    if {u.args[1] for u in n.node.users if u.users} <= {0} and not isinstance(factor, FxTensor):
        mask = None if attn_mask is None else n.ranks(n.cast(attn_mask, q.dtype), 4)
        return [n("attention", q, k, v, mask, scale=factor, causal=is_causal), None]
    wide = "f64" if q.dtype == "f64" else "f32"
    scores = n.cast(_weights(n, q, k, is_causal, attn_mask, scale), wide)
    sums = n("reduce_log_sum_exp", scores, axes=(3,), keepdims=True)
    p = n("exp", n("sub", scores, sums))
    return [n("matmul", n.cast(p, v.dtype), v), n.reshape(sums, sums.shape[:3])]


@aten("_scaled_dot_product_flash_attention_for_cpu_backward")
def flash_attention_backward(n: FxNode, dy: FxTensor, q: FxTensor, k: FxTensor, v: FxTensor, y: FxTensor,
                             sums: FxTensor, dropout_p: float, is_causal: bool, *, attn_mask: FxTensor | None = None,
                             scale: float | None = None) -> list[FxTensor]:  # fmt: skip
    """Dao et al., FlashAttention (2022), appendix B: the weights are computed anew from the sums."""
    n.need(dropout_p == 0, "with dropout")
    n.need(all(math.prod(t.shape) for t in (q, k, v)), "of nothing")
    wide = sums.dtype
    scores = n.cast(_weights(n, q, k, is_causal, attn_mask, scale), wide)
    p = n("exp", n("sub", scores, n.unsqueeze(sums, 3)))
    across = (0, 1, 3, 2)
    dv = n("matmul", n.transpose(n.cast(p, v.dtype), across), dy)
    dp = n.cast(n("matmul", dy, n.transpose(v, across)), wide)
    d = n("reduce_sum", n("mul", n.cast(dy, wide), n.cast(y, wide)), axes=(3,), keepdims=True)
    factor = n.tensor(factor_of(n, q, scale), wide)
    ds = n.cast(n("mul", n("mul", p, n("sub", dp, d)), factor), q.dtype)
    return [n("matmul", ds, k), n("matmul", n.transpose(ds, across), q), dv]
