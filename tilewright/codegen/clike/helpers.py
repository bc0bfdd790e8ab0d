"""Helper functions that printed kernels may call, such as conversions and division; a file defines those that it
uses."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Helper:
    """C text of a function ``tw_<name>``, whether it needs math.h, and the helpers that it calls."""

    text: str
    math: bool = False
    needs: tuple[str, ...] = ()


def _one_line(head: str, body: str, math: bool = False) -> Helper:
    return Helper(f"static inline {head}\n{{\n    {body}\n}}\n", math)


def _float_helpers(d: str, c: str, bits: str, suffix: str) -> dict[str, Helper]:
    pair = f"{c} a, {c} b"
    one = f"1.0{suffix}"
    union = f"union {{ {bits} bits; {c} value; }} u;"
    largest = f"{'FLT' if d == 'f32' else 'DBL'}_MAX"
    return {
        # NaN wins
        f"maximumf_{d}": _one_line(f"{c} tw_maximumf_{d}({pair})", "return a > b || a != a ? a : b;"),
        f"minimumf_{d}": _one_line(f"{c} tw_minimumf_{d}({pair})", "return a < b || a != a ? a : b;"),
        # a number wins over NaN
        f"maxnumf_{d}": _one_line(f"{c} tw_maxnumf_{d}({pair})", "return a > b || b != b ? a : b;"),
        f"minnumf_{d}": _one_line(f"{c} tw_minnumf_{d}({pair})", "return a < b || b != b ? a : b;"),
        f"rsqrt_{d}": _one_line(f"{c} tw_rsqrt_{d}({c} x)", f"return {one} / sqrt{suffix}(x);", math=True),
        f"sigmoid_{d}": _one_line(
            f"{c} tw_sigmoid_{d}({c} x)", f"return {one} / ({one} + exp{suffix}(-x));", math=True
        ),
        f"isnan_{d}": _one_line(f"int tw_isnan_{d}({c} x)", "return x != x;"),
        f"isfinite_{d}": _one_line(f"int tw_isfinite_{d}({c} x)", f"return x >= -{largest} && x <= {largest};"),
        f"isinf_{d}": _one_line(f"int tw_isinf_{d}({c} x)", f"return x < -{largest} || x > {largest};"),
        f"bits_{d}": _one_line(f"{c} tw_bits_{d}({bits} bits)", f"{union}\n    u.bits = bits;\n    return u.value;"),
        f"float_bits_{d}": _one_line(
            f"{bits} tw_float_bits_{d}({c} value)", f"{union}\n    u.value = value;\n    return u.bits;"
        ),
        **{f"fptosi_{d}_{t}": _saturating(d, c, suffix, t) for t in ("i8", "i16", "i32", "i64")},
        **{f"fptoui_{d}_{t}": _saturating(d, c, suffix, t, unsigned=True) for t in ("i8", "i16", "i32", "i64")},
    }


def _saturating(d: str, c: str, suffix: str, to: str, unsigned: bool = False) -> Helper:
    """Float to integer: cut towards zero, limited to the range, NaN to 0."""
    bits = int(to[1:])
    kind = f"{'u' if unsigned else ''}int{bits}_t"
    name = f"tw_fpto{'u' if unsigned else 's'}i_{d}_{to}"
    low = f"0.0{suffix}" if unsigned else f"-{2.0 ** (bits - 1):.1f}{suffix}"
    high = f"{2.0 ** (bits if unsigned else bits - 1):.1f}{suffix}"
    small, large = ("0", f"UINT{bits}_MAX") if unsigned else (f"INT{bits}_MIN", f"INT{bits}_MAX")
    body = f"if (!(x > {low}))\n        return x != x ? 0 : {small};\n    return x < {high} ? ({kind})x : {large};"
    return _one_line(f"{kind} {name}({c} x)", body)


def _int_helpers(d: str) -> dict[str, Helper]:
    c, u, bits = f"int{d[1:]}_t", f"uint{d[1:]}_t", int(d[1:])
    pair, upair = f"{c} a, {c} b", f"{u} a, {u} b"
    smallest = f"INT{bits}_MIN"
    return {
        f"max_{d}": _one_line(f"{c} tw_max_{d}({pair})", "return a > b ? a : b;"),
        f"min_{d}": _one_line(f"{c} tw_min_{d}({pair})", "return a < b ? a : b;"),
        f"maxui_{d}": _one_line(f"{u} tw_maxui_{d}({upair})", "return a > b ? a : b;"),
        f"minui_{d}": _one_line(f"{u} tw_minui_{d}({upair})", "return a < b ? a : b;"),
        f"absi_{d}": _one_line(f"{c} tw_absi_{d}({c} a)", f"return a < 0 && a != {smallest} ? ({c})-a : a;"),
        # division by zero gives 0 (and all remains), the smallest number divided by -1 itself
        f"divsi_{d}": _one_line(
            f"{c} tw_divsi_{d}({pair})",
            f"if (b == 0)\n        return 0;\n    return b == -1 ? ({c})(0u - ({u})a) : ({c})(a / b);",
        ),
        f"remsi_{d}": _one_line(f"{c} tw_remsi_{d}({pair})", f"return b == 0 ? a : b == -1 ? 0 : ({c})(a % b);"),
        f"floordivsi_{d}": Helper(
            f"static inline {c} tw_floordivsi_{d}({pair})\n{{\n    const {c} q = tw_divsi_{d}(a, b);\n"
            f"    return b != 0 && b != -1 && a % b != 0 && (a < 0) != (b < 0) ? ({c})(q - 1) : q;\n}}\n",
            needs=(f"divsi_{d}",),
        ),
        f"ceildivsi_{d}": Helper(
            f"static inline {c} tw_ceildivsi_{d}({pair})\n{{\n    const {c} q = tw_divsi_{d}(a, b);\n"
            f"    return b != 0 && b != -1 && a % b != 0 && (a < 0) == (b < 0) ? ({c})(q + 1) : q;\n}}\n",
            needs=(f"divsi_{d}",),
        ),
        f"divui_{d}": _one_line(f"{u} tw_divui_{d}({upair})", f"return b == 0 ? 0 : ({u})(a / b);"),
        f"remui_{d}": _one_line(f"{u} tw_remui_{d}({upair})", f"return b == 0 ? a : ({u})(a % b);"),
        f"ceildivui_{d}": _one_line(
            f"{u} tw_ceildivui_{d}({upair})", f"return b == 0 ? 0 : ({u})(a / b + (a % b != 0 ? 1 : 0));"
        ),
        # shifts by the width or more
        f"shli_{d}": _one_line(f"{c} tw_shli_{d}({pair})", f"return ({u})b < {bits}u ? ({c})(({u})a << ({u})b) : 0;"),
        f"shrsi_{d}": _one_line(
            f"{c} tw_shrsi_{d}({pair})", f"return ({u})b < {bits}u ? ({c})(a >> b) : ({c})(a < 0 ? -1 : 0);"
        ),
        f"shrui_{d}": _one_line(f"{u} tw_shrui_{d}({upair})", f"return b < {bits}u ? ({u})(a >> b) : 0;"),
    }


HELPERS: dict[str, Helper] = {
    **_float_helpers("f32", "float", "uint32_t", "f"),
    **_float_helpers("f64", "double", "uint64_t", ""),
    **{name: helper for d in ("i8", "i16", "i32", "i64") for name, helper in _int_helpers(d).items()},
    "dot4_i32": _one_line(
        "int32_t tw_dot4_i32(int32_t w, int8_t a, int8_t b, int8_t c, int8_t d)",
        "uint32_t u = (uint32_t)w;\n    return (int32_t)(u & 255u) * a + (int32_t)(u >> 8 & 255u) * b\n"
        "        + (int32_t)(u >> 16 & 255u) * c + (int32_t)(u >> 24) * d;",
    ),
    "table4_i32": _one_line(
        "int32_t tw_table4_i32(int32_t w, int32_t a, int32_t b, int32_t c, int32_t d)",
        "uint32_t t[4] = {(uint32_t)a, (uint32_t)b, (uint32_t)c, (uint32_t)d}, u = (uint32_t)w, found = 0u;\n"
        "    for (uint32_t i = 0u; i < 32u; i += 8u) {\n        uint32_t at = u >> i & 15u;\n"
        "        found |= (t[at >> 2] >> 8u * (at & 3u) & 255u) << i;\n    }\n    return (int32_t)found;",
    ),
    "mulhsi_i32": _one_line(
        "int32_t tw_mulhsi_i32(int32_t a, int32_t b)", "return (int32_t)(((int64_t)a * (int64_t)b) >> 32);"
    ),
}
