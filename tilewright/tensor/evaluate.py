"""The reference evaluator of expressions: computes an `Expr` over NumPy arrays, bit for bit as the machine does.

Values are held in the NumPy type of their dtype (`NUMPY`); integers are kept signed, and unsigned operations look at
the same bits. Each float operation rounds once to its own dtype. What C leaves undefined gets one fixed value here: a
shift by the width or more gives 0 (``shrsi``: the sign), an integer division by zero gives 0, and a float that does not
fit an integer saturates.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np

from tilewright.support.dtypes import FLOATS, LOOP_TYPES, converted
from tilewright.support.errors import CompileError
from tilewright.tensor.expr import Const, Expr, Load, Op, Var, children

NUMPY: dict[str, np.dtype] = {n: t.numpy for n, t in LOOP_TYPES.items()}
Array = np.ndarray
#: load(buffer, one integer array per index, dtype) -> elements
LoadFunction = Callable[[str, tuple[Array, ...], str], Array]


def evaluate(e: Expr, env: dict[str, Array], load: LoadFunction | None = None) -> Array:
    """The value of `e` with variables from `env`, which may be scalars or arrays that broadcast together.

    Args:
        e: any expression; shared nodes are computed once.
        env: variable name -> array, converted to the variable's dtype.
        load: called as ``load(buffer, indices, dtype)`` for a `Load`, with broadcast-able int64 arrays.

    Returns an array of the NumPy type of ``e.dtype`` (0-d if everything is scalar).
    Raises CompileError for an unknown operation or dtype, an unbound variable, or a `Load` without `load`.

    >>> x = Var("x", "f32")
    >>> evaluate(Op("fma", (x, x, Const(1.0, "f32")), "f32"), {"x": np.array([2.0, 3.0])})
    array([ 5., 10.], dtype=float32)
    """
    values: dict[int, Array] = {}
    stack: list[tuple[Expr, bool]] = [(e, False)]
    with np.errstate(all="ignore"):
        while stack:
            node, ready = stack.pop()
            if id(node) in values:
                continue
            if ready:
                values[id(node)] = _node(node, [values[id(c)] for c in children(node)], env, load)
            else:
                stack.append((node, True))
                stack.extend((c, False) for c in children(node))
    return values[id(e)]


def _node(e: Expr, args: list[Array], env: dict[str, Array], load: LoadFunction | None) -> Array:
    if isinstance(e, Const):
        return _constant(e)
    if isinstance(e, Var):
        if e.name not in env:
            raise CompileError(f"variable {e.name!r} has no value", stage="evaluate")
        return np.asarray(env[e.name]).astype(_numpy(e.dtype), copy=False)
    if isinstance(e, Load):
        if load is None:
            raise CompileError(f"load of {e.buffer!r} but no load function was given", stage="evaluate")
        return np.asarray(load(e.buffer, tuple(args), e.dtype)).astype(_numpy(e.dtype), copy=False)
    assert isinstance(e, Op)
    result = _operation(e, args)
    return np.asarray(result).astype(_numpy(e.dtype), copy=False)


def _numpy(dtype: str) -> np.dtype:
    if dtype not in NUMPY:
        raise CompileError(f"no NumPy type for dtype {dtype!r}", stage="evaluate", hint=f"one of {', '.join(NUMPY)}")
    return NUMPY[dtype]


def _constant(e: Const) -> Array:
    dtype = _numpy(e.dtype)
    if e.dtype in FLOATS or e.dtype == "i1":
        return np.array(e.value).astype(dtype)
    bits = dtype.itemsize * 8
    value = int(e.value) & (1 << bits) - 1  # signless: 255:i8 is -1
    return np.array(value - (1 << bits) if value >> bits - 1 else value, dtype)


def _operation(e: Op, args: list[Array]) -> Array:
    name, _, predicate = e.op.partition(".")
    operand: str = e.args[0].dtype
    if name == "cmpf":
        return _lookup(_CMPF, predicate, e)(*(_wide(a) for a in args))
    if name == "cmpi":
        return _lookup(_CMPI, predicate, e)(*args)
    if name in ("select", "seldom"):
        return np.where(*args)
    if name in _CASTS:
        return _CASTS[name](args[0], operand, e.dtype)
    if name in _INTEGER:
        return _INTEGER[name](*args)
    if name in _BITWISE_FLOAT:
        return _BITWISE_FLOAT[name](*args)
    if name in _EXACT:
        return _EXACT[name](*(_wide(a) for a in args))
    if name == "fma":
        return fma(*args)
    if name == "scalef":
        return _scalef(*args)
    if name == "limit":
        return _copysign(np.fmin(np.abs(args[0]), args[1]), args[0])
    if name == "pick":
        return np.stack(args[1:])[args[0] & (len(args) - 2)]
    if name == "dot2":  # each product of bf16 is exact in f32
        a, b, c, d = (_wide(x) for x in args)
        return a * b + c * d
    if name == "dot4":  # the four bytes of a word, without a sign, and four signed ones
        word, *signed = (a.astype(np.int64) for a in args)
        return np.sum([((word >> 8 * i) & 255) * x for i, x in enumerate(signed)], axis=0).astype(np.int32)
    if name == "table4":  # the four bytes of a word as those of a table of sixteen, which are four words
        word, *parts = (a.astype(np.int64) & 0xFFFFFFFF for a in args)
        table = np.stack([(part >> 8 * i) & 255 for part in np.broadcast_arrays(*parts) for i in range(4)])
        found = [np.choose((word >> 8 * i) & 15, table) << 8 * i for i in range(4)]
        return np.sum(found, axis=0).astype(np.uint32).view(np.int32)
    if name in _TRANSCENDENTAL:
        return converted(_TRANSCENDENTAL[name](*(a.astype(np.float64) for a in args)), e.dtype)
    raise CompileError(
        f"unknown operation {e.op!r}", stage="evaluate", hint="names are MLIR mnemonics, without dialect"
    )


def _lookup(table: dict[str, Callable[..., Array]], key: str, e: Op) -> Callable[..., Array]:
    if key not in table:
        raise CompileError(f"unknown predicate in {e.op!r}", stage="evaluate", hint=f"one of {', '.join(table)}")
    return table[key]


def _wide(a: Array) -> Array:
    """16-bit floats are computed in float32 and rounded once: exact for + - * / and sqrt, as 24 >= 2 * 11 + 2 bits."""
    return a.astype(np.float32) if a.dtype.itemsize == 2 else a


# ---- floats --------------------------------------------------------------------------------------------------------


def fma(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` rounded once, in the dtype of `a`."""
    dtype = a.dtype
    if dtype == np.float64:
        return _fma64(a, b, c)
    a, b, c = (np.asarray(x, np.float64) for x in np.broadcast_arrays(a, b, c))
    product = a * b  # exact: 24 + 24 bits
    total = np.asarray(product + c)
    result = np.asarray(total.astype(dtype))
    # Rounding twice goes wrong where the first result lies halfway between two values, or where the second result is
    # denormal. There the first is rounded to odd instead, which keeps what it lost in its last bit.
    keep = 29 if dtype == np.float32 else 42 if dtype == np.float16 else 45
    halfway = (total.view(np.int64) & ((1 << keep) - 1)) == 1 << (keep - 1)
    suspect = (halfway | (np.abs(total) < float(ml_dtypes.finfo(dtype).smallest_normal))) & np.isfinite(total)
    if suspect.any():
        result[suspect] = _add_to_odd(product[suspect], c[suspect]).astype(dtype)
    return result


