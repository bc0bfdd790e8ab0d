"""Legacy opsets: broadcasting by attribute, sizes as attributes."""

from __future__ import annotations

import math

import onnx

from .math import BINARY
from .nn import batch_norm, batch_norm_training
from .reader import DTYPES
from .registry import onnx_op
from .resize import before_11
from .shape import even, pad, reshape_to, split
from .values import OnnxNotImported


def aligned(n, x, y):
    """y in a shape that broadcasts to x by NumPy's rule: its dimensions start at `axis` of x."""
    axis = n.attr("axis")
    if not n.attr("broadcast", 0) or axis is None or axis == -1 or not y.rank:
        return y
    after = x.rank - (axis % x.rank) - y.rank
    if after < 0:
        raise n.error(f"{y.type} does not fit {x.type} at axis {axis}")
    return n.reshape(y, (*y.shape, *[1] * after))


@onnx_op(
    *[name for name in BINARY if name in {"Add", "Sub", "Mul", "Div", "And", "Or", "Xor", "Equal", "Less", "Greater"}],
    since=1,
)
def binary(n, x, y):
    return n(BINARY[n.proto.op_type], x, aligned(n, x, y))


@onnx_op("Pow", since=1)
def power(n, x, y):
    return n("pow", x, n.cast(aligned(n, x, y), x.dtype))


@onnx_op("PRelu", since=1)
def prelu(n, x, slope):
    """The slope is one number, or one for every channel."""
    channels = slope.type.size > 1 and slope.rank == 1 and x.rank > 1
    return n("prelu", x, n.reshape(slope, (slope.shape[0], *[1] * (x.rank - 2))) if channels else slope)


@onnx_op("BatchNormalization", since=1)
def batch_norm_1(n, x, scale, bias, mean, var):
    """In training where there are more outputs than one, unless `is_test` says otherwise. Without `spatial` each place
    of each channel has its own numbers."""
    shape = x.shape
    if not n.attr("spatial", 1):
        x = n.reshape(x, (shape[0], math.prod(shape[1:])))
        scale, bias, mean, var = (n.reshape(p, x.shape[1:]) for p in (scale, bias, mean, var))
    if n.attr("is_test", 0) or not any(map(n.wants, range(1, 5))):
        return n.reshape(batch_norm(n, x, scale, bias, mean, var), shape)
    made, *statistics = batch_norm_training(n, x, scale, bias, mean, var)
    if not n.attr("spatial", 1):
        statistics = [n.reshape(s, shape[1:]) for s in statistics]
    return [n.reshape(made, shape), *statistics]


@onnx_op("Cast", since=1)
def cast(n, x):
    name = n.required("to")
    element = onnx.TensorProto.DataType.Value(name) if name in set(onnx.TensorProto.DataType.keys()) else 0
    if element not in DTYPES:
        raise OnnxNotImported(f"to element type {name}")
    return n.cast(x, DTYPES[element])


@onnx_op("Concat", since=1)
def concat(n, *xs):
    return [n.concat(xs, n.attr("axis", 1))]


@onnx_op("Reshape", since=1)
def reshape(n, x):
    return reshape_to(n, x, n.required("shape"))


@onnx_op("Tile", since=1)
def tile(n, x, tiles, axis):
    at = int(n.scalar(axis, "axis")) % x.rank
    return n("tile", x, repeats=tuple(int(n.scalar(tiles, "tiles")) if i == at else 1 for i in range(x.rank)))


@onnx_op("Pad", since=1)
def pad_1(n, x):
    return pad(n, x, n.required("paddings"), n.attr("mode", "constant"), n.attr("value", 0.0))


@onnx_op("Split", since=1)
def split_1(n, x, sizes=None):
    axis = n.axis(0, x.rank)
    given = n.attr("split") if sizes is None else n.ints(sizes, "split")
    return split(n, x, given or even(n, x.shape[axis], len(n.proto.output)), axis)


@onnx_op("Upsample", since=1)
def upsample(n, x):
    scales = [1.0, 1.0, n.required("height_scale"), n.required("width_scale")]
    return before_11(n, x, scales)
