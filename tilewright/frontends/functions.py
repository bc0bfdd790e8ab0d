"""Math functions composed of several operators, as precise as the operators are.

`n` appends operators, ``n("add", x, y)``; numbers mix in as constants of the dtype of the first tensor.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from ..ir.types import Typed

T = TypeVar("T", bound="Typed")


class OperatorWriter(Protocol[T]):
    """What formulas ask of a node."""

    def __call__(self, operator: str, *operands: T | float | None) -> T: ...

    def tensor(self, x: float, dtype: str) -> T: ...


def trunc(n: OperatorWriter[T], x: T) -> T:
    """The next integer toward zero."""
    return n("where", n("less", x, 0.0), n("ceil", x), n("floor", x))


def atan2(n: OperatorWriter[T], y: T, x: T) -> T:
    """By the arc tangent of the smaller of both divided by the larger."""
    ay, ax = n("abs", y), n("abs", x)
    steep = n("greater", ay, ax)
    low, high = n("where", steep, ax, ay), n("where", steep, ay, ax)
    both_infinite = n("is_inf", low)
    one, none = (n.tensor(v, x.dtype) for v in (1, 0))
    quotient = n("where", n("equal", high, 0.0), none, n("where", both_infinite, one, n("div", low, high)))
    angle = n("atan", quotient)
    angle = n("where", steep, n("add", n("neg", angle), math.pi / 2), angle)
    negative_x = n("less", n("where", n("equal", x, 0.0), n("reciprocal", x), x), 0.0)
    angle = n("where", negative_x, n("add", n("neg", angle), math.pi), angle)
    negative_y = n("less", n("where", n("equal", y, 0.0), n("reciprocal", y), y), 0.0)
    made = n("where", negative_y, n("neg", angle), angle)
    return n("where", n("or", n("is_nan", x), n("is_nan", y)), n("add", x, y), made)


def hypot(n: OperatorWriter[T], x: T, y: T) -> T:
    """The larger one times the root of 1 plus the square of the quotient: nothing overflows on the way."""
    x, y = n("abs", x), n("abs", y)
    high, low = n("max", x, y), n("min", x, y)
    part = n("div", low, n("where", n("equal", high, 0.0), n.tensor(1, x.dtype), high))
    made = n("mul", high, n("sqrt", n("add", n("mul", part, part), 1.0)))
    return n("where", n("or", n("is_inf", x), n("is_inf", y)), n.tensor(math.inf, x.dtype), made)


__all__ = ["atan2", "hypot", "trunc"]
