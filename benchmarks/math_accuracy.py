"""Measure the math functions of `tilewright.tensor.mathlib` against float64 and write docs/math_accuracy.md.

The error of a result is its distance from the exact value in units in the last place (ULP) of a float32 of that size.
A result that must be infinite, NaN or a signed zero has no error if it is just that, and an infinite one otherwise.
``python benchmarks/math_accuracy.py [--step 1009]`` takes every step-th float32 bit pattern, and all patterns near
special points.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tilewright.tensor.evaluate import evaluate
from tilewright.tensor.expr import Op, Var
from tilewright.tensor.mathlib import BINARY, FUNCTIONS, TABLED, expand

DOC = Path(__file__).parent.parent / "docs" / "math_accuracy.md"
CHUNK = 1 << 16
#: the bounds that the docstrings state and the tests check
BOUNDS = {
    **dict.fromkeys(("log", "cbrt"), 1.0),
    **dict.fromkeys(("exp", "exp2", "erf"), 1.25),
    "expm1": 1.75,
    **dict.fromkeys(("sigmoid", "tanh", "sinh", "cosh", "log2", "log10", "log1p", "rsqrt"), 2.0),
    **dict.fromkeys(("sin", "cos", "asin", "acos", "atan"), 2.0),
    "tan": 3.5,
    **dict.fromkeys(("asinh", "acosh", "atanh", "atan2", "powf"), 3.0),
}
SPECIAL = (0.0, 1.0, 0.5, 0.75, 2 / 3, 4 / 3, 2.0, math.pi / 2, math.pi, 88.72284, 87.33655, 103.97208, 128.0, 126.0)
SPECIAL += (
    149.0,
    0.921875,
    3.92,
    4.0,
    9.01,
    20.0,
    17.33,
    2.0**-126,
    2.0**-25,
    2.0**30,
    1e5,
    2.0**17,
    math.inf,
    3.4028235e38,
)
# the floats next to multiples of pi/2, among all and among the largest ones
SPECIAL += (16367173.0 * 2.0**72, 12438944.0 * 2.0**103)


def truth(name: str, x: np.ndarray, y: np.ndarray | None) -> np.ndarray:
    """The function in float64."""
    if name == "erf":
        return np.fromiter(map(math.erf, x), np.float64, len(x))
    if name == "sigmoid":
        e = np.exp(-np.abs(x))
        return np.where(x < 0, e, 1.0) / (1.0 + e)
    if name == "rsqrt":
        return 1.0 / np.sqrt(x)
    if name == "powf":
        return np.power(x, y)
    if name == "atan2":
        return np.arctan2(x, y)
    inverse = name in ("asin", "acos", "atan", "asinh", "acosh", "atanh")
    return getattr(np, f"arc{name[1:]}" if inverse else name)(x)


def ulps(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Distance in ULP; infinite where NaN, infinity or the sign of zero is wrong."""
    with np.errstate(all="ignore"):
        return _ulps(result, exact)


def _ulps(result: np.ndarray, exact: np.ndarray) -> np.ndarray:
    nearest = exact.astype(np.float32)
    exponent = np.maximum(np.frexp(np.abs(np.where(np.isfinite(exact), exact, 1.0)))[1] - 1, -126)
    error = np.abs(result.astype(np.float64) - exact) / np.ldexp(1.0, np.minimum(exponent, 127) - 23)
    over = np.isinf(nearest)
    # an overflow that is missed by rounding is one ULP, as the largest float is the neighbour of infinity
    error = np.where(over, np.where(result == nearest, 0.0, np.where(np.isinf(exact), np.inf, error)), error)
    error = np.where(np.isinf(result) & ~over, np.where(np.abs(exact) > 3.402823e38, 1.0, np.inf), error)
    error = np.where(np.isnan(exact), np.where(np.isnan(result), 0.0, np.inf), error)
    error = np.where(np.isnan(result) & ~np.isnan(exact), np.inf, error)
    return np.where((exact == 0) & (np.signbit(result) != np.signbit(exact)), np.inf, error)


def patterns(step: int, dense: int) -> np.ndarray:
    """Every step-th bit pattern, and `dense` neighbours on each side of the special points, as float32."""
    near = np.array([v for s in SPECIAL for v in (s, -s)], np.float32).view(np.int32).astype(np.int64)
    swept = (near[:, None] + np.arange(-dense, dense + 1)).ravel() % (1 << 32)
    every = np.arange(0, 1 << 32, step, dtype=np.int64)
    return np.unique(np.concatenate([every, swept])).astype(np.uint32).view(np.float32)


def pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Arguments of two-argument functions: bit patterns, powers that do not overflow, and all special pairs."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)
    y = rng.integers(0, 1 << 32, count, dtype=np.uint32).view(np.float32)
    base = np.exp(rng.normal(0, 2, count)).astype(np.float32)
    near_one = (1 + rng.normal(0, 0.2, count)).astype(np.float32)
    with np.errstate(all="ignore"):
        exponent = (rng.uniform(-104, 89, count) / np.log(base)).astype(np.float32)
        exponent_one = (rng.uniform(-104, 89, count) / np.log(np.abs(near_one))).astype(np.float32)
    whole = rng.integers(-30, 30, count).astype(np.float32)
    points = (0.0, 1.0, 0.5, 2.0, 3.0, 4.0, 1.5, 2.5, 1e10, 16777217.0, 8388609.0, 3.4e38, 1e-40, 0.9999999, math.inf)
    special = np.array([v for p in points for v in (p, -p)] + [math.nan], np.float32)
    sx, sy = (a.ravel() for a in np.meshgrid(special, special))
    xs = np.concatenate([x, base, near_one, x, rng.normal(0, 3, count).astype(np.float32), sx])
    ys = np.concatenate([y, exponent, exponent_one, near_one, whole, sy])
    return xs, ys


