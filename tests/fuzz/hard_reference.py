"""What a chain of ONNX operators has to give, bit for bit or within stated bounds: NumPy's numbers in its types.

Every operator rounds to its own type. Where a correct program has a choice, a few samples are computed, each with other
choices: a function may be off by its stated units in the last place (docs/math_accuracy.md), a product that is added
may be contracted (fma), a sum be taken in any order, the larger of two zeros be either of them. A result is right if it
equals a sample or lies between them. Where a standard leaves it open altogether (`Value.free`), anything is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from support.hard_numbers import BF16, is_float

#: versions of a result, and of one that seems wrong
SAMPLES, MANY = 12, 300
#: units in the last place that functions of f32 and f64 may be off; docs/math_accuracy.md has the bounds
ULPS = {"Exp": 2, "Log": 2, "Erf": 3, "Tan": 4, "Pow": 4, "Acosh": 4, "Asinh": 4, "Atanh": 4, "Gelu": 8, "Mish": 8}
FUNCTION_ULPS = 3


@dataclass(frozen=True)
class Rules:
    """What a target may do to numbers: how far its functions, divisions and roots may be off (of f32), and the element
    types whose subnormal numbers it may take for zero."""

    functions: int = 0
    divisions: int = 0
    roots: int = 0
    flushes: tuple[str, ...] = ()


@dataclass
class Value:
    """A matrix in many versions (the first dimension; one where there was no choice) and where it may be anything; of a
    product its factors."""

    samples: np.ndarray
    free: np.ndarray
    product: tuple[np.ndarray, np.ndarray] | None = None

    @classmethod
    def of(cls, array: np.ndarray) -> Value:
        array = array.reshape((1,) * (2 - array.ndim) + array.shape)
        return cls(array[None], np.zeros(array.shape, bool))

    @property
    def dtype(self) -> np.dtype:
        return self.samples.dtype


@dataclass
class Choices:
    """Where the samples take their choices from."""

    rng: np.random.Generator
    rules: Rules = field(default_factory=Rules)
    count: int = SAMPLES

    def either(self, shape: tuple[int, ...]) -> np.ndarray:
        """For each sample one choice for all elements, or one for each; the first sample takes the first choice."""
        shape = (self.count, *shape[1:])
        whole = self.rng.random((self.count, *[1] * (len(shape) - 1))) < 0.5
        each = self.rng.random(shape) < 0.5
        picked = np.where(np.arange(self.count).reshape(whole.shape) % 2 == 0, whole, each)
        picked[0] = False
        return picked

    def between(self, shape: tuple[int, ...]) -> np.ndarray:
        """For each sample and element a number from -1 to 1, of the first sample 0."""
        step = self.rng.uniform(-1, 1, (self.count, *shape[1:]))
        step[0] = 0
        return step

    def near(self, x: np.ndarray, bound: np.ndarray) -> np.ndarray:
        """Off by up to a bound, and 0 where that is within it; infinities and NaN stay."""
        made = x + np.where(np.isfinite(x), self.between(x.shape) * bound, 0)
        return np.where((np.abs(x) <= bound) & (self.between(x.shape) < -0.5), 0, made)

    def nudged(self, x: np.ndarray, ulps: Any) -> np.ndarray:
        """Moved by up to so many units in the last place (a number, or one for each element); zeros, infinities and NaN
        stay."""
        ulps = np.asarray(ulps)
        if not ulps.any():
            return x
        x = np.broadcast_to(x, (self.count, *x.shape[1:]))
        step = self.rng.integers(-2, 3, x.shape) / 2
        step[0], step[1], step[2] = 0, 1, -1
        return moved(x, np.trunc(step * ulps))

    def flushed(self, x: np.ndarray, made: bool = True) -> np.ndarray:
        """With zeros for what may be one; of results the smallest normal number, too, which a smaller one rounds to."""
        if x.dtype.name not in self.rules.flushes:
            return x
        tiny = ml_dtypes.finfo(x.dtype).tiny
        with np.errstate(invalid="ignore"):
            small = (x != 0) & ((np.abs(x) < tiny) | ((np.abs(x) == tiny) & made))
        return np.where(small & self.either(x.shape), np.copysign(np.zeros_like(x), x), x) if small.any() else x


def moved(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    """x moved by whole units in the last place, at most to an infinity."""
    size = x.dtype.itemsize
    top = int(np.array(np.inf, x.dtype).view(f"i{size}"))
    bits = np.abs(x).view(f"i{size}").astype(np.int64)
    keep = (x == 0) | ~np.isfinite(x)
    bits = np.clip(bits + np.where(keep, 0, by).astype(np.int64), 0, np.where(keep, 2**63 - 1, top))
    return np.copysign(bits.astype(f"i{size}").view(x.dtype), x).astype(x.dtype)


# ---- types ---------------------------------------------------------------------------------------------------------


def wide(x: np.ndarray) -> np.ndarray:
    """In more precision: f64, of f64 what C calls long double."""
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def to_odd(x: np.ndarray, dtype: type) -> np.ndarray:
    """Rounded to the float type such that another rounding, to fewer bits, is as if there was this one only."""
    y = x.astype(dtype)
    off = np.isfinite(x) & (y.astype(x.dtype) != x)
    even = (y.view(f"u{y.dtype.itemsize}") & 1) == 0
    other = np.nextafter(y, np.where(y.astype(x.dtype) < x, np.inf, -np.inf).astype(dtype))
    return np.where(off & (even | np.isinf(y)), other, y).astype(dtype)


def narrow(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Rounded once, to the nearest even."""
    with np.errstate(all="ignore"):
        return _narrow(x, dtype)


