"""Products with weights that are kept in blocks of integers of 2, 4, 5, 6 or 8 bits, with a scale each.

Weights [N, K] lie as words of 32 bits, ``w[n, b, i]`` for block b of row n. A word has 32 / bits numbers: number t from
bit ``8 * (t % 4) + bits * (t // 4)`` on, so that neighbours lie in neighbouring bytes. Of 5 and 6 bits the high ones
lie so first, then the low four in the same way. `BlockWeights` tells what a number stands for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir.dialect import Operator
from ..ir.types import Type
from ..support.errors import OpError
from .common import need, need_shape

#: bits of a weight
BITS = (2, 4, 5, 6, 8)
#: dtypes of words, zero points and inner scales; without a sign at level 2, as all integers have it at level 3
WORDS, ZEROS, INNER = ("ui32", "i32"), ("ui8", "i8"), ("i8", "ui8", "f8E4M3FN")
#: scales of 8 bits that are powers of two
POWERS = "f8E8M0FNU"
#: the largest byte of rows that are quantized by block; blocks of numbers below the other are taken for zeros, as their
#: scale has no inverse in f32
LARGEST, NOTHING = 127, 2.0**-100
#: sizes of a block: powers of two that fill whole words
BLOCKS = tuple(1 << i for i in range(4, 13))
#: the numbers of a table
TABLE = 16


def centre(offset: int, bits: int) -> int:
    """What is subtracted from numbers that have no zero point: `offset`, half of the range if that is negative."""
    return 1 << bits - 1 if offset < 0 else offset


def planes(bits: int) -> tuple[tuple[int, int], ...]:
    """The bits that lie together, in the order of memory: how many, and the lowest of them.

    High ones, which all numbers of a block need, come first, so that a block is read from its begin to its end: words
    that are read in another order keep the processor from fetching ahead (5 bits from memory: 27% slower).

    >>> planes(6), planes(4)
    (((2, 4), (4, 0)), ((4, 0),))
    """
    return ((bits - 4, 4), (4, 0)) if bits in (5, 6) else ((bits, 0),)


def packed(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Numbers [N, blocks, block] of ui8 below ``2**bits`` as words.

    >>> [hex(w) for w in packed(np.arange(16, dtype=np.uint8).reshape(1, 1, 16), 4)[0, 0]]
    ['0x73625140', '0xfbead9c8']
    """
    found = []
    for b, shift in planes(bits):
        groups = ((numbers >> shift) & ((1 << b) - 1)).reshape(*numbers.shape[:2], -1, 8 // b, 4)
        made = groups[..., 0, :].copy()
        for i in range(1, 8 // b):
            made |= groups[..., i, :] << (b * i)
        found.append(np.ascontiguousarray(made).view("<u4")[..., 0])
    return np.ascontiguousarray(np.concatenate(found, -1))


def unpacked(w: np.ndarray, bits: int) -> np.ndarray:
    """The numbers in words [N, blocks, words] as ui8 [N, blocks, block].

    >>> unpacked(np.array([[[0x73625140, 0xFBEAD9C8]]], np.uint32), 4).tolist()
    [[[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]]]
    """
    made: Any = 0
    first = 0
    for b, shift in planes(bits):
        count = w.shape[2] * b // bits
        groups = np.ascontiguousarray(w[..., first : first + count, None]).view(np.uint8)
        parts = np.stack([(groups >> (b * i)) & ((1 << b) - 1) for i in range(8 // b)], -2)
        made = made | parts.reshape(*w.shape[:2], -1) << shift
        first += count
    return np.asarray(made, np.uint8)


def factors(w: np.ndarray, zero: np.ndarray | None, bits: int, offset: int, table: tuple[int, ...], dtype: type):
    """What the numbers in words stand for before they are scaled, [N, blocks, block]."""
    numbers = unpacked(w, bits)
    if table:
        return np.array(table, np.int8)[numbers].astype(dtype)
    return numbers.astype(dtype) - (dtype(centre(offset, bits)) if zero is None else zero.astype(dtype)[..., None])


def leveled(outer: np.ndarray, inner: np.ndarray | None, dtype: type) -> np.ndarray:
    """Parameters [N, blocks] of one level or two."""
    if inner is None:
        return outer.astype(dtype)
    return np.repeat(outer.astype(dtype), inner.shape[1] // outer.shape[1], 1) * inner.astype(dtype)


def dequantized(
    w: np.ndarray, scale: np.ndarray, zero=None, inner=None, minimum=None, inner_minimum=None, *, bits: int,
    offset: int = -1, table: tuple[int, ...] = (), dtype: type = np.float32,
) -> np.ndarray:  # fmt: skip
    """The weights [N, K]."""
    made = factors(w, zero, bits, offset, table, dtype) * leveled(scale, inner, dtype)[..., None]
    if minimum is not None:
        made -= leveled(minimum, inner_minimum, dtype)[..., None]
    return made.reshape(len(w), -1)


def _check_weights(
    w: Type, scale: Type, zero: Type | None, inner: Type | None, minimum: Type | None, inner_minimum: Type | None,
    bits: int, table: tuple[int, ...],
) -> int:  # fmt: skip
    """The size of a block; OpError if the operands do not fit together."""
    if bits not in BITS or w.dtype not in WORDS or w.rank != 3:
        raise OpError(f"needs ui32 weights [N, blocks, words] of {' or '.join(map(str, BITS))} bits, got {w} of {bits}")
    block = (w.shape[2] or 0) * 32 // bits
    if block not in BLOCKS or block * bits % 32 or (bits == 5 and block < 32):
        raise OpError(f"{w.shape[2]} words of {bits} bits are no block of {' or '.join(map(str, BLOCKS))} weights")
    for name, outer, own in (("scale", scale, inner), ("minimum", minimum, inner_minimum)):
        if outer is None:
            if own is not None:
                raise OpError(f"an inner {name} needs a {name}")
            continue
        if outer.dtype not in (POWERS, "i8"):  # all numbers of 8 bits are i8 at level 3
            need("float", outer)
        if own is None:
            need_shape(name, outer, w.shape[:2])
            continue
        if own.dtype not in INNER:
            raise OpError(f"an inner {name} is of {' or '.join(INNER)}, got {own}")
        need_shape(f"inner {name}", own, w.shape[:2])
        need_shape(name, outer, (w.shape[0], None))
        if not outer.dims[1] or w.dims[1] % outer.dims[1]:
            raise OpError(f"{name} {outer} does not divide {w.shape[1]} blocks")
    need_shape("zero", zero, w.shape[:2])
    if zero is not None and zero.dtype not in ZEROS:
        need("float", zero)
    if table and (bits != 4 or len(table) != TABLE or zero is not None or min(table) < -128 or max(table) > 127):
        raise OpError(f"a table has {TABLE} signed bytes for numbers of 4 bits without zero points, got {table}")
    if zero is not None and minimum is not None:
        raise OpError("weights have zero points or a minimum, not both")
    return block


def _dequantized(b, w, scale, zero, inner, minimum, inner_minimum, *, bits, offset=-1, table=()):
    """The weights as f32 [N, K] at level 3."""
    n, blocks, words = w.shape
    block = words * 32 // bits
    d = [b.dim(i) for i in range(4)]
    out = b.empty(Type((n, blocks, block // 16, 16), "f32"))

    def body(_):
        def of_block(x):
            at = b.index(1) if x.shape[1] == blocks else b.index(1) // (blocks // x.shape[1])
            return b.cast(b.load(x, [b.index(0), at]), "f32")

        place = b.cast(b.index(2), "i32") * 16 + b.cast(b.index(3), "i32")
        number: Any = None
        first = 0
        for plane, shift in planes(bits):
            each = 32 // plane
            at = [b.index(0), b.index(1), b.cast(place // each + first, "index")]
            inside = place % each
            word = b.reinterpret(b.load(w, at), "i32")
            moved = b.shift_right_by(word, (inside % 4) * 8 + inside // 4 * plane) & ((1 << plane) - 1)
            moved = moved.shift_left(shift) if shift else moved
            number = moved if number is None else number | moved
            first += block // each
        if table:
            made = b.constant(float(table[-1]), "f32")
            for i, value in enumerate(table[:-1]):
                made = b.select(number.eq(i), float(value), made)
        else:
            made = b.cast(number, "f32") - (float(centre(offset, bits)) if zero is None else of_block(zero))
        made = made * (of_block(scale) if inner is None else of_block(scale) * of_block(inner))
        if minimum is None:
            return made
        least = of_block(minimum)
        return made - (least if inner_minimum is None else least * of_block(inner_minimum))

    (made,) = b.generic([], [(out, d)], "pppp", body)
    return b.reshape(made, (n, blocks * block))


class BlockMatmul(Operator):
    """x [M, K] times the transpose of weights [N, K] in blocks along K: f32 [M, N].

    w: ui32 [N, B, block * bits / 32], `bits` each (see the head of this file). A weight is ``scale * c - minimum``: c
    is its number less `zero` (ui8 or floats [N, B]) or `offset` (negative: half of the range), or stands in `table` (16
    signed bytes). scale: floats or f8E8M0FNU [N, B], with `inner` (i8, ui8, f8E4M3FN [N, B]) [N, S]: S divides B, and
    the products count. minimum: in the same way, with inner_minimum.

    Opaque: it has a direct kernel that unpacks in registers; `decompose` dequantizes and multiplies.

    ``"tw.block_matmul"(%x, %w, %s) {bits = 4} : (tensor<1x64xf32>, tensor<8x2x4xui32>, tensor<8x2xf32>) -> ...``
    """

    kind = "opaque"

    @staticmethod
    def infer(
        x, w, scale, zero=None, inner=None, minimum=None, inner_minimum=None, *, bits: int, offset: int = -1,
        table: tuple[int, ...] = (),
    ):  # fmt: skip
        block = _check_weights(w, scale, zero, inner, minimum, inner_minimum, bits, table)
        if x.dtype != "f32" or x.rank != 2:
            raise OpError(f"needs x of f32 [M, K], got {x}")
        need_shape("x", x, (x.shape[0], None if w.shape[1] is None else w.shape[1] * block))
        return Type((x.shape[0], w.shape[0]), "f32")

    @staticmethod
    def reference(x, w, scale, zero=None, inner=None, minimum=None, inner_minimum=None, *, bits, offset=-1, table=()):
        dtype = np.float64 if x.dtype == np.float64 else np.float32
        weights = dequantized(
            w, scale, zero, inner, minimum, inner_minimum, bits=bits, offset=offset, table=table, dtype=dtype
        )
        return np.matmul(x, weights.T)

    @staticmethod
    def decompose(b, x, *weights, **attributes):
        return b.contract("mk,nk->mn", x, _weights(b, weights, attributes), dtype="f32")


class BlockLookup(Operator):
    """Rows of weights [N, K] as in `BlockMatmul`, by their numbers (i32 [T], from 0 to N - 1): f32 [T, K].

    An embedding that is looked up in the form, and the layout, in which the output layer multiplies with it.

    ``"tw.block_lookup"(%i, %w, %s) {bits = 4} : (tensor<3xi32>, tensor<8x2x4xui32>, tensor<8x2xf32>) -> ...``
    """

    kind = "opaque"

    @staticmethod
    def infer(
        indices, w, scale, zero=None, inner=None, minimum=None, inner_minimum=None, *, bits: int, offset: int = -1,
        table: tuple[int, ...] = (),
    ):  # fmt: skip
        block = _check_weights(w, scale, zero, inner, minimum, inner_minimum, bits, table)
        if indices.dtype != "i32" or indices.rank != 1:
            raise OpError(f"needs numbers of rows of i32 [T], got {indices}")
        return Type((indices.shape[0], None if w.shape[1] is None else w.shape[1] * block), "f32")

    @staticmethod
    def reference(indices, *weights, **attributes):
        parts: list[Any] = [None if x is None else x[indices] for x in weights]
        return dequantized(*parts, **attributes)

    @staticmethod
    def decompose(b, indices, *weights, **attributes):
        made = _weights(b, weights, attributes)
        shape = (indices.shape[0], made.shape[1])
        return b.compute(Type(shape, "f32"), lambda t, k: b.load(made, [b.cast(b.load(indices, [t]), "index"), k]))


class QuantizeBlocks(Operator):
    """x f32 [M, K] in blocks along K as signed bytes: q i8 [M, K], with a scale f32 [M, K / block] each (its largest
    absolute value / 127), and the sums of every `part` bytes, i32 [M, K / part].

    Rounds to the nearest, halves to even. What is not finite makes the scale of its block so, and with it the results
    of its row.

    ``"tw.quantize_blocks"(%x) {block = 32, part = 16} : (tensor<1x64xf32>) -> (tensor<1x64xi8>, ...)``
    """

    kind = "opaque"
    multiple = True

    @staticmethod
    def infer(x, *, block: int, part: int):
        if x.dtype != "f32" or x.rank != 2:
            raise OpError(f"needs x of f32 [M, K], got {x}")
        if block not in BLOCKS or part not in BLOCKS or block % part or (x.shape[1] or 0) % block:
            raise OpError(f"cannot cut rows of {x} into blocks of {block} and sums of {part}")
        m, k = x.shape
        return [Type((m, k), "i8"), Type((m, k // block), "f32"), Type((m, k // part), "i32")]

    @staticmethod
    def reference(x, *, block, part):
        blocks = x.astype(np.float32).reshape(len(x), x.shape[1] // block, block)
        most = np.abs(blocks).max(-1, initial=0)
        with np.errstate(invalid="ignore"):  # numbers that are none end as some byte
            inverse = np.divide(np.float32(LARGEST), most, out=np.zeros_like(most), where=~(most < NOTHING))
            q = np.rint(blocks * inverse[..., None]).astype(np.int8)
        sums = q.reshape(len(x), -1, part).sum(-1, dtype=np.int32)
        return [q.reshape(x.shape), most * np.float32(1 / LARGEST), sums]


class IntegerBlockMatmul(Operator):
    """What `QuantizeBlocks` made of x, times the transpose of weights as in `BlockMatmul`: f32 [M, N].

    The products within a block are summed exactly in i32. zero: ui8 [N, B]. sums: of the blocks of weights; a block of
    x may be several of these.

    ``"tw.integer_block_matmul"(%q, %xs, %sums, %w, %s) {bits = 4} : (tensor<1x64xi8>, ...) -> ...``
    """

    kind = "opaque"

    @staticmethod
    def infer(
        x, xscale, sums, w, scale, zero=None, inner=None, minimum=None, inner_minimum=None, *, bits: int,
        offset: int = -1, table: tuple[int, ...] = (),
    ):  # fmt: skip
        block = _check_weights(w, scale, zero, inner, minimum, inner_minimum, bits, table)
        if x.dtype != "i8" or xscale.dtype != "f32" or sums.dtype != "i32" or (zero and zero.dtype not in ZEROS):
            raise OpError(f"needs i8, f32, i32 and a zero point of ui8, got {x}, {xscale}, {sums} and {zero}")
        if x.rank != 2:
            raise OpError(f"needs x [M, K], got {x}")
        m, blocks = x.shape[0], w.shape[1]
        need_shape("x", x, (m, blocks * block))
        need_shape("sums", sums, (m, blocks))
        need_shape("xscale", xscale, (m, None))
        if not xscale.shape[1] or blocks % xscale.shape[1]:
            raise OpError(f"{xscale.shape[1]} scales of x do not divide {blocks} blocks")
        return Type((m, w.shape[0]), "f32")

    @staticmethod
    def reference(
        x, xscale, sums, w, scale, zero=None, inner=None, minimum=None, inner_minimum=None, *, bits, offset=-1, table=()
    ):
        dtype = np.float64 if xscale.dtype == np.float64 else np.float32
        blocks = w.shape[1]
        rows = x.astype(np.float64).reshape(len(x), blocks, -1)
        weights = factors(w, zero, bits, offset, table, np.float64)
        exact = np.einsum("mbk,nbk->mbn", rows, weights, optimize=True).astype(dtype)
        scales = np.repeat(xscale.astype(dtype), blocks // xscale.shape[1], 1)[..., None]
        made = exact * leveled(scale, inner, dtype).T
        if minimum is not None:
            made -= sums.astype(dtype)[..., None] * leveled(minimum, inner_minimum, dtype).T
        return (made * scales).sum(1)

    @staticmethod
    def scaled(b, x, xscale):
        """The rows as f32 at level 3."""
        (m, k), blocks = x.shape, xscale.shape[1]
        d = [b.dim(i) for i in range(3)]
        wide = b.empty(Type((m, blocks, k // blocks), "f32"))
        inputs = [(b.reshape(x, wide.shape), d), (xscale, d[:2])]
        (rows,) = b.generic(inputs, [(wide, d)], "ppp", lambda v, s, _: b.cast(v, "f32") * s)
        return b.reshape(rows, (m, k))

    @staticmethod
    def decompose(b, x, xscale, sums, *weights, **attributes):
        rows = IntegerBlockMatmul.scaled(b, x, xscale)
        return b.contract("mk,nk->mn", rows, _weights(b, weights, attributes), dtype="f32")


def _weights(b, operands, attributes):
    return _dequantized(b, *operands, *[None] * (6 - len(operands)), **attributes)
