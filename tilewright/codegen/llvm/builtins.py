"""Conversions to and from 16-bit floats that LLVM calls by name where the CPU has no instruction for them.

They belong to the compiler's support library, which a Python process does not have to contain; so every program brings
its own, in LLVM IR and integer arithmetic. Rounding is to nearest, ties to even; NaNs stay NaNs and become quiet.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class _Format:
    llvm: str
    width: int
    mantissa: int

    @property
    def bias(self) -> int:
        return (1 << self.width - self.mantissa - 2) - 1

    @property
    def infinity(self) -> int:
        return (2 * self.bias + 1) << self.mantissa


_DOUBLE, _FLOAT = _Format("double", 64, 52), _Format("float", 32, 23)
_HALF, _BFLOAT = _Format("half", 16, 10), _Format("bfloat", 16, 7)


_NARROWINGS = {
    "__truncsfhf2": (_FLOAT, _HALF),
    "__truncdfhf2": (_DOUBLE, _HALF),
    "__truncsfbf2": (_FLOAT, _BFLOAT),
    "__truncdfbf2": (_DOUBLE, _BFLOAT),
}
#: the names of the functions
BUILTINS = (*_NARROWINGS, "__extendhfsf2")


def builtins_llvm() -> str:
    """The definitions of all support functions."""
    return "\n".join((*(_narrow(name, *formats) for name, formats in _NARROWINGS.items()), _EXTEND_HALF))


def _narrow(name: str, source: _Format, target: _Format) -> str:
    """A function that rounds `source` to `target`, which has 16 bits."""
    dropped = source.mantissa - target.mantissa
    rebias = source.bias - target.bias
    quiet = 1 << target.mantissa - 1
    return _NARROW.format(
        name=name,
        source=source.llvm,
        target=target.llvm,
        i=f"i{source.width}",
        sign_shift=source.width - 16,
        magnitude=(1 << source.width - 1) - 1,
        source_infinity=source.infinity,
        infinity=target.infinity,
        quiet_nan=target.infinity | quiet,
        payload=quiet - 1,
        dropped=dropped,
        below_half=(1 << dropped - 1) - 1,
        rebias=rebias << source.mantissa,
        too_large=(source.bias + target.bias + 1) << source.mantissa,
        # With equal exponent ranges a subnormal is rounded like any other number.
        smallest=(rebias + 1) << source.mantissa if rebias else 0,
        first_exponent=rebias + 1,
        mantissa=source.mantissa,
        all_shifted=source.mantissa + 1,
        mantissa_mask=(1 << source.mantissa) - 1,
        hidden=1 << source.mantissa,
    )


_NARROW = """\
define {target} @{name}({source} %x) nounwind {{
  %bits = bitcast {source} %x to {i}
  %high = lshr {i} %bits, {sign_shift}
  %high16 = trunc {i} %high to i16
  %sign = and i16 %high16, -32768
  %mag = and {i} %bits, {magnitude}

  ; a number that is normal in the target: change the exponent, add just under a half, cut
  %unit0 = lshr {i} %mag, {dropped}
  %unit = and {i} %unit0, 1
  %rebased = sub {i} %mag, {rebias}
  %bumped0 = add {i} %rebased, {below_half}
  %bumped = add {i} %bumped0, %unit
  %normal = lshr {i} %bumped, {dropped}

  ; a subnormal: shift the significand, remembering whether anything was lost
  %exponent = lshr {i} %mag, {mantissa}
  %shift0 = sub {i} {first_exponent}, %exponent
  %far = icmp ugt {i} %shift0, {all_shifted}
  %shift = select i1 %far, {i} {all_shifted}, {i} %shift0
  %fraction = and {i} %mag, {mantissa_mask}
  %significand = or {i} %fraction, {hidden}
  %shifted = lshr {i} %significand, %shift
  %back = shl {i} %shifted, %shift
  %lost = icmp ne {i} %back, %significand
  %sticky = zext i1 %lost to {i}
  %small_unit0 = lshr {i} %shifted, {dropped}
  %small_unit = and {i} %small_unit0, 1
  %marked = or {i} %shifted, %sticky
  %small_bumped0 = add {i} %marked, {below_half}
  %small_bumped = add {i} %small_bumped0, %small_unit
  %subnormal = lshr {i} %small_bumped, {dropped}

  %is_small = icmp ult {i} %mag, {smallest}
  %finite = select i1 %is_small, {i} %subnormal, {i} %normal
  %is_large = icmp uge {i} %mag, {too_large}
  %number = select i1 %is_large, {i} {infinity}, {i} %finite
  %payload0 = lshr {i} %mag, {dropped}
  %payload = and {i} %payload0, {payload}
  %nan = or {i} %payload, {quiet_nan}
  %is_nan = icmp ugt {i} %mag, {source_infinity}
  %result = select i1 %is_nan, {i} %nan, {i} %number
  %low = trunc {i} %result to i16
  %signed = or i16 %low, %sign
  %y = bitcast i16 %signed to {target}
  ret {target} %y
}}
"""

_EXTEND_HALF = """\
define float @__extendhfsf2(half %x) nounwind {
  %bits = bitcast half %x to i16
  %wide = zext i16 %bits to i32
  %sign0 = and i32 %wide, 32768
  %sign = shl i32 %sign0, 16
  %mag = and i32 %wide, 32767
  %placed = shl i32 %mag, 13
  %normal = add i32 %placed, 939524096          ; exponent bias 127 - 15
  %special = or i32 %placed, 2139095040         ; infinity or NaN
  %count = uitofp i32 %mag to float             ; a subnormal is a count of 2^-24
  %tiny = fmul float %count, 0x3E70000000000000
  %tiny_bits = bitcast float %tiny to i32
  %is_tiny = icmp ult i32 %mag, 1024
  %is_special = icmp uge i32 %mag, 31744
  %finite = select i1 %is_tiny, i32 %tiny_bits, i32 %normal
  %value = select i1 %is_special, i32 %special, i32 %finite
  %signed = or i32 %value, %sign
  %y = bitcast i32 %signed to float
  ret float %y
}
"""
