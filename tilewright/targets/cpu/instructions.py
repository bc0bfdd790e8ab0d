"""Byte dot-product instructions of x86-64 and aarch64."""

from __future__ import annotations

from ...schedule.machine import DotProduct
from ..instructions import product
from ..processor import Processor


def _has_vnni512(d: Processor) -> bool:
    return d.arch == "x86_64" and "avx512vnni" in d.features and d.vector_bytes == 64


def _has_vnni256(d: Processor) -> bool:
    return d.arch == "x86_64" and bool({"avx512vnni", "avxvnni"} & {*d.features}) and d.vector_bytes == 32


def _has_sdot(d: Processor) -> bool:
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
