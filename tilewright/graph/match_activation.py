"""Activations that exporters decompose: sigmoid, silu, softplus, mish, hard swish."""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from .matching import affine, near, product
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, defined_by, either_order, pattern, rewrite


@register("match-activation")
@dataclass(frozen=True)
class MatchActivation:
    """Find sigmoid, silu (swish, also with a factor inside the sigmoid), mish and hard swish.

    With `fast_math` also softplus, which does not overflow where log(1 + exp(x)) does and keeps digits that that loses,
    and hard sigmoid, whose sum is rounded otherwise.

        %0 = "tw.sigmoid"(%x) : (tensor<4xf32>) -> tensor<4xf32>
        %1 = "tw.mul"(%x, %0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    ->  %0 = "tw.silu"(%x) : (tensor<4xf32>) -> tensor<4xf32>
    """

    fast_math: bool = False

    def run(self, graph: Graph) -> PassReport:
        fast = [softplus, hard_sigmoid] if self.fast_math else []
        return rewrite(graph, [sigmoid, *fast, silu, silu_quotient, mish, hard_swish])


@pattern("reciprocal", "div")
def sigmoid(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """1 / (1 + exp(-x)) -> sigmoid(x)"""
    if op.name == "tw.div" and rw.scalar(op.operands[0]) != 1:
        return None
    x = _one_plus_exp_of_negative(rw, op.operands[-1])
    if x is None or x.type != op.results[0].type:
        return None
    return rw.create("sigmoid", x)


@pattern("div")
def silu_quotient(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x / (1 + exp(-x)) -> silu(x)"""
    x, base = op.operands[0], _one_plus_exp_of_negative(rw, op.operands[1])
    return rw.create("silu", x) if base is not None and base == x else None


def _one_plus_exp_of_negative(rw: Rewriter, value: ir.Value) -> ir.Value | None:
    a, e, b = affine(rw, value)
    inner = defined_by(e, "exp")
    if inner is None or (a, b) != (1, 1):
        return None
    negative = defined_by(inner.operands[0], "neg")
    if negative is not None:
        return negative.operands[0]
    scaled = defined_by(inner.operands[0], "mul")
    return scaled.operands[0] if scaled is not None and rw.scalar(scaled.operands[1]) == -1 else None


@pattern("mul")
def silu(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x * sigmoid(alpha * x) -> silu(x)"""
    for x, s in either_order(op):
        inner = defined_by(s, "sigmoid")
        if inner is None:
            continue
        a, base, b = affine(rw, inner.operands[0], stop=x)
        if base == x and b == 0 and a > 0:
            rw.names_of(inner, op)
            return rw.create("silu", x, alpha=a)
    return None


@pattern("log")
def softplus(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """log(1 + exp(x)) -> softplus(x), which does not overflow"""
    a, e, b = affine(rw, op.operands[0])
    inner = defined_by(e, "exp")
    if inner is None or (a, b) != (1, 1):
        return None
    rw.names_of(inner, op)
    return rw.create("softplus", inner.operands[0])


@pattern("mul")
def mish(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x * tanh(softplus(x)) -> mish(x)"""
    for x, t in either_order(op):
        tanh = defined_by(t, "tanh")
        inner = defined_by(tanh.operands[0], "softplus") if tanh is not None else None
        if inner is not None and inner.operands[0] == x:
            rw.names_of(inner, tanh, op)
            return rw.create("mish", x)
    return None


@pattern("mul", "div")
def hard_sigmoid(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """clip(x + 3, 0, 6) / 6 -> hard_sigmoid(x) with alpha 1/6"""
    c, factors = product(rw, op.results[0])
    x = _clipped_shift(rw, factors[0]) if len(factors) == 1 and near(c, 1 / 6, op.results[0]) else None
    return rw.create("hard_sigmoid", x, alpha=1 / 6, beta=0.5) if x is not None else None


def _clipped_shift(rw: Rewriter, value: ir.Value) -> ir.Value | None:
    """x where value is clip(x + 3, 0, 6)."""
    clip = defined_by(value, "clip")
    if clip is None:
        return None
    attrs = dialect.attributes(clip)
    plus = defined_by(clip.operands[0], "add")
    if (attrs["low"], attrs["high"]) != (0, 6) or plus is None or rw.scalar(plus.operands[1]) != 3:
        return None
    return plus.operands[0] if plus.operands[0].type == value.type else None


@pattern("mul", "div")
def hard_swish(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x * hard_sigmoid(x) with alpha 1/6, x * clip(x + 3, 0, 6) / 6 -> hard_swish(x)"""
    c, factors = product(rw, op.results[0])
    if len(factors) != 2:
        return None
    for x, h in (factors, factors[::-1]):
        inner = defined_by(h, "hard_sigmoid")
        if inner is not None and inner.operands[0] == x and c == 1:
            attrs = dialect.attributes(inner)
            if near(attrs["alpha"], 1 / 6, x) and near(attrs["beta"], 0.5, x):
                rw.names_of(inner, op)
                return rw.create("hard_swish", x)
        base = _clipped_shift(rw, h)
        if base is not None and base == x and near(c, 1 / 6, x):
            return rw.create("hard_swish", x)
    return None