def _add_to_odd(a: Array, b: Array) -> Array:
    """``a + b`` in float64, inexact sums rounded to the neighbour with an odd last bit."""
    total = a + b
    back = total - a
    error = (a - (total - back)) + (b - back)
    bits = total.view(np.int64)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return np.where((error != 0) & (bits & 1 == 0), bits + step, bits).view(np.float64)


def _fma64(a: Array, b: Array, c: Array) -> Array:
    """Exact, in integers: there is no wider float type everywhere."""
    from fractions import Fraction

    def one(x: float, y: float, z: float) -> float:
        if not (math.isfinite(x) and math.isfinite(y) and math.isfinite(z)):
            return x * y + z
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        if exact == 0:
            return x * y + z  # for the sign of zero
        try:
            return float(exact)
        except OverflowError:
            return math.copysign(math.inf, exact)

    return np.asarray(np.vectorize(one, otypes=[np.float64])(a, b, c))


def _scalef(a: Array, b: Array) -> Array:
    """``a * 2^floor(b)`` rounded once."""
    exponent = np.clip(np.where(np.isnan(b), 0.0, np.floor(b)), -500, 500).astype(np.int32)
    return np.where(np.isnan(b), b, np.ldexp(a.astype(np.float64), exponent).astype(a.dtype))


