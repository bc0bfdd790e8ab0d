"""Weights as integers with a scale, and perhaps a minimum, for each block of a row."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...ops.block_weights import BlockWeights
from ...support.errors import UsageError

BITS, BLOCKS = (4, 8), (16, 32, 64, 128)
#: parts of the largest scale that are tried where the importance of numbers is known
SHRUNK = (1.0, 0.95, 0.9, 0.85, 0.8, 0.7)
#: the largest f16
LARGEST = 65504.0


@dataclass(frozen=True)
class Format:
    """bits: of a weight. block: weights of a row that share a scale. minimum: whether each block has one; otherwise
    weights lie around zero. Scales and minima are f16.

    >>> Format(4, 16, False).rounded(np.arange(-8, 8, dtype=np.float32)[None]).dequantized()[0, :3].tolist()
    [-8.0, -7.0, -6.0]
    """

    bits: int = 4
    block: int = 32
    minimum: bool = False

    def __post_init__(self) -> None:
        for name, value, allowed in (("bits", self.bits, BITS), ("a block", self.block, BLOCKS)):
            if value not in allowed:
                raise UsageError(f"{name} of {value}: {', '.join(map(str, allowed))} are possible")

    def fitting(self, k: int) -> Format | None:
        """This format, with blocks that rows of k numbers are made of; None if none fits."""
        blocks = [b for b in BLOCKS if b <= self.block and k % b == 0]
        return replace(self, block=max(blocks)) if blocks else None

    def parameters(self, w: np.ndarray, part: float = 1.0) -> tuple[np.ndarray, np.ndarray | None]:
        """Scale and minimum (f16 [...]) of blocks [..., block], for a part of their range."""
        if self.minimum:
            low, high = (part * np.minimum(w.min(-1), 0), part * np.maximum(w.max(-1), 0))
            return _half((high - low) / ((1 << self.bits) - 1)), _half(-low)
        extreme = np.take_along_axis(w, np.abs(w).argmax(-1)[..., None], -1)[..., 0]
        return _half(part * extreme / -(1 << self.bits - 1)), None  # the largest number is the lowest code, exactly

    def codes(self, w: np.ndarray, scale: np.ndarray, minimum: np.ndarray | None) -> np.ndarray:
        """Numbers (ui8) of blocks [..., block]."""
        d = scale.astype(np.float32)[..., None]
        zero = 1 << self.bits - 1 if minimum is None else minimum.astype(np.float32)[..., None]
        inverse = np.divide(1, d, out=np.zeros_like(d), where=d != 0)
        q = w * inverse + zero if minimum is None else (w + zero) * inverse
        return np.clip(np.rint(q), 0, (1 << self.bits) - 1).astype(np.uint8)

    def values(self, codes: np.ndarray, scale: np.ndarray, minimum: np.ndarray | None) -> np.ndarray:
        """What numbers stand for, f32 [..., block]."""
        d = scale.astype(np.float32)[..., None]
        if minimum is None:
            return (codes.astype(np.float32) - (1 << self.bits - 1)) * d
        return codes.astype(np.float32) * d - minimum.astype(np.float32)[..., None]

    def packed(self, codes: np.ndarray, scale: np.ndarray, minimum: np.ndarray | None) -> BlockWeights:
        """Of codes [N, B, block], scale and minimum [N, B]."""
        offset = 1 << self.bits - 1 if minimum is None else 0
        flat = codes.reshape(len(codes), -1)
        return BlockWeights.of_codes(flat, self.bits, self.block, scale, minimum=minimum, offset=offset)

    def rounded(self, w: np.ndarray, importance: np.ndarray | None = None) -> BlockWeights:
        """Weights [N, K] rounded to nearest. importance: of each column [K]; the range of each block is then chosen
        for the smallest sum of importance * error²."""
        blocks = np.asarray(w, np.float32).reshape(len(w), -1, self.block)
        best = self.parameters(blocks)
        if importance is not None:
            weight = importance.reshape(1, -1, self.block)
            least = np.full(blocks.shape[:2], np.inf, np.float32)
            for part in SHRUNK:
                tried = self.parameters(blocks, part)
                error = (weight * (self.values(self.codes(blocks, *tried), *tried) - blocks) ** 2).sum(-1)
                better = error < least
                for kept, new in zip((least, *best), (error, *tried), strict=True):
                    if kept is not None and new is not None:
                        kept[better] = new[better]
        return self.packed(self.codes(blocks, *best), *best)


def _half(a: np.ndarray) -> np.ndarray:
    return np.clip(a, -LARGEST, LARGEST).astype(np.float16)


__all__ = ["BITS", "BLOCKS", "Format"]