def _narrow(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if dtype == x.dtype:
        return x
    if dtype.itemsize <= 4 and x.dtype == np.longdouble:
        x = to_odd(x, np.float64)
    if dtype == BF16 and x.dtype == np.float64:
        x = to_odd(x, np.float32)
    return x.astype(dtype)


def rounded(f: Callable, *operands: np.ndarray) -> np.ndarray:
    """An operation of IEEE arithmetic in the operands' type; of 16 bits it is computed exactly and rounded once."""
    dtype = operands[0].dtype
    if dtype.itemsize == 2 and is_float(dtype):
        return narrow(f(*(x.astype(np.float64) for x in operands)), dtype)
    return f(*operands).astype(dtype)


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a * b + c with one rounding (of f64 nearly always)."""
    dtype = c.dtype
    if dtype != np.float64:
        p, c = a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)
        s, e = _two_sum(p, c)
        odd = ((s.view(np.uint64) & 1) == 0) & (e != 0) & np.isfinite(s) & np.isfinite(e)
        return narrow(np.where(odd, np.nextafter(s, np.where(e > 0, np.inf, -np.inf)), s), dtype)
    p, c = a.astype(np.longdouble) * b, c.astype(np.longdouble)
    return (p + c).astype(np.float64)


def _two_sum(a, b):
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


# ---- operators ------------------------------------------------------------------------------------------------------

Reference = Callable[..., Value]
REFERENCES: dict[str, Reference] = {}


def reference(*names: str) -> Callable[[Reference], Reference]:
    def add(f: Reference) -> Reference:
        REFERENCES.update(dict.fromkeys(names, f))
        return f

    return add


def free_of(*values: Value) -> np.ndarray:
    return np.logical_or.reduce(np.broadcast_arrays(*(v.free for v in values)))


def zero_of_either_sign(c: Choices, x: np.ndarray) -> np.ndarray:
    if not is_float(x.dtype):
        return x
    zero = x == 0
    return np.where(zero & c.either(x.shape), -x, x) if zero.any() else x


def exact(f: Callable) -> Reference:
    """An elementwise operator that IEEE arithmetic or two's complement determines."""
    return lambda c, *v, **_: Value(rounded(f, *(x.samples for x in v)), free_of(*v))


for name, f in {
    "Abs": np.abs, "Floor": np.floor, "Ceil": np.ceil, "Round": np.rint, "Identity": lambda x: x,
    "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor, "BitwiseNot": np.invert,
    "Not": np.logical_not, "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor,
}.items():  # fmt: skip
    REFERENCES[name] = exact(f)


@reference("Neg")
def neg(c, x, **_):
    product = None if x.product is None else (-x.product[0], x.product[1])
    return Value(np.negative(x.samples), x.free, product)


@reference("Mul")
def mul(c, x, y, **_):
    contracts = is_float(x.dtype) and x.dtype.itemsize > 2  # halves are rounded between two operators
    product = tuple(np.broadcast_arrays(x.samples, y.samples)) if contracts else None
    return Value(rounded(np.multiply, x.samples, y.samples), free_of(x, y), product)


@reference("Add", "Sub")
def add(c, x, y, *, op, **_):
    minus = op == "Sub"
    made = rounded(np.subtract if minus else np.add, x.samples, y.samples)
    for product, other in ((x.product, -y.samples if minus else y.samples), (y.product, x.samples)):
        if product is not None:
            a = -product[0] if minus and other is x.samples else product[0]
            fused = fma(a, product[1], np.broadcast_to(other, made.shape))
            made = np.where(c.either(made.shape), fused, made)
    return Value(made.astype(x.dtype), free_of(x, y))


@reference("Div")
def div(c, x, y, **_):
    if is_float(x.dtype):
        return Value(c.nudged(rounded(np.divide, x.samples, y.samples), c.rules.divisions), free_of(x, y))
    zero = y.samples == 0
    safe = np.where(zero, 1, y.samples).astype(x.dtype)
    quotient = x.samples // safe
    quotient += ((x.samples % safe != 0) & ((x.samples < 0) != (safe < 0))).astype(x.dtype)
    return Value(np.where(zero, 0, quotient).astype(x.dtype), free_of(x, y))


@reference("Mod")
def mod(c, x, y, *, fmod=0, **_):
    if is_float(x.dtype):
        return Value(rounded(np.fmod, x.samples, y.samples), free_of(x, y) | _may_jump(x, y))
    zero = y.samples == 0
    safe = np.where(zero, 1, y.samples).astype(x.dtype)
    rest = (np.fmod if fmod else np.mod)(x.samples, safe)
    return Value(np.where(zero, 0, rest).astype(x.dtype), free_of(x, y))


def _may_jump(x: Value, y: Value) -> np.ndarray:
    """Where a remainder is open: for numbers that are not exact, a unit in the last place further apart than the
    samples, the quotient has several whole parts."""

    def ends(v: Value) -> list[np.ndarray]:
        w = v.samples.astype(np.float64)
        unit = np.abs(w).max(0) * float(ml_dtypes.finfo(v.dtype).eps) * (len(w) > 1)
        return [w.min(0) - unit, w.max(0) + unit]

    with np.errstate(all="ignore"):
        whole = np.floor([a / b for a in ends(x) for b in ends(y)])
    return np.isfinite(whole).all(0) & (whole != whole[0]).any(0)


@reference("Reciprocal")
def reciprocal(c, x, **_):
    return Value(c.nudged(rounded(lambda v: 1 / v, x.samples), c.rules.divisions), x.free)


@reference("Sqrt")
def sqrt(c, x, **_):
    return Value(c.nudged(rounded(np.sqrt, x.samples), c.rules.roots), x.free)


@reference("Max", "Min")
def extreme(c, x, y, *, op, **_):
    made = rounded(np.maximum if op == "Max" else np.minimum, x.samples, y.samples)
    return Value(zero_of_either_sign(c, made), free_of(x, y))


@reference("Clip")
def clip(c, x, low, high, **_):
    made = rounded(lambda v, a, b: np.minimum(np.maximum(v, a), b), x.samples, low.samples, high.samples)
    return Value(zero_of_either_sign(c, made), free_of(x, low, high))


@reference("Relu")
def relu(c, x, **_):
    return Value(zero_of_either_sign(c, rounded(lambda v: np.maximum(v, np.zeros((), v.dtype)), x.samples)), x.free)


@reference("Sign")
def sign(c, x, **_):
    made = x.samples if x.dtype.kind == "b" else np.sign(x.samples.astype(np.float32) if x.dtype == BF16 else x.samples)
    return Value(zero_of_either_sign(c, made.astype(x.dtype)), x.free)


@reference("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
def compare(c, x, y, *, op, **_):
    f = {"Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater}
    return Value(f.get(op, np.greater_equal)(x.samples, y.samples), free_of(x, y))


@reference("IsNaN")
def is_nan(c, x, **_):
    return Value(np.isnan(x.samples), x.free)


@reference("IsInf")
def is_inf(c, x, *, detect_negative=1, detect_positive=1, **_):
    made = np.isinf(x.samples) & ((x.samples > 0) & bool(detect_positive) | (x.samples < 0) & bool(detect_negative))
    return Value(made, x.free)


@reference("Where")
def where(c, condition, x, y, **_):
    made = np.where(condition.samples, x.samples, y.samples).astype(x.dtype)
    picked = np.where(condition.samples, x.free, y.free).any(0)
    return Value(made, picked | np.broadcast_to(condition.free, picked.shape))


@reference("BitShift")
def shift(c, x, y, *, direction, **_):
    f = np.left_shift if direction == "LEFT" else np.right_shift
    out = y.samples >= 8 * x.dtype.itemsize
    made = f(x.samples, np.where(out, 0, y.samples).astype(x.dtype))
    return Value(np.where(out, 0, made).astype(x.dtype), free_of(x, y))


@reference("Cast")
def cast(c, x, *, dtype, **_):
    s, free = x.samples, x.free
    if dtype.kind == "b":
        return Value(s != 0, free)
    if is_float(x.dtype) and not is_float(dtype):
        return Value(wrapped(np.trunc(s.astype(np.float64)), dtype), free)
    if not is_float(dtype):
        return Value(s.astype(dtype), free)
    w = s.astype(np.longdouble if s.dtype.kind in "iu" or s.dtype == np.float64 else np.float64)
    made = w.astype(dtype) if dtype == np.float64 else narrow(w, dtype)
    if s.dtype.kind in "iu" and dtype.itemsize == 2:  # may go by way of f32
        made = np.where(c.either(made.shape), s.astype(np.float32).astype(dtype), made)
    return Value(made, free)


def wrapped(whole: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Floats without fractions as an integer: those out of range by way of a signed integer of 32 or 64 bits, of which
    the lowest bits are kept, and whose lowest number stands for what it has no room for (docs/semantics.md)."""
    bits = 64 if dtype.itemsize == 8 else 32
    half, signed = 2.0 ** (bits - 1), np.dtype(f"int{bits}")
    lowest = np.array(np.iinfo(signed).min, signed)
    upper = (whole >= half) & (dtype.kind == "u") & (8 * dtype.itemsize == bits)
    whole = np.where(upper, whole - half, whole)
    inside = np.abs(whole) < half
    made = np.where(inside, np.where(inside, whole, 0).astype(signed), lowest)
    return np.where(upper, made ^ lowest, made).astype(dtype)


# ---- functions ------------------------------------------------------------------------------------------------------


def erf(x: np.ndarray) -> np.ndarray:
    flat = x.astype(np.float64).reshape(-1)
    return np.fromiter(map(math.erf, flat.tolist()), np.float64, flat.size).reshape(x.shape).astype(x.dtype)


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


FUNCTIONS: dict[str, Callable] = {
    "Exp": np.exp, "Log": np.log, "Tanh": np.tanh, "Erf": erf, "Sigmoid": sigmoid, "Sin": np.sin, "Cos": np.cos,
    "Tan": np.tan, "Asin": np.arcsin, "Acos": np.arccos, "Atan": np.arctan, "Sinh": np.sinh, "Cosh": np.cosh,
    "Asinh": np.arcsinh, "Acosh": np.arccosh, "Atanh": np.arctanh, "Softplus": softplus,
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Elu": lambda x: np.where(x > 0, x, np.expm1(x)),
    "Mish": lambda x: x * np.tanh(softplus(x)),
    "Pow": lambda x, y: np.power(*map(np.array, np.broadcast_arrays(x, y))),  # NumPy takes roots for one exponent
}  # fmt: skip


#: what ONNX defines by a formula may be computed by it, in f32 and f64: e^-x overflows where its inverse is subnormal
FORMULAS: dict[str, Callable] = {"Sigmoid": lambda x: 1 / (1 + np.exp(-x))}


@reference(*FUNCTIONS)
def function(c, *v, op, **_):
    """Computed in more precision, rounded, moved by what is stated; of 16 bits that is less than one unit."""
    dtype = v[0].dtype
    made = narrow(FUNCTIONS[op](*(wide(x.samples) for x in v)), dtype)
    if op in FORMULAS:
        at = v[0].samples if dtype.itemsize > 2 else v[0].samples.astype(np.float32)
        made = np.where(c.either(made.shape), FORMULAS[op](at).astype(dtype), made)
    ulps = max(ULPS.get(op, FUNCTION_ULPS), c.rules.functions) if dtype.itemsize > 2 else 1
    if op == "Mish":  # x times e^x: where that is subnormal, a unit of it is |x| units of the result
        size = np.nan_to_num(np.abs(wide(v[0].samples)), posinf=0)
        ulps = np.where(np.abs(wide(made)) < size * float(ml_dtypes.finfo(dtype).tiny), ulps + 2 * np.ceil(size), ulps)
    return Value(c.nudged(made, ulps), free_of(*v))


@reference("LeakyRelu")
def leaky_relu(c, x, *, alpha, **_):
    s = x.samples
    slope = rounded(np.multiply, s, np.full((), alpha).astype(s.dtype))
    return Value(np.where(s < 0, slope, s).astype(s.dtype), x.free)


@reference("PRelu")
def prelu(c, x, slope, **_):
    s = x.samples
    return Value(np.where(s < 0, rounded(np.multiply, s, slope.samples), s).astype(s.dtype), free_of(x, slope))


@reference("HardSigmoid")
def hard_sigmoid(c, x, *, alpha, beta, **_):
    one = Value.of(np.ones((), x.dtype))
    number = lambda v: Value.of(np.full((), v).astype(x.dtype))  # noqa: E731
    return clip(c, add(c, mul(c, x, number(alpha)), number(beta), op="Add"), number(0), one)


# ---- along an axis --------------------------------------------------------------------------------------------------


def _terms(c: Choices, x: Value) -> np.ndarray:
    """What a sum adds up, in more precision: of products either these or, as fma adds them, what they are before they
    are rounded and overflow."""
    w = wide(x.samples)
    if x.product is None:
        return w
    exact = wide(x.product[0]) * wide(x.product[1])
    return np.where(c.either(np.broadcast_shapes(w.shape, exact.shape)), exact, w)


def _total(w: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The sum, of infinities and NaN what these give, and the sum of the sizes of what is finite."""
    return w.sum(axis, keepdims=True), np.where(np.isfinite(w), np.abs(w), 0).sum(axis, keepdims=True)


def _in_any_order(c: Choices, total, size, terms: int, dtype: np.dtype, free: np.ndarray) -> Value:
    """A sum of `terms` numbers, whose sizes add up to `size`: off by a rounding a term, which may leave nothing, and
    open where a part of it may overflow."""
    info = ml_dtypes.finfo(dtype)
    bound = size * float(info.eps) * (terms + 1)
    made = narrow(c.near(total, bound), dtype)
    return Value(zero_of_either_sign(c, made), free | (size + bound >= float(info.max)).any(0))


@reference("ReduceSum", "ReduceMean", "ReduceL1", "ReduceSumSquare", "ReduceL2")
def reduce_sum(c, x, *, op, axis, **_):
    s, free = x.samples, x.free.any(axis, keepdims=True)
    n = s.shape[axis if axis < 0 else axis + 1]
    at = axis if axis < 0 else axis + 1
    if op in ("ReduceSumSquare", "ReduceL2"):
        w = wide(s)
        square, info = w * w, ml_dtypes.finfo(s.dtype)
        odd = np.isfinite(w) & ((square > float(info.max)) | (square != 0) & (square < 4 * float(info.tiny)))
        free = free | odd.any(0).any(axis, keepdims=True)
        total = size = np.where(np.isnan(w).any(at, keepdims=True), np.nan, square.sum(at, keepdims=True))
        size = np.where(np.isfinite(square), square, 0).sum(at, keepdims=True)
    elif not is_float(s.dtype):
        return Value(s.sum(at, dtype=s.dtype, keepdims=True), free)
    else:
        total, size = _total(np.abs(wide(s)) if op == "ReduceL1" else _terms(c, x), at)
    made = _in_any_order(c, total, size, n + 1, s.dtype, free)
    if op == "ReduceMean":
        count = np.full((), n).astype(s.dtype)
        return Value(c.nudged(rounded(np.divide, made.samples, count), 1), made.free)
    return Value(c.nudged(rounded(np.sqrt, made.samples), c.rules.roots), made.free) if op == "ReduceL2" else made


@reference("ReduceMax", "ReduceMin")
def reduce_extreme(c, x, *, op, axis, **_):
    at = axis if axis < 0 else axis + 1
    f = np.max if op == "ReduceMax" else np.min
    s = x.samples.astype(np.float32) if x.dtype == BF16 else x.samples
    made = f(s, axis=at, keepdims=True).astype(x.dtype)
    return Value(zero_of_either_sign(c, made), x.free.any(axis, keepdims=True))


@reference("ArgMax", "ArgMin")
def arg_extreme(c, x, *, op, axis, **_):
    at = axis if axis < 0 else axis + 1
    s = x.samples.astype(np.float32) if x.dtype == BF16 else x.samples
    made = (np.argmax if op == "ArgMax" else np.argmin)(s, axis=at, keepdims=True)
    return Value(made.astype(np.int64), x.free.any(axis, keepdims=True))


@reference("CumSum")
def cum_sum(c, x, *, axis, **_):
    at = axis if axis < 0 else axis + 1
    free = np.logical_or.accumulate(x.free, axis)
    if not is_float(x.dtype):
        return Value(np.cumsum(x.samples, at, dtype=x.dtype), free)
    w = _terms(c, x)
    size = np.cumsum(np.where(np.isfinite(w), np.abs(w), 0), at)
    return _in_any_order(c, np.cumsum(w, at), size, x.samples.shape[at], x.dtype, free)


@reference("Softmax", "LogSoftmax")
def softmax(c, x, *, op, axis, **_):
    at = axis if axis < 0 else axis + 1
    w, info = wide(x.samples), ml_dtypes.finfo(x.dtype)
    apart = w - w.max(at, keepdims=True)
    total = np.exp(apart).sum(at, keepdims=True)
    n = w.shape[at]
    far = np.minimum(np.nan_to_num(np.abs(apart), posinf=0), 1e4)
    functions = max(FUNCTION_ULPS, c.rules.functions)
    free = np.broadcast_to(x.free.any(axis, keepdims=True), x.free.shape)
    if op == "Softmax":
        made = np.exp(apart) / total
        free = free | ((made != 0) & (made < 4 * float(info.tiny))).any(0)  # a subnormal one may be off by more
        return Value(c.nudged(narrow(made, x.dtype), np.ceil(far + n + 2 * functions)), free)
    made = apart - np.log(total)
    bound = (np.abs(apart) + functions * (1 + np.log(total))) * float(info.eps) * 4
    return Value(zero_of_either_sign(c, narrow(c.near(made, bound), x.dtype)), free)


@reference("MatMul")
def matmul(c, x, y, **_):
    """Sums of products by what a chain has as a constant."""
    a, b = wide(x.samples)[..., :, None], wide(y.samples)[..., None, :, :]
    terms, info = a * b, ml_dtypes.finfo(x.dtype)
    finite = np.isfinite(a) & np.isfinite(b)
    size = np.where(finite, np.abs(terms), 0)
    # a factor of the whole, up to 2^20, may be put into the constant: so near the ends of the type all is open
    low, high = float(info.tiny) * 2.0**20, float(info.max) / 2.0**20
    ends = (terms != 0) & (np.abs(terms) < low) | (size > high) | (np.abs(a) > high) & (x.product is not None)
    if x.product is not None:
        ends |= (a != 0) & (np.abs(a) < low)
    free = x.free.any(-1, keepdims=True) | ends.any(0).any(-2)
    return _in_any_order(c, terms.sum(-2), size.sum(-2), 2 * a.shape[-2], x.dtype, free)


# ---- places ---------------------------------------------------------------------------------------------------------


def moves(f: Callable) -> Reference:
    """An operator that only moves numbers: the same is done with the samples and with what is free."""

    def made(c, x, *more, **attributes):
        samples = np.stack([f(s, *more, **attributes) for s in x.samples])
        return Value(samples, f(x.free, *more, **attributes))

    return made


REFERENCES.update(
    Transpose=moves(lambda x, **_: x.T),
    Reverse=moves(lambda x, *, axis, **_: np.flip(x, axis)),
    Roll=moves(lambda x, *, axis, **_: np.roll(x, -1, axis)),
    Halves=moves(lambda x, *, axis, **_: x[::2] if axis == 0 else x[:, ::2]),
    Tile=moves(lambda x, **_: np.tile(x, (1, 2))),
    Flatten=moves(lambda x, **_: x.reshape(1, -1)),
)


@reference("Concat")
def concat(c, x, y, *, axis, **_):
    n = max(len(x.samples), len(y.samples))
    parts = [np.broadcast_to(v.samples, (n, *v.free.shape)) for v in (x, y)]
    return Value(np.concatenate(parts, axis + 1), np.concatenate([x.free, y.free], axis))


@reference("Pad")
def pad(c, x, number, *, pads, **_):
    rows, columns = pads
    s = np.full((len(x.samples), x.free.shape[0] + rows, x.free.shape[1] + columns), number.samples.flat[0], x.dtype)
    s[:, rows:, columns:] = x.samples
    return Value(s, np.pad(x.free, ((rows, 0), (columns, 0))))


# ---- right or wrong -------------------------------------------------------------------------------------------------


def wrong(got: np.ndarray, want: Value) -> np.ndarray:
    """Where a result is none of those that are right."""
    samples = want.samples
    if is_float(got.dtype):
        bits = f"u{got.dtype.itemsize}"
        same = (got.view(bits) == np.ascontiguousarray(samples).view(bits)) | (np.isnan(got) & np.isnan(samples))
    else:
        same = got == samples
    fine = same.any(0) | want.free
    if fine.all() or got.dtype.kind == "b":
        return ~fine
    values = wide(samples) if is_float(got.dtype) else samples.astype(np.longdouble)
    value = got.astype(values.dtype)
    number = ~np.isnan(values)
    low = np.min(values, 0, where=number, initial=np.inf)
    high = np.max(values, 0, where=number, initial=-np.inf)
    with np.errstate(all="ignore"):
        room = np.where(np.isfinite(high - low), (high - low) / 2, np.inf)
        return ~(fine | ((low < high) & (low - room <= value) & (value <= high + room)))
