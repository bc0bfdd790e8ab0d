"""Elementwise operators: arithmetic, functions, comparisons, logic, conversion, activations."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ...support.dtypes import HALVES
from ...support.sizes import is_open
from .. import functions
from .node import FxNode, FxTensor, Operand, dtype_of
from .registry import aten

#: floats in, floats out; integers are converted first
FUNCTIONS = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "exp", "exp2", "expm1",
    "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh",
)  # fmt: skip
#: of numbers of any kind
UNARY = {"abs": "abs", "ceil": "ceil", "floor": "floor", "neg": "neg", "round": "round"}
COMPARISONS = {"eq": "equal", "ge": "greater_equal", "gt": "greater", "le": "less_equal", "lt": "less"}


def both(n: FxNode, x: Operand, y: Operand, dtype: str | None = None) -> tuple[FxTensor, FxTensor]:
    """Two operands in the dtype in which they meet."""
    dtype = dtype or n.common(0, 1)
    return n.tensor(x, dtype), n.tensor(y, dtype)


def at_work(n: FxNode, x: Operand, y: Operand) -> str:
    """The dtype in which two operands are multiplied: f32 for halves beside a number that they have no room for, or
    beside a tensor of f32 without dimensions, as PyTorch has it. Other numbers are rounded to halves."""
    wide = any(isinstance(v, FxTensor) and v.rank == 0 and v.dtype in ("f32", "f64") for v in (x, y))
    numbers = [abs(v) for v in (x, y) if isinstance(v, (int, float)) and not is_open(v)]
    beyond = any(0 < v < 2.0**-14 or v > 65504 for v in numbers if math.isfinite(v))
    return "f32" if (n.dtype in HALVES and wide) or (n.dtype == "f16" and beyond) else n.dtype


def in_floats(n: FxNode, f: Callable[..., FxTensor], *given: Operand) -> FxTensor:
    """f of operands as they meet, of halves computed in f32 with one rounding at the end."""
    dtype = "f32" if n.dtype in HALVES else n.dtype
    return n.cast(f(*(n.tensor(v, dtype) for v in given)), n.dtype)


@aten(*FUNCTIONS)
def function(n: FxNode, x: FxTensor) -> FxTensor:
    made: FxTensor = n(n.overload.removeprefix("aten."), n.cast(x, n.dtype))
    return made


@aten(*UNARY)
def unary(n: FxNode, x: FxTensor) -> FxTensor:
    name = n.overload.removeprefix("aten.")
    if x.dtype == "i1" or (not x.is_float and name in ("ceil", "floor", "round")):
        return x
    made: FxTensor = n(UNARY[name], x)
    return made


@aten("sign", "sgn")
def sign(n: FxNode, x: FxTensor) -> FxTensor:
    return x if x.dtype == "i1" else n("sign", x, by_order=True)


@aten("round.decimals")
def round_decimals(n: FxNode, x: FxTensor, *, decimals: int = 0) -> FxTensor:
    if not x.is_float:
        return x
    up, down = ("mul", "div") if decimals >= 0 else ("div", "mul")
    factor = 10.0 ** abs(decimals)
    return in_floats(n, lambda x: n(down, n("round", n(up, x, factor)), factor), x)


@aten("trunc", "fix")
def trunc(n: FxNode, x: FxTensor) -> FxTensor:
    return functions.trunc(n, x) if x.is_float else x


@aten("frac")
def frac(n: FxNode, x: FxTensor) -> FxTensor:
    return n("sub", x, trunc(n, x))


@aten("square")
def square(n: FxNode, x: FxTensor) -> FxTensor:
    return n("mul", x, x)


# ---- arithmetic ----------------------------------------------------------------------------------------------------


@aten("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar")
def add(n: FxNode, x: Operand, y: Operand, alpha: Operand = 1) -> FxTensor:
    if n.overload.startswith("aten.rsub"):
        x, y = y, x
    x, y = both(n, x, y, n.dtype)
    y = y if alpha == 1 else n("and" if n.dtype == "i1" else "mul", y, n.tensor(alpha, n.dtype))
    if n.dtype == "i1":
        return n("or", x, y)
    return n("add" if n.overload.startswith("aten.add") else "sub", x, y)


@aten("mul.Tensor", "mul.Scalar")
def mul(n: FxNode, x: Operand, y: Operand) -> FxTensor:
    x, y = both(n, x, y, at_work(n, x, y))
    return n.cast(n("and" if n.dtype == "i1" else "mul", x, y), n.dtype)


@aten("div.Tensor", "div.Scalar", "true_divide.Tensor", "true_divide.Scalar")
def div(n: FxNode, x: Operand, y: Operand) -> FxTensor:
    return n.cast(n("div", *both(n, x, y, at_work(n, x, y))), n.dtype)


@aten("div.Tensor_mode", "div.Scalar_mode", "floor_divide")
def div_mode(n: FxNode, x: Operand, y: Operand, *, rounding_mode: str | None = "floor") -> FxTensor:
    if n.dtype in HALVES:
        return in_floats(n, lambda x, y: rounded_quotient(n, x, y, rounding_mode), x, y)
    return rounded_quotient(n, *both(n, x, y, n.dtype), rounding_mode)


def rounded_quotient(n: FxNode, x: FxTensor, y: FxTensor, rounding_mode: str | None) -> FxTensor:
    if rounding_mode is None or (rounding_mode == "trunc" and not x.is_float):
        return n("div", x, y)
    if rounding_mode == "trunc":
        return trunc(n, n("div", x, y))
    if not x.is_float:  # the quotient minus one where the remainder has the other sign
        quotient = n("div", x, y)
        if x.dtype.startswith("u"):
            return quotient
        rest = n("sub", x, n("mul", quotient, y))
        down = n("and", n("not", n("equal", rest, 0)), n("xor", n("less", rest, 0), n("less", y, 0)))
        return n("sub", quotient, n.cast(down, x.dtype))
    # as Python does it: what is left is divided out first, and a zero has the sign of the quotient
    plain, rest = n("div", x, y), n("mod", x, y, fmod=True)
    quotient = n("div", n("sub", x, rest), y)
    down = n("and", n("not", n("equal", rest, 0.0)), n("xor", n("less", rest, 0.0), n("less", y, 0.0)))
    quotient = n("where", down, n("sub", quotient, 1.0), quotient)
    low = n("floor", quotient)
    near = n("where", n("greater", n("sub", quotient, low), 0.5), n("add", low, 1.0), low)
    zero = n("where", signbit(n, plain), n.tensor(-0.0, x.dtype), n.tensor(0.0, x.dtype))
    near = n("where", n("equal", quotient, 0.0), zero, near)
    return n("where", n("equal", y, 0.0), plain, near)


@aten("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", "fmod.Tensor", "fmod.Scalar")
def remainder(n: FxNode, x: Operand, y: Operand) -> FxTensor:
    return n("mod", *both(n, x, y, n.dtype), fmod=n.overload.startswith("aten.fmod"))


@aten("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(n: FxNode, x: Operand, y: Operand) -> FxTensor:
    if isinstance(y, (int, float)) and y in (2, 3, 0.5, -0.5, 1):
        x = n.tensor(x, n.dtype)
        if y in (0.5, -0.5) and x.is_float:
            return n("sqrt" if y > 0 else "rsqrt", x)
        if y in (1, 2, 3):
            return x if y == 1 else n("mul", x, x) if y == 2 else n("mul", n("mul", x, x), x)
    x, y = both(n, x, y, n.dtype)
    return n("pow", x, y)


@aten("maximum", "minimum")
def extreme(n: FxNode, x: FxTensor, y: FxTensor) -> FxTensor:
    x, y = both(n, x, y, n.dtype)
    largest = n.overload.endswith("maximum")
    if n.dtype == "i1":
        return n("or" if largest else "and", x, y)
    return n("max" if largest else "min", x, y)


@aten("fmax", "fmin")
def extreme_of_numbers(n: FxNode, x: FxTensor, y: FxTensor) -> FxTensor:
    x, y = both(n, x, y, n.dtype)
    largest = n.overload.endswith("fmax")
    if n.dtype == "i1":
        return n("or" if largest else "and", x, y)
    made = n("max" if largest else "min", x, y)
    if x.is_float:
        made = n("where", n("is_nan", x), y, n("where", n("is_nan", y), x, made))
    return made


@aten("clamp", "clamp.Tensor", "clamp_min", "clamp_max", "clamp_min.Tensor", "clamp_max.Tensor", "hardtanh")
def clamp(n: FxNode, x: FxTensor, min: Operand | None = None, max: Operand | None = None) -> FxTensor:
    name = n.overload.removeprefix("aten.")
    if name.startswith("clamp_max"):
        min, max = None, min
    elif name == "hardtanh":
        min, max = (-1 if min is None else min), (1 if max is None else max)
    x = n.cast(x, n.dtype)
    if (
        x.is_float
        and not isinstance(min, FxTensor)
        and not isinstance(max, FxTensor)
        and not any(math.isnan(v) for v in (min, max) if v is not None)
    ):
        if min is not None and max is not None and min > max:
            return n("where", n("is_nan", x), x, n.tensor(max, n.dtype))
        return n("clip", x, low=None if min is None else float(min), high=None if max is None else float(max))
    x = x if min is None else n("max", x, n.tensor(min, n.dtype))
    return x if max is None else n("min", x, n.tensor(max, n.dtype))


@aten("addcmul", "addcdiv")
def add_product(n: FxNode, x: FxTensor, y: FxTensor, z: FxTensor, *, value: Operand = 1) -> FxTensor:
    operator = "mul" if n.overload.endswith("addcmul") else "div"
    if value == 1:
        x, y, z = (n.cast(v, n.dtype) for v in (x, y, z))
        return n("add", x, n(operator, y, z))
    return in_floats(n, lambda x, y, z: n("add", x, n(operator, n("mul", y, value), z)), x, y, z)


@aten("prims.fma")
def product_and_sum(n: FxNode, *xs: Operand) -> FxTensor:
    """Rounded once or twice, as the processor has it and as PyTorch's own kernels are."""
    x, y, z = (n.tensor(v, n.dtype) for v in xs)
    return n("add", n("mul", x, y), z)


