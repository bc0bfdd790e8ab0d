"""Rows written into pages as numbers of 8 or 4 bits: a small cache of keys and values.

Each row of a head has a scale. Before it is cut to so few bits it is rotated: multiplied by a Hadamard matrix, which
spreads what is large over all numbers. Products of rotated rows are those of the rows.

Error of rows of 128 normal numbers (root of mean square, relative): 0.65% with 8 bits, 12% with 4. Where four of the
numbers are ten times as large it is 0.54% and 10%; without the rotation that would be 1.8% and 30%.
"""

from __future__ import annotations

import numpy as np

from ..ir.dialect import Operator
from ..support.errors import OpError
from .common import fits, need, need_shape

#: rows without a number as large as this are zeros
NOTHING = 1e-30


class WriteQuantizedPages(Operator):
    """Pages and scales, in which the rows [T, H, D] have taken their places as in `write_pages` (slots: i32 [T]).

    scales: floats [P, L, H]. pages: i8 [P, L, H, D], or [P, L, H, D / 2] with two numbers of 4 bits a byte: number d
    in the low half of byte d, number d + D / 2 in the high half, each 8 more than it is. A row is rotated (`rotated`),
    its scale is the largest absolute value / 127 (4 bits: / 7), and its numbers are rounded to multiples of that.

    Opaque: where the results lie in the memory of `pages` and `scales`, as for states, the rows alone are written.

    ``"tw.write_quantized_pages"(%pages, %scales, %rows, %slots) : (tensor<100x16x2x64xi8>, tensor<100x16x2xf32>,
    tensor<6x2x64xf32>, tensor<6xi32>) -> ...``
    """

    kind = "opaque"
    multiple = True

    @staticmethod
    def infer(pages, scales, rows, slots):
        need("float", rows, scales)
        if pages.rank != 4 or pages.dtype != "i8" or rows.rank != 3:
            raise OpError(f"pages are i8 [P, L, H, D] and rows [T, H, D], got {pages} and {rows}")
        if slots.dtype != "i32":
            raise OpError(f"slots are of i32, got {slots}")
        need_shape("slots", slots, (rows.shape[0],))
        need_shape("scales", scales, pages.shape[:3])
        need_shape("rows", rows, (rows.shape[0], pages.shape[2], None))
        bits_of(pages, rows.shape[2])
        return [pages, scales]

    @staticmethod
    def reference(pages, scales, rows, slots):
        pages, scales = pages.copy(), scales.copy()
        flat = pages.reshape(-1, *pages.shape[2:])
        there = (slots >= 0) & (slots < len(flat))
        numbers, scale = quantized(rows[there], 8 * pages.shape[3] // rows.shape[2], scales.dtype)
        flat[slots[there]] = numbers
        scales.reshape(-1, scales.shape[2])[slots[there]] = scale
        return pages, scales


# ---- pages with scales ---------------------------------------------------------------------------------------------


def bits_of(pages, depth: int | None) -> int:
    """Bits of a number in pages of i8 whose rows have `depth` numbers."""
    if depth is None or pages.shape[3] is None:
        return 8
    if not (fits(pages.shape[3:], (depth,)) or (depth % 2 == 0 and pages.shape[3] == depth // 2)):
        raise OpError(f"rows of {depth} numbers need {depth} or {depth // 2} bytes, got pages {pages}")
    return 8 if pages.shape[3] == depth else 4


def rotation(depth: int) -> int:
    """The size of the Hadamard matrices that rotate `depth` numbers: the largest power of two that divides it.

    >>> rotation(128), rotation(80)
    (128, 16)
    """
    return depth & -depth


def rotated(x: np.ndarray) -> np.ndarray:
    """x times a Hadamard matrix over sqrt(n) in blocks of n = `rotation` along its last axis; its own inverse.

    >>> rotated(np.array([2.0, 0, 0, 0]))
    array([1., 1., 1., 1.])
    """
    n = rotation(x.shape[-1])
    y, width = x.reshape(*x.shape[:-1], -1, n), 1
    while width < n:
        pairs = y.reshape(*y.shape[:-1], -1, 2, width)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        y, width = np.stack([a + b, a - b], -2).reshape(y.shape), 2 * width
    return (y / np.sqrt(x.dtype.type(n))).reshape(x.shape)


def quantized(rows: np.ndarray, bits: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Rows [..., D] as pages with scales have them, and their scales [...]."""
    x = rotated(rows.astype(np.float64 if rows.dtype == np.float64 else np.float32))
    most = np.abs(x).max(-1)
    largest = (1 << bits - 1) - 1
    scale = most * x.dtype.type(1 / largest)
    ratio = np.where(most < NOTHING, 0, largest / np.where(most < NOTHING, 1, most)).astype(x.dtype)
    numbers = np.rint(x * ratio[..., None]).astype(np.int8)
    if bits == 4:
        low, high = np.split((numbers + 8).astype(np.uint8), 2, -1)
        numbers = (low | high << 4).view(np.int8)
    return numbers, scale.astype(dtype)


def unquantized(pages: np.ndarray, scales: np.ndarray, depth: int) -> np.ndarray:
    """The rows of pages, rotated as they are."""
    dtype = np.float64 if scales.dtype == np.float64 else np.float32
    numbers = pages.astype(dtype)
    if pages.shape[-1] != depth:
        raw = pages.view(np.uint8)
        numbers = np.concatenate([raw & 15, raw >> 4], -1).astype(dtype) - 8
    return numbers * scales[..., None].astype(dtype)


__all__ = ["WriteQuantizedPages", "bits_of", "quantized", "rotated", "rotation", "unquantized"]
