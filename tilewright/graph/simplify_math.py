"""Arithmetic simplification patterns; the pass is in simplify.py, with the rule on rounding."""

from __future__ import annotations

import math

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.types import broadcast_shapes, is_float, is_unsigned, type_of
from ..support.dtypes import HALVES, INTS, NUMPY, TYPES
from ..support.sub_byte import NARROW
from .rewrite import (
    Rewriter,
    Rewritten,
    defined_by,
    definition,
    dtype,
    either_order,
    has_one_use,
    pattern,
    shape,
    static,
)

#: operators whose operands may change places
COMMUTATIVE = ("add", "mul", "max", "min", "and", "or", "xor", "equal")

#: elements beyond which a constant is not copied for the sake of a canonical form
LARGE = 1 << 16


def power_of_two(c: float) -> bool:
    """c is +-2**k, and so is its inverse, exactly, in every float type (no subnormals)."""
    return math.isfinite(c) and c != 0 and abs(math.frexp(c)[0]) == 0.5 and 2.0**-14 <= abs(c) <= 2.0**14


def same_type(a: ir.Value, b: ir.Value) -> bool:
    return type_of(a) == type_of(b)


@pattern(*COMMUTATIVE)
def constant_right(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """add(c, x) -> add(x, c), so that other patterns look on one side only"""
    a, b = op.operands
    if defined_by(a, "constant") is not None and defined_by(b, "constant") is None:
        return rw.again(op, [b, a])[0]
    return None


@pattern("add", "sub")
def add_zero(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x + 0 -> x for integers and sums, x + (-0) and x - 0 -> x for all floats: -0 + 0 is 0"""
    x, c = op.operands
    array = rw.array(c)
    if array is None or rw.splat(c) != 0:
        return None
    changes = is_float(dtype(x)) and (np.signbit(array) != (op.name == "tw.add")).any()
    return None if changes and not _unsigned_zero(rw, x) else rw.broadcast(x, shape(op.results[0]))


def _unsigned_zero(rw: Rewriter, x: ir.Value) -> bool:
    """Whether a tensor of floats has no -0, or what has the sign of its zeros open: sums begin with 0, or without."""
    while (op := defined_by(x, "reshape", "transpose", "expand")) is not None:
        x = op.operands[0]
    return defined_by(x, "matmul", "conv", "conv_transpose", "reduce_sum") is not None or never_negative(rw, x)


@pattern("add")
def add_any_zero(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x + 0 -> x, where the sign of a zero does not matter"""
    x, c = op.operands
    return rw.broadcast(x, shape(op.results[0])) if rw.splat(c) == 0 else None


@pattern("mul", "div")
def times_one(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x * 1 and x / 1 -> x"""
    x, c = op.operands
    return rw.broadcast(x, shape(op.results[0])) if rw.splat(c) == 1 else None


@pattern("mul")
def times_minus_one(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x * -1 -> neg(x)"""
    x, c = op.operands
    if rw.scalar(c) == -1 and same_type(x, op.results[0]) and not is_unsigned(dtype(x)):
        return rw.create("neg", x)
    return None


@pattern("sub")
def subtract_constant(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x - c -> x + (-c), which is exact"""
    x, c = op.operands
    array = rw.array(c)
    if array is None or is_unsigned(dtype(x)) or array.size > LARGE:
        return None
    return rw.create("add", x, rw.constant(-array, rw.symbol(c)))


@pattern("div")
def divide_by_power_of_two(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x / 8 -> x * 0.125; only where 1 / c is exact"""
    x, c = op.operands
    number = rw.scalar(c)
    if number is None or not is_float(dtype(x)) or not power_of_two(number):
        return None
    return rw.create("mul", x, rw.constant(np.full(shape(c), 1 / number, NUMPY[dtype(c)])))


@pattern("div")
def one_over(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """1 / x -> reciprocal(x)"""
    c, x = op.operands
    if rw.scalar(c) == 1 and is_float(dtype(x)) and same_type(x, op.results[0]):
        return rw.create("reciprocal", x)
    return None


@pattern("reciprocal")
def reciprocal_of_sqrt(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """1 / sqrt(x) -> rsqrt(x); not of halves, which round the root too"""
    root = defined_by(op.operands[0], "sqrt")
    if root is None or TYPES[dtype(op.operands[0])].bits == 16:
        return None
    rw.names_of(root, op)
    return rw.create("rsqrt", root.operands[0])


#: whole powers of integers that become products: they wrap, so that products may stand in any order
LARGEST_POWER = 64


@pattern("pow")
def small_power(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x ** 2 -> x * x, and whole powers of integers; of floats x ** 3 (not of halves), 1, 0.5, -0.5 and -1"""
    x, c = op.operands
    exponent = rw.scalar(c)
    if exponent is None or not same_type(x, op.results[0]):
        return None
    if not is_float(dtype(x)):
        return _product(rw, x, exponent) if 0 < exponent <= LARGEST_POWER else None
    if exponent in (1, 2) or (exponent == 3 and dtype(x) not in HALVES):
        return _product(rw, x, int(exponent))
    if exponent in ROOTS:
        return _root(rw, x, *ROOTS[exponent])
    return rw.create("reciprocal", x) if exponent == -1 else None


def _product(rw: Rewriter, x: ir.Value, exponent: int) -> ir.Value:
    """x ** exponent by squaring."""
    if exponent == 1:
        return x
    half = _product(rw, x, exponent // 2)
    square = rw.create("mul", half, half)
    return rw.create("mul", square, x) if exponent % 2 else square


#: powers that are roots, and what they are of negative infinity
ROOTS = {0.5: ("sqrt", math.inf), -0.5: ("rsqrt", 0.0)}


def _root(rw: Rewriter, x: ir.Value, name: str, of_negative_infinity: float) -> ir.Value:
    """A power as the operator `name`, which keeps the sign of zero and has no root of negative infinity."""
    if never_negative(rw, x):
        return rw.create(name, x)
    infinite = rw.create("equal", x, rw.like(-math.inf, x))
    # not x + 0, which may make -0 of a subnormal number
    unsigned = rw.create("where", rw.create("equal", x, rw.like(0.0, x)), rw.like(0.0, x), x)
    return rw.create("where", infinite, rw.like(of_negative_infinity, x), rw.create(name, unsigned))


def never_negative(rw: Rewriter, value: ir.Value, depth: int = 6) -> bool:
    """Whether it is certain that no number in a tensor of floats has a minus sign, be it of zero."""
    array = rw.array(value)
    if array is not None:
        return array.size <= LARGE and not np.signbit(array).any()
    op = definition(value)
    name = dialect.mnemonic(op) if op is not None else None
    if op is None or name is None:
        return False
    if name in ("exp", "abs", "sigmoid", "softmax", "softplus") or (name == "pow" and rw.scalar(op.operands[1]) == 2):
        return True
    if name == "mul" and op.operands[0] == op.operands[1]:
        return True
    return depth > 0 and name in SIGN_KEPT and all(never_negative(rw, v, depth - 1) for v in op.operands)


#: what they give has no minus sign if no operand has one
SIGN_KEPT = ("add", "mul", "div", "sqrt", "reciprocal", "rsqrt", "reduce_sum", "reduce_mean", "reshape", "expand",
             "transpose", "slice", "max", "min")  # fmt: skip


@pattern("neg", "not")
def undone(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """neg(neg(x)), not(not(x)) -> x"""
    inner = defined_by(op.operands[0], dialect.mnemonic(op) or "")
    return inner.operands[0] if inner is not None else None


@pattern("relu", "abs", "floor", "ceil", "round", "sign")
def done_before(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """relu(relu(x)) -> relu(x), and other operators that change nothing the second time"""
    inner = defined_by(op.operands[0], dialect.mnemonic(op) or "")
    return op.operands[0] if inner is not None and dialect.attributes(inner) == dialect.attributes(op) else None


@pattern("add", "sub")
def add_negative(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """x + neg(y) -> x - y, x - neg(y) -> x + y"""
    name = dialect.mnemonic(op)
    for x, y in either_order(op) if name == "add" else [tuple(op.operands)]:
        inner = defined_by(y, "neg")
        if inner is not None:
            return rw.create("sub" if name == "add" else "add", x, inner.operands[0])
    return None


@pattern("mul")
def multiply_negative(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """neg(x) * c -> x * (-c)"""
    x, c = op.operands
    inner, array = defined_by(x, "neg"), rw.array(c)
    if inner is None or array is None or is_unsigned(dtype(x)):
        return None
    return rw.create("mul", inner.operands[0], rw.constant(-array, rw.symbol(c)))


@pattern("add", "mul")
def merge_constants(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """(x + c) + d -> x + (c + d), (x * c) * d -> x * (c * d), where that is exact: integers, powers of two from 1 on"""
    return _merged(rw, op, exact=True)


@pattern("add", "mul")
def merge_rounded_constants(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """(x + c) + d -> x + (c + d), (x * c) * d -> x * (c * d): one rounding less, but digits and overflows differ"""
    return _merged(rw, op, exact=False)


def _merged(rw: Rewriter, op: ir.Operation, exact: bool) -> Rewritten:
    name = dialect.mnemonic(op) or ""
    d = rw.array(op.operands[1])
    inner = defined_by(op.operands[0], name)
    if d is None or inner is None or not has_one_use(inner.results[0]):
        return None
    c = rw.array(inner.operands[1])
    if c is None or not static(inner.operands[0]) or np.broadcast(c, d).size > max(c.size, d.size):
        return None
    if not is_float(dtype(op.operands[1])):
        merged = (np.add if name == "add" else np.multiply)(c, d)
    elif exact and (name == "add" or not (_powers_from_one(c) and _powers_from_one(d))):
        return None
    else:
        wide = (np.add if name == "add" else np.multiply)(c.astype(np.float64), d.astype(np.float64))
        merged = wide.astype(c.dtype)
        if name == "mul" and not _normal(merged, wide):  # an overflow or underflow that (x * c) * d need not have
            return None
    out = broadcast_shapes(shape(inner.operands[0]), merged.shape)
    if out != shape(op.results[0]):
        return None
    rw.names_of(inner, op)
    return rw.create(name, inner.operands[0], rw.constant(merged, rw.symbol(op.operands[1])))


def _powers_from_one(c: np.ndarray) -> bool:
    """All are 1, 2, 4 ... or their negatives: x times such is exact, or infinite and stays that."""
    size = np.abs(c.astype(np.float64))
    return bool(np.isfinite(size).all() and (size >= 1).all() and (np.frexp(size)[0] == 0.5).all())


def _normal(rounded: np.ndarray, exact: np.ndarray) -> bool:
    info = np.finfo(rounded.dtype) if rounded.dtype.kind == "f" else None
    tiny = float(info.tiny) if info is not None else 1.2e-38  # bfloat16
    magnitude = np.abs(exact)
    return bool(np.isfinite(rounded).all() and ((magnitude >= tiny) | (magnitude == 0)).all())


# ---- limits --------------------------------------------------------------------------------------------------------


def limits(rw: Rewriter, op: ir.Operation | None) -> tuple[ir.Value, float | None, float | None] | None:
    """(x, low, high) of a float operation that only limits x: relu, clip, max or min with a number."""
    name = dialect.mnemonic(op) if op is not None else None
    if op is None or name not in ("relu", "clip", "max", "min") or not is_float(dtype(op.results[0])):
        return None
    x = op.operands[0]
    if name == "relu":
        return x, 0.0, None
    if name == "clip":
        attrs = dialect.attributes(op)
        low, high = attrs["low"], attrs["high"]
        return None if any(v is not None and math.isnan(v) for v in (low, high)) else (x, low, high)
    c = rw.scalar(op.operands[1])
    if c is None or math.isnan(c) or not same_type(x, op.results[0]):
        return None
    return (x, float(c), None) if name == "max" else (x, None, float(c))


def limited(rw: Rewriter, x: ir.Value, low: float | None, high: float | None) -> ir.Value:
    low = None if low == -math.inf else low
    high = None if high == math.inf else high
    if low is None and high is None:
        return x
    return rw.create("relu", x) if (low, high) == (0, None) else rw.create("clip", x, low=low, high=high)


@pattern("clip", "max", "min", "relu")
def merge_limits(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """max(x, 0) -> relu(x); min(max(x, 0), 6) -> clip(x, 0, 6); limits that say nothing go"""
    outer = limits(rw, op)
    if outer is None:
        return None
    x, low, high = outer
    inner = limits(rw, defined_by(x, "clip", "max", "min", "relu"))
    if inner is not None:
        y, low0, high0 = inner
        # min(max(y, low0), high0), then the outer limits: the outer ones also limit the inner bounds.
        lows = [v for v in (low0, low) if v is not None]
        highs = [v for v in (high0, high) if v is not None]
        new = (max(lows, default=None), min(highs, default=None))
        if new[0] is not None and new[1] is not None and new[0] > new[1]:
            return None
        rw.names_of(defined_by(x, "clip", "max", "min", "relu"), op)
        return limited(rw, y, *new)
    name = dialect.mnemonic(op)
    trivial = low in (None, -math.inf) and high in (None, math.inf)
    if name in ("max", "min") or trivial or (name == "clip" and low == 0 and high in (None, math.inf)):
        return limited(rw, x, low, high)
    return None


# ---- selection and conversion --------------------------------------------------------------------------------------


@pattern("where")
def known_choice(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """where(true, x, y) -> x, where(c, x, x) -> x"""
    condition, x, y = op.operands
    out = op.results[0]
    if x == y and same_type(x, out):
        return x
    known = rw.splat(condition)
    return rw.broadcast(x if known else y, shape(out)) if known is not None else None


@pattern("where")
def where_not(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """where(not(c), x, y) -> where(c, y, x)"""
    condition, x, y = op.operands
    inner = defined_by(condition, "not")
    return rw.create("where", inner.operands[0], y, x) if inner is not None else None


@pattern("and", "or")
def logic_with_constant(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """and(x, true) -> x, or(x, false) -> x"""
    x, c = op.operands
    neutral = rw.splat(c) if dtype(x) == "i1" else None
    if neutral is None or neutral != (dialect.mnemonic(op) == "and"):
        return None
    return rw.broadcast(x, shape(op.results[0]))


@pattern("cast")
def cast_to_same(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """cast(x) to the dtype it has -> x; cast(cast(x)) -> cast(x) where the inner cast loses nothing

    Of integers that become floats and integers again, only where the last hold them: out of range, a float is converted
    otherwise than an integer.
    """
    x = op.operands[0]
    if same_type(x, op.results[0]):
        return x
    inner = defined_by(x, "cast")
    if inner is None:
        return None
    source, between, to = dtype(inner.operands[0]), dtype(x), dtype(op.results[0])
    through_float = _whole(source) and not _whole(between) and _whole(to) and to != "i1"
    if not lossless(source, between) or (through_float and not lossless(source, to)):
        return None
    rw.names_of(inner, op)
    return rw.again(op, [inner.operands[0]])[0]


def _whole(name: str) -> bool:
    """Whether the numbers of a dtype are integers."""
    return TYPES[name].format is None


def lossless(source: str, target: str) -> bool:
    """Every value of dtype `source` can be represented in `target`.

    >>> lossless("f16", "f32"), lossless("i32", "f32"), lossless("ui8", "i16")
    (True, False, True)
    """
    if source in NARROW or target in NARROW:
        return source == target
    if source == target or source == "i1":
        return True
    small, large = TYPES[source].format, TYPES[target].format
    if small is not None:
        return large is not None and large.exponent >= small.exponent and large.mantissa >= small.mantissa
    bits = TYPES[source].bits - (0 if is_unsigned(source) else 1)
    if large is not None:
        return bits <= large.mantissa + 1
    if target not in INTS or (is_unsigned(target) and not is_unsigned(source)):
        return False
    return bits <= TYPES[target].bits - (0 if is_unsigned(target) else 1)


PATTERNS = [
    constant_right,
    add_zero,
    times_one,
    times_minus_one,
    subtract_constant,
    divide_by_power_of_two,
    one_over,
    reciprocal_of_sqrt,
    small_power,
    undone,
    done_before,
    add_negative,
    multiply_negative,
    merge_constants,
    merge_limits,
    known_choice,
    where_not,
    logic_with_constant,
    cast_to_same,
]

#: what also applies with the option `fast_math`
FAST = [add_any_zero, merge_rounded_constants]
