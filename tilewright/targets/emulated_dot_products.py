"""LLVM IR of emulated byte dot products, ``tw_dot_words7_N`` and ``tw_dot_words8_N``: products of the bytes of N words
with those of N others, added to N sums (N 0: one scalar word).

The bytes of the first words have no sign, and 7 bits at most in the first of the two; those of the second are signed.
"""

from __future__ import annotations

from collections.abc import Collection

PREFIX = "tw_dot_words"


def definition(name: str, arch: str, features: Collection[str]) -> str:
    """The definition of one of the functions for a processor."""
    bits, lanes = (int(x) for x in name.removeprefix(PREFIX).split("_"))
    t = f"<{lanes} x i32>" if lanes else "i32"
    declared, body = _body(lanes, bits, arch, set(features))
    return (
        f"{declared}define internal {t} @{name}({t} %acc, {t} %a, {t} %b) alwaysinline nounwind {{\n"
        f"{body}  ret {t} %result\n}}\n"
    )


def _body(lanes: int, bits: int, arch: str, have: set[str]) -> tuple[str, str]:
    """(declarations of intrinsics, statements up to %result)."""
    wide = 32 * lanes
    if arch == "x86_64" and wide in (128, 256, 512):
        own = {"avx512vnni"} if wide == 512 else {"avxvnni"} | ({"avx512vnni"} if "avx512vl" in have else set())
        if have & own:
            return _intrinsic(f"llvm.x86.avx512.vpdpbusd.{wide}", lanes)
        names = _PAIRS.get(wide)
        if names and names[0] in have:
            return _by_pairs(lanes, *names[1:]) if bits == 7 else _by_halves(lanes, names[2])
    if arch == "aarch64" and "dotprod" in have and lanes == 4 and bits == 7:
        return _sdot()
    return "", _one_by_one(lanes)


#: bits of a vector -> feature, products of bytes summed in pairs, and those of 16-bit integers
_PAIRS = {
    128: ("ssse3", "llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd"),
    256: ("avx2", "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"),
    512: ("avx512bw", "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512"),
}


def _intrinsic(name: str, lanes: int) -> tuple[str, str]:
    v = f"<{lanes} x i32>"
    return f"declare {v} @{name}({v}, {v}, {v})\n", f"  %result = call {v} @{name}({v} %acc, {v} %a, {v} %b)\n"


def _by_pairs(lanes: int, pairs: str, sums: str) -> tuple[str, str]:
    """Two products of 7 and 8 bits fit 16."""
    v, h, q = f"<{lanes} x i32>", f"<{2 * lanes} x i16>", f"<{4 * lanes} x i8>"
    declared = f"declare {h} @{pairs}({q}, {q})\ndeclare {v} @{sums}({h}, {h})\n"
    return declared, (
        f"  %x = bitcast {v} %a to {q}\n  %y = bitcast {v} %b to {q}\n"
        f"  %pairs = call {h} @{pairs}({q} %x, {q} %y)\n"
        f"  %sum = call {v} @{sums}({h} %pairs, {h} splat (i16 1))\n  %result = add {v} %acc, %sum\n"
    )


def _by_halves(lanes: int, sums: str) -> tuple[str, str]:
    """Even and odd bytes as 16-bit integers."""
    v, h = f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
    return f"declare {v} @{sums}({h}, {h})\n", (
        f"  %x = bitcast {v} %a to {h}\n  %y = bitcast {v} %b to {h}\n"
        f"  %x0 = and {h} %x, splat (i16 255)\n  %x1 = lshr {h} %x, splat (i16 8)\n"
        f"  %up = shl {h} %y, splat (i16 8)\n  %y0 = ashr {h} %up, splat (i16 8)\n  %y1 = ashr {h} %y, splat (i16 8)\n"
        f"  %even = call {v} @{sums}({h} %x0, {h} %y0)\n  %odd = call {v} @{sums}({h} %x1, {h} %y1)\n"
        f"  %sum = add {v} %even, %odd\n  %result = add {v} %acc, %sum\n"
    )


def _sdot() -> tuple[str, str]:
    intrinsic = "@llvm.aarch64.neon.sdot.v4i32.v16i8"
    return f"declare <4 x i32> {intrinsic}(<4 x i32>, <16 x i8>, <16 x i8>)\n", (
        "  %x = bitcast <4 x i32> %a to <16 x i8>\n  %y = bitcast <4 x i32> %b to <16 x i8>\n"
        f"  %result = call <4 x i32> {intrinsic}(<4 x i32> %acc, <16 x i8> %x, <16 x i8> %y)\n"
    )


def _one_by_one(lanes: int) -> str:
    t = f"<{lanes} x i32>" if lanes else "i32"

    def number(n: int) -> str:
        return f"splat (i32 {n})" if lanes else str(n)

    lines, total = [], "%acc"
    for i in range(4):
        after = "%result" if i == 3 else f"%sum{i}"
        lines += [
            f"%ar{i} = lshr {t} %a, {number(8 * i)}",
            f"%x{i} = and {t} %ar{i}, {number(255)}",
            f"%br{i} = shl {t} %b, {number(24 - 8 * i)}",
            f"%y{i} = ashr {t} %br{i}, {number(24)}",
            f"%p{i} = mul {t} %x{i}, %y{i}",
            f"{after} = add {t} {total}, %p{i}",
        ]
        total = after
    return "".join(f"  {x}\n" for x in lines)
