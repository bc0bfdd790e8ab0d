"""Known weights ``(codes - zero) * scale`` in the form that `BlockMatmul` reads: the size of a block, the bits of a
number, words, scales and zero points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .block_quantized import BITS, BLOCKS

#: larger blocks save less than 2% of the memory of weights of 8 bits
LARGEST_BLOCK = 256
#: the part of a row that may be added so that blocks fill it
PADDING = 1 / 8


@dataclass(frozen=True)
class BlockWeights:
    """Weights [N, K]: ui32 words [N, blocks, block * bits / 32], f32 scales [N, blocks], zero points [N, blocks] of ui8
    or f32, None for half of the range."""

    words: np.ndarray
    scale: np.ndarray
    zero: np.ndarray | None
    bits: int
    block: int


def packed(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Numbers [N, blocks, block] of ui8 below ``2**bits`` as words, the first in the lowest bits.

    >>> [hex(w) for w in packed(np.arange(16, dtype=np.uint8).reshape(1, 1, 16), 4)[0, 0]]
    ['0x76543210', '0xfedcba98']
    """
    each = 8 // bits
    parts = numbers.reshape(*numbers.shape[:2], -1, each)
    made = parts[..., 0].copy()
    for i in range(1, each):
        made |= parts[..., i] << (bits * i)
    return np.ascontiguousarray(made).view("<u4")


def block_weights(codes: np.ndarray, zero: np.ndarray, scale: np.ndarray) -> BlockWeights | None:
    """Weights [N, K] of integers of at most 8 bits; zero and scale broadcast to their shape. None if there is no size
    of a block in which zero and scale are the same.

    >>> w = block_weights(np.arange(-8, 8)[None], np.zeros((1, 1)), np.ones((1, 1), np.float32))
    >>> w.bits, w.block, w.words.shape, w.zero
    (4, 16, (1, 1, 2), None)
    """
    block = _block_size(codes.shape[1], zero, scale)
    if block is None or not codes.size:
        return None
    n, k = codes.shape
    scale, zero = (np.broadcast_to(a, (n, k))[:, ::block] for a in (scale, zero))
    bits, low, zeros = _range(codes, zero)
    padding = -k % block
    numbers = np.pad((codes - low).astype(np.uint8), ((0, 0), (0, padding)))
    words = packed(numbers.reshape(n, -1, block), bits)
    return BlockWeights(words, np.ascontiguousarray(scale, np.float32), zeros, bits, block)


def _block_size(k: int, *parameters: np.ndarray) -> int | None:
    """The largest size of a block along rows of k in which the parameters do not change."""
    for block in reversed([b for b in BLOCKS if b <= LARGEST_BLOCK]):
        if -k % block > PADDING * k and block != BLOCKS[0]:
            continue
        if all(_same_within(p, k, block) for p in parameters):
            return block
    return None


def _same_within(p: np.ndarray, k: int, block: int) -> bool:
    if p.shape[1] == 1:
        return True
    whole = k // block * block
    parts = p[:, :whole].reshape(len(p), -1, block)
    rest = p[:, whole:]
    return bool((parts == parts[..., :1]).all() and (rest == rest[:, :1]).all())


def _range(codes: np.ndarray, zero: np.ndarray) -> tuple[int, int, np.ndarray | None]:
    """Bits, the code that becomes 0, and the zero points after that."""
    least, most = int(codes.min()), int(codes.max())
    first = zero.flat[0]
    if first == np.rint(first) and (zero == first).all():
        for bits in BITS:
            half = 1 << bits - 1
            if first - half <= least and most < first + half:
                return bits, int(first) - half, None
    bits = next(b for b in BITS if most - least < 1 << b)
    zero = np.asarray(zero, np.float64) - least
    if (zero == np.rint(zero)).all() and zero.min() >= 0 and zero.max() <= 255:
        return bits, least, np.ascontiguousarray(zero, np.uint8)
    return bits, least, np.ascontiguousarray(zero, np.float32)


__all__ = ["BlockWeights", "block_weights", "packed"]
