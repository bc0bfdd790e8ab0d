"""A fused elementwise expression as one operator: special functions would otherwise be hundreds of operators."""

from __future__ import annotations

from functools import cache
from typing import Any

from ..ir.dialect import OPERATORS
from ..ir.types import Type
from ..support.dtypes import wide
from ..support.errors import OpError
from .common import Elementwise, in_wide

#: a step: the operator and its operands, each an operand of the formula, the result of a step, or a number
Step = tuple[type[Elementwise], tuple[tuple[str, Any], ...]]


@cache
def steps_of(body: tuple[str, ...]) -> tuple[Step, ...]:
    """The steps of a formula, parsed."""
    made: list[Step] = []
    for text in body:
        name, *operands = text.split()
        cls = OPERATORS.get(name)
        if cls is None or not issubclass(cls, Elementwise) or not hasattr(cls, "scalar"):
            raise OpError(f"step {text!r} names no elementwise operator")
        made.append((cls, tuple(_operand(o, len(made), text) for o in operands)))
    return tuple(made)


def _operand(text: str, before: int, step: str) -> tuple[str, Any]:
    try:
        if text[0] not in "xs":
            return "number", float(text)
        kind, index = text[0], int(text[1:])
    except ValueError:
        raise OpError(f"step {step!r}: {text!r} is no number, x0 or s0") from None
    if index < 0 or (kind == "s" and index >= before):
        raise OpError(f"step {step!r} reads {text}, which is not computed yet")
    return kind, index


def run(body: tuple[str, ...], xs: Any, apply: Any, number: Any) -> Any:
    """The result of the last step: `apply` computes a step of its operands, `number` makes one of a Python number."""
    results: list[Any] = []
    for cls, operands in steps_of(body):
        values = [number(v) if kind == "number" else (xs if kind == "x" else results)[v] for kind, v in operands]
        results.append(apply(cls, *values))
    return results[-1]


@cache
def _dtype(body: tuple[str, ...], dtype: str, operands: int) -> str:
    """The dtype of the result; OpError if the steps do not fit."""
    x = Type((), dtype)
    if not body:
        raise OpError("a formula needs a step")
    try:
        made: Type = run(body, [x] * operands, lambda cls, *values: cls.infer(*values, **cls.attributes), lambda _: x)
    except IndexError:
        raise OpError(f"the formula reads more than its {operands} operands") from None
    except TypeError as e:
        raise OpError(f"a step has the wrong number of operands: {e}") from None
    return made.dtype


class Formula(Elementwise):
    """The result of the last of a row of elementwise steps; shapes of operands broadcast.

    A step is the name of an elementwise operator (attributes have their defaults) and its operands: ``x0`` is the first
    operand of the formula, ``s0`` the result of the first step, anything else a number. Halves are computed in f32.

    ``"tw.formula"(%x) {body = ["mul x0 x0", "add s0 1.0", "log s1"]} : (tensor<4xf64>) -> tensor<4xf64>``
    """

    accepts = "float"

    @classmethod
    def infer(cls, *xs, body: tuple[str, ...]):
        if not xs:
            raise OpError("needs at least one operand")
        return cls.check(*xs).with_dtype(_dtype(tuple(body), xs[0].dtype, len(xs)))

    @staticmethod
    def reference(*xs, body):
        def apply(cls, *values):
            return cls.reference(*values, **cls.attributes)

        def formula(*xs):
            return run(body, xs, apply, xs[0].dtype.type)

        made = in_wide(formula, *xs)
        return made.astype(bool) if _dtype(tuple(body), "f32", len(xs)) == "i1" else made

    @classmethod
    def lower(cls, b, *xs, body):
        result, inside = _dtype(tuple(body), xs[0].dtype, len(xs)), wide(xs[0].dtype)

        def apply(cls, *values):
            return cls.scalar(b, *values, **cls.attributes)

        def scalar(*vs):
            made = run(body, [b.cast(v, inside) for v in vs], apply, lambda v: b.constant(v, inside))
            return b.cast(made, result)

        return b.elementwise(scalar, *xs, dtype=result)


__all__ = ["Formula"]
