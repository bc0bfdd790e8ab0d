"""Matching of formulas: products and affine functions with their numbers pulled out, however they were ordered."""

from __future__ import annotations

from torch_mlir import ir

from ..ir import dialect
from ..ir.types import is_float
from ..support.sizes import is_open
from .rewrite import Rewriter, defined_by, definition, dtype, has_one_use, shape

#: relative tolerance when a constant of a formula is compared, by dtype (the model stores it rounded)
TOLERANCE = {"f64": 1e-6, "f32": 1e-6, "f16": 2e-3, "bf16": 1e-2}


def near(number: float | None, expected: float, value: ir.Value) -> bool:
    """A constant of the model is the number of a formula, up to rounding in the dtype of `value`."""
    return number is not None and abs(number - expected) <= TOLERANCE.get(dtype(value), 0) * abs(expected)


def product(rw: Rewriter, value: ir.Value, stop: ir.Value | None = None) -> tuple[float, list[ir.Value]]:
    """`value` as number * factor * factor ...: through mul, div by a number, neg and whole powers.

    Looks into operands that have no other use and are not `stop`.
    """
    op = definition(value)
    name = dialect.mnemonic(op) if op is not None else None
    if op is None or not is_float(dtype(value)) or name not in ("mul", "div", "neg", "pow"):
        return 1.0, [value]
    if name == "neg":
        c, factors = _inside(rw, op.operands[0], stop)
        return -c, factors
    x, y = op.operands
    number = rw.scalar(y)
    if name == "mul":
        if number is not None and shape(x) == shape(value):
            c, factors = _inside(rw, x, stop)
            return c * number, factors
        number = rw.scalar(x)
        if number is not None and shape(y) == shape(value):
            c, factors = _inside(rw, y, stop)
            return c * number, factors
        c, left = _inside(rw, x, stop)
        d, right = _inside(rw, y, stop)
        return c * d, [*left, *right]
    if name == "div" and number and shape(x) == shape(value):
        c, factors = _inside(rw, x, stop)
        return c / number, factors
    if name == "pow" and number in (2, 3) and shape(x) == shape(value):
        return 1.0, [x] * int(number)
    return 1.0, [value]


def _inside(rw: Rewriter, value: ir.Value, stop: ir.Value | None) -> tuple[float, list[ir.Value]]:
    if (stop is not None and value == stop) or not has_one_use(value):
        return 1.0, [value]
    return product(rw, value, stop)


def affine(rw: Rewriter, value: ir.Value, stop: ir.Value | None = None) -> tuple[float, ir.Value, float]:
    """`value` as a * x + b with numbers a and b: through add, sub, mul, div and neg with numbers, until `stop`."""
    a, b, x = 1.0, 0.0, value
    while stop is None or x != stop:
        op = definition(x)
        name = dialect.mnemonic(op) if op is not None else None
        if op is None or name not in ("add", "sub", "mul", "div", "neg") or not is_float(dtype(x)):
            break
        if name == "neg":
            a, x = -a, op.operands[0]
            continue
        left, right = op.operands
        number, inner = rw.scalar(right), left
        if number is None and name != "div":
            number, inner = rw.scalar(left), right
            if number is not None and name == "sub":  # number - x
                a, b, x = -a, b + a * number, inner
                continue
        if number is None or shape(inner) != shape(x) or (name == "div" and number == 0):
            break
        if name in ("add", "sub"):
            b += a * number * (1 if name == "add" else -1)
        else:
            a = a * number if name == "mul" else a / number
        x = inner
    return a, x, b


def mean_of(rw: Rewriter, value: ir.Value) -> tuple[ir.Value, tuple[int, ...]] | None:
    """(x, axes) of a mean with kept dimensions: `reduce_mean`, or `reduce_sum` over a known count, divided by it."""
    op = defined_by(value, "reduce_mean")
    if op is not None:
        x, axes, keepdims = reduced(op)
        return (x, axes) if keepdims else None
    scale, inner, offset = affine(rw, value)
    op = defined_by(inner, "reduce_sum")
    if op is None or offset != 0:
        return None
    x, axes, keepdims = reduced(op)
    if not keepdims:
        return None
    count = 1
    for a in axes:
        count *= shape(x)[a] or 0
    return (x, axes) if count and not is_open(count) and near(scale, 1 / count, value) else None


def reduced(op: ir.Operation) -> tuple[ir.Value, tuple[int, ...], bool]:
    """(x, axes from the front, keepdims) of a `reduce_*` operation."""
    x, attrs = op.operands[0], dialect.attributes(op)
    rank = len(shape(x))
    return x, tuple(sorted(a % rank for a in attrs["axes"])), attrs["keepdims"]