def _copysign(a: Array, b: Array) -> Array:
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    top = np.array(1, unsigned) << np.array(8 * a.dtype.itemsize - 1, unsigned)
    x, y = np.asarray(a).view(unsigned), np.asarray(b).view(unsigned)
    return np.asarray((x & ~top) | (y & top)).view(a.dtype)


def _flip_sign(a: Array) -> Array:
    return _copysign(a, np.where(np.signbit(a), np.ones((), a.dtype), -np.ones((), a.dtype)).astype(a.dtype))


def _ordered(pick: np.ufunc, first_sign: bool, propagate: bool) -> Callable[[Array, Array], Array]:
    """maximumf and the like: -0 < +0; NaN spreads (maximumf) or yields to the other operand (maxnumf)."""

    def combine(a: Array, b: Array) -> Array:
        if not propagate:
            a, b = np.where(np.isnan(a), b, a), np.where(np.isnan(b), a, b)
        equal = np.where(np.signbit(a) == first_sign, a, b)
        return np.where(a == b, equal, pick(a, b))

    return combine


def _round_half_away(a: Array) -> Array:
    whole = np.trunc(a)
    return np.copysign(np.where(np.abs(a - whole) >= 0.5, whole + np.copysign(1, a), whole), a)


_BITWISE_FLOAT: dict[str, Callable[..., Array]] = {
    "negf": _flip_sign,
    "absf": lambda a: _copysign(a, np.ones((), a.dtype)),
    "copysign": _copysign,
}

_EXACT: dict[str, Callable[..., Array]] = {
    "addf": np.add,
    "subf": np.subtract,
    "mulf": np.multiply,
    "divf": np.divide,
    "remf": np.fmod,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": _round_half_away,
    "roundeven": np.rint,
    "maximumf": _ordered(np.maximum, False, True),
    "minimumf": _ordered(np.minimum, True, True),
    "maxnumf": _ordered(np.fmax, False, False),
    "minnumf": _ordered(np.fmin, True, False),
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
}

_CMPF: dict[str, Callable[[Array, Array], Array]] = {
    "oeq": lambda a, b: a == b,
    "ogt": lambda a, b: a > b,
    "oge": lambda a, b: a >= b,
    "olt": lambda a, b: a < b,
    "ole": lambda a, b: a <= b,
    "one": lambda a, b: (a < b) | (a > b),
    "ord": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "ueq": lambda a, b: ~((a < b) | (a > b)),
    "ugt": lambda a, b: ~(a <= b),
    "uge": lambda a, b: ~(a < b),
    "ult": lambda a, b: ~(a >= b),
    "ule": lambda a, b: ~(a > b),
    "une": lambda a, b: a != b,
    "uno": lambda a, b: np.isnan(a) | np.isnan(b),
    "false": lambda a, b: np.zeros(np.broadcast_shapes(a.shape, b.shape), bool),
    "true": lambda a, b: np.ones(np.broadcast_shapes(a.shape, b.shape), bool),
}


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(np.signbit(x), e, 1.0) / (1.0 + e)


_TRANSCENDENTAL: dict[str, Callable[..., Array]] = {
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log2": np.log2,
    "log10": np.log10,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "atan2": np.arctan2,
    "powf": lambda a, b: np.power(*np.broadcast_arrays(a, b)),  # not its short cuts for scalar exponents
    "fpowi": np.power,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "erf": lambda a: np.asarray(np.vectorize(math.erf, otypes=[np.float64])(a)),
    "erfc": lambda a: np.asarray(np.vectorize(math.erfc, otypes=[np.float64])(a)),
    "sigmoid": _sigmoid,
}


# ---- integers ------------------------------------------------------------------------------------------------------


def _unsigned(a: Array) -> Array:
    return a if a.dtype == np.bool_ else np.asarray(a).view(np.dtype(f"u{a.dtype.itemsize}"))


def _signed(a: Array) -> Array:
    return a if a.dtype == np.bool_ else np.asarray(a).view(np.dtype(f"i{a.dtype.itemsize}"))


