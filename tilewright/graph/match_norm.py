"""Layer normalization and RMS normalization as exporters decompose them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from .matching import mean_of
from .passes import PassReport, register
from .rewrite import Rewriter, defined_by, definition, either_order, has_one_use, pattern, rewrite, shape


@register("match-norm")
@dataclass(frozen=True)
class MatchNorm:
    """Find layer norm and RMS norm written with means, and take the scale and bias that follow into them.

        %0 = "tw.mul"(%x, %x) : ...
        %1 = "tw.reduce_mean"(%0) {axes = array<i64: 1>, keepdims = true} : ...
        %2 = "tw.add"(%1, %epsilon) : ...
        %3 = "tw.rsqrt"(%2) : (tensor<2x1xf32>) -> tensor<2x1xf32>
        %4 = "tw.mul"(%x, %3) : ...
        %5 = "tw.mul"(%weight, %4) : ...
    ->  %0 = "tw.rms_norm"(%x, %weight) {axis = 1 : i64, epsilon = ...} : ...
    """

    def run(self, graph: Graph) -> PassReport:
        return rewrite(graph, [normalization, take_scale, take_bias])


@pattern("mul", "div")
def normalization(rw: Rewriter, op: ir.Operation) -> Any:
    """d * rsqrt(mean(d * d) + epsilon) -> layer_norm(x) where d is x - mean(x), else rms_norm(d)"""
    for d, factor in either_order(op) if op.name == "tw.mul" else [tuple(op.operands)]:
        root = _root(factor, "rsqrt" if op.name == "tw.mul" else "sqrt")
        if root is None or d.type != op.results[0].type:
            continue
        epsilon, square = _plus_number(rw, root.operands[0])
        found = mean_of(rw, square)
        if found is None or not _is_square(rw, found[0], d):
            continue
        rank, axes = len(shape(d)), found[1]
        if axes != tuple(range(axes[0], rank)):
            continue
        difference = defined_by(d, "sub")
        centre = mean_of(rw, difference.operands[1]) if difference is not None else None
        if difference is not None and centre == (difference.operands[0], axes):
            rw.names_of(difference, definition(square), root, op)
            return rw.create("layer_norm", difference.operands[0], axis=axes[0], epsilon=epsilon)
        rw.names_of(definition(square), root, op)
        return rw.create("rms_norm", d, axis=axes[0], epsilon=epsilon)
    return None


def _root(value: ir.Value, name: str) -> ir.Operation | None:
    root = defined_by(value, name)
    if root is not None or name == "sqrt":
        return root
    inverse = defined_by(value, "reciprocal")
    return defined_by(inverse.operands[0], "sqrt") if inverse is not None else None


def _plus_number(rw: Rewriter, value: ir.Value) -> tuple[float, ir.Value]:
    """(c, x) where value is x + c; c is 0 for any other value."""
    op = defined_by(value, "add")
    for x, c in either_order(op) if op is not None else ():
        number = rw.scalar(c)
        if number is not None and shape(x) == shape(value):
            return number, x
    return 0.0, value


def _is_square(rw: Rewriter, value: ir.Value, d: ir.Value) -> bool:
    product = defined_by(value, "mul")
    if product is not None:
        return product.operands[0] == d and product.operands[1] == d
    power = defined_by(value, "pow")
    return power is not None and power.operands[0] == d and rw.scalar(power.operands[1]) == 2


@pattern("mul")
def take_scale(rw: Rewriter, op: ir.Operation) -> Any:
    """mul(layer_norm(x), w) -> layer_norm(x, w), for rms_norm too"""
    for v, w in either_order(op):
        norm = defined_by(v, "layer_norm", "rms_norm")
        if norm is None or len(norm.operands) != 1 or not _parameter(rw, norm, v, w, op):
            continue
        rw.names_of(norm, op)
        return rw.again(norm, [norm.operands[0], w])[0]
    return None


@pattern("add")
def take_bias(rw: Rewriter, op: ir.Operation) -> Any:
    """add(layer_norm(x, w), b) -> layer_norm(x, w, b)"""
    for v, b in either_order(op):
        norm = defined_by(v, "layer_norm")
        if norm is None or not _parameter(rw, norm, v, b, op):
            continue
        x, scale, bias = [*dialect.arguments(norm), None, None][:3]
        if bias is not None:
            continue
        rw.names_of(norm, op)
        return rw.again(norm, [x, scale, b])[0]
    return None


def _parameter(rw: Rewriter, norm: ir.Operation, v: ir.Value, w: ir.Value, op: ir.Operation) -> bool:
    """w is a constant that varies only along normalized dimensions, and nobody else needs the norm without it."""
    axis = dialect.attributes(norm)["axis"] % len(shape(v))
    small = all(d == 1 for d in shape(w)[: max(0, len(shape(w)) - (len(shape(v)) - axis))])
    return small and rw.array(w) is not None and has_one_use(v) and v.type == op.results[0].type
