"""The table of element types: everything that does not belong to one target or front end, one record a type.

A type is named by a short string, which is also MLIR's: ``f64 f32 f16 bf16  i64 i32 i16 i8  ui64 ui32 ui16 ui8  i1``
(``i1`` is bool, one byte in memory), and the sub-byte types (``f8E4M3FN i4 ...``), which are stored and moved, not
computed with, and take one byte an element too. ``index`` is the type of positions in loop nests; no tensor has it.

How to add a type: docs/add_an_element_type.md. Imports neither MLIR nor LLVM, so the runtime can use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


@dataclass(frozen=True)
class FloatFormat:
    """Bits of exponent and mantissa, the exponent's bias, and the special codes (without sign).

    `top` is the largest finite code. `infinity` and `nan` are codes, or None; with `unsigned_zero` the only NaN is the
    code of -0, and there is no -0.
    """

    exponent: int
    mantissa: int
    bias: int
    top: int
    infinity: int | None = None
    nan: int | None = None
    unsigned_zero: bool = False

    @property
    def sign(self) -> int:
        """The code of the sign bit."""
        return 1 << (self.exponent + self.mantissa)

    @staticmethod
    def ieee(exponent: int, mantissa: int) -> FloatFormat:
        """A format with infinities, NaNs and subnormals as IEEE 754 has them; `nan` is the quiet one.

        >>> hex(FloatFormat.ieee(8, 23).nan)
        '0x7fc00000'
        """
        infinity = ((1 << exponent) - 1) << mantissa
        nan = infinity | 1 << (mantissa - 1)
        return FloatFormat(exponent, mantissa, (1 << (exponent - 1)) - 1, infinity - 1, infinity, nan)


@dataclass(frozen=True)
class ElementType:
    """An element type.

    `name` is MLIR's too. `kind` is "float", "int" (with a sign), "uint", "bool" or "index". `bits`: of the code of an
    element, which may be less than it takes in memory. `onnx`: the name of its ``TensorProto.DataType``, "" if ONNX has
    none. `computed`: the type that an element is decoded to where it is read; "" if it is computed with as it is.
    """

    name: str
    numpy: np.dtype
    kind: str
    bits: int
    onnx: str = ""
    format: FloatFormat | None = None
    computed: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of one element in memory."""
        return self.numpy.itemsize

    @property
    def signless(self) -> str:
        """The type from level 3 on: integers say nothing of a sign there, sub-byte elements are their codes."""
        if self.computed:
            return "i8"
        return f"i{self.bits}" if self.kind == "uint" else self.name


def _type(name: str, numpy: npt.DTypeLike, kind: str, bits: int, onnx: str, **more: Any) -> ElementType:
    return ElementType(name, np.dtype(numpy), kind, bits, onnx, **more)


