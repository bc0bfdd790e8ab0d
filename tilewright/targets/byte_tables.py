"""LLVM IR of ``tw_table_N``: the four bytes of N words (0: one scalar word), each from 0 to 15, as those of a table of
sixteen bytes, which are four words."""

from __future__ import annotations

from collections.abc import Collection

PREFIX = "tw_table_"
#: bits of a vector -> feature and intrinsic of x86 that looks up bytes within 128 bits
_X86 = {
    128: ("ssse3", "llvm.x86.ssse3.pshuf.b.128"),
    256: ("avx2", "llvm.x86.avx2.pshuf.b"),
    512: ("avx512bw", "llvm.x86.avx512.pshuf.b.512"),
}


def definition(name: str, arch: str, features: Collection[str]) -> str:
    """The definition of one of the functions for a processor."""
    lanes = int(name.removeprefix(PREFIX))
    t = f"<{lanes} x i32>" if lanes else "i32"
    found = _X86.get(32 * lanes) if arch == "x86_64" else None
    if found and found[0] in features:
        declared, body = _looked_up(lanes, found[1])
    elif arch == "aarch64" and "neon" in features and lanes == 4:
        declared, body = _looked_up(lanes, "llvm.aarch64.neon.tbl1.v16i8")
    else:
        declared, body = "", _one_by_one(t, lanes)
    return (
        f"{declared}define internal {t} @{name}({t} %word, <4 x i32> %table) alwaysinline nounwind {{\n"
        f"{body}  ret {t} %result\n}}\n"
    )


def _looked_up(lanes: int, intrinsic: str) -> tuple[str, str]:
    q = f"<{4 * lanes} x i8>"
    again = ", ".join(f"i32 {i % 4}" for i in range(lanes))
    return f"declare {q} @{intrinsic}({q}, {q})\n", (
        f"  %all = shufflevector <4 x i32> %table, <4 x i32> poison, <{lanes} x i32> <{again}>\n"
        f"  %t = bitcast <{lanes} x i32> %all to {q}\n  %i = bitcast <{lanes} x i32> %word to {q}\n"
        f"  %found = call {q} @{intrinsic}({q} %t, {q} %i)\n  %result = bitcast {q} %found to <{lanes} x i32>\n"
    )


def _one_by_one(t: str, lanes: int) -> str:
    """The word of the table by three choices, then its byte."""

    def number(n: int) -> str:
        return f"splat (i32 {n})" if lanes else str(n)

    lines = []
    for w in range(4):
        lines.append(f"%e{w} = extractelement <4 x i32> %table, i32 {w}")
        if lanes:
            lines.append(f"%h{w} = insertelement {t} poison, i32 %e{w}, i32 0")
            lines.append(f"%w{w} = shufflevector {t} %h{w}, {t} poison, <{lanes} x i32> zeroinitializer")
        else:
            lines.append(f"%w{w} = add i32 %e{w}, 0")
    c = f"<{lanes} x i1>" if lanes else "i1"
    total = number(0)
    for i in range(4):
        after = "%result" if i == 3 else f"%sum{i}"
        lines += [
            f"%at{i} = lshr {t} %word, {number(8 * i)}",
            *(f"%b{i}_{b} = and {t} %at{i}, {number(b)}" for b in (3, 4, 8)),
            *(f"%c{i}_{b} = icmp ne {t} %b{i}_{b}, {number(0)}" for b in (4, 8)),
            f"%low{i} = select {c} %c{i}_4, {t} %w1, {t} %w0",
            f"%high{i} = select {c} %c{i}_4, {t} %w3, {t} %w2",
            f"%own{i} = select {c} %c{i}_8, {t} %high{i}, {t} %low{i}",
            f"%by{i} = shl {t} %b{i}_3, {number(3)}",
            f"%down{i} = lshr {t} %own{i}, %by{i}",
            f"%byte{i} = and {t} %down{i}, {number(255)}",
            f"%up{i} = shl {t} %byte{i}, {number(8 * i)}",
            f"{after} = or {t} {total}, %up{i}",
        ]
        total = after
    return "".join(f"  {x}\n" for x in lines)