@aten("copysign.Tensor", "copysign.Scalar")
def copysign(n: FxNode, x: FxTensor, y: Operand) -> FxTensor:
    x, y = both(n, x, y, n.dtype)
    size = n("abs", x)
    return n("where", signbit(n, y), n("neg", size), size)


@aten("ldexp.Tensor")
def ldexp(n: FxNode, x: FxTensor, y: FxTensor) -> FxTensor:
    return in_floats(n, lambda x, y: n("mul", x, n("exp2", y)), x, y)


@aten("lerp.Scalar", "lerp.Tensor")
def lerp(n: FxNode, x: FxTensor, y: FxTensor, weight: Operand) -> FxTensor:
    return n("add", x, n("mul", n("sub", y, x), n.tensor(weight, n.dtype)))


#: bits of the mantissa, bias of the exponent, and the integer type of a float
LAYOUT = {"f32": (23, 127, "i32"), "f64": (52, 1023, "i64")}


@aten("frexp.Tensor")
def frexp(n: FxNode, x: FxTensor) -> list[FxTensor]:
    """The mantissa in [0.5, 1) and the exponent, out of the bits; numbers too small for these are scaled first."""
    kept, x = x.dtype, n.cast(x, "f64" if x.dtype == "f64" else "f32")
    bits, bias, kind = LAYOUT[x.dtype]
    tiny = n("less", n("abs", x), 2.0 ** (2 - bias))
    image = n("bitcast", n("where", tiny, n("mul", x, 2.0**64), x), to=kind)
    field = (2 * bias + 1) << bits
    exponent = n("sub", n("shift_right", n("and", image, field), bits), bias - 1)
    exponent = n("sub", exponent, n("mul", n.cast(tiny, kind), 64))
    mantissa = n("bitcast", n("or", n("and", image, ~field), (bias - 1) << bits), to=x.dtype)
    plain = n("or", n("equal", x, 0.0), n("or", n("is_inf", x), n("is_nan", x)))
    none = n.full((), 0, kind)
    return [n.cast(n("where", plain, x, mantissa), kept), n.cast(n("where", plain, none, exponent), "i32")]


