"""`com.microsoft` mixtures of experts."""

from __future__ import annotations

import numpy as np

from .contrib import MS, gelu, swapped
from .reduce import top_k
from .registry import onnx_op
from .shape import split
from .values import OnnxNotImported


@onnx_op("MoE", since=1, domain=MS)
def mixture_of_experts(n, x, router, first, first_bias, second, second_bias=None, third=None, third_bias=None):
    """Every row of x through the `k` experts that its router numbers prefer, weighted by these.

    Shapes are fixed, so all experts compute all rows, and those that were not chosen weigh nothing: E / k times the
    work that is needed.
    """
    if n.attr("use_sparse_mixer", 0):
        raise OnnxNotImported("with use_sparse_mixer")
    flat = n.reshape(x, (1, router.shape[0], x.shape[-1]))
    hidden = activated(n, expert(n, flat, first, first_bias), flat, third, third_bias)
    out = n("mul", expert(n, hidden, second, second_bias), shares(n, router))
    return n.reshape(n("reduce_sum", out, axes=(0,), keepdims=False), x.shape)


def expert(n, x, weights, bias):
    """x [1 or E, rows, in] times the weights [E, out, in] of every expert."""
    out = n("matmul", x, swapped(n, weights))
    return out if bias is None else n("add", out, n.unsqueeze(bias, 1))


def shares(n, router):
    """The weights [E, rows, 1] of all experts: 0 for those that a row does not choose."""
    rows, experts = router.shape
    k = int(n.attr("k", 1))
    if not 1 <= k <= experts:
        raise n.error(f"k is {k}, there are {experts} experts")
    values, places = top_k(n, n("softmax", router, axis=1), k)
    if n.attr("normalize_routing_weights", 0):
        values = n("div", values, n("reduce_sum", values, axes=(1,), keepdims=True))
    table = n("scatter_elements", n.expand(n.zero(router), (rows, experts)), places, values, axis=1)
    return n.unsqueeze(n.transpose(table, (1, 0)), 2)


def activated(n, x, given, third, third_bias):
    """The activation between the two products; SwiGLU's second factor is a part of x or a third product."""
    name = n.attr("activation_type", "relu")
    if name == "swiglu":
        return swiglu(n, *swiglu_parts(n, x, given, third, third_bias))
    functions = {
        "identity": lambda v: v,
        "relu": lambda v: n("relu", v),
        "gelu": lambda v: gelu(n, v, "tanh"),
        "silu": lambda v: n("silu", v, alpha=1.0),
    }
    if name not in functions:
        raise OnnxNotImported(f"with activation {name}")
    out = functions[name](x)
    return out if third is None else n("mul", out, expert(n, given, third, third_bias))


def swiglu_parts(n, x, given, third, third_bias):
    fusion = n.attr("swiglu_fusion", 0)
    if fusion == 0:
        if third is None:
            raise n.error("swiglu_fusion is 0, so that fc3_experts_weights are needed")
        return x, expert(n, given, third, third_bias)
    size = x.shape[2] // 2
    if fusion == 2:
        return split(n, x, [size, size], 2)
    pairs = n.reshape(x, (*x.shape[:2], size, 2))
    return [n.reshape(p, (*x.shape[:2], size)) for p in split(n, pairs, [1, 1], 3)]


def swiglu(n, gate, linear):
    alpha, beta = float(n.attr("activation_alpha", 1.0)), float(n.attr("activation_beta", 0.0))
    limit = n.attr("swiglu_limit")
    if limit is not None and np.isfinite(limit):
        gate = n("clip", gate, low=None, high=float(limit))
        linear = n("clip", linear, low=-float(limit), high=float(limit))
    return n("mul", n("silu", gate, alpha=alpha), n("add", linear, beta) if beta else linear)
