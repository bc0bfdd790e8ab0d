"""Formulas of sizes as C: what a compiler makes of them is what Python computes, within the ranges that are told."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess

import pytest

from tilewright.codegen.clike.c99 import C99
from tilewright.codegen.clike.formulas import c_formula, dim_names
from tilewright.program.open_sizes import SizeTable
from tilewright.support import sizes
from tilewright.support.formulas import formula
from tilewright.support.sizes import Dim
from tilewright.targets.c.open_sizes import OpenText

DIMS = (Dim("batch", 1, 64), Dim("seq", 8, 512, 8), Dim("int", 3, 50))
MADE = [
    lambda a, b, n: a + b,
    lambda a, b, n: a - b,
    lambda a, b, n: a * n,
    lambda a, b, n: a * b,
    lambda a, b, n: a // n,
    lambda a, b, n: a // b if b != 0 else a,
    lambda a, b, n: sizes.smaller(a, b),
    lambda a, b, n: sizes.larger(a, b),
    lambda a, b, n: -(-a // n) * n,
    lambda a, b, n: (a + n) % 8,
]


def made(count: int, seed: int) -> list[int]:
    """Random sizes, and what is made of them."""
    rng = random.Random(seed)
    found: list[int] = []
    with sizes.open_sizes(DIMS) as known:
        pool = [*known.symbols, 3, 5]
        while len(found) < count:
            try:
                x = rng.choice(MADE)(rng.choice(pool), rng.choice(pool), rng.randint(1, 9))
            except sizes.Undecided:
                continue
            if len(str(x)) < 120 and c_formula(formula(x), DIMS).peak < 1 << 31:
                pool.append(x)
                found.append(x)
    return found


def cases() -> list[dict[str, int]]:
    rng = random.Random(1)
    ends = [{d.name: rng.choice([-(-d.low // d.divisor), d.high // d.divisor]) * d.divisor for d in DIMS}]
    some = [{d.name: rng.randint(-(-d.low // d.divisor), d.high // d.divisor) * d.divisor for d in DIMS}]
    return [c for _ in range(6) for c in (*ends, *some)] + [{"batch": 1, "seq": 8, "int": 3}]


@pytest.mark.parametrize("bits", [32, 64])
def test_a_compiler_finds_what_python_finds(bits, tmp_path):
    cc = next((n for n in ("cc", "gcc", "clang") if shutil.which(n)), None)
    if cc is None:
        pytest.skip("no C compiler is installed")
    values = made(150, bits)
    written = [c_formula(formula(x), DIMS, bits) for x in values]
    given = ", ".join(f"int32_t {n}" for n in dim_names(DIMS).values())
    rows = "\n".join(f"    out[{i}] = {w.text};" for i, w in enumerate(written))
    helpers = C99.definitions({h for w in written for h in w.helpers} | {f"divsi_i{bits}"})
    (tmp_path / "f.c").write_text(f"#include <stdint.h>\n{helpers}\nvoid f({given}, int64_t *out)\n{{\n{rows}\n}}\n")
    flags = ("-std=c99", "-shared", "-fPIC")
    subprocess.run([cc, *flags, "-o", "f.so", "f.c"], cwd=tmp_path, check=True)
    f = ctypes.CDLL(str(tmp_path / "f.so")).f
    out = (ctypes.c_int64 * len(values))()
    for at in cases():
        f(*(at[d.name] for d in DIMS), out)
        for x, w, got in zip(values, written, out, strict=True):
            assert got == sizes.value_at(x, at), (w.text, at)
            assert w.low <= got <= w.high, (w.text, at)


def test_the_range_of_what_grows_with_sizes_is_exact():
    assert c_formula("160*d1 + 64*d0 + 16", DIMS).high == 160 * 512 + 64 * 64 + 16
    assert c_formula("((d1 + 1)//2)", DIMS).high == 256
    assert c_formula("(-8*(d0//8) + d0)", DIMS).text == "batch - 8 * (batch / 8)"


def test_a_helper_floors_where_c_does_not():
    assert c_formula("((d0 - 9)//4)", DIMS).text == "tw_floordivsi_i32(batch - 9, 4)"
    assert c_formula("(d1//8)*8", DIMS).text == "seq"


def test_more_than_31_bits_are_computed_in_64():
    """Then the compiler of a machine with shorter addresses is told so."""
    dims = (Dim("n", 1, 60_000), Dim("m", 1, 60_000))
    shapes = (("d0", "d1"),)
    text = OpenText("big", SizeTable(dims, shapes, shapes, ("0", "4*d1*d0"), "8*d1*d0"))
    assert text.arena == 8 * 60_000 * 60_000
    code = text.definitions()
    assert "(size_t)(8 * (int64_t)m * (int64_t)n)" in code and "#if SIZE_MAX < BIG_ARENA_SIZE" in code
    assert text.places(["place1"])[1].endswith("base + (4 * (int64_t)m * (int64_t)n);")
