"""Element types as short strings, with their NumPy dtypes. Imports neither MLIR nor LLVM, so the runtime can use it.

``f64 f32 f16 bf16  i64 i32 i16 i8  ui64 ui32 ui16 ui8  i1`` (``i1`` is bool, one byte in memory), and the dtypes of
`narrow`, which take one byte an element too.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from . import sub_byte as narrow

NUMPY: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64),
    "i32": np.dtype(np.int32),
    "i16": np.dtype(np.int16),
    "i8": np.dtype(np.int8),
    "ui64": np.dtype(np.uint64),
    "ui32": np.dtype(np.uint32),
    "ui16": np.dtype(np.uint16),
    "ui8": np.dtype(np.uint8),
    "i1": np.dtype(np.bool_),
    **narrow.NUMPY,
}
DTYPES: dict[np.dtype, str] = {v: k for k, v in NUMPY.items()}


def named(dtype: Any) -> str | None:
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
