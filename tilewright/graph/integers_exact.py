"""Rewrites of quantized models that keep every bit: what only moves numbers moves the 8-bit ones; products of integers
(MatMulInteger, ConvInteger, the QLinear operators) without the casts to i32 in front of them."""

from __future__ import annotations

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from .quantization import (
    BYTES,
    Result,
    Weights,
    constant,
    dequantized,
    parameters,
    quantization,
    quantizing,
    reach_of,
    step,
    window,
)
from .rewrite import Rewriter, Rewritten, defined_by, dtype, either_order, has_one_use, pattern, shape, static

MOVES = ("reshape", "transpose", "slice", "expand", "max_pool", "reduce_max", "reduce_min", "tile")


@pattern(*MOVES)
def move_bytes(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """max_pool(dequantize(x)) -> dequantize(max_pool(x)), and for all that only moves or selects"""
    q = dequantized(rw, op.operands[0])
    if q is None or constant(rw, q.value) is not None:
        return None
    inner = defined_by(op.operands[0], "dequantize_linear")
    assert inner is not None
    x, *params = dialect.arguments(inner)
    moved = rw.again(op, [x, *dialect.arguments(op)[1:]])[0]
    return rw.create("dequantize_linear", moved, *params, axis=0)


@pattern("concat")
def concat_bytes(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """concat(dequantize(x), dequantize(y)) of one scale and zero point -> dequantize(concat(x, y))"""
    found = [q for v in op.operands if (q := dequantized(rw, v)) is not None]
    if len(found) != len(op.operands) or len({(q.scale, q.zero, dtype(q.value)) for q in found}) != 1:
        return None
    inner = defined_by(op.operands[0], "dequantize_linear")
    assert inner is not None
    _, *params = dialect.arguments(inner)
    joined = rw.create("concat", *[q.value for q in found], **dialect.attributes(op))
    return rw.create("dequantize_linear", joined, *params, axis=0)


@pattern("quantize_linear")
def concat_of_other_scales(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """quantize(concat(dequantize(x), dequantize(y))) -> concat of the numbers, each quantized anew"""
    inner = defined_by(op.operands[0], "concat")
    if inner is None or quantization(rw, op) is None or not has_one_use(op.operands[0]):
        return None
    if any(dequantized(rw, v) is None for v in inner.operands):
        return None
    parts = [rw.again(op, [v, *dialect.arguments(op)[1:]])[0] for v in inner.operands]
    return rw.create("concat", *parts, **dialect.attributes(inner))


@pattern("quantize_linear")
def quantized_before(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """quantize(reshape(x)) -> reshape(quantize(x)), so that what makes x can give 8-bit numbers; with a clip between
    them too"""
    value, clip = op.operands[0], defined_by(op.operands[0], "clip")
    if clip is not None and has_one_use(value):
        value = clip.operands[0]
    inner = defined_by(value, "reshape", "transpose")
    if inner is None or quantization(rw, op) is None or not has_one_use(value):
        return None
    before = inner.operands[0] if clip is None else rw.again(clip, [inner.operands[0]])[0]
    made = rw.again(op, [before, *dialect.arguments(op)[1:]], axis=0)[0]
    return rw.again(inner, [made])[0]


@pattern("quantize_linear")
def unchanged(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """quantize(dequantize(x)) with the same scale and zero point -> x"""
    x, result = dequantized(rw, op.operands[0]), quantization(rw, op)
    if x is None or result is None or (x.scale, x.zero, dtype(x.value)) != (result.scale, result.zero, result.to):
        return None
    return x.value


@pattern("flip_sign")
def flip_of_flip(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """flip_sign(flip_sign(x)) -> x"""
    inner = defined_by(op.operands[0], "flip_sign")
    return inner.operands[0] if inner is not None else None


# ---- products of integers ------------------------------------------------------------------------------------------


def _centred(rw: Rewriter, value: ir.Value) -> tuple[ir.Value, ir.Value | None] | None:
    """(x, zero) of ``cast(x: 8 bits) - zero`` in i32."""
    op, zero = defined_by(value, "sub"), None
    if op is not None:
        value, zero = op.operands
        inner = defined_by(zero, "cast", "reshape", "constant")
        if inner is None and not isinstance(zero.owner, ir.Block):
            return None
    cast = defined_by(value, "cast")
    if cast is None or dtype(cast.operands[0]) not in BYTES or dtype(value) != "i32":
        return None
    return cast.operands[0], zero


def _constant_weights(rw: Rewriter, value: ir.Value) -> Weights | None:
    """Centred weights that are known at compile time; small ones may have been folded before."""
    whole = constant(rw, value)
    if whole is not None:
        return Weights(whole.astype(np.int64), np.ones(1))
    found = _centred(rw, value)
    if found is None:
        return None
    array, zero = constant(rw, found[0]), np.zeros((), np.int64) if found[1] is None else constant(rw, found[1])
    if array is None or zero is None:
        return None
    numbers = array.astype(np.int64) - zero.astype(np.int64)
    return Weights(numbers, np.ones(1)) if numbers.shape == array.shape else None


@pattern("conv", "matmul")
def product_of_bytes(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """matmul(cast(x) - zx, cast(w) - zw) in i32 -> integer_matmul(x, w) - zx * sum(w); conv for constant zx"""
    conv = op.name == "tw.conv"
    if dtype(op.results[0]) != "i32" or not static(*op.operands, *op.results):
        return None
    x, w = _centred(rw, op.operands[0]), _constant_weights(rw, op.operands[1])
    numbers = w.array() if w is not None else None
    if x is None or w is None or numbers is None or constant(rw, x[0]) is not None:
        return None
    value, zero = x
    known = 0 if zero is None else constant(rw, zero)
    if zero is not None and int(np.prod(shape(zero))) != 1:
        return None
    if conv:
        if known is None or dialect.attributes(op)["layout"] != "nchw" or dialect.arguments(op)[2] is not None:
            return None
        number = int(np.asarray(known).reshape(-1)[0])
        share = numbers.astype(np.int64).sum(axis=tuple(range(1, numbers.ndim))) * number
        out = rw.create("integer_conv", value, rw.constant(numbers, "w"), pad_value=number, **window(op))
        if not share.any():
            return out
        offset = -share.astype(np.int32).reshape(-1, *[1] * (numbers.ndim - 2))
        return rw.create("add", out, rw.constant(offset, "offset"))
    if numbers.ndim != 2 or len(shape(value)) < 1:
        return None
    out = rw.create("integer_matmul", value, rw.constant(np.ascontiguousarray(numbers), "w"))
    if zero is None:
        return out
    sums = rw.constant(numbers.astype(np.int64).sum(axis=0).astype(np.int32), "sums")
    if known is not None:
        number = int(np.asarray(known).reshape(-1)[0])
        total = (numbers.astype(np.int64).sum(axis=0) * number).astype(np.int32)
        return rw.create("sub", out, rw.constant(total, "offset")) if number else out
    return rw.create("sub", out, rw.create("mul", rw.reshape(zero, ()), sums))


@quantizing
def requantized_sum(rw: Rewriter, op: ir.Operation, value: ir.Value, result: Result) -> Rewritten:
    """quantize(cast(integer_conv(...) + constants) * scales) -> requantize(integer_conv(...))"""
    scale, value = _scaled(rw, value)
    cast = defined_by(value, "cast")
    if cast is None or dtype(cast.operands[0]) != "i32" or dtype(value) != "f32":
        return None
    value = cast.operands[0]
    rank, bias = len(shape(value)), np.zeros((), np.int64)
    while True:
        inner = defined_by(value, "add", "sub")
        if inner is None or not has_one_use(value):
            break
        number = constant(rw, inner.operands[1])
        if number is None or shape(inner.operands[0]) != shape(value):
            return None
        bias = bias + number.astype(np.int64) * (1 if inner.name == "tw.add" else -1)
        value = inner.operands[0]
    product = defined_by(value, "integer_conv", "integer_matmul")
    if product is None:
        return None
    w = constant(rw, product.operands[1])
    if w is None:
        return None
    conv = product.name == "tw.integer_conv"
    axis, axes = (1, tuple(range(1, w.ndim))) if conv else (rank - 1, (0,))
    scales, offset = (_along(a, axis, rank) for a in (scale, bias))
    if scales is None or offset is None or not (np.isfinite(scales) & (scales > 0)).all():
        return None
    reach = reach_of(w.astype(np.int64), axes, dtype(product.operands[0]), offset)
    how = step(scales, offset.astype(np.int64), reach, result)
    return None if how is None else how.create(rw, value, result, axis)


def _scaled(rw: Rewriter, value: ir.Value) -> tuple[np.ndarray, ir.Value]:
    """(product of constant factors, what they multiply)."""
    scale = np.ones((), np.float64)
    while True:
        op = defined_by(value, "mul")
        if op is None:
            return scale, value
        for a, b in either_order(op):
            factor = constant(rw, b)
            if factor is not None and shape(a) == shape(value):
                scale, value = scale * factor.astype(np.float64), a
                break
        else:
            return scale, value


def _along(array: np.ndarray, axis: int, rank: int) -> np.ndarray | None:
    """An array that broadcasts along one dimension only, as a vector (of one element for a number)."""
    full = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if any(n != 1 for i, n in enumerate(full.shape) if i != axis):
        return None
    return full.reshape(-1)


PATTERNS = [
    move_bytes,
    concat_bytes,
    concat_of_other_scales,
    quantized_before,
    unchanged,
    flip_of_flip,
    product_of_bytes,
    requantized_sum,
]

__all__ = ["PATTERNS", "Result", "parameters"]
