"""AVX-512 BF16: dot products of pairs of bf16 (``vdpbf16ps``).

    acc[l] + dot2(a, b[l], c, d[l])   ->   llvm.x86.avx512bf16.dpbf16ps(acc, [a c a c ...], [b0 d0 b1 d1 ...])

The instruction takes 16 lanes of pairs. Its rounding is its own: it adds the two products one after the other, rounds
to nearest even whatever the mode says, and takes denormals for zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schedule.machine import PairProduct, Rate

if TYPE_CHECKING:
    from .description import CpuDescription

#: lanes of sums -> the intrinsic
INTRINSICS = {n: f"llvm.x86.avx512bf16.dpbf16ps.{32 * n}" for n in (4, 8, 16)}
FEATURE = "avx512bf16"
#: the one that schedules are made for
PAIRS = PairProduct("dpbf16ps", "bf16", 16, Rate(6, 2))


def pair_product(description: CpuDescription) -> PairProduct | None:
    """That of a processor, if it has one."""
    return PAIRS if FEATURE in description.features and description.vector_bytes >= 4 * PAIRS.lanes else None
