"""Arange."""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import NUMPY, Type
from ..support.errors import OpError
from ..support.sizes import is_open


class Arange(Operator):
    """``start + i * step`` for i below `count`, a tensor of one dimension.

    What a model makes of sizes that are not known yet: all three may be such sizes.

    ``"tw.arange"() {count = 3 : i64, dtype = "i64", start = 0 : i64, step = 1 : i64} : () -> tensor<3xi64>``
    """

    @staticmethod
    def infer(*, count: int, dtype: str, start: int = 0, step: int = 1):
        if count < 0 or dtype not in ("i64", "i32", "f32", "f64"):
            raise OpError(f"there is no range of {count} numbers of dtype {dtype}")
        return Type((count,), dtype)

    @staticmethod
    def reference(*, count, dtype, start, step):
        if is_open(start, step):  # arrays of NumPy do not compute with sizes
            return np.array([start + i * step for i in range(count)], NUMPY[dtype])
        return (start + np.arange(count) * step).astype(NUMPY[dtype])

    @staticmethod
    def lower(b, *, count, dtype, start, step):
        def number(i):
            at = i * step if step else b.constant(0, "index")
            return b.cast(at + start, dtype)

        return b.compute(Type((count,), dtype), number)
