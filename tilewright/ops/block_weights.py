"""Known weights in the form that `BlockMatmul` reads: the size of a block, the bits of a number, words, scales, zero
points and minima."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from ..support.huge_pages import copy_released, scratch_empty
from ..support.lazy_array import LazyArray
from .block_quantized import BLOCKS, dequantized, packed

#: bits that weights of integers are kept in
BITS = (2, 4, 8)
#: larger blocks save less than 2% of the memory of weights of 8 bits
LARGEST_BLOCK = 256
#: the part of a row that may be added so that blocks fill it
PADDING = 1 / 8
#: fields of `BlockWeights` that are arrays
FIELDS = ("words", "scale", "zero", "inner", "minimum", "inner_minimum")


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """Weights [N, K] in blocks along K: ``w[n, k] = d[n, b] * c - m[n, b]`` for number q of block b, where c is
    ``q - offset`` (a negative `offset` is half of the range), ``q - zero[n, b]`` or ``table[q]``.

    words: ui32 [N, B, block * bits / 32], as `packed` makes them of the codes q. d is `scale` (floats [N, B]; f8E8M0FNU
    too); with `inner` (i8, ui8 or f8E4M3FN [N, B]) it is of two levels, ``scale[n, b // (B / S)] * inner[n, b]`` with
    scale [N, S]. m is `minimum` in the same way, with `inner_minimum`; None for 0. zero: ui8 or floats [N, B].
    make: computes the weights, where the arrays are `LazyArray`s (`BlockWeights.lazy`).

    >>> codes = np.arange(16, dtype=np.uint8).reshape(1, 16)
    >>> w = BlockWeights.of_codes(codes, 4, 16, np.full((1, 1), 0.5, np.float16))
    >>> w.dequantized().tolist()[0][:3]
    [-4.0, -3.5, -3.0]
    """

    words: Any
    scale: Any
    zero: Any
    bits: int
    block: int
    inner: Any = None
    minimum: Any = None
    inner_minimum: Any = None
    offset: int = -1
    table: tuple[int, ...] = ()
    make: Callable[[], BlockWeights] | None = None

    @staticmethod
    def of_codes(codes: np.ndarray, bits: int, block: int, scale: np.ndarray, **more: Any) -> BlockWeights:
        """Of codes ui8 [N, K] below ``2**bits``, K a multiple of `block`; `more`: the other fields."""
        numbers = np.ascontiguousarray(codes, np.uint8).reshape(len(codes), -1, block)
        return BlockWeights(packed(numbers, bits), scale, more.pop("zero", None), bits, block, **more)

    @staticmethod
    def lazy(like: BlockWeights, rows: int, make: Callable[[], BlockWeights]) -> BlockWeights:
        """So many rows that `make` computes, in the form of other weights. Their arrays are read one after the other,
        and computed together once for that."""
        made = _Once(make)
        fields = {n: partial(made.array, n) for n in like.arrays}
        later = {n: LazyArray((rows, *a.shape[1:]), a.dtype, fields[n]) for n, a in like.arrays.items()}
        return replace(like, **later, make=make)  # type: ignore[arg-type]

    def read(self) -> BlockWeights:
        """The weights with arrays in memory."""
        return self if self.make is None else self.make()

    @property
    def arrays(self) -> dict[str, Any]:
        """The arrays that there are, by the names of their fields."""
        return {n: a for n in FIELDS if (a := getattr(self, n)) is not None}

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)"""
        return self.words.shape[0], self.words.shape[1] * self.block

    @property
    def operands(self) -> tuple[Any, ...]:
        """What `BlockMatmul` takes behind x."""
        return tuple(getattr(self, n) for n in FIELDS)

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes of `BlockMatmul`."""
        return {"bits": self.bits, "offset": self.offset, "table": self.table}

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.operands if a is not None)

    def dequantized(self, dtype: type = np.float32) -> np.ndarray:
        """The weights [N, K]; each operation is rounded to `dtype`."""
        return dequantized(*self.read().operands, **self.attributes, dtype=dtype)

    @staticmethod
    def joined(parts: Sequence[BlockWeights]) -> BlockWeights | None:
        """Weights below each other, along N, `lazy` if they are several; None if they are not of one form."""
        first = parts[0]
        for p in parts[1:]:
            forms = [[None if a is None else (a.dtype, a.shape[1:]) for a in w.operands] for w in (first, p)]
            if forms[0] != forms[1] or first.attributes != p.attributes:
                return None
        rows = sum(p.shape[0] for p in parts)

        def make() -> BlockWeights:
            shapes = {n: ((rows, *a.shape[1:]), a.dtype) for n, a in first.arrays.items()}
            made: dict[str, Any] = {n: scratch_empty(*s) for n, s in shapes.items()}
            at = 0
            for p in parts:
                read = p.read()
                for n, a in made.items():
                    copy_released(getattr(read, n), a[at : at + p.shape[0]])
                at += p.shape[0]
            return replace(first, **made, make=None)

        return first if len(parts) == 1 else BlockWeights.lazy(first, rows, make)


class _Once:
    """What a function gives, kept until another one of these is called."""

    last: ClassVar[weakref.ref[_Once] | None] = None

    def __init__(self, make: Callable[[], BlockWeights]) -> None:
        self.make = make
        self.value: BlockWeights | None = None

    def array(self, name: str) -> np.ndarray:
        made = self.value
        if made is None:
            if _Once.last is not None and (other := _Once.last()) is not None:
                other.value = None
            made = self.value = self.make()
            _Once.last = weakref.ref(self)
        return np.asarray(getattr(made, name))


def ordered(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Words [N, blocks, words] of bytes [N, blocks, bytes] that have numbers of 2, 4 or 8 bits one after the other, the
    first in the lowest bits.

    >>> hex(ordered(np.array([[[0x10, 0x32, 0x54, 0x76]]], np.uint8), 4).item())
    '0x73625140'
    """
    words = numbers.view("<u4")
    if bits == 8:
        return words
    made = np.zeros_like(words)
    for t in range(32 // bits):
        to = 8 * (t % 4) + bits * (t // 4)
        made |= ((words >> np.uint32(bits * t)) & np.uint32((1 << bits) - 1)) << np.uint32(to)
    return made


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


__all__ = ["BITS", "BlockWeights", "block_weights", "ordered"]