@aten("nextafter")
def nextafter(n: FxNode, x: FxTensor, y: FxTensor) -> FxTensor:
    """The bits of a float, as an integer, count up away from 0."""
    n.need(x.dtype in LAYOUT, f"of {x.dtype}")
    _, _, kind = LAYOUT[x.dtype]
    shape = n.shape
    x, y = n.expand(x, shape), n.expand(y, shape)
    image = n("bitcast", x, to=kind)
    away = n("equal", n("greater", y, x), n("greater", x, 0.0))
    one = n.full((), 1, kind)
    next_ = n("bitcast", n("where", away, n("add", image, one), n("sub", image, one)), to=x.dtype)
    smallest = n("bitcast", one, to=x.dtype)
    from_zero = n("where", n("greater", y, 0.0), smallest, n("neg", smallest))
    made = n("where", n("equal", x, 0.0), from_zero, next_)
    made = n("where", n("equal", x, y), y, made)
    return n("where", n("or", n("is_nan", x), n("is_nan", y)), n("add", x, y), made)


@aten("atan2")
def atan2(n: FxNode, y: FxTensor, x: FxTensor) -> FxTensor:
    return functions.atan2(n, n.cast(y, n.dtype), n.cast(x, n.dtype))


@aten("hypot")
def hypot(n: FxNode, x: FxTensor, y: FxTensor) -> FxTensor:
    return functions.hypot(n, n.cast(x, n.dtype), n.cast(y, n.dtype))


