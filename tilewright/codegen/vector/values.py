"""Data types of the emitter: SSA values, the vectorized loop, places in memory; types and constants as MLIR text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ...schedule.nest import For
from ...support.dtypes import FLOATS, LOOP_TYPES, TYPES
from ...tensor.expr import Expr, Load, Op, Target

BYTES = {n: t.nbytes for n, t in LOOP_TYPES.items()}


class Value(NamedTuple):
    """An SSA name with its dtype; width 0 is a scalar, otherwise vector lanes."""

    ssa: str
    dtype: str
    width: int = 0

    @property
    def type(self) -> str:
        return type_text(self.dtype, self.width)


class Vector(NamedTuple):
    """The vectorized loop being emitted: its variable, lanes, and the mask of active lanes (None: all). `first`: how
    many are, if those are the first ones."""

    var: str
    width: int
    mask: str | None
    first: int | None = None

    @property
    def active(self) -> int | None:
        """The number of active lanes, if those are the first ones."""
        return self.width if self.mask is None else self.first


@dataclass
class Place:
    """The flat index of an element as a sum of `terms` and a constant, and as an expression where that was asked for.
    `strides` has, for vectorized loops, how far neighbouring lanes are apart (see `Indices.lane_stride`)."""

    terms: dict[Expr, int]
    constant: int
    #: the same by the names of terms
    moves: tuple[tuple[str, int], ...] = ()
    flat: Expr | None = None
    strides: dict[str, int | None] = field(default_factory=dict)


def power_of_two(n: int) -> int:
    """The least one that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def lanes_of(s: For) -> int:
    """The lanes of a vectorized loop with a known number of iterations."""
    return s.lanes or power_of_two(s.trip or 1)


def accumulated(t: Target) -> Iterator[tuple[Load, Expr]]:
    """(accumulator, other operand) of ``x[i] = op(x[i], other)``, whichever comes first."""
    v = t.value
    for acc, other in (v.args, v.args[::-1]) if isinstance(v, Op) and len(v.args) == 2 else ():
        if isinstance(acc, Load) and acc.buffer == t.buffer and acc.indices == t.indices:
            yield acc, other


def type_text(dtype: str, width: int) -> str:
    return f"vector<{width}x{dtype}>" if width else dtype


def element(dtype: str) -> str:
    """The element type in memory: booleans take a byte."""
    return "i8" if dtype == "i1" else dtype


def constant_text(value: float, dtype: str, width: int) -> str:
    if dtype == "i1":
        text = "true" if value else "false"
    elif dtype in FLOATS:
        text = float_text(float(value), dtype)
    else:
        text = str(int(value))
    if width:
        return f"dense<{text}> : vector<{width}x{dtype}>"
    return text if dtype == "i1" else f"{text} : {dtype}"


def float_text(value: float, dtype: str) -> str:
    form = TYPES[dtype].format
    assert form is not None and form.nan is not None and form.infinity is not None
    if math.isnan(value):
        return hex(form.nan)
    if math.isinf(value):
        return hex(form.infinity | (form.sign if value < 0 else 0))
    text = repr(value)
    return text if "." in text else text.replace("e", ".0e") if "e" in text else text + ".0"
