"""Elementwise operators: arithmetic, functions, comparisons, logic, conversion, activations."""

from __future__ import annotations

from functools import reduce

from ...ir.types import is_float
from ...support.sub_byte import NARROW
from ..open_values import holds_sizes
from .reader import DTYPES
from .registry import onnx_op
from .values import OnnxNotImported

UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "not",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "HardSwish": "hard_swish",
    "IsNaN": "is_nan",
    "Log": "log",
    "Mish": "mish",
    "Neg": "neg",
    "Not": "not",
    "Reciprocal": "reciprocal",
    "Relu": "relu",
    "Round": "round",
    "Sigmoid": "sigmoid",
    "Sign": "sign",
    "Sin": "sin",
    "Sinh": "sinh",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}

BINARY = {
    "Add": "add",
    "Sub": "sub",
    "Mul": "mul",
    "Div": "div",
    "And": "and",
    "Or": "or",
    "Xor": "xor",
    "Equal": "equal",
    "Less": "less",
    "Greater": "greater",
    "LessOrEqual": "less_equal",
    "GreaterOrEqual": "greater_equal",
    "BitwiseAnd": "and",
    "BitwiseOr": "or",
    "BitwiseXor": "xor",
}


@onnx_op(*UNARY, since=1)
def unary(n, x):
    return n(UNARY[n.proto.op_type], x)


@onnx_op(*BINARY, since=7)  # before 7 they broadcast by an attribute
def binary(n, x, y):
    return n(BINARY[n.proto.op_type], x, y)


@onnx_op("Max", "Min", "Sum", since=1)
def variadic(n, *xs):
    name = {"Max": "max", "Min": "min", "Sum": "add"}[n.proto.op_type]
    return reduce(lambda x, y: n(name, x, y), xs)


@onnx_op("Mean", since=1)
def mean(n, *xs):
    return n("div", reduce(lambda x, y: n("add", x, y), xs), float(len(xs)))


@onnx_op("Pow", since=7)
def power(n, x, y):
    if is_float(x.dtype) or not is_float(y.dtype):
        return n("pow", x, n.cast(y, x.dtype))
    return n.cast(n("pow", n.cast(x, "f64"), n.cast(y, "f64")), x.dtype)


@onnx_op("Mod", since=10)
def mod(n, x, y):
    return n("mod", x, y, fmod=bool(n.attr("fmod", 0)))


@onnx_op("BitShift", since=11)
def bit_shift(n, x, y):
    direction = n.required("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise n.error(f"direction is LEFT or RIGHT, not {direction!r}")
    return n("shift_left" if direction == "LEFT" else "shift_right", x, y)


@onnx_op("Where", since=9)
def where(n, condition, x, y):
    return n("where", condition, x, y)


@onnx_op("IsInf", since=10)
def is_inf(n, x):
    return n("is_inf", x, negative=bool(n.attr("detect_negative", 1)), positive=bool(n.attr("detect_positive", 1)))


# ---- conversion ----------------------------------------------------------------------------------------------------


@onnx_op("Cast", since=6)
def cast(n, x):
    to = n.required("to")
    if to not in DTYPES:
        raise OnnxNotImported(f"to element type {to}")
    made = convert(n, x, DTYPES[to])
    if is_float(made.dtype) and x.array is not None and holds_sizes(x.array):
        made.whole = x.array
    return made


@onnx_op("CastLike", since=15)
def cast_like(n, x, y):
    return convert(n, x, y.dtype)


def convert(n, x, dtype):
    """x as `dtype`, with the attributes for 8-bit floats."""
    if x.dtype == dtype or dtype not in NARROW:
        return n.cast(x, dtype)
    return n("cast", x, to=dtype, saturate=bool(n.attr("saturate", 1)), round_mode=n.attr("round_mode", "up"))


@onnx_op("BitCast", since=26)
def bit_cast(n, x):
    to = n.required("to")
    if to not in DTYPES:
        raise OnnxNotImported(f"to element type {to}")
    return n("bitcast", x, to=DTYPES[to])


@onnx_op("Identity", since=1)
def identity(n, x):
    return [x]


@onnx_op("Clip", since=1)
def clip_6(n, x):
    low, high = n.attr("min", -3.4028234663852886e38), n.attr("max", 3.4028234663852886e38)
    return n("clip", x, low=float(low), high=float(high))


@onnx_op("Clip", since=11)
def clip(n, x, low=None, high=None):
    limits = [None if v is None else v.known() for v in (low, high)]
    fixed = all(a is not None or v is None for a, v in zip(limits, (low, high), strict=True))
    if fixed and is_float(x.dtype) and all(a is None or a.size == 1 for a in limits):
        values = [None if a is None else float(a.reshape(())) for a in limits]
        return n("clip", x, low=values[0], high=values[1]) if values != [None, None] else [x]
    if low is not None:
        x = n("max", x, low)
    return [x] if high is None else n("min", x, high)


# ---- activations with attributes -----------------------------------------------------------------------------------

#: attributes with the defaults of ONNX, where these differ from f32 roundings of nicer numbers
ACTIVATIONS = {
    "LeakyRelu": ("leaky_relu", {"alpha": 0.01}),
    "Elu": ("elu", {"alpha": 1.0}),
    "Celu": ("celu", {"alpha": 1.0}),
    "Selu": ("selu", {"alpha": 1.67326319217681884765625, "gamma": 1.05070102214813232421875}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
    "ThresholdedRelu": ("thresholded_relu", {"alpha": 1.0}),
    "Swish": ("silu", {"alpha": 1.0}),
    "Shrink": ("shrink", {"lambd": 0.5, "bias": 0.0}),
}


@onnx_op(*ACTIVATIONS, since=1)
def activation(n, x):
    name, attributes = ACTIVATIONS[n.proto.op_type]
    return n(name, x, **{k: float(n.attr(k, default)) for k, default in attributes.items()})


@onnx_op("Gelu", since=20)
def gelu(n, x):
    return n("gelu", x, approximate=n.attr("approximate", "none"))


@onnx_op("PRelu", since=7)
def prelu(n, x, slope):
    if is_float(x.dtype):
        return n("prelu", x, slope)
    return n("where", n("less", x, 0), n("mul", x, slope), x)
