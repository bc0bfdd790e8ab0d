"""DSP instructions of Cortex-M processors: byte dot products, and the upper word of a product."""

from __future__ import annotations

from ...schedule.machine import DotProduct
from ..instructions import InlineFunction, product
from ..processor import Processor


def _multiplies_pairs(d: Processor) -> bool:
    return d.cpu in ("cortex-m4", "cortex-m7", "cortex-m33")


def _has_vectors(d: Processor) -> bool:
    return d.cpu == "cortex-m55"


def _has_no_long_product(d: Processor) -> bool:
    return d.arch == "thumbv6m"


#: bytes 0 and 2, then 1 and 3, as pairs of 16 bits; two dual multiply-adds
_SMLAD = """declare i32 @llvm.arm.sxtb16(i32)
declare i32 @llvm.arm.smlad(i32, i32, i32)
declare i32 @llvm.fshr.i32(i32, i32, i32)
define internal i32 @NAME(i32 %acc, i32 %a, i32 %b) alwaysinline nounwind {
  %ar = call i32 @llvm.fshr.i32(i32 %a, i32 %a, i32 8)
  %br = call i32 @llvm.fshr.i32(i32 %b, i32 %b, i32 8)
  %a0 = call i32 @llvm.arm.sxtb16(i32 %a)
  %b0 = call i32 @llvm.arm.sxtb16(i32 %b)
  %a1 = call i32 @llvm.arm.sxtb16(i32 %ar)
  %b1 = call i32 @llvm.arm.sxtb16(i32 %br)
  %first = call i32 @llvm.arm.smlad(i32 %a0, i32 %b0, i32 %acc)
  %second = call i32 @llvm.arm.smlad(i32 %a1, i32 %b1, i32 %first)
  ret i32 %second
}
"""

_MVE = """declare i32 @llvm.arm.mve.vmldava.v16i8(i32, i32, i32, i32, <16 x i8>, <16 x i8>)
define internal i32 @NAME(i32 %acc, <16 x i8> %a, <16 x i8> %b) alwaysinline nounwind {
  %result = call i32 @llvm.arm.mve.vmldava.v16i8(i32 0, i32 0, i32 0, i32 %acc, <16 x i8> %a, <16 x i8> %b)
  ret i32 %result
}
"""

#: without a product of 64 bits: a = a1 * 2**16 + a0 with a0 >= 0, b alike
_UPPER_WORD_IN_HALVES = """define internal i32 @NAME(i32 %a, i32 %b) noinline nounwind {
  %a0 = and i32 %a, 65535
  %a1 = ashr i32 %a, 16
  %b0 = and i32 %b, 65535
  %b1 = ashr i32 %b, 16
  %low = mul i32 %a0, %b0
  %carry = lshr i32 %low, 16
  %p = mul i32 %a1, %b0
  %middle = add i32 %p, %carry
  %m0 = and i32 %middle, 65535
  %m1 = ashr i32 %middle, 16
  %q = mul i32 %a0, %b1
  %other = add i32 %q, %m0
  %o1 = ashr i32 %other, 16
  %high = mul i32 %a1, %b1
  %s = add i32 %high, %m1
  %result = add i32 %s, %o1
  ret i32 %result
}
"""

#: with the tile of sums that fits the registers
INSTRUCTIONS = (
    product(DotProduct("smlad_ss", 0, 4, ("s", "s"), 2, 2), _SMLAD, _multiplies_pairs),
    product(DotProduct("mve_ss", 0, 16, ("s", "s"), 1, 4), _MVE, _has_vectors),
    InlineFunction("tw_mulhsi_0", _UPPER_WORD_IN_HALVES, _has_no_long_product),
)