def _as_unsigned(f: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: _signed(np.asarray(f(_unsigned(a), _unsigned(b))))


def _divide(floor: int) -> Callable[[Array, Array], Array]:
    """Integer division rounded down (-1), to zero (0) or up (1)."""

    def divide(a: Array, b: Array) -> Array:
        b_ = np.where(b == 0, np.ones((), b.dtype), b)
        quotient = a // b_
        inexact = quotient * b_ != a
        if floor == 1:
            quotient = quotient + inexact.astype(a.dtype)
        elif floor == 0:
            quotient = quotient + (inexact & (quotient < 0)).astype(a.dtype)
        return np.where(b == 0, np.zeros((), a.dtype), quotient)

    return divide


def _remainder(a: Array, b: Array) -> Array:
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, np.ones((), b.dtype), b)))


def _shift(f: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def shift(a: Array, b: Array) -> Array:
        width = a.dtype.itemsize * 8
        over = _unsigned(b) >= width
        moved = f(a, np.where(over, np.zeros((), b.dtype), b))
        beyond = f(f(a, np.array(width - 1, b.dtype)), np.array(1, b.dtype))
        return np.where(over, beyond, moved)

    return shift


def _bits_op(
    on_bool: Callable[[Array, Array], Array], on_int: Callable[[Array, Array], Array]
) -> Callable[[Array, Array], Array]:
    return lambda a, b: (on_bool if a.dtype == np.bool_ else on_int)(a, b)


def _count_leading_zeros(a: Array) -> Array:
    left, count = _unsigned(a), np.zeros(a.shape, np.int64)
    for _ in range(a.dtype.itemsize * 8):
        count += left == 0
        left = left >> np.ones((), left.dtype)
    return count


def _count_trailing_zeros(a: Array) -> Array:
    width = a.dtype.itemsize * 8
    lowest = _unsigned(a) & (~_unsigned(a) + np.ones((), _unsigned(a).dtype))
    return np.where(a == 0, width, width - 1 - _count_leading_zeros(_signed(lowest)))


def _count_ones(a: Array) -> Array:
    left, count = _unsigned(a), np.zeros(a.shape, np.int64)
    for _ in range(a.dtype.itemsize * 8):
        count += (left & np.ones((), left.dtype)).astype(np.int64)
        left = left >> np.ones((), left.dtype)
    return count


def _integer_power(a: Array, b: Array) -> Array:
    """Wraps around; a negative exponent gives 1/a rounded to zero, that is 0 but for a = 1 or -1."""
    result = np.ones(np.broadcast_shapes(a.shape, b.shape), a.dtype)
    base, left = np.broadcast_to(a, result.shape), np.broadcast_to(np.maximum(b, 0), result.shape)
    for _ in range(b.dtype.itemsize * 8):
        result = np.where(left & 1 != 0, result * base, result)
        base, left = base * base, left >> np.ones((), left.dtype)
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(b & 1 != 0, -1, 1), 0)).astype(a.dtype)
    return np.where(b < 0, inverse, result)


# Signed order of i1 is that of one-bit integers, where true is -1; unsigned order is NumPy's.
def _signed_order(f: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: f(*((-x.astype(np.int8) if x.dtype == np.bool_ else x) for x in (a, b)))


_CMPI: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "slt": _signed_order(np.less),
    "sle": _signed_order(np.less_equal),
    "sgt": _signed_order(np.greater),
    "sge": _signed_order(np.greater_equal),
    "ult": lambda a, b: _unsigned(a) < _unsigned(b),
    "ule": lambda a, b: _unsigned(a) <= _unsigned(b),
    "ugt": lambda a, b: _unsigned(a) > _unsigned(b),
    "uge": lambda a, b: _unsigned(a) >= _unsigned(b),
}


def _upper_word(a: Array, b: Array) -> Array:
    """The upper half of the product of two i32 numbers."""
    return (a.astype(np.int64) * b.astype(np.int64)) >> 32


_INTEGER: dict[str, Callable[..., Array]] = {
    "addi": _bits_op(np.logical_xor, np.add),
    "subi": _bits_op(np.logical_xor, np.subtract),
    "muli": _bits_op(np.logical_and, np.multiply),
    "andi": np.bitwise_and,
    "ori": np.bitwise_or,
    "xori": np.bitwise_xor,
    "shli": _shift(np.left_shift),
    "shrsi": _shift(np.right_shift),
    "shrui": _shift(_as_unsigned(np.right_shift)),
    "divsi": _divide(0),
    "floordivsi": _divide(-1),
    "ceildivsi": _divide(1),
    "divui": _as_unsigned(_divide(-1)),
    "ceildivui": _as_unsigned(_divide(1)),
    "remsi": _remainder,
    "remui": _as_unsigned(_remainder),
    "maxsi": _bits_op(np.logical_and, np.maximum),
    "minsi": _bits_op(np.logical_or, np.minimum),
    "maxui": _bits_op(np.logical_or, _as_unsigned(np.maximum)),
    "minui": _bits_op(np.logical_and, _as_unsigned(np.minimum)),
    "mulhsi": _upper_word,
    "absi": np.abs,
    "ctlz": _count_leading_zeros,
    "cttz": _count_trailing_zeros,
    "ctpop": _count_ones,
    "ipowi": _integer_power,
}


