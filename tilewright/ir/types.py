"""Tensor types as plain Python values, and their translation to MLIR and NumPy.

A dtype is a short string: ``f64 f32 f16 bf16  i64 i32 i16 i8  ui64 ui32 ui16 ui8  i1`` (``i1`` is bool) and ``index``
for loop arithmetic; the dtypes of `sub_byte` (``f8E4M3FN i4 ...``) are stored and moved, not computed with. Level 2
keeps unsignedness in the type (``tensor<4xui8>``); from level 3 on integers are signless, as MLIR's arith wants them,
and the operations say whether they are signed; narrow elements are ``i8`` there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from torch_mlir import ir

from ..support.dtypes import DTYPES, TYPES, UNSIGNED
from ..support.dtypes import FLOATS as FLOATS
from ..support.dtypes import NUMPY as NUMPY
from ..support.errors import OpError
from ..support.lazy_array import Stored
from ..support.sizes import Undecided, current, decode, lowest, too_large

#: bytes of the largest tensor, dimensions that arrays of NumPy have at most
ADDRESSABLE, MOST_DIMS = 1 << 47, 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
#: the floats that the bindings have a class for; others are parsed
_FLOAT_CLASSES = {"f64": ir.F64Type, "f32": ir.F32Type, "f16": ir.F16Type, "bf16": ir.BF16Type}


def itemsize(dtype: str) -> int:
    """Bytes of one element in memory (``i1`` takes one byte)."""
    return NUMPY[dtype].itemsize


def numpy_dtype(dtype: str) -> np.dtype:
    return NUMPY[dtype]


def dtype_of(array: Stored) -> str:
    """The dtype string of an array; ValueError for dtypes that have none (strings, objects, complex)."""
    try:
        return DTYPES[array.dtype.newbyteorder("=") if array.dtype.byteorder == ">" else array.dtype]
    except KeyError:
        raise ValueError(f"arrays of dtype {array.dtype} are not supported") from None


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def is_unsigned(dtype: str) -> bool:
    return dtype in UNSIGNED


def signless(dtype: str) -> str:
    """The dtype at level 3."""
    return TYPES[dtype].signless if dtype in TYPES else dtype


@dataclass(frozen=True)
class Type:
    """A tensor type: ``shape`` (``None`` for a dimension not known yet) and ``dtype``.

    >>> str(Type((2, None), "f32"))
    'tensor<2x?xf32>'
    """

    shape: tuple[int | None, ...]
    dtype: str

    def __post_init__(self) -> None:
        known = int if current() is None else lambda d: decode(int(d))
        object.__setattr__(self, "shape", tuple([None if d is None else known(d) for d in self.shape]))

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def static(self) -> bool:
        return None not in self.shape

    @property
    def dims(self) -> tuple[int, ...]:
        """The shape, all of it known; ValueError otherwise."""
        if None in self.shape:
            raise ValueError(f"the shape of {self} is not fully known")
        return self.shape  # type: ignore[return-value]

    @property
    def size(self) -> int:
        return prod(self.dims)

    @property
    def nbytes(self) -> int:
        return self.size * itemsize(self.dtype)

    def with_shape(self, shape: Sequence[int | None]) -> Type:
        return Type(tuple(shape), self.dtype)

    def with_dtype(self, dtype: str) -> Type:
        return Type(self.shape, dtype)

    def __str__(self) -> str:
        dims = "".join(f"{'?' if d is None else d}x" for d in self.shape)
        return f"tensor<{dims}{self.dtype}>"

    def mlir(self, *, signless_ints: bool = False) -> ir.Type:
        """The MLIR type, in the current context."""
        if (low := next((d for d in self.shape if d is not None and int(d) < 0), None)) is not None:
            raise Undecided(f"{low} has no number that could stand for it in a type")
        if (large := next((d for d in self.shape if d is not None and too_large(d)), None)) is not None:
            raise Undecided(f"{large} has too many open dimensions as factors: no tensor type has room for it")
        shape = [ir.ShapedType.get_dynamic_size() if d is None else d for d in self.shape]
        return ir.RankedTensorType.get(shape, element_type(signless(self.dtype) if signless_ints else self.dtype))


def addressable(t: Type) -> Type:
    """The type itself; OpError if no array can hold a tensor of it (sizes of damaged files overflow later)."""
    check_shape(t.shape, itemsize(t.dtype), str(t))
    return t


def check_shape(shape: Sequence[int | None], element: int, called: str) -> None:
    """OpError for a shape of elements of so many bytes that no array has."""
    if len(shape) > MOST_DIMS:
        raise OpError(f"a tensor of {len(shape)} dimensions, and arrays have {MOST_DIMS} at most")
    # as NumPy counts: a dimension of 0 does not make the others small
    nbytes = prod(d or 1 for d in shape) * element
    if lowest(nbytes) > ADDRESSABLE:
        raise OpError(f"a tensor of type {called} takes {nbytes:,} bytes, more than a machine can address")


def broadcast_shapes(*shapes: tuple[int | None, ...]) -> tuple[Any, ...]:
    """NumPy broadcasting of shapes that may have unknown dimensions (None); OpError if they do not fit.

    >>> broadcast_shapes((3, 1), (None, 4), (4,))
    (3, 4)
    """
    rank = max(map(len, shapes), default=0)
    out: list[int | None] = []
    for i in range(rank):
        dims = [s[len(s) - rank + i] for s in shapes if len(s) - rank + i >= 0]
        known = {d for d in dims if d is not None and d != 1}
        if len(known) > 1:
            raise OpError(f"shapes {' and '.join(map(str, shapes))} do not broadcast")
        out.append(known.pop() if known else None if None in dims else 1)
    return tuple(out)


class Typed:
    """A base of what has a tensor type, all of it known: values at each level and in each front end."""

    type: Type

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.dims

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def rank(self) -> int:
        return self.type.rank


def element_type(dtype: str) -> ir.Type:
    """The MLIR element type of a dtype string, in the current context."""
    if dtype == "index":
        return ir.IndexType.get()
    if dtype in _FLOAT_CLASSES:
        return _FLOAT_CLASSES[dtype].get()
    t = TYPES.get(dtype)
    if t is None or t.kind == "float":
        return ir.Type.parse(dtype)
    return (ir.IntegerType.get_unsigned if t.kind == "uint" else ir.IntegerType.get_signless)(t.bits)


def type_of(value: ir.Value | ir.Type) -> Type:
    """The Type of an MLIR tensor value or tensor type; ValueError if it is not a ranked tensor."""
    t = value.type if isinstance(value, ir.Value) else value
    return _known_type(t) if current() is None else Type(*_parts(t))


@lru_cache(maxsize=1024)
def _parts(t: ir.Type) -> tuple[tuple[int | None, ...], str]:
    if not isinstance(t, ir.RankedTensorType):
        raise ValueError(f"expected a ranked tensor, got {t}")
    dynamic = ir.ShapedType.get_dynamic_size()
    return tuple(None if d == dynamic else d for d in t.shape), str(t.element_type)


@lru_cache(maxsize=1024)
def _known_type(t: ir.Type) -> Type:
    """Where no sizes are open, a type has one reading."""
    return Type(*_parts(t))


def from_array(array: Stored) -> Type:
    return Type(array.shape, dtype_of(array))
