"""Products with weights that are kept in blocks of integers of 2, 4 or 8 bits, with a scale (and zero point) each.

Weights [N, K] lie as words of 32 bits: ``w[n, b, i]`` holds the numbers i * 32 / bits and following of block b of row
n, the first in the lowest bits.
"""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import Type
from ..support.errors import OpError
from .common import need, need_shape

#: bits of a weight
BITS = (2, 4, 8)
#: dtypes of words and of zero points; without a sign at level 2, as all integers have it at level 3
WORDS, ZEROS = ("ui32", "i32"), ("ui8", "i8")
#: the largest byte of rows that are quantized by block; blocks of numbers below the other are taken for zeros, as their
#: scale has no inverse in f32
LARGEST, NOTHING = 127, 2.0**-100
#: sizes of a block: powers of two that fill whole words
BLOCKS = tuple(1 << i for i in range(4, 13))


def _check_weights(w: Type, scale: Type, zero: Type | None, bits: int) -> int:
    """The size of a block; OpError if the operands do not fit together."""
    if bits not in BITS or w.dtype not in WORDS or w.rank != 3:
        raise OpError(f"needs ui32 weights [N, blocks, words] of 2, 4 or 8 bits, got {w} of {bits}")
    need("float", scale)
    need_shape("scale", scale, w.shape[:2])
    need_shape("zero", zero, w.shape[:2])
    if zero is not None and zero.dtype not in ZEROS:
        need("float", zero)
    block = (w.shape[2] or 0) * 32 // bits
    if block not in BLOCKS:
        raise OpError(f"a block has {block} weights, it should have {' or '.join(map(str, BLOCKS))}")
    return block


