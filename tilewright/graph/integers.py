"""Quantized models in integer arithmetic: the operators between DequantizeLinear and QuantizeLinear on the 8-bit
numbers themselves. docs/quantized_models.md has the patterns and what they do to the results."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..ir.types import numpy_dtype
from ..ops.quant import limits
from ..support.sizes import is_open, less
from .integers_dynamic import PATTERNS as DYNAMIC
from .integers_exact import PATTERNS as EXACT
from .passes import PassReport, register
from .quantization import (
    BIAS_STEP,
    BYTES,
    Quantized,
    Result,
    Step,
    Weights,
    constant,
    dequantized,
    quantization,
    quantizing,
    reach_of,
    step,
    weights,
    whole_bias,
    window,
)
from .rewrite import (
    Pattern,
    Rewriter,
    Rewritten,
    defined_by,
    dtype,
    either_order,
    elementwise,
    has_one_use,
    pattern,
    rewrite,
    shape,
    static,
)


@register("integers")
@dataclass(frozen=True)
class Integers:
    """Run quantized models (QDQ, and what QLinearConv, MatMulInteger and the like became) in integers.

    ``activations`` is the form in which 8-bit tensors inside the model are kept: the one whose products the target's
    instructions take. Inputs and outputs of the model keep theirs. ``halves`` is where a `requantize` finds exact
    halves: with "operands" of its own, where one can come up, or in both words of the "product".

        %1 = "tw.dequantize_linear"(%x, %sx, %zx) : (tensor<1x8xi8>, ...) -> tensor<1x8xf32>
        %2 = "tw.dequantize_linear"(%w, %sw) : (tensor<8x4xi8>, ...) -> tensor<8x4xf32>
        %3 = "tw.matmul"(%1, %2) : (tensor<1x8xf32>, tensor<8x4xf32>) -> tensor<1x4xf32>
        %4 = "tw.quantize_linear"(%3, %sy, %zy) {to = "i8"} : (tensor<1x4xf32>, ...) -> tensor<1x4xi8>
    ->  %1 = "tw.integer_matmul"(%x, %w) : (tensor<1x8xi8>, tensor<8x4xi8>) -> tensor<1x4xi32>
        %4 = "tw.requantize"(%1, %bias, %multiplier, %shift) {...} : (tensor<1x4xi32>, ...) -> tensor<1x4xi8>
    """

    activations: Literal["i8", "ui8"] = "i8"
    halves: Literal["operands", "product"] = "operands"
    factors: Literal["constant", "any"] = "constant"

    def run(self, graph: Graph) -> PassReport:
        exact = [*_kept_as(self.activations), *EXACT]
        report: PassReport = {}
        more = [halves_in_product] if self.halves == "product" else []
        more_patterns = [quantized_product] if self.factors == "any" else []
        for patterns in (exact, [*exact, *PATTERNS, *more_patterns], [*LEFT, *more]):
            for name, count in rewrite(graph, patterns).items():
                report[name] = report.get(name, 0) + count
        return report


def _kept_as(wanted: str) -> list[Pattern]:
    """Patterns that keep 8-bit tensors in one signedness, through flips of the sign bit that meet and vanish."""
    offset = 128 if wanted == "ui8" else -128

    @pattern("dequantize_linear", "quantize_linear")
    def one_signedness(rw: Rewriter, op: ir.Operation) -> Rewritten:
        """dequantize(x: ui8) -> dequantize(flip_sign(x): i8); quantize to ui8 -> flip_sign(quantize to i8)"""
        x, s, z = dialect.arguments(op)[:3]
        stored = dtype(x) if op.name == "tw.dequantize_linear" else dialect.attributes(op)["to"]
        if stored not in BYTES or stored == wanted or dialect.attributes(op)["block"]:
            return None
        if constant(rw, x) is not None or (z is not None and constant(rw, z) is None):
            return None
        zero = _flipped_zero(rw, s, z, wanted)
        if op.name == "tw.dequantize_linear":
            return rw.again(op, [rw.create("flip_sign", x), s, zero])[0]
        return rw.create("flip_sign", rw.again(op, [x, s, zero], to=wanted)[0])

    @pattern("requantize")
    def requantized_in_one(rw: Rewriter, op: ir.Operation) -> Rewritten:
        """requantize to ui8 -> flip_sign(requantize to i8)"""
        a = dialect.attributes(op)
        if a["to"] == wanted:
            return None
        moved = {k: a[k] + offset for k in ("zero", "low", "high")}
        return rw.create("flip_sign", rw.again(op, dialect.arguments(op), to=wanted, **moved)[0])

    @pattern("integer_conv", "integer_matmul")
    def multiplied_in_one(rw: Rewriter, op: ir.Operation) -> Rewritten:
        """integer_matmul(x: ui8, w) -> integer_matmul(flip_sign(x): i8, w) + 128 * sum(w)"""
        x, w = op.operands
        numbers = constant(rw, w)
        if dtype(x) == wanted or numbers is None:
            return None
        conv = op.name == "tw.integer_conv"
        total = numbers.astype(np.int64).sum(axis=tuple(range(1, numbers.ndim)) if conv else 0) * -offset
        changes = {"pad_value": dialect.attributes(op)["pad_value"] + offset} if conv else {}
        new = rw.again(op, [rw.create("flip_sign", x), w], **changes)[0]
        along = [1] * (numbers.ndim - 2) if conv else []
        return rw.create("add", new, rw.constant(total.astype(np.int32).reshape(-1, *along), "offset"))

    return [one_signedness, requantized_in_one, multiplied_in_one]


@pattern("requantize")
def halves_in_product(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """requantize(x, bias, multiplier, shift, odd, half, exponent) -> requantize(x, bias, multiplier, shift) {even}"""
    x, bias, multiplier, shift, odd = dialect.arguments(op)[:5]
    return None if odd is None else rw.again(op, [x, bias, multiplier, shift], even=True)[0]


def _flipped_zero(rw: Rewriter, scale: ir.Value, zero: ir.Value | None, to: str) -> ir.Value:
    array = np.zeros(shape(scale), np.int64)
    if (number := constant(rw, zero)) is not None:
        array = array + number.astype(np.int64)
    return rw.constant((array + (128 if to == "ui8" else -128)).astype(numpy_dtype(to)), "zero")


# ---- sums of products ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sum:
    """A contraction in integers before it is built: operands, what `step` wants, and how to build it."""

    x: Quantized
    w: Weights
    numbers: np.ndarray
    bias: np.ndarray
    reach: np.ndarray
    op: ir.Operation
    channels: int

    @property
    def scale(self) -> np.ndarray:
        return self.x.scale * self.w.scale

    def create(self, rw: Rewriter) -> ir.Value:
        name = self.op.name[3:]
        w = rw.constant(np.ascontiguousarray(self.numbers), "w")
        if name == "matmul":
            return rw.create("integer_matmul", self.x.value, w)
        return rw.create("integer_conv", self.x.value, w, pad_value=self.x.zero, **window(self.op))

    @property
    def axis(self) -> int:
        """The dimension of the channels in the result."""
        return 1 if self.op.name == "tw.conv" else len(shape(self.op.results[0])) - 1


def sum_of_products(rw: Rewriter, op: ir.Operation, bias: ir.Value | None = None) -> Sum | None:
    """What a float convolution or product of dequantized operands is in integers; `bias` is added behind a product."""
    conv = op.name == "tw.conv"
    if not static(*op.operands, *op.results) or (conv and dialect.attributes(op)["layout"] != "nchw"):
        return None
    x = dequantized(rw, op.operands[0])
    if x is None or (not conv and len(shape(op.operands[1])) != 2):
        return None
    w = weights(rw, op.operands[1], 0 if conv else 1)
    numbers = w.array() if w is not None else None
    if w is None or numbers is None:
        return None
    channels = w.numbers.shape[0] if conv else w.numbers.shape[1]
    axes = tuple(range(1, w.numbers.ndim)) if conv else (0,)
    scale = x.scale * w.scale
    offset = whole_bias(rw, dialect.arguments(op)[2] if conv else bias, scale, channels)
    if offset is None:
        return None
    offset = offset - x.zero * w.numbers.sum(axis=axes)
    return Sum(x, w, numbers, offset, reach_of(w.numbers, axes, dtype(x.value), offset), op, channels)


def _product_and_bias(value: ir.Value) -> tuple[ir.Operation, ir.Value | None] | None:
    """(contraction, bias) of ``conv(...)``, ``matmul(...)`` or ``matmul(...) + constant``."""
    op = defined_by(value, "conv", "matmul")
    if op is not None:
        return op, None
    op = defined_by(value, "add")
    for a, b in either_order(op) if op is not None else ():
        inner = defined_by(a, "matmul")
        if inner is not None and has_one_use(a) and shape(a) == shape(value) and _is_vector(b, shape(value)):
            return inner, b
    return None


def _is_vector(value: ir.Value, out: tuple[int | None, ...]) -> bool:
    """One number, or one for each element of the last dimension."""
    dims = shape(value)
    return all(d == 1 for d in dims[:-1]) and len(dims) <= len(out) and (not dims or dims[-1] in (1, out[-1]))


@quantizing
def quantized_sum(rw: Rewriter, op: ir.Operation, value: ir.Value, result: Result) -> Rewritten:
    """quantize(clip(conv(dequantize(x), dequantize(w)))) -> requantize(integer_conv(x, w)), for matmul + bias too"""
    found = _product_and_bias(value)
    if found is None or not has_one_use(value):
        return None
    total = sum_of_products(rw, *found)
    if total is None:
        return None
    has_bias = found[1] is not None or (found[0].name == "tw.conv" and dialect.arguments(found[0])[2] is not None)
    if has_bias and (total.scale / result.scale).max() * 0.5 > BIAS_STEP:
        return None
    how = step(total.scale, total.bias, total.reach, result)
    if how is None:
        return None
    rw.names_of(found[0], op)
    return how.create(rw, total.create(rw), result, total.axis)


@pattern("conv", "matmul")
def sum_of_quantized(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """conv(dequantize(x), dequantize(w)) without a quantization behind it -> dequantize(integer_conv(x, w)) + bias"""
    if dtype(op.results[0]) != "f32":
        return None
    conv = op.name == "tw.conv"
    bias = dialect.arguments(op)[2] if conv else None
    total = sum_of_products(rw, op, None) if bias is None else _without_bias(rw, op)
    if total is None or total.reach.max(initial=0) >= 1 << 31:
        return None
    value = total.create(rw)
    along = [1] * (len(shape(op.results[0])) - total.axis - 1)
    if total.bias.any():
        value = rw.create("add", value, rw.constant(total.bias.astype(np.int32).reshape(-1, *along), "offset"))
    scale = total.scale.astype(np.float32)
    scale = scale.reshape(()) if scale.size == 1 else scale
    value = rw.create("dequantize_linear", value, rw.constant(scale, "scale"), axis=total.axis)
    return value if bias is None else rw.create("add", value, rw.reshape(bias, (total.channels, *along)))


def _without_bias(rw: Rewriter, op: ir.Operation) -> Sum | None:
    """`sum_of_products` of a convolution whose bias is added in f32 afterwards."""
    x, w = dequantized(rw, op.operands[0]), weights(rw, op.operands[1], 0)
    numbers = w.array() if w is not None else None
    if x is None or w is None or numbers is None or not static(*op.operands):
        return None
    if dialect.attributes(op)["layout"] != "nchw":
        return None
    axes = tuple(range(1, w.numbers.ndim))
    offset = -x.zero * w.numbers.sum(axis=axes)
    return Sum(x, w, numbers, offset, reach_of(w.numbers, axes, dtype(x.value), offset), op, w.numbers.shape[0])


@quantizing
def quantized_product(rw: Rewriter, op: ir.Operation, value: ir.Value, result: Result) -> Rewritten:
    """quantize(clip(matmul(dequantize(x), dequantize(y)))) -> requantize(einsum(x, y)), if both zero points are 0"""
    inner = defined_by(value, "matmul")
    if inner is None or not has_one_use(value):
        return None
    x, y = (dequantized(rw, v) for v in inner.operands)
    if x is None or y is None or x.zero or y.zero or not static(x.value, y.value):
        return None
    (*rows, _, depth), (*others, _, _) = (shape(q.value) if len(shape(q.value)) > 1 else (0, 0) for q in (x, y))
    if not rows or rows != others or dtype(x.value) != "i8" or dtype(y.value) != "i8":
        return None
    how = step(np.array([x.scale * y.scale]), np.zeros(1, np.int64), np.array([float(depth) * 128 * 128]), result)
    if how is None:
        return None
    rw.names_of(inner, op)
    along = "abcdefgh"[: len(rows)]
    total = rw.create("einsum", x.value, y.value, equation=f"{along}mk,{along}kn->{along}mn", dtype="i32")
    return how.create(rw, total, result)


# ---- elementwise ---------------------------------------------------------------------------------------------------


@quantizing
def quantized_add(rw: Rewriter, op: ir.Operation, value: ir.Value, result: Result) -> Rewritten:
    """quantize(clip(dequantize(x) + dequantize(y))) -> integer_add(x, y), for differences too"""
    inner = defined_by(value, "add", "sub")
    if inner is None:
        return None
    x, y = (dequantized(rw, v) for v in inner.operands)
    if x is None or y is None or not static(x.value, y.value):
        return None
    ratios = (x.scale / result.scale, y.scale / result.scale * (1 if inner.name == "tw.add" else -1))
    # the sum must fit 31 bits: number - zero has at most 255, whatever the signedness
    reach = 255 * sum(map(abs, ratios))
    shift = int(min(30, 30 - np.ceil(np.log2(reach + 1))))
    if shift < 8:
        return None
    mx, my = (int(np.rint(r * 2.0**shift)) for r in ratios)
    offset = -(x.zero * mx + y.zero * my)
    if 255 * (abs(mx) + abs(my)) + (1 << shift) >= 1 << 31:
        return None
    attributes = {"zero": result.zero, "low": result.low, "high": result.high, "to": result.to}
    return rw.create("integer_add", x.value, y.value, mx=mx, my=my, offset=offset, shift=shift, **attributes)


@quantizing
def quantized_mul(rw: Rewriter, op: ir.Operation, value: ir.Value, result: Result) -> Rewritten:
    """quantize(clip(dequantize(x) * dequantize(y))) -> requantize((x - zx) * (y - zy))"""
    inner = defined_by(value, "mul")
    if inner is None:
        return None
    x, y = (dequantized(rw, v) for v in inner.operands)
    if x is None or y is None or not static(x.value, y.value):
        return None
    reach = np.array([255.0 * 255.0])
    how = step(np.array([x.scale * y.scale]), np.zeros(1, np.int64), reach, result)
    if how is None:
        return None
    return how.create(rw, rw.create("mul", *(centred(rw, q) for q in (x, y))), result)


def centred(rw: Rewriter, q: Quantized) -> ir.Value:
    """value - zero as i32."""
    wide = rw.create("cast", q.value, to="i32")
    return rw.create("sub", wide, rw.constant(np.int32(q.zero))) if q.zero else wide


# ---- averages ------------------------------------------------------------------------------------------------------


@quantizing
def quantized_mean(rw: Rewriter, op: ir.Operation, value: ir.Value, result: Result) -> Rewritten:
    """quantize(reduce_mean(dequantize(x))) -> requantize(reduce_bytes(x))"""
    inner = defined_by(value, "reduce_mean")
    x = dequantized(rw, inner.operands[0]) if inner is not None else None
    if inner is None or x is None or not static(x.value):
        return None
    attributes = dialect.attributes(inner)
    dims = shape(x.value)
    count = prod([dims[a] for a in attributes["axes"]])
    if is_open(count):
        return None  # a step is a constant: see `mean_of_open_many`
    how = _mean_step(x, count, result)
    if how is None:
        return None
    total = rw.create("reduce_bytes", x.value, **attributes)
    return how.create(rw, total, result)


@pattern("reduce_mean")
def mean_of_open_many(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """reduce_mean(dequantize(x)) -> (reduce_bytes(x) / count - zero) * scale, for a count that is known when it runs"""
    x = dequantized(rw, op.operands[0])
    if x is None or not static(x.value, op.results[0]) or not shape(op.results[0]):
        return None
    attributes = dialect.attributes(op)
    count = prod([shape(x.value)[a] for a in attributes["axes"]])
    if not is_open(count) or not less(255 * count, 1 << 31):
        return None
    total = rw.create("cast", rw.create("reduce_bytes", x.value, **attributes), to="f32")
    many = rw.create("arange", count=1, dtype="f32", start=count, step=0)
    mean = rw.create("sub", rw.create("div", total, many), rw.constant(np.float32(x.zero)))
    return rw.create("mul", mean, rw.constant(np.float32(x.scale)))


def _mean_step(x: Quantized, count: int, result: Result) -> Step | None:
    if count < 1:
        return None
    bias, reach = np.array([-x.zero * count]), np.array([255.0 * count])
    return step(np.array([x.scale / count]), bias, reach, result)


@quantizing
def quantized_avg_pool(rw: Rewriter, op: ir.Operation, value: ir.Value, result: Result) -> Rewritten:
    """quantize(avg_pool(dequantize(x))) -> requantize(integer_conv(x, ones)), if all windows count all their places"""
    inner = defined_by(value, "avg_pool")
    x = dequantized(rw, inner.operands[0]) if inner is not None else None
    if inner is None or x is None or not static(x.value, value):
        return None
    a = dialect.attributes(inner)
    if a["layout"] != "nchw" or a["ceil_mode"] or (any(a["pads"]) and not a["count_include_pad"]):
        return None
    channels, kernel = shape(x.value)[1], a["kernel"]
    how = _mean_step(x, int(np.prod(kernel)), result)
    if how is None:
        return None
    ones = rw.constant(np.ones((channels, 1, *kernel), np.int8), "ones")
    same = {k: a[k] for k in ("strides", "pads", "dilations")}
    total = rw.create("integer_conv", x.value, ones, groups=channels, pad_value=x.zero, **same)
    return how.create(rw, total, result)


# ---- functions of one number ---------------------------------------------------------------------------------------


@pattern("quantize_linear")
def quantized_function(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """quantize(f(dequantize(x))) for elementwise f of x alone -> lookup(x, table): exact, any number of operators"""
    result = quantization(rw, op)
    if result is None or not static(op.operands[0]):
        return None
    sources: list[Quantized] = []
    table = _table(rw, op.operands[0], sources, {})
    if table is None or len(sources) != 1 or shape(sources[0].value) != shape(op.results[0]):
        return None
    cls, (_, s, z) = dialect.operator(op), dialect.arguments(op)[:3]
    scale, zero = constant(rw, s), constant(rw, z)
    assert scale is not None  # `quantization` read both
    attributes = {**dialect.attributes(op), "axis": 0}
    numbers = cls.reference(table, scale.reshape(()), None if zero is None else zero.reshape(()), **attributes)
    return rw.create("lookup", sources[0].value, rw.constant(np.asarray(numbers), "table"))


def _table(
    rw: Rewriter, value: ir.Value, sources: list[Quantized], known: dict[ir.Value, np.ndarray | None]
) -> np.ndarray | None:
    """The 256 values of an expression of one quantized tensor and numbers; None if it is something else."""
    if value not in known:
        known[value] = _table_of(rw, value, sources, known)
    return known[value]


def _table_of(
    rw: Rewriter, value: ir.Value, sources: list[Quantized], known: dict[ir.Value, np.ndarray | None]
) -> np.ndarray | None:
    x = dequantized(rw, value)
    if x is not None and rw.array(x.value) is None:
        if sources and sources[0] != x:
            return None
        sources[:] = [x]
        codes = np.arange(256, dtype=np.uint8).view(numpy_dtype(dtype(x.value)))
        return (codes.astype(np.float32) - np.float32(x.zero)) * np.float32(x.scale)
    array = constant(rw, value)
    if array is None:
        op = defined_by(value, "dequantize_linear")
        array = None if op is None else _constant_of(rw, op)
    if array is not None:
        return array.reshape(()) if array.size == 1 else None
    op = value.owner.operation if not isinstance(value.owner, ir.Block) else None
    if op is None or not elementwise(op) or len(op.results) != 1 or dtype(value) != "f32":
        return None
    operands = [_table(rw, v, sources, known) for v in op.operands]
    if any(o is None for o in operands):
        return None
    with np.errstate(all="ignore"):
        return np.asarray(dialect.operator(op).reference(*operands, **dialect.attributes(op)))


def _constant_of(rw: Rewriter, op: ir.Operation) -> np.ndarray | None:
    operands = [None if v is None else constant(rw, v) for v in dialect.arguments(op)]
    if operands[0] is None or operands[1] is None:
        return None
    return np.asarray(dialect.operator(op).reference(*operands, **dialect.attributes(op)))


PATTERNS = [
    *(quantized_sum, quantized_add, quantized_mul, quantized_mean, mean_of_open_many, quantized_avg_pool),
    quantized_function,
    *DYNAMIC,
]
LEFT = [sum_of_quantized]

__all__ = ["Integers", "limits"]