# ---- casts ---------------------------------------------------------------------------------------------------------


def _sign_extend(a: Array, source: str, dtype: str) -> Array:
    return -a.astype(_numpy(dtype)) if source == "i1" and dtype != "i1" else a.astype(_numpy(dtype))


def _zero_extend(a: Array, source: str, dtype: str) -> Array:
    target = _numpy(dtype)
    if target == np.bool_:
        return a.astype(target)
    return _signed(_unsigned(a).astype(np.dtype(f"u{target.itemsize}")))


def _truncate(a: Array, source: str, dtype: str) -> Array:
    return (a & 1) != 0 if dtype == "i1" else a.astype(_numpy(dtype))


def _float_to_int(signed: bool) -> Callable[[Array, str, str], Array]:
    def convert(a: Array, source: str, dtype: str) -> Array:
        bits = 1 if dtype == "i1" else _numpy(dtype).itemsize * 8
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        whole_type = np.int64 if signed else np.uint64
        x = np.trunc(a.astype(np.float64))
        fits = (x >= low) & (x < float(high + 1))
        inside = np.where(fits, x, 0.0).astype(whole_type)
        edge = np.where(x > 0, whole_type(high), np.where(x < 0, whole_type(low), whole_type(0)))
        whole = np.where(fits, inside, edge)
        if dtype == "i1":
            return whole != 0
        return _signed(whole.astype(np.dtype(f"{'i' if signed else 'u'}{_numpy(dtype).itemsize}")))

    return convert


def _int_to_float(a: Array, source: str, dtype: str) -> Array:
    return _round_to(-a.astype(np.int8) if source == "i1" else a, dtype)


def _uint_to_float(a: Array, source: str, dtype: str) -> Array:
    return _round_to(_unsigned(a), dtype)


def _round_to(a: Array, dtype: str) -> Array:
    """An integer array as floats, rounded once (NumPy goes through float32 on the way to bf16)."""
    if dtype != "bf16" or a.dtype.itemsize <= 2:
        return a.astype(_numpy(dtype))
    whole = a.astype(np.uint64)
    magnitude = np.asarray(np.where(a < 0, ~whole + np.uint64(1), whole))
    # 16 significant bits and a sticky one are enough to round to 8 later
    shift = np.maximum(0, 48 - _count_leading_zeros(magnitude.view(np.int64))).astype(np.uint64)
    lost = magnitude & ((np.uint64(1) << shift) - np.uint64(1))
    kept = ((magnitude >> shift) | (lost != 0).astype(np.uint64)) << shift
    return np.where(a < 0, -kept.astype(np.float64), kept.astype(np.float64)).astype(np.float32).astype(NUMPY["bf16"])


def _bitcast(a: Array, source: str, dtype: str) -> Array:
    return np.ascontiguousarray(a).reshape(a.shape).view(_numpy(dtype))


_CASTS: dict[str, Callable[[Array, str, str], Array]] = {
    "extf": lambda a, source, dtype: a.astype(_numpy(dtype)),
    "truncf": lambda a, source, dtype: converted(a, dtype),
    "extsi": _sign_extend,
    "extui": _zero_extend,
    "trunci": _truncate,
    "sitofp": _int_to_float,
    "uitofp": _uint_to_float,
    "fptosi": _float_to_int(True),
    "fptoui": _float_to_int(False),
    "index_cast": lambda a, source, dtype: _index_cast(a, source, dtype, _sign_extend),
    "index_castui": lambda a, source, dtype: _index_cast(a, source, dtype, _zero_extend),
    "bitcast": _bitcast,
}


def _index_cast(a: Array, source: str, dtype: str, extend: Callable[[Array, str, str], Array]) -> Array:
    return _truncate(a, source, dtype) if _numpy(source).itemsize > _numpy(dtype).itemsize else extend(a, source, dtype)
