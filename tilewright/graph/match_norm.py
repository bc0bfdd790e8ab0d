"""Layer, RMS and group normalization as exporters decompose them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from .matching import mean_of
from .passes import PassReport, register
from .rewrite import (
    Rewriter,
    Rewritten,
    defined_by,
    definition,
    either_order,
    has_one_use,
    pattern,
    rewrite,
    shape,
    static,
)


@register("match-norm")
@dataclass(frozen=True)
class MatchNorm:
    """Find layer and RMS norm written with means, and group norm of reshaped images; take what scales them into them.

        %0 = "tw.mul"(%x, %x) : ...
        %1 = "tw.reduce_mean"(%0) {axes = array<i64: 1>, keepdims = true} : ...
        %2 = "tw.add"(%1, %epsilon) : ...
        %3 = "tw.rsqrt"(%2) : (tensor<2x1xf32>) -> tensor<2x1xf32>
        %4 = "tw.mul"(%x, %3) : ...
        %5 = "tw.mul"(%weight, %4) : ...
    ->  %0 = "tw.rms_norm"(%x, %weight) {axis = 1 : i64, epsilon = ...} : ...
    """

    def run(self, graph: Graph) -> PassReport:
        return rewrite(
            graph, [normalization, take_scale, take_bias, groups_as_channels, take_channel_scale, take_channel_bias]
        )


@pattern("mul", "div")
def normalization(rw: Rewriter, op: ir.Operation) -> Rewritten:
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
def take_scale(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """mul(layer_norm(x), w) -> layer_norm(x, w), for rms_norm too"""
    for v, w in either_order(op):
        norm = defined_by(v, "layer_norm", "rms_norm")
        if norm is None or len(norm.operands) != 1 or not _parameter(rw, norm, v, w, op):
            continue
        rw.names_of(norm, op)
        return rw.again(norm, [norm.operands[0], w])[0]
    return None


@pattern("add")
def take_bias(rw: Rewriter, op: ir.Operation) -> Rewritten:
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


@pattern("reshape")
def groups_as_channels(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """reshape(group_norm(reshape(x, [n, groups, -1])), shape of x) -> group_norm(x)

    A group is the same run of numbers either way, but an image that keeps its shape may have its channels last.
    """
    norm = defined_by(op.operands[0], "group_norm")
    inner = defined_by(norm.operands[0], "reshape") if norm is not None else None
    if (
        norm is None
        or inner is None
        or not has_one_use(norm.results[0])
        or dialect.attributes(norm)["layout"] != "nchw"
    ):
        return None
    x, cut = inner.operands[0], shape(norm.results[0])
    dims = shape(x)
    if not static(x) or x.type != op.results[0].type or len(dims) < 3 or dims[0] != cut[0] or dims[1] % cut[1]:
        return None
    parameters = [p for v in norm.operands[1:] if (p := rw.array(v)) is not None]
    if len(parameters) != len(norm.operands) - 1:
        return None
    rw.names_of(inner, norm, op)
    hints = [rw.symbol(v) for v in norm.operands[1:]]
    each = dims[1] // cut[1]
    wider = [rw.constant(np.repeat(p, each), hint) for p, hint in zip(parameters, hints, strict=True)]
    return rw.again(norm, [x, *wider])[0]


@pattern("mul")
def take_channel_scale(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """mul(group_norm(x, 1, 0), w) -> group_norm(x, w, 0), for a w that varies along the channels alone"""
    for v, w in either_order(op):
        norm = defined_by(v, "group_norm")
        if norm is None or not _of_channels(rw, norm, w, op):
            continue
        x, scale, bias = norm.operands
        if rw.splat(scale) != 1 or rw.splat(bias) != 0:
            continue
        rw.names_of(norm, op)
        return rw.again(norm, [x, _channels(rw, norm, w), bias])[0]
    return None


@pattern("add")
def take_channel_bias(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """add(group_norm(x, w, 0), b) -> group_norm(x, w, b), for a b that varies along the channels alone"""
    for v, b in either_order(op):
        norm = defined_by(v, "group_norm")
        if norm is None or rw.splat(norm.operands[2]) != 0 or not _of_channels(rw, norm, b, op):
            continue
        rw.names_of(norm, op)
        return rw.again(norm, [*list(norm.operands)[:2], _channels(rw, norm, b)])[0]
    return None


def _of_channels(rw: Rewriter, norm: ir.Operation, w: ir.Value, op: ir.Operation) -> bool:
    """w is a constant that varies only along the channels, and nobody else needs the norm without it."""
    v = norm.results[0]
    if not static(v) or not has_one_use(v) or v.type != op.results[0].type or rw.array(w) is None:
        return False
    dims = (*[1] * (len(shape(v)) - len(shape(w))), *shape(w))
    axis = 1 if dialect.attributes(norm)["layout"] == "nchw" else len(dims) - 1
    return all(d == 1 or a == axis for a, d in enumerate(dims))


def _channels(rw: Rewriter, norm: ir.Operation, w: ir.Value) -> ir.Value:
    """A constant for every channel of a norm."""
    array = rw.array(w)
    assert array is not None
    return rw.constant(np.broadcast_to(array.reshape(-1), shape(norm.operands[1])).copy(), rw.symbol(w))


PATTERNS = [normalization, take_scale, take_bias, groups_as_channels, take_channel_scale, take_channel_bias]
