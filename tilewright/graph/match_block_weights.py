"""Products with weights that are kept as integers of few bits: `block_matmul` instead of a product of floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np
from torch_mlir import ir

from ..ir import dialect
from ..ir.graph import Graph
from ..ir.types import is_float
from ..ops.block_weights import block_weights
from ..ops.quant import spread
from ..support import sub_byte
from ..support.sizes import typical
from .passes import PassReport, register
from .rewrite import Rewriter, Rewritten, defined_by, dtype, either_order, has_one_use, pattern, rewrite, shape

#: dtypes of at most 8 bits that weights are kept in, of what they become, and of the floats that are multiplied
STORED = ("i8", "ui8", *sub_byte.INTS)
WIDER = ("i32", "i64")
FLOATS = ("f32", "f16", "bf16")
#: rows up to which products with packed weights are not slower than those with weights in floats (measured: at 1 row
#: 0.58 of their time, at 8 the same, from 64 on 1.06 to 1.18)
MOST_ROWS = 32


@register("match-block-weights")
@dataclass(frozen=True)
class MatchBlockWeights:
    """Keep constant weights of 8 bits and less as they are, packed, where a product of few rows dequantizes them.

    With more than `MOST_ROWS`, typically, they are folded to floats.
    The constants are `dequantize_linear`, also of blocks, or arithmetic ``(cast(codes) - zero) * scale`` on constants,
    behind reshapes and transposes. A scale of the columns behind the product becomes a part of theirs.

        %0 = "tw.dequantize_linear"(%w, %s) {axis = 0, block = 0} : (tensor<8x64xi8>, tensor<8xf32>) -> tensor<8x64xf32>
        %1 = "tw.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<8x64xf32>) -> tensor<64x8xf32>
        %2 = "tw.matmul"(%x, %1) : (tensor<1x64xf32>, tensor<64x8xf32>) -> tensor<1x8xf32>
    ->  %2 = "tw.block_matmul"(%x, %words, %scales) {bits = 8} : (tensor<1x64xf32>, tensor<8x1x16xui32>, ...) -> ...
    """

    def run(self, graph: Graph) -> PassReport:
        return rewrite(graph, [product_of_few_bits, take_column_scale])


@dataclass(frozen=True)
class Coded:
    """The constant ``(codes - zero) * scale``: integers, and arrays that broadcast to their shape, of equal rank."""

    codes: np.ndarray
    zero: np.ndarray
    scale: np.ndarray

    def moved(self, move: Callable[[np.ndarray], np.ndarray], whole: bool) -> Coded:
        """All three after a reshape or transpose; `whole`: parameters first in the full shape."""
        full = (np.broadcast_to(a, self.codes.shape) if whole and a.size > 1 else a for a in (self.zero, self.scale))
        zero, scale = (move(a) if a.size > 1 or not whole else a.reshape(()) for a in full)
        return Coded(move(self.codes), zero, scale)


@pattern("matmul")
def product_of_few_bits(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """matmul(x, (cast(codes) - zero) * scale) -> block_matmul(x, words, scale, zero)"""
    x, w = op.operands
    if dtype(x) not in FLOATS or len(shape(w)) != 2 or not shape(x) or defined_by(x, "constant") is not None:
        return None
    if typical(prod(shape(x)[:-1])) > MOST_ROWS:
        return None
    found = coded(rw, w)
    if found is None or not is_float(dtype(w)) or not np.isfinite(found.scale).all():
        return None
    zero, scale = (np.atleast_2d(a).T for a in (found.zero, found.scale))
    made = block_weights(found.codes.T, zero, scale)
    if made is None:
        return None
    k, columns = shape(w)
    rows = rw.create("reshape", x, shape=(prod(shape(x)[:-1]), k)) if len(shape(x)) != 2 else x
    rows = rows if dtype(x) == "f32" else rw.create("cast", rows, to="f32")
    if k % made.block:
        rows = rw.create("pad", rows, low=(0, 0), high=(0, -k % made.block))
    zeros = None if made.zero is None else rw.constant(made.zero, "zeros")
    words, scales = rw.constant(made.words, "words"), rw.constant(made.scale, "scales")
    out = rw.create("block_matmul", rows, words, scales, zeros, bits=made.bits)
    out = out if shape(out) == shape(op.results[0]) else rw.create("reshape", out, shape=(*shape(x)[:-1], columns))
    kind = dtype(op.results[0])
    return out if kind == "f32" else rw.create("cast", out, to=kind)


@pattern("mul")
def take_column_scale(rw: Rewriter, op: ir.Operation) -> Rewritten:
    """block_matmul(x, words, scale) * constant of the columns -> block_matmul(x, words, scale * constant)"""
    for product, factor in either_order(op):
        inner, array = defined_by(product, "block_matmul"), _known(rw, factor)
        if inner is None or array is None or not has_one_use(product) or shape(product) != shape(op.results[0]):
            continue
        x, words, scale, zero, *more = dialect.arguments(inner)
        scales = rw.array(scale) if not any(more) else None
        columns = shape(product)[-1]
        if scales is None or array.size not in (1, columns) or (array.size > 1 and array.shape[-1] != columns):
            continue
        made = scales * array.astype(np.float32).reshape(-1, 1)
        if not np.isfinite(made).all():
            continue
        rw.names_of(inner, op)
        return rw.again(inner, [x, words, rw.constant(made, "scales"), zero])[0]
    return None


# ---- constants -----------------------------------------------------------------------------------------------------


def coded(rw: Rewriter, value: ir.Value) -> Coded | None:
    """What a value is if it is made of constant integers of few bits; None if it is anything else."""
    op = defined_by(value, "constant", "cast", "reshape", "transpose", "sub", "mul", "dequantize_linear")
    if op is None:
        return None
    if op.name == "tw.constant":
        array = rw.array(value) if dtype(value) in STORED else None
        return (
            None if array is None else Coded(sub_byte.decode(array), np.zeros((), np.float32), np.ones((), np.float32))
        )
    if op.name == "tw.dequantize_linear":
        return _dequantized(rw, op)
    found = coded(rw, op.operands[0])
    if found is None and op.name == "tw.mul":
        found = coded(rw, op.operands[1])
        return None if found is None else _changed(rw, op, found, op.operands[0])
    if found is None:
        return None
    if op.name == "tw.cast":
        whole = dtype(value) in WIDER and not is_float(dtype(op.operands[0]))
        return found if whole or dtype(value) in FLOATS else None
    if op.name == "tw.reshape":
        return found.moved(lambda a: a.reshape(shape(value)), whole=True)
    if op.name == "tw.transpose":
        order = dialect.attributes(op)["permutation"]
        return found.moved(lambda a: a.transpose(order) if a.ndim else a, whole=False)
    return _changed(rw, op, found, op.operands[1])


def _changed(rw: Rewriter, op: ir.Operation, found: Coded, by: ir.Value) -> Coded | None:
    """Codes with a zero point subtracted, or scaled, by a constant that broadcasts to them."""
    array = _known(rw, by)
    kind = dtype(op.results[0])
    if array is None or shape(op.results[0]) != found.codes.shape or kind not in (*FLOATS, *WIDER):
        return None
    array = array.reshape((1,) * (found.codes.ndim - array.ndim) + array.shape) if array.ndim else array
    if op.name == "tw.sub":
        return Coded(found.codes, found.zero + array.astype(np.float32), found.scale) if _plain(found) else None
    return Coded(found.codes, found.zero, found.scale * array.astype(np.float32)) if kind in FLOATS else None


def _plain(found: Coded) -> bool:
    """Whether nothing scales the codes yet."""
    return found.scale.size == 1 and bool(found.scale == 1)


def _known(rw: Rewriter, value: ir.Value) -> np.ndarray | None:
    """The array of a constant, also behind casts, reshapes and transposes."""
    array = rw.array(value)
    if array is not None:
        return sub_byte.decode(array)
    op = defined_by(value, "cast", "reshape", "transpose")
    inner = None if op is None else _known(rw, op.operands[0])
    if op is None or inner is None:
        return None
    return np.asarray(dialect.operator(op).reference(inner, **dialect.attributes(op)))


def _dequantized(rw: Rewriter, op: ir.Operation) -> Coded | None:
    q, s, z = dialect.arguments(op)[:3]
    codes = coded(rw, q)
    scale, zero = _known(rw, s), None if z is None else _known(rw, z)
    if codes is None or scale is None or (z is not None and zero is None) or not _plain(codes):
        return None
    a, dims = dialect.attributes(op), codes.codes
    zeros = np.zeros((), np.float32) if zero is None else spread(zero.astype(np.float32), dims, a["axis"], a["block"])
    return Coded(dims, zeros, spread(scale.astype(np.float32), dims, a["axis"], a["block"]))
