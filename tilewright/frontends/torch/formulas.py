"""Formulas on tensors in double precision, written as on paper: what the special functions are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .node import Node, Tensor


class Real:
    """A tensor of f64 with the operators of Python; numbers and arrays (constants, broadcast) mix in.

    Comparisons give masks for `where`.
    """

    __slots__ = ("n", "t")
    __array_priority__ = 1000  # an array on the left leaves the operator to us
    __array_ufunc__ = None

    def __init__(self, n: Node, t: Tensor) -> None:
        self.n, self.t = n, t

    @staticmethod
    def of(n: Node, x: Tensor) -> Real:
        return Real(n, n.cast(x, "f64"))

    def lift(self, other: Any) -> Tensor:
        if isinstance(other, Real):
            return other.t
        return self.n.constant(np.asarray(other, np.float64))

    def call(self, operator: str, *others: Any) -> Real:
        return Real(self.n, self.n(operator, self.t, *map(self.lift, others)))

    def __add__(self, other: Any) -> Real:
        return self.call("add", other)

    def __sub__(self, other: Any) -> Real:
        return self.call("sub", other)

    def __mul__(self, other: Any) -> Real:
        return self.call("mul", other)

    def __truediv__(self, other: Any) -> Real:
        return self.call("div", other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> Real:
        return Real(self.n, self.lift(other)).call("sub", self)

    def __rtruediv__(self, other: Any) -> Real:
        return Real(self.n, self.lift(other)).call("div", self)

    def __neg__(self) -> Real:
        return self.call("neg")

    def __lt__(self, other: Any) -> Real:
        return self.call("less", other)

    def __le__(self, other: Any) -> Real:
        return self.call("less_equal", other)

    def __gt__(self, other: Any) -> Real:
        return self.call("greater", other)

    def __ge__(self, other: Any) -> Real:
        return self.call("greater_equal", other)

    def equal(self, other: Any) -> Real:
        return self.call("equal", other)

    def is_nan(self) -> Real:
        return self.call("is_nan")

    def where(self, yes: Any, no: Any) -> Real:
        """`yes` where this mask holds."""
        return Real(self.n, self.n("where", self.t, self.lift(yes), self.lift(no)))

    def __and__(self, other: Real) -> Real:
        return Real(self.n, self.n("and", self.t, other.t))

    def __or__(self, other: Real) -> Real:
        return Real(self.n, self.n("or", self.t, other.t))

    def exp(self) -> Real:
        return self.call("exp")

    def log(self) -> Real:
        return self.call("log")

    def sqrt(self) -> Real:
        return self.call("sqrt")

    def sin(self) -> Real:
        return self.call("sin")

    def cos(self) -> Real:
        return self.call("cos")

    def abs(self) -> Real:
        return self.call("abs")

    def floor(self) -> Real:
        return self.call("floor")

    def sign(self) -> Real:
        return self.call("sign")

    def power(self, exponent: Any) -> Real:
        return self.call("pow", exponent)

    def at_least(self, low: float) -> Real:
        return self.call("max", low)

    def at_most(self, high: float) -> Real:
        return self.call("min", high)

    def polynomial(self, coefficients: Sequence[float]) -> Real:
        """The sum of coefficients[k] x^k (Horner)."""
        made: Any = float(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            made = self * made + float(c)
        return made  # type: ignore[no-any-return]

    def total(self, body: Callable[[Real], Real], weights: np.ndarray) -> Real:
        """The sum over k of weights[k] body(x)[..., k], where body gets x with one more dimension of size 1."""
        x = Real(self.n, self.n.unsqueeze(self.t, self.t.rank))
        terms = body(x) * weights
        return Real(self.n, self.n("reduce_sum", terms.t, axes=(terms.t.rank - 1,)))


__all__ = ["Real"]