def unpacked(w: np.ndarray, bits: int) -> np.ndarray:
    """The numbers in words [N, blocks, words] as ui8 [N, blocks, block].

    >>> unpacked(np.array([[[0x87654321, 0xFEDCBA98]]], np.uint32), 4).tolist()
    [[[1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 10, 11, 12, 13, 14, 15]]]
    """
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    parts = (w[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return parts.astype(np.uint8).reshape(*w.shape[:2], -1)


def _centred(w: np.ndarray, zero: np.ndarray | None, bits: int, dtype: type) -> np.ndarray:
    """Weights with their zero points subtracted, [N, blocks, block]; without `zero` that is half of the range."""
    numbers: np.ndarray = unpacked(w, bits).astype(dtype)
    return numbers - (dtype(1 << bits - 1) if zero is None else zero.astype(dtype)[..., None])


def _dequantized(b, w, scale, zero, bits: int):
    """The weights as f32 [N, K] at level 3."""
    n, blocks, words = w.shape
    each = 32 // bits
    d = [b.dim(i) for i in range(4)]
    out = b.empty(Type((n, blocks, words, each), "f32"))

    def body(word, s, *rest):
        shift = b.cast(b.index(3), "i32") * bits
        number = b.reinterpret(b.shift_right_by(b.reinterpret(word, "i32"), shift) & ((1 << bits) - 1), "i32")
        z = b.cast(rest[0], "f32") if len(rest) > 1 else float(1 << bits - 1)
        return (b.cast(number, "f32") - z) * b.cast(s, "f32")

    inputs = [(w, d[:3]), (scale, d[:2]), *([] if zero is None else [(zero, d[:2])])]
    (made,) = b.generic(inputs, [(out, d)], "pppp", body)
    return b.reshape(made, (n, blocks * words * each))


class BlockMatmul(Operator):
    """x [M, K] times the transpose of weights (q - zero) * scale [N, K] in blocks along K: f32 [M, N].

    w: ui32 [N, K / block, block * bits / 32], `bits` each (see the head of this file); scale: floats [N, K / block];
    zero: ui8 or floats [N, K / block], without it half of the range (8 for 4 bits). Opaque: it has a direct kernel that
    unpacks in registers; `decompose` dequantizes and multiplies.

    ``"tw.block_matmul"(%x, %w, %s) {bits = 4} : (tensor<1x64xf32>, tensor<8x2x4xui32>, tensor<8x2xf32>) -> ...``
    """

    kind = "opaque"

    @staticmethod
    def infer(x, w, scale, zero=None, *, bits: int):
        block = _check_weights(w, scale, zero, bits)
        if x.dtype != "f32" or x.rank != 2:
            raise OpError(f"needs x of f32 [M, K], got {x}")
        need_shape("x", x, (x.shape[0], None if w.shape[1] is None else w.shape[1] * block))
        return Type((x.shape[0], w.shape[0]), "f32")

    @staticmethod
    def reference(x, w, scale, zero=None, *, bits):
        dtype = np.float64 if x.dtype == np.float64 else np.float32
        weights = _centred(w, zero, bits, dtype) * scale.astype(dtype)[..., None]
        return np.matmul(x, weights.reshape(len(w), -1).T)

    @staticmethod
    def decompose(b, x, w, scale, zero=None, *, bits):
        return b.contract("mk,nk->mn", x, _dequantized(b, w, scale, zero, bits), dtype="f32")


class QuantizeBlocks(Operator):
    """x f32 [M, K] in blocks along K as signed bytes: q i8 [M, blocks, parts, block / parts], with a scale f32 [M,
    blocks] each (its largest absolute value / 127), and the sums of the bytes, i32 [M, blocks].

    Part p of a block has the numbers p, p + parts ...: weights of 4 bits, which lie two in a byte, meet those of part 0
    and those of part 1 (`IntegerBlockMatmul`). Rounds to the nearest, halves to even. What is not
    finite makes the scale of its block so, and with it the results of its row.

    ``"tw.quantize_blocks"(%x) {block = 32, parts = 2} : (tensor<1x64xf32>) -> (tensor<1x2x2x16xi8>, ...)``
    """

    kind = "opaque"
    multiple = True

    @staticmethod
    def infer(x, *, block: int, parts: int):
        if x.dtype != "f32" or x.rank != 2:
            raise OpError(f"needs x of f32 [M, K], got {x}")
        if block not in BLOCKS or parts not in [8 // b for b in BITS] or (x.shape[1] or 0) % block:
            raise OpError(f"cannot cut rows of {x} into blocks of {block} in {parts} parts")
        m, blocks = x.shape[0], None if x.shape[1] is None else x.shape[1] // block
        return [Type((m, blocks, parts, block // parts), "i8"), Type((m, blocks), "f32"), Type((m, blocks), "i32")]

    @staticmethod
    def reference(x, *, block, parts):
        blocks = x.astype(np.float32).reshape(len(x), x.shape[1] // block, block)
        most = np.abs(blocks).max(-1, initial=0)
        with np.errstate(invalid="ignore"):  # numbers that are none end as some byte
            inverse = np.divide(np.float32(LARGEST), most, out=np.zeros_like(most), where=~(most < NOTHING))
            q = np.rint(blocks * inverse[..., None]).astype(np.int8)
        sums = q.sum(-1, dtype=np.int32)
        parted = q.reshape(*q.shape[:2], block // parts, parts).swapaxes(2, 3)
        return [np.ascontiguousarray(parted), most * np.float32(1 / LARGEST), sums]


class IntegerBlockMatmul(Operator):
    """What `QuantizeBlocks` made of x, times the transpose of weights (q - zero) * scale as in `BlockMatmul`: f32 [M,
    N].

    The products within a block are summed exactly in i32. zero: ui8 [N, blocks].

    ``"tw.integer_block_matmul"(%q, %xs, %sums, %w, %s) {bits = 4} : (tensor<1x2x2x16xi8>, ...) -> ...``
    """

    kind = "opaque"

    @staticmethod
    def infer(x, xscale, sums, w, scale, zero=None, *, bits: int):
        block = _check_weights(w, scale, zero, bits)
        parts = 8 // bits
        if x.dtype != "i8" or xscale.dtype != "f32" or sums.dtype != "i32" or (zero and zero.dtype not in ZEROS):
            raise OpError(f"needs i8, f32, i32 and a zero point of ui8, got {x}, {xscale}, {sums} and {zero}")
        if x.rank != 4:
            raise OpError(f"needs x [M, blocks, parts, block / parts], got {x}")
        m, blocks = x.shape[0], w.shape[1]
        need_shape("x", x, (m, blocks, parts, block // parts))
        need_shape("xscale", xscale, (m, blocks))
        need_shape("sums", sums, (m, blocks))
        return Type((m, w.shape[0]), "f32")

    @staticmethod
    def reference(x, xscale, sums, w, scale, zero=None, *, bits):
        dtype = np.float64 if xscale.dtype == np.float64 else np.float32
        numbers = x.swapaxes(2, 3).reshape(x.shape[0], x.shape[1], -1).astype(np.float64)
        exact = np.einsum("mbk,nbk->mbn", numbers, _centred(w, zero, bits, np.float64), optimize=True)
        scales = xscale.astype(dtype)[..., None] * scale.astype(dtype).T
        return (exact.astype(dtype) * scales).sum(1)

    @staticmethod
    def decompose(b, x, xscale, sums, w, scale, zero=None, *, bits):
        m, blocks, parts, each = x.shape
        d = [b.dim(i) for i in range(4)]
        wide = b.empty(Type((m, blocks, each, parts), "f32"))
        inputs = [(x, [d[0], d[1], d[3], d[2]]), (xscale, d[:2])]
        (rows,) = b.generic(inputs, [(wide, d)], "pppp", lambda v, s, _: b.cast(v, "f32") * s)
        rows = b.reshape(rows, (m, blocks * parts * each))
        return b.contract("mk,nk->mn", rows, _dequantized(b, w, scale, zero, bits), dtype="f32")
