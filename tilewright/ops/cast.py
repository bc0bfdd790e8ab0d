"""Conversion between element types; docs/semantics.md has the table."""

from __future__ import annotations

import numpy as np

from ..ir.types import NUMPY, is_float, is_unsigned, itemsize
from ..support.dtypes import converted
from ..support.errors import OpError
from ..support.sub_byte import FLOATS, INTS, NARROW, ROUND_MODES, decode, encode
from .common import KINDS, Elementwise


class Cast(Elementwise):
    """x converted to the dtype `to`: floats to integers truncate toward zero, to ``i1`` compare with zero, integers to
    integers wrap.

    A float that is out of the range of an integer becomes its nearest end, and NaN 0, if `saturate`. If not, it wraps
    as x86 has it: it becomes an integer of 32 bits (of 64 for results of 64 bits), of which the lowest bits are kept;
    what that integer has no room for, NaN too, becomes its lowest number. For results of 8-bit floats, `saturate` says
    whether what is too large becomes the largest number, and `round_mode` how it is rounded.

    ``"tw.cast"(%x) {to = "f32"} : (tensor<4xi64>) -> tensor<4xf32>``
    """

    @classmethod
    def infer(cls, x, *, to: str, saturate: bool = True, round_mode: str = "up"):
        if to not in KINDS["any"]:
            raise OpError(f"unknown dtype {to!r}")
        if round_mode not in ROUND_MODES:
            raise OpError(f"round_mode is one of {', '.join(ROUND_MODES)}, not {round_mode!r}")
        return x.with_dtype(to)

    @staticmethod
    def reference(x, *, to, saturate, round_mode):
        with np.errstate(all="ignore"):
            x = decode(x)
            if x.dtype.kind in "fV" and (to in KINDS["int"] or to in INTS):
                whole = np.trunc(x.astype(np.float64))
                if to in INTS:
                    return encode(_wrapped_array(whole, "i32"), to)
                return _limited_array(whole, to) if saturate else _wrapped_array(whole, to)
            if is_float(to) and to not in NARROW:
                return converted(x, to)
            return encode(x, to, saturate, round_mode) if to in NARROW else x.astype(NUMPY[to])

    @classmethod
    def lower(cls, b, x, *, to, saturate, round_mode):
        source_is_float = x.dtype in FLOATS or (is_float(x.dtype) and x.dtype not in NARROW)
        if not source_is_float or (to not in KINDS["int"] and to not in INTS):
            return b.cast_tensor(x, to, saturate, round_mode)

        def body(v):
            v = v if v.dtype in ("f32", "f64") else b.cast(v, "f32")
            if to in INTS:
                return b.cast(_wrapped(b, v, "i32"), to)
            return (_limited if saturate else _wrapped)(b, v, to)

        return b.elementwise(body, x, dtype=to)


# What is outside of an integer's range is undefined to the machine: no conversion below is used there.


def _limits(to: str) -> tuple[float, float]:
    """The lowest number, and the first one beyond the largest."""
    bits = 8 * itemsize(to)
    return (0.0, 2.0**bits) if is_unsigned(to) else (-(2.0 ** (bits - 1)), 2.0 ** (bits - 1))


def _limited(b, v, to):
    low, high = _limits(to)
    inside = b.select(v > low, b.select(v < high, v, 0.0), 0.0)
    made = b.select(v >= high, np.iinfo(NUMPY[to]).max, b.cast(inside, to))
    return made if is_unsigned(to) else b.select(v <= low, np.iinfo(NUMPY[to]).min, made)


def _limited_array(whole, to):
    low, high = _limits(to)
    ends = np.iinfo(NUMPY[to])
    inside = np.where((whole > low) & (whole < high), whole, 0).astype(NUMPY[to])
    made = np.where(whole >= high, np.array(ends.max, NUMPY[to]), inside)
    return np.where(whole <= low, np.array(ends.min, NUMPY[to]), made)


def _signed(to: str) -> tuple[str, float]:
    """The integer that a float becomes first if it wraps, and half of its range."""
    bits = max(8 * itemsize(to), 32)
    return f"i{bits}", 2.0 ** (bits - 1)


def _wrapped(b, v, to):
    signed, half = _signed(to)
    lowest = np.iinfo(NUMPY[signed]).min

    def convert(v):
        return b.select(b.abs(v) < half, b.cast(v, signed), lowest)

    if to in ("ui32", "ui64"):  # the upper half of the range, moved into that of the signed integer
        upper = v >= half
        made = convert(b.select(upper, v - half, v))
        return b.cast(b.select(upper, made ^ lowest, made), to)
    return b.cast(convert(v), to)


def _wrapped_array(whole, to):
    signed, half = _signed(to)
    lowest = np.array(np.iinfo(NUMPY[signed]).min, NUMPY[signed])
    upper = (whole >= half) & (to in ("ui32", "ui64"))
    whole = np.where(upper, whole - half, whole)
    inside = np.abs(whole) < half
    made = np.where(inside, np.where(inside, whole, 0).astype(NUMPY[signed]), lowest)
    return np.where(upper, made ^ lowest, made).astype(NUMPY[to])
