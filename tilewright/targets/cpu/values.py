"""What emission goes about with: SSA values, the loop that is vectorized, and places in memory; types and constants as
MLIR text."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ...tensor.expr import Expr

BYTES = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1, "index": 8}


@dataclass(frozen=True)
class Value:
    """An SSA name with its dtype; width 0 is a scalar, otherwise vector lanes."""

    ssa: str
    dtype: str
    width: int = 0

    @property
    def type(self) -> str:
        return type_text(self.dtype, self.width)


@dataclass(frozen=True)
class Vector:
    """The vectorized loop being emitted: its variable, lanes, and the mask of active lanes (None: all). `single`: just
    the first lane is active. `first`: how many are, if those are the first ones."""

    var: str
    width: int
    mask: str | None
    single: bool = False
    first: int | None = None

    @property
    def count(self) -> int | None:
        """The number of active lanes, if those are the first ones."""
        return self.width if self.mask is None else self.first


@dataclass(frozen=True)
class Place:
    """The flat index of an element, also as a sum of `terms` and a constant. `strides` has, for vectorized loops, how
    far neighbouring lanes are apart (see `ExprEmitter.lane_stride`). The `indices` are kept: they are known by their
    identity."""

    indices: tuple[Expr, ...]
    flat: Expr
    terms: dict[Expr, int]
    constant: int
    strides: dict[str, int | None] = field(default_factory=dict)


def type_text(dtype: str, width: int) -> str:
    return f"vector<{width}x{dtype}>" if width else dtype


def element(dtype: str) -> str:
    """The element type in memory: booleans take a byte."""
    return "i8" if dtype == "i1" else dtype


def constant_text(value, dtype: str, width: int) -> str:
    if dtype == "i1":
        text = "true" if value else "false"
    elif dtype in ("f32", "f64", "f16", "bf16"):
        text = float_text(float(value), dtype)
    else:
        text = str(int(value))
    if width:
        return f"dense<{text}> : vector<{width}x{dtype}>"
    return text if dtype == "i1" else f"{text} : {dtype}"


_SPECIAL = {
    "f64": (0x7FF0000000000000, 0x8000000000000000, 0x7FF8000000000000),
    "f32": (0x7F800000, 0x80000000, 0x7FC00000),
}
_SPECIAL |= {"f16": (0x7C00, 0x8000, 0x7E00), "bf16": (0x7F80, 0x8000, 0x7FC0)}


def float_text(value: float, dtype: str) -> str:
    infinity, sign, nan = _SPECIAL[dtype]
    if math.isnan(value):
        return hex(nan)
    if math.isinf(value):
        return hex(infinity | (sign if value < 0 else 0))
    text = repr(value)
    return text if "." in text else text.replace("e", ".0e") if "e" in text else text + ".0"