@aten("angle")
def angle(n: FxNode, x: FxTensor) -> FxTensor:
    """Of a real number: pi for those below zero."""
    x = n.cast(x, n.dtype)
    made = n("where", n("less", x, 0.0), n.tensor(math.pi, n.dtype), n.tensor(0, n.dtype))
    return n("where", n("is_nan", x), x, made)


# ---- comparisons and logic -----------------------------------------------------------------------------------------


@aten(*(f"{name}.{kind}" for name in (*COMPARISONS, "ne") for kind in ("Tensor", "Scalar")))
def compare(n: FxNode, x: Operand, y: Operand) -> FxTensor:
    name = n.overload.split(".")[1]
    dtype = n.common(0, 1)
    if dtype == "i1" and name not in ("eq", "ne"):
        dtype = "ui8"
    x, y = both(n, x, y, dtype)
    return n("not", n("equal", x, y)) if name == "ne" else n(COMPARISONS[name], x, y)


@aten("isnan", "isinf")
def is_special(n: FxNode, x: FxTensor) -> FxTensor:
    if not x.is_float:
        return n.full(x.shape, False, "i1")
    return n("is_nan" if n.overload.endswith("isnan") else "is_inf", x)


@aten("isposinf", "isneginf")
def is_infinite(n: FxNode, x: FxTensor) -> FxTensor:
    if not x.is_float:
        return n.full(x.shape, False, "i1")
    positive = n.overload.endswith("isposinf")
    return n("is_inf", x, positive=positive, negative=not positive)


@aten("signbit")
def signbit(n: FxNode, x: FxTensor) -> FxTensor:
    if not x.is_float:
        return n.full(x.shape, False, "i1") if x.dtype[0] == "u" or x.dtype == "i1" else n("less", x, 0)
    size = {"f64": "i64", "f32": "i32", "f16": "i16", "bf16": "i16"}[x.dtype]
    return n("less", n("bitcast", x, to=size), 0)


@aten("logical_and", "logical_or", "logical_xor", "logical_not")
def logical(n: FxNode, *xs: FxTensor) -> FxTensor:
    return n(n.overload.removeprefix("aten.logical_"), *[n.cast(x, "i1") for x in xs])


@aten(*(f"bitwise_{name}.{kind}" for name in ("and", "or", "xor") for kind in ("Tensor", "Scalar", "Scalar_Tensor")))
def bitwise(n: FxNode, x: Operand, y: Operand) -> FxTensor:
    return n(n.overload.split(".")[1].removeprefix("bitwise_"), *both(n, x, y, n.dtype))


@aten("bitwise_not")
def bitwise_not(n: FxNode, x: FxTensor) -> FxTensor:
    return n("not", x)


SHIFTS = tuple(f"bitwise_{side}_shift.{kind}" for side in ("left", "right")
               for kind in ("Tensor", "Tensor_Scalar", "Scalar_Tensor"))  # fmt: skip


@aten(*SHIFTS, "__lshift__.Scalar", "__lshift__.Tensor", "__rshift__.Scalar", "__rshift__.Tensor")
def shift(n: FxNode, x: Operand, y: Operand) -> FxTensor:
    left = "left" in n.overload or "lshift" in n.overload
    return n("shift_left" if left else "shift_right", *both(n, x, y, n.dtype))


@aten("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar")
def where(n: FxNode, condition: FxTensor, x: Operand, y: Operand) -> FxTensor:
    return n("where", n.cast(condition, "i1"), n.tensor(x, n.dtype), n.tensor(y, n.dtype))


# ---- conversion ----------------------------------------------------------------------------------------------------


@aten("clone", "alias", "contiguous", "lift_fresh_copy", "lift", "detach", "_to_copy", "to.dtype", "to.dtype_layout",
      "to.device", "to.other", "type_as", "positive", "conj_physical", "real")  # fmt: skip
def convert(n: FxNode, x: FxTensor, *_: object, **__: object) -> FxTensor:
    return n.cast(x, n.dtype)


@aten("prims.convert_element_type")
def convert_element_type(n: FxNode, x: FxTensor, dtype: torch.dtype) -> FxTensor:
    return n.cast(x, dtype_of(dtype))


