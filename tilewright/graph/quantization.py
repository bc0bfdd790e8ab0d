"""Helpers for passes on quantized models: scales, zero points, and the multiplier and shift of a `requantize`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ops.quant import limits
from .rewrite import Pattern, Rewriter, Rewritten, defined_by, dtype, has_one_use, pattern, shape

BYTES = ("i8", "ui8")
#: a float bias becomes a whole number of quanta of the sum; at most this part of a quantum of the result may be lost
BIAS_STEP = 1 / 16


@dataclass(frozen=True)
class Quantized:
    """A tensor of 8-bit numbers that stand for ``(value - zero) * scale``."""

    value: ir.Value
    scale: float
    zero: int


@dataclass(frozen=True)
class Result:
    """How a result is stored: dtype, scale, zero point, and the range that a ReLU or clip leaves of its dtype."""

    to: str
    scale: float
    zero: int
    low: int
    high: int

    def clipped(self, low: float | None, high: float | None) -> Result:
        """With the numbers limited to low ... high; rounding keeps their order, so that the limits can be rounded."""
        a = self.low if low is None else max(self.low, self.number(low))
        b = self.high if high is None else min(self.high, self.number(high))
        return replace(self, low=min(a, b), high=b)

    def number(self, x: float) -> int:
        with np.errstate(over="ignore"):
            q = np.rint(np.float32(x) / np.float32(self.scale)) + self.zero
        return int(np.clip(q, *limits(self.to)))


@dataclass(frozen=True)
class Weights:
    """Constant weights, their zero point subtracted, and their scale: one, or one an output channel."""

    numbers: np.ndarray
    scale: np.ndarray

    def array(self) -> np.ndarray | None:
        """In the smallest type that operators take; None if there is none."""
        for kind in (np.int8, np.int16):
            if self.numbers.size == 0 or (
                self.numbers.min() >= np.iinfo(kind).min and self.numbers.max() <= np.iinfo(kind).max
            ):
                return self.numbers.astype(kind)
        return None


# ---- reading the graph ---------------------------------------------------------------------------------------------


def constant(rw: Rewriter, value: ir.Value | None) -> np.ndarray | None:
    """The array of a constant, also of one that is still to be quantized, cast, reshaped or transposed."""
    array = rw.array(value)
    if array is not None or value is None:
        return array
    op = defined_by(value, "quantize_linear", "cast", "reshape", "transpose")
    if op is None:
        return None
    operands = [None if v is None else constant(rw, v) for v in dialect.arguments(op)]
    if any(a is None and v is not None for a, v in zip(operands, dialect.arguments(op), strict=True)):
        return None
    cls = dialect.operator(op)
    return np.asarray(cls.reference(*operands, **dialect.attributes(op)))


def window(conv: ir.Operation) -> dict[str, Any]:
    """The attributes that an `integer_conv` shares with a `conv`."""
    attributes = dialect.attributes(conv)
    return {k: attributes[k] for k in ("strides", "pads", "dilations", "groups")}


def _number(rw: Rewriter, value: ir.Value | None) -> float | None:
    array = constant(rw, value)
    return None if array is None or array.size != 1 else array.reshape(-1)[0].item()


def parameters(rw: Rewriter, op: ir.Operation, kinds: tuple[str, ...]) -> tuple[float, int] | None:
    """(scale, zero point) of a (de)quantization of a whole tensor of these dtypes with constant f32 scale."""
    _, s, z = dialect.arguments(op)[:3]
    scale, zero = _number(rw, s), 0 if z is None else _number(rw, z)
    if scale is None or zero is None or dtype(s) != "f32" or not (np.isfinite(scale) and scale > 0):
        return None
    stored = op.operands[0] if dialect.mnemonic(op) == "dequantize_linear" else op.results[0]
    return (float(scale), int(zero)) if dtype(stored) in kinds else None


def dequantized(rw: Rewriter, value: ir.Value | None) -> Quantized | None:
    """The quantized tensor that `value` is the dequantization of."""
    op = defined_by(value, "dequantize_linear")
    found = None if op is None else parameters(rw, op, BYTES)
    return None if op is None or found is None else Quantized(op.operands[0], *found)


def quantization(rw: Rewriter, op: ir.Operation) -> Result | None:
    """How a ``quantize_linear`` stores its result, if it is one number in 8 bits for the whole tensor."""
    found = parameters(rw, op, BYTES)
    if found is None:
        return None
    to = dtype(op.results[0])
    return Result(to, *found, *limits(to))


def through_clips(rw: Rewriter, value: ir.Value, result: Result) -> tuple[ir.Value, Result]:
    """What ReLUs and clips in front of a quantization are applied to, and the range that they leave."""
    while True:
        op = defined_by(value, "relu", "clip", "max", "min")
        if op is None or not has_one_use(value):
            return value, result
        inner, low, high = op.operands[0], None, None
        if op.name == "tw.relu":
            low = 0.0
        elif op.name == "tw.clip":
            attributes = dialect.attributes(op)
            low, high = attributes["low"], attributes["high"]
        else:
            number = _number(rw, op.operands[1])
            if number is None:
                inner, number = op.operands[1], _number(rw, op.operands[0])
            if number is None or shape(inner) != shape(value):
                return value, result
            low, high = (number, None) if op.name == "tw.max" else (None, number)
        if any(limit is not None and np.isnan(limit) for limit in (low, high)):
            return value, result
        value, result = inner, result.clipped(low, high)


def quantizing(f: Callable[[Rewriter, ir.Operation, ir.Value, Result], Rewritten]) -> Pattern:
    """Decorator: a pattern of ``quantize_linear`` to 8 bits, which also gets what is quantized, without the clips in
    front, and how the result is stored, with them."""

    @pattern("quantize_linear")
    @wraps(f)
    def match(rw: Rewriter, op: ir.Operation) -> Rewritten:
        result = quantization(rw, op)
        return None if result is None else f(rw, op, *through_clips(rw, op.operands[0], result))

    return match


def weights(rw: Rewriter, value: ir.Value, channel: int) -> Weights | None:
    """Constant 8-bit weights behind a dequantization (and a transposition), with scales of a tensor or of a channel."""
    op = defined_by(value, "transpose")
    if op is not None:
        order = dialect.attributes(op)["permutation"]
        inner = weights(rw, op.operands[0], order[channel % len(order)])
        return None if inner is None else Weights(inner.numbers.transpose(order), inner.scale)
    op = defined_by(value, "dequantize_linear")
    if op is None or dtype(op.operands[0]) not in BYTES or dialect.attributes(op)["block"]:
        return None
    q, s, z = dialect.arguments(op)[:3]
    array, scale = constant(rw, q), constant(rw, s)
    zero = np.zeros(1, np.int64) if z is None else constant(rw, z)
    if array is None or scale is None or zero is None or dtype(s) != "f32":
        return None
    if not (np.isfinite(scale) & (scale > 0)).all():
        return None
    axis = dialect.attributes(op)["axis"] % array.ndim
    if scale.size > 1 and axis != channel % array.ndim:
        return None
    if zero.size > 1:
        zero = zero.reshape([-1 if i == axis else 1 for i in range(array.ndim)])
    else:
        zero = zero.reshape(())
    return Weights(array.astype(np.int64) - zero.astype(np.int64), scale.reshape(-1).astype(np.float64))


def whole_bias(rw: Rewriter, value: ir.Value | None, scale: np.ndarray, channels: int) -> np.ndarray | None:
    """A constant bias (float, or a dequantized i32) as whole multiples of the scale of the sums."""
    if value is None:
        return np.zeros(channels, np.int64)
    op = defined_by(value, "dequantize_linear")
    if op is not None:
        q, s, z = dialect.arguments(op)[:3]
        array, step, zero = constant(rw, q), constant(rw, s), 0 if z is None else constant(rw, z)
        if array is None or step is None or zero is None or dialect.attributes(op)["block"]:
            return None
        real = (array.astype(np.float64) - zero) * step.astype(np.float64)
    else:
        found = constant(rw, value)
        if found is None:
            return None
        real = found.astype(np.float64)
    flat = real.reshape(-1)
    if flat.size not in (1, channels) or not np.isfinite(flat).all():
        return None
    numbers = np.rint(flat / scale)
    return None if np.abs(numbers).max(initial=0) >= 1 << 30 else np.broadcast_to(numbers, channels).astype(np.int64)


def reach_of(numbers: np.ndarray, axes: tuple[int, ...], kind: str, bias: np.ndarray) -> np.ndarray:
    """The largest absolute value of ``sum of numbers * x + bias`` for 8-bit x; infinity if that may leave 32 bits."""
    low, high = limits(kind)
    ends = np.stack([numbers * low, numbers * high])
    most = np.maximum(ends.max(axis=0).sum(axis=axes) + bias, -(ends.min(axis=0).sum(axis=axes) + bias))
    return np.where(np.abs(numbers).sum(axis=axes) * 255 < 1 << 31, most.astype(np.float64), np.inf)


# ---- writing it ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """The parameters of a `requantize`: operands in order (with the bias first), and attributes."""

    operands: tuple[np.ndarray, ...]
    left: int

    def create(self, rw: Rewriter, x: ir.Value, result: Result, axis: int = 1) -> ir.Value:
        values = [rw.constant(a, "requantize") for a in self.operands]
        attributes = {"zero": result.zero, "low": result.low, "high": result.high, "left": self.left, "axis": axis}
        return rw.create("requantize", x, *values, to=result.to, **attributes)


def step(scale: np.ndarray, bias: np.ndarray, reach: np.ndarray, result: Result) -> Step | None:
    """From sums of this scale (one, or one a channel) to a result; None if 32 bits may not hold a sum.

    `reach` bounds the absolute value of the sums with their bias. Nothing that is chosen here may depend on the
    signedness in which a target keeps the numbers: results have the same bits on all of them.
    """
    ratio = np.asarray(scale, np.float64) / result.scale
    mantissa, power = np.frexp(ratio)
    multiplier = np.rint(mantissa * 2.0**31).astype(np.int64)
    power = np.where(multiplier == 1 << 31, power + 1, power)
    multiplier = np.where(multiplier == 1 << 31, 1 << 30, multiplier)
    bits = 31 - power.astype(np.int64)  # ratio = multiplier / 2**bits
    left = int(max(0, 33 - bits.min(initial=33)))
    shift = bits + left - 33
    small = np.maximum(shift - 30, 0)  # nearly zero: bits of the multiplier that do not matter
    multiplier, shift = np.where(small > 40, 0, multiplier >> np.minimum(small, 40)), shift - small
    most = reach * 2.0**left
    if left > 30 or most.max(initial=0) >= 1 << 31:
        return None
    numbers = [bias, multiplier, shift, *_ties(multiplier, shift, most)]
    operands = [a.astype(np.int32) for a in numbers]
    return Step(tuple(np.asarray(a[0]) if (a == a[0]).all() else a for a in operands), left)


def _ties(multiplier: np.ndarray, shift: np.ndarray, most: np.ndarray) -> list[np.ndarray]:
    """`odd`, `half` and `exponent` of `requantize` where an exact half can come up; else nothing."""
    trailing = np.log2(np.where(multiplier == 0, 1, multiplier & -multiplier)).astype(np.int64)
    exponent = shift + 33 - trailing
    possible = (multiplier != 0) & (exponent <= 31) & (2.0 ** (exponent - 1) <= most)
    if not possible.any():
        return []
    odd = np.where(possible, multiplier >> trailing, 0)
    exponent = np.where(possible, exponent, 1)
    half = np.where(possible, np.left_shift(np.int64(1), exponent - 1), 1)  # 1 == r << 1 never holds
    return [odd, half, exponent]