#: every element type of a tensor
TABLE = (
    _type("f64", np.float64, "float", 64, "DOUBLE", format=FloatFormat.ieee(11, 52)),
    _type("f32", np.float32, "float", 32, "FLOAT", format=FloatFormat.ieee(8, 23)),
    _type("f16", np.float16, "float", 16, "FLOAT16", format=FloatFormat.ieee(5, 10)),
    _type("bf16", ml_dtypes.bfloat16, "float", 16, "BFLOAT16", format=FloatFormat.ieee(8, 7)),
    _type("i64", np.int64, "int", 64, "INT64"),
    _type("i32", np.int32, "int", 32, "INT32"),
    _type("i16", np.int16, "int", 16, "INT16"),
    _type("i8", np.int8, "int", 8, "INT8"),
    _type("ui64", np.uint64, "uint", 64, "UINT64"),
    _type("ui32", np.uint32, "uint", 32, "UINT32"),
    _type("ui16", np.uint16, "uint", 16, "UINT16"),
    _type("ui8", np.uint8, "uint", 8, "UINT8"),
    _type("i1", np.bool_, "bool", 1, "BOOL"),
    _type(
        "f8E4M3FN", ml_dtypes.float8_e4m3fn, "float", 8, "FLOAT8E4M3FN",
        format=FloatFormat(4, 3, 7, 0x7E, nan=0x7F), computed="f32",
    ),
    _type(
        "f8E4M3FNUZ", ml_dtypes.float8_e4m3fnuz, "float", 8, "FLOAT8E4M3FNUZ",
        format=FloatFormat(4, 3, 8, 0x7F, nan=0x80, unsigned_zero=True), computed="f32",
    ),
    _type(
        "f8E5M2", ml_dtypes.float8_e5m2, "float", 8, "FLOAT8E5M2",
        format=FloatFormat(5, 2, 15, 0x7B, infinity=0x7C, nan=0x7E), computed="f32",
    ),
    _type(
        "f8E5M2FNUZ", ml_dtypes.float8_e5m2fnuz, "float", 8, "FLOAT8E5M2FNUZ",
        format=FloatFormat(5, 2, 16, 0x7F, nan=0x80, unsigned_zero=True), computed="f32",
    ),
    _type(
        "f4E2M1FN", ml_dtypes.float4_e2m1fn, "float", 4, "FLOAT4E2M1",
        format=FloatFormat(2, 1, 1, 7), computed="f32",
    ),
    # powers of two: the code is the exponent; it has no sign, no zero and no mantissa, and so no `FloatFormat`
    _type("f8E8M0FNU", ml_dtypes.float8_e8m0fnu, "float", 8, "FLOAT8E8M0", computed="f32"),
    _type("i4", ml_dtypes.int4, "int", 4, "INT4", computed="i8"),
    _type("ui4", ml_dtypes.uint4, "uint", 4, "UINT4", computed="ui8"),
    _type("i2", ml_dtypes.int2, "int", 2, "INT2", computed="i8"),
    _type("ui2", ml_dtypes.uint2, "uint", 2, "UINT2", computed="ui8"),
)  # fmt: skip
INDEX = ElementType("index", np.dtype(np.int64), "index", 64)

TYPES: dict[str, ElementType] = {t.name: t for t in TABLE}
#: those that loop nests and what is below them have, by name
LOOP_TYPES: dict[str, ElementType] = {t.name: t for t in (*TABLE, INDEX) if not t.computed and t.kind != "uint"}
NUMPY: dict[str, np.dtype] = {t.name: t.numpy for t in TABLE}
DTYPES: dict[np.dtype, str] = {t.numpy: t.name for t in TABLE}
#: floats and integers that are computed with
FLOATS = tuple(t.name for t in TABLE if t.kind == "float" and not t.computed)
UNSIGNED = tuple(t.name for t in TABLE if t.kind == "uint" and not t.computed)
INTS = (*(t.name for t in TABLE if t.kind == "int" and not t.computed), *UNSIGNED)
#: floats of 16 bits; chains of operations on them are computed in f32
HALVES = tuple(n for n in FLOATS if TYPES[n].bits == 16)


def wide(dtype: str) -> str:
    """The type in which chains of operations on `dtype` are computed: f32 for the halves.

    >>> wide("bf16"), wide("f64"), wide("i8")
    ('f32', 'f64', 'i8')
    """
    return "f32" if dtype in HALVES else dtype


def named(dtype: npt.DTypeLike | None) -> str | None:
    """The short name of an element type, given as such, as NumPy calls it, or as a NumPy dtype; None if it is none.

    >>> named("f32"), named("float32"), named(np.int8), named("bfloat16"), named("bool"), named("float33")
    ('f32', 'f32', 'i8', 'bf16', 'i1', None)
    """
    if isinstance(dtype, str) and dtype in NUMPY:
        return dtype
    if dtype is None:
        return None
    try:
        return DTYPES.get(np.dtype(getattr(ml_dtypes, dtype, dtype) if isinstance(dtype, str) else dtype))
    except TypeError:
        return None


def converted(x: np.ndarray, dtype: str) -> np.ndarray:
    """Floats as another float type, rounded once; ml_dtypes goes by way of f32 from f64 to bf16.

    >>> converted(np.array([1 + 2**-8 + 2**-40]), "bf16").tolist()
    [1.0078125]
    """
    if x.dtype == np.float64 and dtype == "bf16":  # an f32 that is rounded to odd, which lies on no tie
        with np.errstate(over="ignore"):
            near = x.astype(np.float32)
        back, bits = near.astype(np.float64), near.view(np.int32)
        step = np.where(np.abs(x) > np.abs(back), 1, -1).astype(np.int32)
        fix = (back != x) & (bits & 1 == 0) & np.isfinite(x) & np.isfinite(near)
        x = np.where(fix, bits + step, bits).astype(np.int32).view(np.float32)
    return x.astype(NUMPY[dtype])