def chunks(name: str, step: int, dense: int) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
    if name in BINARY:
        xs, ys = pairs((1 << 32) // step // 8)
        for i in range(0, len(xs), CHUNK):
            yield xs[i : i + CHUNK], ys[i : i + CHUNK]
        return
    points = patterns(step, dense)
    for i in range(0, len(points), CHUNK):
        yield points[i : i + CHUNK], None


def measure(
    name: str, step: int = 1009, dense: int = 2000, *, tables: bool = False
) -> tuple[float, tuple[float, ...], int]:
    """(largest error in ULP, the arguments it happens at, number of points). `tables` as for `expand`."""
    x, y = Var("x", "f32"), Var("y", "f32")
    expression = expand(name, (x, y) if name in BINARY else (x,), "f32", tables=tables)
    assert expression is not None
    worst, where, count = -1.0, (0.0,), 0
    for a, b in chunks(name, step, dense):
        result = evaluate(expression, {"x": a} if b is None else {"x": a, "y": b})
        with np.errstate(all="ignore"):
            exact = truth(name, a.astype(np.float64), None if b is None else b.astype(np.float64))
        error = ulps(result, exact)
        i = int(np.argmax(error))
        count += len(a)
        if error[i] > worst:
            worst, where = float(error[i]), (float(a[i]),) if b is None else (float(a[i]), float(b[i]))
    return worst, where, count


def operations(name: str, *, tables: bool = False) -> Counter[str]:
    """How often each operation stands in the expansion, bit casts (free on vectors) and large angles left out."""
    args = (Var("x", "f32"), Var("y", "f32")) if name in BINARY else (Var("x", "f32"),)
    expression = expand(name, args, "f32", tables=tables)
    assert expression is not None
    found: Counter[str] = Counter()
    todo, seen = [expression], set()
    while todo:
        node = todo.pop()
        if id(node) not in seen and isinstance(node, Op):
            seen.add(id(node))
            found[node.op.split(".")[0]] += node.op != "bitcast"
            # of a branch that is hardly ever taken the test counts
            todo += [a for i, a in enumerate(node.args) if node.op != "seldom" or i != 1]
    return found


INTRODUCTION = """# Accuracy of the math functions

float32 math is computed by polynomials in vector registers (`tilewright/tensor/mathlib/`). Vectors of
AVX-512 have instructions that make tables of sixteen numbers worth it; what uses them stands in lines of its own. This
page is written by `benchmarks/math_accuracy.py`; the coefficients by `benchmarks/fit_polynomials.py`.

The error is the distance from the float64 value in units in the last place (ULP) of float32; a correctly rounded result
has at most 0.5. Infinities, NaN, signed zeros, overflow limits and denormal results are checked at every point as well.
Measured over every {step}th of the 2^32 bit patterns and all patterns near special points; for two arguments, over
{pairs} random and special pairs.

`sin`, `cos` and `tan` keep their bound for all finite arguments. Those beyond 2^17 are reduced in integers (Payne and
Hanek), in a branch that is only taken when a vector has one; its operations are not counted. Infinity is NaN.

`sqrt`, `floor`, `fma` and the like are machine operations, exactly rounded. float16 and bfloat16 are computed in
float32 and rounded once more; float64 goes to the C library, but for `expm1` (within 3 ULP).

`exp2` of whole numbers, `log2` of powers of two and `log10` of powers of ten are exact, so `floor(log2(2^k))` is k.

| function | bound (ULP) | measured (ULP) | at | operations | of which fma | divisions and roots |
|---|---|---|---|---|---|---|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", type=int, default=1009)
    parser.add_argument("--only", nargs="*", help="these functions, without writing the page")
    arguments = parser.parse_args()
    rows = []
    names = arguments.only or sorted(FUNCTIONS)
    for name, tables in [(n, t) for n in names for t in ((False, True) if n in TABLED else (False,))]:
        worst, where, count = measure(name, arguments.step, tables=tables)
        used = operations(name, tables=tables)
        at = ", ".join(f"{v:.9g}" for v in where)
        slow = used["divf"] + used["sqrt"]
        label = f"`{name}`, AVX-512" if tables else f"`{name}`"
        row = f"| {label} | {BOUNDS[name]:g} | {worst:.2f} | {at} | {used.total()} | {used['fma']} | {slow} |"
        print(row, f"{count} points", "" if worst <= BOUNDS[name] else "TOO LARGE", flush=True)
        rows.append(row)
    if not arguments.only:
        text = INTRODUCTION.format(step=arguments.step, pairs=len(pairs((1 << 32) // arguments.step // 8)[0]))
        DOC.write_text(text + "\n".join(rows) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
