"""Batch normalization and other constant factors and offsets a channel, folded into the weights beside them.

docs/semantics.md says what that may do to numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..ir.types import is_float, numpy_dtype
from ..support.dtypes import HALVES, wide
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, defined_by, dtype, has_one_use, pattern, rewrite, shape


@register("fold-batch-norm")
@dataclass(frozen=True)
class FoldBatchNorm:
    """Turn batch norm into a factor and an offset a channel, and fold factors into the weights beside them.

    Factors after a convolution or a product with constant weights fold, and those in front of one (zero padding stays
    zero). Folding is done in double; each fold rounds the weights once to their dtype, which costs a sum of products no
    more than its own roundings do. Nothing folds that would leave the range of the dtype, and into weights of halves
    only what is exact: their sums have more digits than they. An offset folds behind a convolution without a bias. With
    `fast_math` also into a bias, and from in front of a convolution without padding: there digits may be lost.

        %0 = "tw.conv"(%x, %w) {...} : ...
        %1 = "tw.batch_norm"(%0, %scale, %bias, %mean, %var) {epsilon = 1.0e-05} : ...
    ->  %0 = "tw.conv"(%x, %w1, %b1) {...} : ...
    """

    fast_math: bool = False

    def run(self, graph: Graph) -> PassReport:
        patterns = [conv_batch_norm, batch_norm, scale_after_conv, offset_after_conv, scale_before_conv]
        fast = [offset_into_bias, offset_before_conv] if self.fast_math else []
        return rewrite(graph, [*patterns, *fast, scale_after_matmul, scale_after_bias, scale_before_matmul])


#: factors beyond these are no matter of style: a sum of products may leave the range of f32 with them, or without
LARGEST_FACTOR = 2.0**20
#: how much larger than what batch norm gives the offset of x * k + c may be: (x - mean) * k + bias loses nothing
CANCELLED = {"f16": 512.0, "bf16": 512.0}


def _fits(exact: np.ndarray, kind: str) -> bool:
    """Whether numbers in double can be those of a dtype: in its range, and exactly those where it is a half."""
    rounded = exact.astype(numpy_dtype(kind)).astype(np.float64)
    magnitude = np.abs(rounded)
    smallest = 2.0**-14 if kind == "f16" else float(np.finfo(np.float64 if kind == "f64" else np.float32).tiny)
    inside = bool(np.isfinite(rounded).all() and ((magnitude >= smallest) | (exact == 0)).all())
    return inside and (kind not in HALVES or bool((rounded == exact).all()))


# ---- batch norm ----------------------------------------------------------------------------------------------------


def _statistics(rw: Rewriter, op: ir.Operation) -> tuple[np.ndarray, ...] | None:
    """Factor, mean, scale and bias of batch norm a channel, in double; None if they are not known, or no numbers."""
    arrays = [a for p in op.operands[1:] if (a := rw.array(p)) is not None]
    if len(arrays) != len(op.operands) - 1:
        return None
    scale, bias, mean, var = (a.astype(np.float64) for a in arrays)
    with np.errstate(all="ignore"):
        k = scale / np.sqrt(var + dialect.attributes(op)["epsilon"])
    return (k, mean, scale, bias) if np.isfinite(k).all() else None


@pattern("batch_norm")
def conv_batch_norm(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """batch_norm(conv(x, w, b)) -> conv(x, w * k, (b - mean) * k + bias), k = scale / sqrt(var + epsilon)"""
    y = op.operands[0]
    conv, known = defined_by(y, "conv", "conv_transpose"), _statistics(rw, op)
    found = _constant_conv(rw, conv)
    if conv is None or found is None or known is None or not has_one_use(y):
        return None
    attrs, rank, (k, mean, _, offset) = dialect.attributes(conv), len(shape(y)), known
    if dialect.attributes(op)["axis"] % rank != (1 if attrs["layout"] == "nchw" else rank - 1):
        return None
    w, bias = found
    w = w * _out_factor(k, w, attrs["groups"], conv.name == "tw.conv_transpose")
    bias = ((0 if bias is None else bias) - mean) * k + offset
    if dtype(y) in HALVES or not (_fits(w, dtype(y)) and np.isfinite(bias.astype(numpy_dtype(dtype(y)))).all()):
        return None
    rw.names_of(conv, op)
    return _rebuild(rw, conv, conv.operands[0], w, bias)


@pattern("batch_norm")
def batch_norm(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """batch_norm(x) -> x * k + (bias - mean * k), or (x - mean) * k + bias where that is much smaller; halves in f32"""
    x, *rest = op.operands
    known, kind = _statistics(rw, op), dtype(x)
    if known is None:
        return None
    k, mean, scale, bias = known
    dims = (-1, *[1] * (len(shape(x)) - 1 - dialect.attributes(op)["axis"] % len(shape(x))))
    work, lost = wide(kind), CANCELLED.get(kind, 64.0)
    centred = bool((np.abs(mean * k) > lost * (np.abs(scale) + np.abs(bias))).any())

    def parameter(array: np.ndarray, old: ir.Value) -> ir.Value:
        return _weights(rw, array.reshape(dims), old, work)

    factor, offset = parameter(k, rest[0]), parameter(bias if centred else bias - mean * k, rest[1])
    y = x if kind == work else rw.create("cast", x, to=work)
    y = rw.create("sub", y, parameter(mean, rest[2])) if centred else y
    y = rw.create("add", rw.create("mul", y, factor), offset)
    return y if kind == work else rw.create("cast", y, to=kind)


def _weights(rw: Rewriter, array: np.ndarray, old: ir.Value, kind: str) -> ir.Value:
    """A new constant made from an old one, under a symbol that tells."""
    return rw.constant(np.asarray(array, order="C").astype(numpy_dtype(kind)), rw.symbol(old))


# ---- convolution ---------------------------------------------------------------------------------------------------


def _constant_conv(rw: Rewriter, op: ir.Operation | None) -> tuple[np.ndarray, np.ndarray | None] | None:
    """Weights and bias of a float convolution in double, if both are constant and nobody else uses the weights."""
    if op is None or not is_float(dtype(op.results[0])):
        return None
    _, w, bias = dialect.arguments(op)[:3]
    weights, numbers = rw.array(w), rw.array(bias)
    if weights is None or not has_one_use(w) or (bias is not None and numbers is None):
        return None
    return weights.astype(np.float64), None if numbers is None else numbers.astype(np.float64)


def _rebuild(rw: Rewriter, conv: ir.Operation, x: ir.Value, w: np.ndarray, bias: np.ndarray | None) -> ir.Value:
    _, old, old_bias = [*dialect.arguments(conv), None][:3]
    kind = dtype(conv.results[0])
    b = None if bias is None or not bias.any() else _weights(rw, bias, old_bias if old_bias is not None else old, kind)
    return rw.again(conv, [x, _weights(rw, w, old, kind), b])[0]


def _per_channel(rw: Rewriter, value: ir.Value, like: ir.Value, layout: str) -> np.ndarray | None:
    """A constant that varies along the channels of `like` only, as one number a channel in double."""
    array = rw.array(value)
    rank = len(shape(like))
    axis = 1 if layout == "nchw" else rank - 1
    channels = shape(like)[axis]
    if array is None or array.ndim > rank or channels is None:
        return None
    full = array.reshape((1,) * (rank - array.ndim) + array.shape)
    if any(d != 1 for i, d in enumerate(full.shape) if i != axis) or full.shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(full.reshape(-1).astype(np.float64), (channels,))


@pattern("mul")
def scale_after_conv(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """conv(x, w, b) * k -> conv(x, w * k, b * k)"""
    for y, value in (tuple(op.operands), tuple(op.operands)[::-1]):
        conv = defined_by(y, "conv", "conv_transpose")
        found = _constant_conv(rw, conv)
        if conv is None or found is None or not has_one_use(y) or y.type != op.results[0].type:
            continue
        attrs = dialect.attributes(conv)
        k = _per_channel(rw, value, y, attrs["layout"])
        if k is None:
            continue
        w, bias = found
        w = w * _out_factor(k, w, attrs["groups"], conv.name == "tw.conv_transpose")
        bias = None if bias is None else bias * k
        if not _may_fold(k, dtype(y), w, bias):
            continue
        rw.names_of(conv, op)
        return _rebuild(rw, conv, conv.operands[0], w, bias)
    return None


def _out_factor(k: np.ndarray, w: np.ndarray, groups: int, transposed: bool) -> np.ndarray:
    """k a result channel, shaped to multiply the weights."""
    if not transposed:
        return k.reshape(-1, *[1] * (w.ndim - 1))
    # Weights of a transposed convolution are [I, O / groups, ...]: rows of one group share its part of k.
    rows = np.repeat(k.reshape(groups, -1), w.shape[0] // groups, axis=0)
    return rows.reshape(w.shape[0], -1, *[1] * (w.ndim - 2))


def _may_fold(k: np.ndarray, kind: str, *products: np.ndarray | None) -> bool:
    """Whether factors may be folded, given what the weights and the bias become."""
    size = np.abs(k[k != 0])
    tame = bool((size <= LARGEST_FACTOR).all() and (size >= 1 / LARGEST_FACTOR).all())
    return tame and all(p is None or _fits(p, kind) for p in products)


@pattern("add")
def offset_after_conv(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """conv(x, w) + c -> conv(x, w, c)"""
    return _offset_after(rw, op, False)


@pattern("add")
def offset_into_bias(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """conv(x, w, b) + c -> conv(x, w, b + c)"""
    return _offset_after(rw, op, True)


def _offset_after(rw: Rewriter, op: ir.Operation, has_bias: bool) -> Rewritten:
    for y, value in (tuple(op.operands), tuple(op.operands)[::-1]):
        conv = defined_by(y, "conv", "conv_transpose")
        if conv is None or not has_one_use(y) or y.type != op.results[0].type or not is_float(dtype(y)):
            continue
        if dtype(y) in HALVES:  # what the convolution gives is rounded before the sum
            continue
        x, w, bias = [*dialect.arguments(conv), None][:3]
        c = _per_channel(rw, value, y, dialect.attributes(conv)["layout"])
        before = rw.array(bias)
        if c is None or (bias is not None) != has_bias or (bias is not None and before is None):
            continue
        if not c.any():  # the sign of a zero that sums give is open
            return y
        rw.names_of(conv, op)
        total = c if before is None else before.astype(np.float64) + c
        return rw.again(conv, [x, w, _weights(rw, total, value if bias is None else bias, dtype(y))])[0]
    return None


@pattern("conv")
def scale_before_conv(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """conv(x * k, w, b) -> conv(x, w * k, b)"""
    return _before_conv(rw, op, "mul")


@pattern("conv")
def offset_before_conv(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """conv(x + c, w, b) -> conv(x, w, b + w c) where nothing is padded"""
    return _before_conv(rw, op, "add") if not any(dialect.attributes(op)["pads"]) else None


def _before_conv(rw: Rewriter, op: ir.Operation, name: str) -> Rewritten:
    inner, found = defined_by(op.operands[0], name), _constant_conv(rw, op)
    if inner is None or found is None or not has_one_use(inner.results[0]):
        return None
    x, value = inner.operands
    attrs, (w, bias) = dialect.attributes(op), found
    c = _per_channel(rw, value, x, attrs["layout"]) if x.type == inner.results[0].type else None
    if c is None:
        return None
    # Channel j of group g of the weights reads channel g * (I / groups) + j of x.
    rows = np.repeat(c.reshape(attrs["groups"], -1), w.shape[0] // attrs["groups"], axis=0)
    rows = rows.reshape(*w.shape[:2], *[1] * (w.ndim - 2))
    if name == "mul":
        if not _may_fold(c, dtype(x), w * rows):
            return None
        rw.names_of(inner, op)
        return _rebuild(rw, op, x, w * rows, bias)
    rw.names_of(inner, op)
    extra = (w * rows).sum(axis=tuple(range(1, w.ndim)))
    return _rebuild(rw, op, x, w, extra if bias is None else bias + extra)


# ---- matrix product ------------------------------------------------------------------------------------------------


def _constant_matmul(rw: Rewriter, value: ir.Value) -> tuple[ir.Operation, np.ndarray] | None:
    op = defined_by(value, "matmul")
    if op is None or not is_float(dtype(value)) or not has_one_use(value):
        return None
    w = rw.array(op.operands[1])
    return (op, w) if w is not None and w.ndim == 2 and has_one_use(op.operands[1]) else None


def _row(rw: Rewriter, value: ir.Value, length: int) -> np.ndarray | None:
    """A constant that varies along the last dimension only, as a vector of double."""
    array = rw.array(value)
    if array is None or any(d != 1 for d in array.shape[:-1]) or array.size not in (1, length):
        return None
    return np.broadcast_to(array.reshape(-1).astype(np.float64), (length,))


@pattern("mul")
def scale_after_matmul(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """matmul(x, w) * k -> matmul(x, w * k)"""
    y, value = op.operands
    found = _constant_matmul(rw, y)
    k = _row(rw, value, found[1].shape[1]) if found and y.type == op.results[0].type else None
    if found is None or k is None or not _may_fold(k, dtype(y), found[1] * k):
        return None
    matmul, w = found
    rw.names_of(matmul, op)
    return rw.create("matmul", matmul.operands[0], _weights(rw, w * k, matmul.operands[1], dtype(y)))


@pattern("mul")
def scale_after_bias(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """(matmul(x, w) + b) * k -> matmul(x, w * k) + b * k"""
    y, value = op.operands
    add = defined_by(y, "add")
    if add is None or not has_one_use(y) or y.type != op.results[0].type:
        return None
    product, bias = add.operands
    found = _constant_matmul(rw, product)
    if found is None or product.type != y.type:
        return None
    matmul, w = found
    k, b = _row(rw, value, w.shape[1]), _row(rw, bias, w.shape[1])
    if k is None or b is None or not _may_fold(k, dtype(y), w * k, b * k):
        return None
    rw.names_of(matmul, add, op)
    new = rw.create("matmul", matmul.operands[0], _weights(rw, w * k, matmul.operands[1], dtype(y)))
    return rw.create("add", new, _weights(rw, b * k, bias, dtype(y)))


@pattern("matmul")
def scale_before_matmul(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """matmul(x * k, w) -> matmul(x, k * w)"""
    inner, found = defined_by(op.operands[0], "mul"), _constant_matmul_itself(rw, op)
    if inner is None or found is None or not has_one_use(inner.results[0]):
        return None
    x, value = inner.operands
    k = _row(rw, value, found.shape[0]) if x.type == inner.results[0].type else None
    if k is None or not _may_fold(k, dtype(x), k[:, None] * found):
        return None
    rw.names_of(inner, op)
    return rw.create("matmul", x, _weights(rw, k[:, None] * found, op.operands[1], dtype(x)))


def _constant_matmul_itself(rw: Rewriter, op: ir.Operation) -> np.ndarray | None:
    w = rw.array(op.operands[1])
    fits = w is not None and w.ndim == 2 and is_float(dtype(op.operands[1])) and has_one_use(op.operands[1])
    return w if fits else None
