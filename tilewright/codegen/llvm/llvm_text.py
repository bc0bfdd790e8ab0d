"""Translates LLVM IR text of the MLIR wheel's version (LLVM 24) to what llvmlite's version (LLVM 22) reads.

What differs is how floating-point literals are spelled. LLVM 24 writes short decimals (``float 1.000000e-01``), names
(``+inf``, ``-qnan``, ``nan(0x2)``, ``snan(0x1)``) and plain bit patterns (``f0x3DCCCCCD``); LLVM 22 takes a decimal
only if it is exact, has no names, and wants the bits of a float written as those of the double of the same value. We
write every literal as bits. A literal has the type that stands last before it on its line: LLVM's grammar puts one
there always.
"""

from __future__ import annotations

import re
import struct
from functools import lru_cache

from ...support.errors import CompileError

_LITERAL = re.compile(
    r"""
      "[^"]*" | ;[^\n]*                                      # strings and comments: left alone
    | (?<=[\s,(\[<{])                                        # not inside a name such as %x.1 or @f32.5
      (?P<literal> f0x[0-9A-Fa-f]+
                 | [+-]?(?: inf | qnan | s?nan\(0x[0-9A-Fa-f]+\) | \d+\.\d*(?:[eE][+-]?\d+)? ))
      (?= [\s,)\]>}] | $ )""",
    re.VERBOSE | re.MULTILINE,
)
_TYPE = re.compile(r"(?<![%@!\w.$#-])(half|bfloat|float|double|x86_fp80|fp128|ppc_fp128)(?![\w.])")

#: width, mantissa bits and the letter after 0x
_FORMATS = {"half": (16, 10, "H"), "bfloat": (16, 7, "R"), "float": (32, 23, ""), "double": (64, 52, "")}


def to_llvm22(text: str) -> str:
    """Rewrite the floating literals of a module.

    >>> to_llvm22("  %1 = fadd float %0, 1.000000e-01")
    '  %1 = fadd float %0, 0x3FB99999A0000000'
    >>> to_llvm22("  ret half -inf")
    '  ret half 0xHFC00'
    """

    def replace(match: re.Match[str]) -> str:
        literal = match["literal"]
        return match[0] if literal is None else _spell(literal, _type_before(match.string, match.start()))

    lines = text.split("\n")
    for i, line in enumerate(lines):
        if "float " in line or "half " in line or "double " in line or "fp" in line:  # few have a literal
            lines[i] = _LITERAL.sub(replace, line)
    return "\n".join(lines)


def _type_before(text: str, position: int) -> str:
    line = text.rfind("\n", 0, position) + 1
    for window in (24, 256, position - line):  # nearly always the type is close by; lines of tables are long
        found = _TYPE.findall(text, max(line, position - window), position)
        if found:
            return found[-1]
    where = text[line : text.find("\n", position)]
    raise CompileError(f"floating literal without a type in LLVM IR: {where.strip()!r}", stage="assemble")


@lru_cache(maxsize=4096)
def _spell(literal: str, kind: str) -> str:
    if kind not in _FORMATS:
        raise CompileError(f"constants of type {kind} are not supported: {literal}", stage="assemble")
    width, mantissa, letter = _FORMATS[kind]
    bits = _bits(literal, width, mantissa)
    if kind == "float":
        return f"0x{_widen(bits):016X}"
    return f"0x{letter}{bits:0{width // 4}X}"


def _bits(literal: str, width: int, mantissa: int) -> int:
    """The bit pattern of a literal in a binary format, rounded once, ties to even."""
    if literal.startswith("f0x"):
        return int(literal[3:], 16)
    sign = (1 << width - 1) if literal[0] == "-" else 0
    body = literal.lstrip("+-")
    exponent_ones = (1 << width - 1) - (1 << mantissa)
    quiet = 1 << mantissa - 1
    if body == "inf":
        return sign | exponent_ones
    if body == "qnan":
        return sign | exponent_ones | quiet
    if body.startswith(("nan(", "snan(")):
        payload = int(body[body.index("(") + 1 : -1], 16)
        return sign | exponent_ones | payload | (0 if body[0] == "s" else quiet)
    return sign | min(_round(body, width, mantissa), exponent_ones)


def _round(number: str, width: int, mantissa: int) -> int:
    from fractions import Fraction  # models that are loaded again have no use for it

    value = Fraction(number)
    if value == 0:
        return 0
    bias = (1 << width - mantissa - 2) - 1
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if value < Fraction(2) ** exponent:
        exponent -= 1
    exponent = max(exponent, 1 - bias)  # below: subnormal
    significand = round(value / Fraction(2) ** (exponent - mantissa))
    return ((exponent + bias - 1) << mantissa) + significand  # a carry or the hidden bit runs into the exponent


def _widen(bits: int) -> int:
    """The bits of a float as those of the equal double; the payload of a NaN is kept."""
    if bits >> 23 & 255 == 255:
        return (bits >> 31) << 63 | 0x7FF << 52 | (bits & 0x7FFFFF) << 29
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    return struct.unpack("<Q", struct.pack("<d", value))[0]
