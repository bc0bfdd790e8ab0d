"""Narrow element types: storage-only float formats (fp8, fp4 ...) and packed integers of 4 and 2 bits.

In memory an element takes one byte whose low bits are its code; only model files pack several into a byte. A format is
decoded to f32 (or to an integer of 8 bits) where it is read, and encoded where it is written.

>>> encode(np.array([0.3, 500.0, -1.0], np.float32), "f8E4M3FN").astype(np.float32).tolist()
[0.3125, 448.0, -1.0]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .dtypes import TABLE, TYPES, FloatFormat

_TYPES = {t.name: t for t in TABLE if t.computed}
NARROW = tuple(_TYPES)
FLOATS = {n: t.format for n, t in _TYPES.items() if t.format is not None}
#: powers of two; has no sign, no zero and no mantissa
SCALE = "f8E8M0FNU"
#: bits and whether there is a sign
INTS = {n: (t.bits, t.kind == "int") for n, t in _TYPES.items() if t.kind in ("int", "uint")}
NUMPY: dict[str, np.dtype] = {n: t.numpy for n, t in _TYPES.items()}
ROUND_MODES = ("up", "down", "nearest")


def computed(dtype: str) -> str:
    """The dtype that an element is decoded to."""
    return _TYPES[dtype].computed


def limits(dtype: str) -> tuple[int, int]:
    """Smallest and largest number of an integer format.

    >>> limits("i4"), limits("ui2")
    ((-8, 7), (0, 3))
    """
    bits, signed = INTS[dtype]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)


# ---- arrays --------------------------------------------------------------------------------------------------------


def decode(x: np.ndarray) -> np.ndarray:
    """An array of a narrow dtype as float32 or 8-bit integers; other arrays as they are."""
    for name, dtype in NUMPY.items():
        if x.dtype == dtype:
            return x.astype(TYPES[computed(name)].numpy)
    return x


def encode(x: np.ndarray, dtype: str, saturate: bool = True, round_mode: str = "up") -> np.ndarray:
    """An array of numbers in a narrow dtype; arguments as ONNX Cast has them."""
    with np.errstate(all="ignore"):
        if dtype in INTS:
            bits = INTS[dtype][0]
            whole = x.astype(np.int64) & ((1 << bits) - 1)
            return whole.astype(np.uint8).view(NUMPY[dtype])
        x = x.astype(np.float32)
        if dtype == SCALE:
            return _encode_scale(x, saturate, round_mode).view(NUMPY[dtype])
        if saturate and FLOATS[dtype].nan is not None:
            top = np.array(FLOATS[dtype].top, np.uint8).view(NUMPY[dtype]).astype(np.float32)
            x = np.clip(x, -top, top)
        return x.astype(NUMPY[dtype])


def _encode_scale(x: np.ndarray, saturate: bool, round_mode: str) -> np.ndarray:
    bits = np.atleast_1d(x).view(np.uint32)
    exponent = (bits >> 23) & 0xFF
    part = bits & 0x7FFFFF
    if round_mode == "up":
        more = part > 0
    elif round_mode == "nearest":
        more = (part > 0x400000) | ((part == 0x400000) & (exponent > 0))
    else:
        more = np.zeros(part.shape, bool)
    if saturate:
        more &= exponent != 0xFE
    code = np.where(exponent == 0xFF, 0xFF, exponent + more)
    return code.astype(np.uint8).reshape(x.shape)


# ---- scalars in a linalg body --------------------------------------------------------------------------------------


def decode_scalar(b: Any, x: Any) -> Any:
    """A Scalar of a narrow dtype as its `computed` dtype; `b` is the Builder."""
    code = b.reinterpret(x, "ui8")
    if x.dtype in INTS:
        bits, signed = INTS[x.dtype]
        if not signed:
            return code
        whole = b.reinterpret(code, "i8")
        return (whole * (1 << 8 - bits)).shift_right(8 - bits)
    wide = b.cast(code, "ui32")
    if x.dtype == SCALE:  # the smallest is a subnormal of f32, 255 is NaN
        bits = b.select(wide.eq(0), 0x00400000, b.select(wide.eq(255), 0x7FC00000, wide.shift_left(23)))
        return b.reinterpret(bits, "f32")
    f = FLOATS[x.dtype]
    size = wide & (f.sign - 1)
    # exponent and mantissa in their place in f32, then the bias corrected: exact for subnormals too
    number = b.reinterpret(size.shift_left(23 - f.mantissa), "f32") * 2.0 ** (127 - f.bias)
    if f.infinity is not None:
        number = b.select(size > f.infinity, float("nan"), b.select(size.eq(f.infinity), float("inf"), number))
    elif f.nan is not None and not f.unsigned_zero:
        number = b.select(size.eq(f.nan), float("nan"), number)
    number = b.select((wide & f.sign).eq(0), number, -number)
    return b.select(wide.eq(f.nan), float("nan"), number) if f.unsigned_zero else number


def encode_scalar(b: Any, x: Any, dtype: str, saturate: bool = True, round_mode: str = "up") -> Any:
    """A Scalar of any dtype as a narrow one."""
    if dtype in INTS:
        whole = b.cast(b.cast(x, "i32"), "ui8")
        return b.reinterpret(whole & ((1 << INTS[dtype][0]) - 1), dtype)
    bits = b.reinterpret(b.cast(x, "f32"), "ui32")
    if dtype == SCALE:
        code = _scale_code(b, bits, saturate, round_mode)
    else:
        code = _float_code(b, bits, FLOATS[dtype], saturate)
    return b.reinterpret(b.cast(code, "ui8"), dtype)


def _scale_code(b: Any, bits: Any, saturate: bool, round_mode: str) -> Any:
    exponent, part = bits.shift_right(23) & 0xFF, bits & 0x7FFFFF
    code = exponent
    if round_mode != "down":
        more = part > (0 if round_mode == "up" else 0x400000)
        if round_mode == "nearest":
            more = more | (part.eq(0x400000) & (exponent > 0))
        if saturate:
            more = more & exponent.ne(0xFE)
        code = b.select(more, exponent + 1, exponent)
    return b.select(exponent.eq(0xFF), 0xFF, code)


def _float_code(b: Any, bits: Any, f: FloatFormat, saturate: bool) -> Any:
    """Round to nearest even: by adding half a unit to the bits, for subnormals by adding a number with a large unit."""
    size = bits & 0x7FFFFFFF
    sign = b.select(bits > 0x7FFFFFFF, b.constant(f.sign, "ui32"), 0)
    cut = 23 - f.mantissa
    even = size.shift_right(cut) & 1
    normal = (size + even + ((1 << cut - 1) - 1)).shift_right(cut) - ((127 - f.bias) << f.mantissa)
    smallest = 1 - f.bias  # the exponent of the smallest normal number
    anchor = np.float32(2.0 ** (smallest + cut))
    small = b.reinterpret(b.reinterpret(size, "f32") + float(anchor), "ui32") - int(anchor.view(np.uint32))
    least = int(np.float32(2.0**smallest).view(np.uint32))
    code = b.select(size < least, small, normal)
    beyond = code > f.top
    if f.nan is None:
        code = b.select(beyond, f.top, code) | sign
        return b.select(size > 0x7F800000, f.sign, code)  # as ml_dtypes does where there is no NaN
    over = f.top if saturate else f.infinity if f.infinity is not None else f.nan
    code = b.select(beyond, over, code)
    code = b.select(size > 0x7F800000, f.nan, code)
    if f.unsigned_zero:
        return b.select(code.eq(0) | code.eq(f.nan), code, code | sign)
    return code | sign
