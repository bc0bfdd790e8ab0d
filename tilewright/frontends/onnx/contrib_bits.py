"""`com.microsoft` operators on weights of few bits, in blocks that have a scale each."""

from __future__ import annotations

import numpy as np

from ...ops.block_quantized import BLOCKS
from ...ops.block_weights import BITS, ordered
from .contrib import MS
from .registry import onnx_op
from .values import OnnxNotImported

#: `accuracy_level` of activations that may be rounded to 8 bits by block; the others are met by f32
INT8 = 4


def unpack(n, x, bits, size):
    """The last dimension of unsigned bytes as `8 / bits` numbers each, the lowest bits first, cut to `size`."""
    if bits == 8:
        return x
    each = 8 // bits
    parts = [x if not i else n("shift_right", x, bits * i) for i in range(each)]
    wide = n.concat([n.unsqueeze(n("and", p, (1 << bits) - 1), x.rank) for p in parts], x.rank)
    flat = n.reshape(wide, (*x.shape[:-1], x.shape[-1] * each))
    return n.slice(flat, flat.rank - 1, 0, size)


@onnx_op("MatMulNBits", since=1, domain=MS)
def matmul_n_bits(n, x, packed, scales, zero=None, order=None, bias=None):
    """x times weights that are kept in blocks of integers of 2, 4 or 8 bits with a scale (and zero point) for each.

    Weights that are constants stay as they are, and so do scales and zero points; others, and those whose blocks are
    given by `order`, are dequantized before they are multiplied.
    """
    k, columns, bits, block = (
        n.required(name) if name != "bits" else n.attr("bits", 4) for name in ("K", "N", "bits", "block_size")
    )
    if bits not in BITS:
        raise OnnxNotImported(f"of {bits} bits")
    blocks = -(-k // block)
    if packed.dtype != "ui8" or packed.type.size != columns * blocks * block * bits // 8:
        raise n.error(f"weights {packed.type} do not fit N = {columns}, K = {k} in blocks of {block} with {bits} bits")
    if zero is not None and zero.dtype == "ui8":
        zero = unpack(n, n.reshape(zero, (columns, -(-blocks * bits // 8))), bits, blocks)
    scales = n.reshape(scales, (columns, blocks))
    zero = None if zero is None else n.reshape(zero, (columns, blocks))
    known = packed.known() if block in BLOCKS and order is None and x.dtype != "f64" else None
    if known is None:
        out = dequantized_product(n, x, packed, scales, zero, order, (k, columns, bits, block))
    else:
        words = n.constant(ordered(np.ascontiguousarray(known).reshape(columns, blocks, -1), bits), "ui32")
        out = block_product(n, x, words, scales, zero, (k, columns, bits, block))
    return out if bias is None else n("add", out, n.cast(bias, x.dtype))


def block_product(n, x, words, scales, zero, sizes):
    """The product with weights in words of 32 bits, in f32 or (accuracy level 4) with activations of 8 bits."""
    k, columns, bits, block = sizes
    blocks = words.shape[1]
    rows = n.cast(n.reshape(x, (x.type.size // k, k)), "f32")
    if k % block:
        rows = n("pad", rows, low=(0, 0), high=(0, blocks * block - k))
    if n.attr("accuracy_level", 0) == INT8 and (zero is None or zero.dtype == "ui8"):
        parts = n("quantize_blocks", rows, block=block, part=block)
        out = n("integer_block_matmul", *parts, words, scales, zero, bits=bits)
    else:
        out = n("block_matmul", rows, words, scales, zero, bits=bits)
    return n.cast(n.reshape(out, (*x.shape[:-1], columns)), x.dtype)


def dequantized_product(n, x, packed, scales, zero, order, sizes):
    """x times the dequantized weights; `order` has the block of each of their rows, else they follow
    each other."""
    k, columns, bits, block = sizes
    blocks = -(-k // block)
    weights = unpack(n, n.reshape(packed, (columns, blocks, block * bits // 8)), bits, block)
    if order is not None:
        weights = n.slice(n.reshape(weights, (columns, blocks * block)), 1, 0, k)
        order = n.slice(order, order.rank - 1, 0, k)

    def spread(t):
        t = n.cast(t, x.dtype)
        return n.unsqueeze(t, 2) if order is None else n("gather", t, order, axis=1)

    centre = float(1 << bits - 1) if zero is None else spread(zero)
    weights = n("mul", n("sub", n.cast(weights, x.dtype), centre), spread(scales))
    weights = n.slice(n.reshape(weights, (columns, weights.type.size // columns)), 1, 0, k)
    return n("matmul", x, n.transpose(weights, (1, 0)))


@onnx_op("GatherBlockQuantized", since=1, domain=MS)
def gather_block_quantized(n, data, indices, scales, zero=None):
    """Rows of a table of 4-bit numbers, picked and dequantized."""
    axis, block = n.axis(0, data.rank, "gather_axis"), n.attr("block_size", 128)
    last = n.axis(-1, data.rank, "quantize_axis")
    if axis != 0 or last != data.rank - 1:
        raise OnnxNotImported("with axes other than the first (to gather) and the last (quantized)")
    rows = n("gather", data, indices, axis=0)
    if data.dtype == "ui8":
        rows = unpack(n, rows, n.attr("bits", 4), rows.shape[-1] * 8 // n.attr("bits", 4))
        default = float(1 << n.attr("bits", 4) - 1)
    else:
        default = 0.0
    scale = n("gather", scales, indices, axis=0)
    if zero is not None:
        zero = n("gather", zero, indices, axis=0)
        zero = unpack(n, zero, n.attr("bits", 4), scale.shape[-1]) if data.dtype == "ui8" else zero
    size, blocks = rows.shape[-1], scale.shape[-1]
    at = n.constant(np.arange(size) // block, "i64")
    if blocks != -(-size // block):
        raise n.error(f"{blocks} scales for rows of {size} in blocks of {block}")
    spread = n("gather", scale, at, axis=scale.rank - 1)
    centre = default if zero is None else n.cast(n("gather", zero, at, axis=zero.rank - 1), scale.dtype)
    return n("mul", n("sub", n.cast(rows, scale.dtype), centre), spread)
