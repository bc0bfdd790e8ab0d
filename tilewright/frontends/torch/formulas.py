"""Formulas on tensors in double precision, written as on paper: what the special functions are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .node import FxNode, FxTensor

#: steps one behind the other after which a number is a tensor, and what follows another operator
MOST_DEPTH = 80
#: steps that give masks, which are no operands of a formula
MASKS = ("less", "less_equal", "greater", "greater_equal", "equal", "is_nan", "and", "or")


class Real:
    """A tensor of f64 with the operators of Python; numbers and arrays (constants, broadcast) mix in.

    Comparisons give masks for `where`. Steps are collected until the tensor `t` is asked for, and are then one operator
    (`tw.formula`): hundreds of small ones would take seconds to compile.
    """

    __slots__ = ("depth", "made", "n", "operands", "operator")
    __array_priority__ = 1000  # an array on the left leaves the operator to us
    __array_ufunc__ = None

    def __init__(
        self, n: FxNode, made: FxTensor | None, operator: str = "", operands: tuple[Real | float, ...] = ()
    ) -> None:
        self.n, self.made, self.operator, self.operands, self.depth = n, made, operator, operands, 0
        for o in operands:
            if isinstance(o, Real) and o.made is None:
                if o.depth >= MOST_DEPTH and o.operator not in MASKS:
                    _ = o.t
                self.depth = max(self.depth, 1 + (o.depth if o.made is None else 0))

    @staticmethod
    def of(n: FxNode, x: FxTensor) -> Real:
        """A tensor in f64; integers are rounded to the type of the result first, as PyTorch does."""
        return Real(n, n.cast(x if x.is_float else n.cast(x, n.dtype), "f64"))

    def lift(self, other: object) -> Real | float:
        if isinstance(other, Real):
            return other
        array = np.asarray(other, np.float64)
        return Real(self.n, self.n.constant(array)) if array.ndim else float(array)

    def call(self, operator: str, *others: object) -> Real:
        return Real(self.n, None, operator, (self, *map(self.lift, others)))

    @property
    def t(self) -> FxTensor:
        """The tensor. What is computed of it later reads it."""
        if self.made is None:
            steps, tensors = self.steps()
            self.made = self.n("formula", *tensors, body=tuple(steps))
        return self.made

    def steps(self) -> tuple[list[str], list[FxTensor]]:
        """The steps from tensors to this one, each once, and those tensors."""
        names: dict[int, str] = {}  # by the identity of a `Real`, all of which live as long as this one
        steps: list[str] = []
        tensors: list[FxTensor] = []
        waiting: list[Real] = [self]
        while waiting:
            v = waiting[-1]
            missing = [o for o in v.operands if isinstance(o, Real) and id(o) not in names]
            if v.made is None and missing:
                waiting += missing
                continue
            waiting.pop()
            if id(v) in names:
                continue
            if v.made is not None:
                names[id(v)] = f"x{len(tensors)}"
                tensors.append(v.made)
                continue
            operands = [names[id(o)] if isinstance(o, Real) else repr(o) for o in v.operands]
            names[id(v)] = f"s{len(steps)}"
            steps.append(" ".join([v.operator, *operands]))
        return steps, tensors

    def __add__(self, other: object) -> Real:
        return self.call("add", other)

    def __sub__(self, other: object) -> Real:
        return self.call("sub", other)

    def __mul__(self, other: object) -> Real:
        return self.call("mul", other)

    def __truediv__(self, other: object) -> Real:
        return self.call("div", other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: object) -> Real:
        return Real(self.n, None, "sub", (self.lift(other), self))

    def __rtruediv__(self, other: object) -> Real:
        return Real(self.n, None, "div", (self.lift(other), self))

    def __neg__(self) -> Real:
        return self.call("neg")

    def __lt__(self, other: object) -> Real:
        return self.call("less", other)

    def __le__(self, other: object) -> Real:
        return self.call("less_equal", other)

    def __gt__(self, other: object) -> Real:
        return self.call("greater", other)

    def __ge__(self, other: object) -> Real:
        return self.call("greater_equal", other)

    def equal(self, other: object) -> Real:
        return self.call("equal", other)

    def is_nan(self) -> Real:
        return self.call("is_nan")

    def where(self, yes: Any, no: Any) -> Real:
        """`yes` where this mask holds."""
        return self.call("where", yes, no)

    def __and__(self, other: Real) -> Real:
        return self.call("and", other)

    def __or__(self, other: Real) -> Real:
        return self.call("or", other)

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
        return made

    def total(self, body: Callable[[Real], Real], weights: np.ndarray) -> Real:
        """The sum over k of weights[k] body(x)[..., k], where body gets x with one more dimension of size 1."""
        x = Real(self.n, self.n.unsqueeze(self.t, self.t.rank))
        terms = body(x) * weights
        return Real(self.n, self.n("reduce_sum", terms.t, axes=(terms.t.rank - 1,)))


__all__ = ["Real"]
