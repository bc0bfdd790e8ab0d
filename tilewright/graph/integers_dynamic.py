"""Products of integers whose scale and zero point are computed when the model runs (dynamic quantization)."""

from __future__ import annotations

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.types import type_of
from .quantization import BYTES, constant, weights, window
from .rewrite import Rewriter, Rewritten, defined_by, dtype, pattern, shape, static


@pattern("conv", "matmul")
def sum_of_dynamic(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """matmul(dequantize(x, s, z), dequantize(w)) with computed s and z
    -> (integer_matmul(x, w) - z * sum(w)) * (s * scale of w); conv without padding too"""
    conv = op.name == "tw.conv"
    inner = defined_by(op.operands[0], "dequantize_linear")
    if inner is None or not static(*op.operands, *op.results) or dtype(op.results[0]) != "f32":
        return None
    x, scale, zero = dialect.arguments(inner)[:3]
    if not _one_computed_scale(rw, x, scale, zero):
        return None
    if conv and (dialect.attributes(op)["layout"] != "nchw" or any(dialect.attributes(op)["pads"])):
        return None
    if not conv and len(shape(op.operands[1])) != 2:
        return None
    w = weights(rw, op.operands[1], 0 if conv else 1)
    numbers = w.array() if w is not None else None
    axes = (0,) if numbers is None or not conv else tuple(range(1, numbers.ndim))
    if w is None or numbers is None or (np.abs(w.numbers).sum(axis=axes) * 255 >= 1 << 31).any():
        return None
    along = (-1, *[1] * (numbers.ndim - 2)) if conv else (-1,)
    table = rw.constant(np.ascontiguousarray(numbers), "w")
    total = rw.create("integer_conv", x, table, **window(op)) if conv else rw.create("integer_matmul", x, table)
    if zero is not None:
        sums = rw.constant(w.numbers.sum(axis=axes).astype(np.int32).reshape(along), "sums")
        share = rw.create("mul", rw.reshape(rw.create("cast", zero, to="i32"), ()), sums)
        total = rw.create("sub", total, share)
    factor = rw.constant(w.scale.astype(np.float32).reshape(along if w.scale.size > 1 else ()), "scale")
    factor = rw.create("mul", rw.reshape(scale, ()), factor)
    out = rw.create("mul", rw.create("cast", total, to="f32"), factor)
    bias = dialect.arguments(op)[2] if conv else None
    return out if bias is None else rw.create("add", out, rw.reshape(bias, (shape(bias)[0], *along[1:])))


def _one_computed_scale(rw: Rewriter, x: ir.Value, scale: ir.Value, zero: ir.Value | None) -> bool:
    """Whether 8-bit numbers have one scale (and zero point), and one of the two is computed."""
    if dtype(x) not in BYTES or dtype(scale) != "f32" or constant(rw, x) is not None:
        return False
    if any(type_of(v).size != 1 for v in (scale, zero) if v is not None):
        return False
    return constant(rw, scale) is None or (zero is not None and constant(rw, zero) is None)


PATTERNS = [sum_of_dynamic]
