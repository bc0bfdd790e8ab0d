"""Elementwise operators: arithmetic, functions, comparisons, logic, conversion."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch_mlir._mlir_libs import _stablehlo

from ....ir.types import NUMPY, is_unsigned, itemsize
from ....ops.reduce import highest, lowest
from ... import functions
from .node import HloEmitter, HloOp
from .registry import hlo
from .values import HloTensor

#: StableHLO's name and ours
FUNCTIONS = {
    "abs": "abs", "cbrt": "cbrt", "ceil": "ceil", "cosine": "cos", "exponential": "exp",
    "exponential_minus_one": "expm1", "floor": "floor", "log": "log", "log_plus_one": "log1p", "logistic": "sigmoid",
    "not": "not", "round_nearest_even": "round", "rsqrt": "rsqrt", "sign": "sign", "sine": "sin", "sqrt": "sqrt",
    "tan": "tan", "tanh": "tanh",
}  # fmt: skip
#: composite operators for which there is one of ours; all others are their decomposition
COMPOSITES = {
    f"chlo.{name}": name for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "erf", "sinh", "tan")
}
#: of booleans
LOGIC = {"add": "or", "maximum": "or", "multiply": "and", "minimum": "and"}
ARITHMETIC = {"add": "add", "maximum": "max", "minimum": "min", "multiply": "mul"}
COMPARISONS = {"EQ": "equal", "GE": "greater_equal", "GT": "greater", "LE": "less_equal", "LT": "less", "NE": "equal"}


@hlo(*FUNCTIONS, elementwise=True)
def function(n: HloOp, x: HloTensor) -> HloTensor:
    if n.name == "abs" and is_unsigned(x.dtype):
        return x
    return n(FUNCTIONS[n.name], x)


@hlo(*COMPOSITES)
def composite_function(n: HloOp, x: HloTensor) -> HloTensor:
    return n(COMPOSITES[n.text("name")], x)


@hlo("negate", by_parts=True, elementwise=True)
def negate(n: HloOp, x: HloTensor) -> HloTensor:
    return n("sub", n.full((), 0, x.dtype), x) if is_unsigned(x.dtype) else n("neg", x)


@hlo("atan2", elementwise=True)
def atan2(n: HloOp, y: HloTensor, x: HloTensor) -> HloTensor:
    return n.wide(functions.atan2, y, x)


@hlo("is_finite", elementwise=True)
def is_finite(n: HloOp, x: HloTensor) -> HloTensor:
    return n("less", n("abs", x), float("inf"))


@hlo("round_nearest_afz", elementwise=True)
def round_away(n: HloOp, x: HloTensor) -> HloTensor:
    """Halves go away from zero."""
    whole = functions.trunc(n, x)
    rest = n("abs", n("sub", x, whole))
    return n("where", n("less", rest, 0.5), whole, n("add", whole, n("sign", x)))


@hlo("popcnt", elementwise=True)
def popcnt(n: HloOp, x: HloTensor) -> HloTensor:
    return n.cast(_ones(n, _unsigned(n, x)), x.dtype)


@hlo("count_leading_zeros", elementwise=True)
def count_leading_zeros(n: HloOp, x: HloTensor) -> HloTensor:
    """Ones below the highest one, then what is left."""
    bits, v, shift = 8 * itemsize(x.dtype), _unsigned(n, x), 1
    while shift < bits:
        v, shift = n("or", v, n("shift_right", v, shift)), shift * 2
    return n.cast(n("sub", n.full((), bits, v.dtype), _ones(n, v)), x.dtype)


def _ones(n: HloEmitter, v: HloTensor) -> HloTensor:
    """How many bits are set: of neighbours, then of pairs of them, and so on."""
    bits, width = 8 * itemsize(v.dtype), 1
    while width < bits:
        mask = n.full((), sum(((1 << width) - 1) << at for at in range(0, bits, 2 * width)), v.dtype)
        v = n("add", n("and", v, mask), n("and", n("shift_right", v, width), mask))
        width *= 2
    return v


def _unsigned(n: HloEmitter, x: HloTensor) -> HloTensor:
    """The bits of integers as unsigned ones."""
    made: HloTensor = x if is_unsigned(x.dtype) else n("bitcast", x, to=f"u{x.dtype}")
    return made


# ---- two operands --------------------------------------------------------------------------------------------------


@hlo("add", by_parts=True, elementwise=True)
def add(n: HloOp, x: HloTensor, y: HloTensor) -> HloTensor:
    return arithmetic(n, x, y)


@hlo("multiply", "maximum", "minimum", elementwise=True)
def arithmetic(n: HloOp, x: HloTensor, y: HloTensor) -> HloTensor:
    if n.name in ("maximum", "minimum") and x.shape == y.shape:  # JAX writes max(-inf, max(x)) for softmax
        for one, other in ((x, y), (y, x)):
            if is_neutral(n.name, one):
                return other
    return n((LOGIC if x.dtype == "i1" else ARITHMETIC)[n.name], x, y)


def is_neutral(name: str | None, x: HloTensor) -> bool:
    """Whether this number, at all its places, changes nothing as an operand of an operator."""
    if x.array is None or name is None or not x.array.size:
        return False
    kind = NUMPY[x.dtype]
    if x.dtype == "i1":
        return bool(np.all(x.array == (name in ("multiply", "minimum", "and"))))
    neutral: Any = {
        "add": 0, "or": 0, "multiply": 1, "maximum": lowest(kind), "minimum": highest(kind),
    }.get(name)  # fmt: skip
    return neutral is not None and bool(np.all(x.array == np.asarray(neutral, kind)))


@hlo("subtract", by_parts=True, elementwise=True)
def subtract(n: HloOp, x: HloTensor, y: HloTensor) -> HloTensor:
    return n("sub", x, y)


@hlo("divide", elementwise=True)
def divide(n: HloOp, x: HloTensor, y: HloTensor) -> HloTensor:
    """Integers divided by zero give all bits set, as XLA has it."""
    made = n("div", x, y)
    if x.is_float or _no_zero(y):
        return made
    return n("where", n("equal", y, 0), n.full((), -1 if not is_unsigned(x.dtype) else _top(x.dtype), x.dtype), made)


@hlo("remainder", elementwise=True)
def remainder(n: HloOp, x: HloTensor, y: HloTensor) -> HloTensor:
    """With the sign of x; integers modulo zero stay what they are, as XLA has it."""
    made = n("mod", x, y, fmod=True)
    return made if x.is_float or _no_zero(y) else n("where", n("equal", y, 0), x, made)


def _no_zero(y: HloTensor) -> bool:
    return y.array is not None and bool(np.all(y.array != 0))


def _top(dtype: str) -> int:
    return int(np.iinfo(NUMPY[dtype]).max)


@hlo("power", elementwise=True)
def power(n: HloOp, x: HloTensor, y: HloTensor) -> HloTensor:
    return n("pow", x, y)


@hlo("and", "or", "xor", elementwise=True)
def logic(n: HloOp, x: HloTensor, y: HloTensor) -> HloTensor:
    return n(n.name, x, y)


@hlo("shift_left", elementwise=True)
def shift_left(n: HloOp, x: HloTensor, y: HloTensor) -> HloTensor:
    return n("shift_left", x, y)


@hlo("shift_right_logical", elementwise=True)
def shift_right_logical(n: HloOp, x: HloTensor, y: HloTensor) -> HloTensor:
    made = n("shift_right", _unsigned(n, x), _unsigned(n, y))
    return made if made.dtype == x.dtype else n("bitcast", made, to=x.dtype)


@hlo("shift_right_arithmetic", elementwise=True)
def shift_right_arithmetic(n: HloOp, x: HloTensor, y: HloTensor) -> HloTensor:
    if not is_unsigned(x.dtype):
        return n("shift_right", x, y)
    signed = x.dtype[1:]
    return n("bitcast", n("shift_right", n("bitcast", x, to=signed), n("bitcast", y, to=signed)), to=x.dtype)


@hlo("compare", elementwise=True)
def compare(n: HloOp, x: HloTensor, y: HloTensor) -> HloTensor:
    direction = _stablehlo.ComparisonDirectionAttr(n.attribute("comparison_direction")).value
    kind = n.attribute("compare_type")
    if kind is not None and _stablehlo.ComparisonTypeAttr(kind).value == "TOTALORDER":
        x, y = total_order(n, x), total_order(n, y)
    if x.dtype == "i1" and direction not in ("EQ", "NE"):
        x, y = n.cast(x, "ui8"), n.cast(y, "ui8")
    made = n(COMPARISONS[direction], x, y)
    return n("not", made) if direction == "NE" else made


def total_order(n: HloEmitter, x: HloTensor) -> HloTensor:
    """Integers in the order of the bits of floats: -NaN, -inf ... -0, 0 ... inf, NaN."""
    kind = f"i{8 * itemsize(x.dtype)}"
    bits, last = n("bitcast", x, to=kind), 8 * itemsize(x.dtype) - 1
    made: HloTensor = n("xor", bits, n("and", n("shift_right", bits, last), n.full((), _top(kind), kind)))
    return made


@hlo("select", by_parts=True, elementwise=True)
def select(n: HloOp, condition: HloTensor, x: HloTensor, y: HloTensor) -> HloTensor:
    if (
        condition.array is not None
        and condition.array.size
        and bool(np.all(condition.array == condition.array.flat[0]))
    ):
        return x if condition.array.flat[0] else y
    return n("where", condition, x, y)


@hlo("clamp", elementwise=True)
def clamp(n: HloOp, low: HloTensor, x: HloTensor, high: HloTensor) -> HloTensor:
    return n("min", n("max", x, low), high)


# ---- conversion ----------------------------------------------------------------------------------------------------


@hlo("convert", elementwise=True)
def convert(n: HloOp, x: HloTensor) -> HloTensor:
    """Floats out of the range of an integer give its end, NaN 0, as `tw.cast` has it."""
    return n.cast(x, n.dtype)


@hlo("bitcast_convert", elementwise=True)
def bitcast_convert(n: HloOp, x: HloTensor) -> HloTensor:
    n.need(itemsize(x.dtype) == itemsize(n.dtype), f"of {x.dtype} to {n.dtype}, which is of another size")
    return x if x.dtype == n.dtype else n("bitcast", x, to=n.dtype)


@hlo("reduce_precision", elementwise=True)
def reduce_precision(n: HloOp, x: HloTensor) -> HloTensor:
    form = n.number("exponent_bits"), n.number("mantissa_bits")
    own = {"f64": (11, 52), "f32": (8, 23), "bf16": (8, 7), "f16": (5, 10)}[x.dtype]
    if form[0] >= own[0] and form[1] >= own[1]:
        return x
    n.need(form == (8, 7) and x.dtype == "f32", f"of {x.dtype} to {form[0]} bits of exponent and {form[1]} of mantissa")
    return n.cast(n.cast(x, "bf16"), x.dtype)


@hlo("optimization_barrier")
def optimization_barrier(n: HloOp, *xs: object) -> list[Any]:
    return list(xs)