@aten("copy")
def copy(n: FxNode, x: FxTensor, source: FxTensor, non_blocking: bool = False) -> FxTensor:
    return n.expand(n.cast(source, x.dtype), x.shape)


@aten("view.dtype")
def view_dtype(n: FxNode, x: FxTensor, dtype: torch.dtype) -> FxTensor:
    n.need(NUMBER_BYTES[dtype_of(dtype)] == NUMBER_BYTES[x.dtype], "the elements change their size")
    return n("bitcast", x, to=dtype_of(dtype))


NUMBER_BYTES = {"f64": 8, "i64": 8, "ui64": 8, "f32": 4, "i32": 4, "ui32": 4, "f16": 2, "bf16": 2, "i16": 2, "ui16": 2,
                "i8": 1, "ui8": 1, "i1": 0}  # fmt: skip


# ---- activations ---------------------------------------------------------------------------------------------------


@aten("relu", "mish", "hardswish")
def activation(n: FxNode, x: FxTensor) -> FxTensor:
    return n("hard_swish" if n.overload.endswith("hardswish") else n.overload.removeprefix("aten."), x)


@aten("relu6")
def relu6(n: FxNode, x: FxTensor) -> FxTensor:
    return clamp(n, x, 0, 6)


@aten("gelu")
def gelu(n: FxNode, x: FxTensor, *, approximate: str = "none") -> FxTensor:
    return n("gelu", x, approximate=approximate)


@aten("silu")
def silu(n: FxNode, x: FxTensor) -> FxTensor:
    return n("silu", n.cast(x, n.dtype))


@aten("hardsigmoid")
def hardsigmoid(n: FxNode, x: FxTensor) -> FxTensor:
    return n("hard_sigmoid", x, alpha=1 / 6, beta=0.5)


@aten("elu")
def elu(n: FxNode, x: FxTensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> FxTensor:
    if scale == input_scale == 1:
        return n("elu", x, alpha=float(alpha))
    low = n("mul", n("expm1", n("mul", x, float(input_scale))), float(alpha * scale))
    return n("where", n("greater", x, 0.0), n("mul", x, float(scale)), low)


@aten("celu")
def celu(n: FxNode, x: FxTensor, alpha: float = 1.0) -> FxTensor:
    return n("celu", x, alpha=float(alpha))


@aten("selu")
def selu(n: FxNode, x: FxTensor) -> FxTensor:
    return n("selu", x)


@aten("leaky_relu")
def leaky_relu(n: FxNode, x: FxTensor, negative_slope: float = 0.01) -> FxTensor:
    return n("leaky_relu", x, alpha=float(negative_slope))


@aten("prelu", "_prelu_kernel")
def prelu(n: FxNode, x: FxTensor, slope: FxTensor) -> FxTensor:
    if slope.rank == 1 and x.rank > 1:
        slope = n.reshape(slope, (slope.shape[0], *[1] * (x.rank - 2)))
    return n("prelu", x, slope)


@aten("softplus")
def softplus(n: FxNode, x: FxTensor, beta: float = 1, threshold: float = 20) -> FxTensor:
    scaled = x if beta == 1 else n("mul", x, float(beta))
    made = n("softplus", scaled)
    made = made if beta == 1 else n("div", made, float(beta))
    return n("where", n("greater", scaled, float(threshold)), x, made)


@aten("hardshrink", "softshrink")
def shrink(n: FxNode, x: FxTensor, lambd: float = 0.5) -> FxTensor:
    soft = n.overload.endswith("softshrink")
    inside = n("and", n("less_equal", x, float(lambd)), n("greater_equal", x, -float(lambd)))
    if not soft:
        return n("where", inside, n.full((), 0, x.dtype), x)
    return n("sub", x, n("clip", x, low=-float(lambd), high=float(lambd)))


@aten("threshold")
def threshold(n: FxNode, x: FxTensor, threshold: float, value: float) -> FxTensor:
    return n("where", n("less_equal", x, n.tensor(threshold, x.dtype)), n.tensor(value, x.dtype), x)


@aten("log_sigmoid", "log_sigmoid_forward")
def log_sigmoid(n: FxNode, x: FxTensor) -> FxTensor | list[FxTensor]:
    made = n("neg", n("softplus", n("neg", x)))
    return [made, n.full((0,), 0, x.dtype)] if n.overload.endswith("forward") else made


@aten("glu")
def glu(n: FxNode, x: FxTensor, dim: int = -1) -> FxTensor:
    axis = x.axis(dim)
    half = x.shape[axis] // 2
    return n("mul", n.slice(x, axis, 0, half), n("sigmoid", n.slice(x, axis, half, half)))
