"""Instructions for sums of products of bytes on x86-64 and aarch64: what schedules know of them, and their LLVM IR."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...schedule.machine import DotProduct

if TYPE_CHECKING:
    from .host import CpuDescription


@dataclass(frozen=True)
class Instruction:
    """A function that kernels call, inlined by LLVM: `definition` with ``@NAME`` for its name, the processors that have
    it, and the sum of products that it is, if it is one (then it is called ``tw_dot_`` and the name of that)."""

    name: str
    definition: str
    there: Callable[[CpuDescription], bool]
    dot: DotProduct | None = None


def product(dot: DotProduct, definition: str, there: Callable[[CpuDescription], bool]) -> Instruction:
    """One for a sum of products."""
    return Instruction(f"tw_dot_{dot.name}", definition, there, dot)


def dot_products(description: CpuDescription) -> tuple[DotProduct, ...]:
    """Those that a processor has, the best first."""
    return tuple(i.dot for i in INSTRUCTIONS if i.dot is not None and i.there(description))


def _has_vnni512(d: CpuDescription) -> bool:
    return d.arch == "x86_64" and "avx512vnni" in d.features and d.vector_bytes == 64


def _has_vnni256(d: CpuDescription) -> bool:
    return d.arch == "x86_64" and bool({"avx512vnni", "avxvnni"} & {*d.features}) and d.vector_bytes == 32


def _has_sdot(d: CpuDescription) -> bool:
    return d.arch == "aarch64" and "dotprod" in d.features


def _vnni(lanes: int) -> str:
    v = f"<{lanes} x i32>"
    intrinsic = f"@llvm.x86.avx512.vpdpbusd.{32 * lanes}"
    return f"""declare {v} {intrinsic}({v}, {v}, {v})
define internal {v} @NAME({v} %acc, {v} %a, {v} %b) alwaysinline nounwind {{
  %result = call {v} {intrinsic}({v} %acc, {v} %a, {v} %b)
  ret {v} %result
}}
"""


def _neon() -> str:
    intrinsic = "@llvm.aarch64.neon.sdot.v4i32.v16i8"
    return f"""declare <4 x i32> {intrinsic}(<4 x i32>, <16 x i8>, <16 x i8>)
define internal <4 x i32> @NAME(<4 x i32> %acc, <4 x i32> %a, <4 x i32> %b) alwaysinline nounwind {{
  %x = bitcast <4 x i32> %a to <16 x i8>
  %y = bitcast <4 x i32> %b to <16 x i8>
  %result = call <4 x i32> {intrinsic}(<4 x i32> %acc, <16 x i8> %x, <16 x i8> %y)
  ret <4 x i32> %result
}}
"""


#: with the tile of sums that fits the registers
INSTRUCTIONS = (
    product(DotProduct("vnni512_us", 16, 4, ("u", "s"), 13, 2), _vnni(16), _has_vnni512),
    product(DotProduct("vnni256_us", 8, 4, ("u", "s"), 6, 2), _vnni(8), _has_vnni256),
    product(DotProduct("neon_ss", 4, 4, ("s", "s"), 8, 3), _neon(), _has_sdot),
)
