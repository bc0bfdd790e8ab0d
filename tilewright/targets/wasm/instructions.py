"""Byte dot products with WebAssembly's SIMD instructions."""

from __future__ import annotations

from ...schedule.machine import DotProduct
from ..instructions import product
from ..processor import Processor


def _has_vectors(d: Processor) -> bool:
    return d.arch == "wasm32" and "simd128" in d.features


#: even and odd bytes as 16-bit integers, which LLVM makes once for all sums of a tile; two sums of products of pairs
_DOT = """declare <4 x i32> @llvm.wasm.dot(<8 x i16>, <8 x i16>)
define internal <4 x i32> @NAME(<4 x i32> %acc, <4 x i32> %a, <4 x i32> %b) alwaysinline nounwind {
  %x = bitcast <4 x i32> %a to <8 x i16>
  %y = bitcast <4 x i32> %b to <8 x i16>
  %xu = shl <8 x i16> %x, splat (i16 8)
  %x0 = ashr <8 x i16> %xu, splat (i16 8)
  %x1 = ashr <8 x i16> %x, splat (i16 8)
  %yu = shl <8 x i16> %y, splat (i16 8)
  %y0 = ashr <8 x i16> %yu, splat (i16 8)
  %y1 = ashr <8 x i16> %y, splat (i16 8)
  %even = call <4 x i32> @llvm.wasm.dot(<8 x i16> %x0, <8 x i16> %y0)
  %odd = call <4 x i32> @llvm.wasm.dot(<8 x i16> %x1, <8 x i16> %y1)
  %sum = add <4 x i32> %even, %odd
  %result = add <4 x i32> %acc, %sum
  ret <4 x i32> %result
}
"""

#: with the tile of sums that fits the registers
INSTRUCTIONS = (product(DotProduct("wasm_ss", 4, 4, ("s", "s"), 4, 2), _DOT, _has_vectors),)
