"""Fit the polynomials of `tilewright.tensor.mathlib` and write its `coefficients.py`.

Every fit is a weighted minimax problem: minimise the largest ``weight(x) * |target(x) - P(variable(x))|``, where the
weight turns the error of the polynomial into the relative error of the function that uses it. It is solved by Remez
exchange on a dense grid, with the function values taken from mpmath. Coefficients are then rounded to float32 one by
one, lowest power first, and the rest fitted again after each, so that the later ones repair what rounding the earlier
ones spoiled.

Run ``python benchmarks/fit_polynomials.py`` to regenerate the file; ``--check`` instead fits again and tells whether
the file's polynomials are about as good (the last digits depend on the processor's least squares).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import mpmath as mp
import numpy as np

mp.mp.dps = 60
OUTPUT = Path(__file__).parent.parent / "tilewright" / "tensor" / "mathlib" / "coefficients.py"
Function = Callable[[mp.mpf], mp.mpf]


@dataclass(frozen=True)
class Fit:
    """One polynomial: `count` coefficients in ``v = variable(x)`` for x in `interval`."""

    name: str
    doc: str
    target: Function
    weight: Function
    interval: tuple[float, float]
    count: int
    squared: bool = False  # the variable is x*x instead of x


def remez(values: np.ndarray, weights: np.ndarray, basis: np.ndarray, rounds: int = 300) -> tuple[np.ndarray, float]:
    """Coefficients c minimising ``max |weights * (values - basis @ c)|`` on the grid, and that maximum."""
    n = basis.shape[1]
    if n == 0:
        return np.zeros(0), float(np.abs(weights * values).max())
    scale = np.abs(basis).max(axis=0)
    grid = len(values)
    reference = np.round((1 - np.cos(np.pi * (np.arange(n + 1) + 0.5) / (n + 1))) / 2 * (grid - 1)).astype(int)
    best: tuple[np.ndarray, float] = (np.zeros(n), np.inf)
    for _ in range(rounds):
        system = np.empty((n + 1, n + 1))
        system[:, :n] = basis[reference] / scale * weights[reference, None]
        system[:, n] = (-1.0) ** np.arange(n + 1)
        solution = np.linalg.lstsq(system, weights[reference] * values[reference], rcond=1e-18)[0]
        c = solution[:n] / scale
        error = weights * (values - basis @ c)
        worst = float(np.abs(error).max())
        if worst < best[1]:
            best = c, worst
        if worst <= abs(solution[n]) * (1 + 1e-5):
            break
        reference = exchange(reference, error)
    return best


def exchange(reference: np.ndarray, error: np.ndarray) -> np.ndarray:
    """The reference with the worst point taken in for a neighbour of the same sign, so that signs still alternate."""
    worst = int(np.argmax(np.abs(error)))
    at = int(np.searchsorted(reference, worst))
    for i in (at - 1, at):
        if 0 <= i < len(reference) and np.signbit(error[reference[i]]) == np.signbit(error[worst]):
            return np.concatenate([reference[:i], [worst], reference[i + 1 :]])
    return np.append(worst, reference[:-1]) if at == 0 else np.append(reference[1:], worst)


def samples(f: Fit) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """On a grid: the function's values, the weights, and the powers of the variable."""
    low, high = f.interval
    nodes = (low + high) / 2 - (high - low) / 2 * np.cos(np.linspace(0, np.pi, 801))
    nodes = nodes[np.abs(nodes) > 1e-12 * (high - low)]
    values = np.array([float(f.target(mp.mpf(x))) for x in nodes])
    weights = np.array([abs(float(f.weight(mp.mpf(x)))) for x in nodes])
    weights = np.maximum(weights, weights.max() * 1e-12)
    v = nodes * nodes if f.squared else nodes
    return values, weights, v[:, None] ** np.arange(f.count)


def allowed(best: float) -> float:
    """The error of a polynomial that is as good as one with error `best`, for float32: a third of its rounding."""
    return max(2 * best, 2e-8)


def error_of(f: Fit, coefficients: Sequence[float]) -> float:
    """The largest weighted error of a polynomial."""
    values, weights, powers = samples(f)
    return float(np.abs(weights * (values - powers @ np.asarray(coefficients, float))).max())


def fit(f: Fit) -> tuple[list[float], float]:
    """The float32 coefficients and the largest weighted error with them."""
    values, weights, powers = samples(f)
    fixed: list[float] = []
    rest = values
    for i in range(f.count):
        # v^i goes into the weight: what is left to fit is a whole polynomial again, as Remez exchange demands
        c, _ = remez(rest / powers[:, i], weights * np.abs(powers[:, i]), powers[:, : f.count - i])
        fixed.append(float(np.float32(c[0])))
        rest = rest - fixed[-1] * powers[:, i]
    error = float(np.abs(weights * rest).max())
    if error > 1e-7:
        raise ArithmeticError(f"{f.name}: error {error:.1e} is above float32 rounding; more coefficients are needed")
    return fixed, error


@dataclass(frozen=True)
class Pieces:
    """An odd function on [0, `top`] in 16 pieces: ``value + d (c0 + c1 d + ...)``, `d` counted from a point of each
    piece. With ``u = 1 + scale x`` the pieces are quarters of the four octaves of u, so four bits of u tell which. The
    points are floats at which the function is nearly a float too, and 0 in the first piece. There, where `beside`, x
    itself is the value: c0 is not what the function's slope is, but what that has beyond 1."""

    name: str
    doc: str
    target: Function
    top: float
    count: int
    beside: bool = False

    def scale(self) -> float:
        return float(np.float32(14.9999 / self.top))  # u stays below 16, however it is rounded

    def edges(self) -> list[float]:
        return [(2.0 ** (j // 4) * (1 + j % 4 / 4) - 1) / self.scale() for j in range(17)]

    def points(self) -> list[tuple[float, float]]:
        """For every piece, the point from which it is counted and the function there."""
        found = [(0.0, 0.0)]
        for low, high in zip(self.edges()[1:-1], self.edges()[2:], strict=True):
            near = np.linspace((3 * low + high) / 4, (low + 3 * high) / 4, 2001).astype(np.float32)
            values = (float(np.float32(self.target(mp.mpf(float(x))))) for x in near)
            found.append(min(zip(map(float, near), values, strict=True), key=self.off))
        return found

    def off(self, point: tuple[float, float]) -> float:
        """By how much the function misses the float that stands for it."""
        return abs(float(self.target(mp.mpf(point[0])) - point[1]))

    def fits(self) -> list[Fit]:
        """The polynomial of every piece."""
        return [self._fit(j, *point) for j, point in enumerate(self.points())]

    def _fit(self, piece: int, point: float, value: float) -> Fit:
        low, high = (e - point for e in self.edges()[piece : piece + 2])
        pad = 1e-6 * (point + high)  # u is rounded
        beside = self.beside and not piece
        return Fit(
            f"{self.name}[{piece}]",
            "",
            lambda d: (self.target(point + d) - value) / d - beside,
            lambda d: d / self.target(point + d),
            (low - pad if piece else 0.0, high + pad),
            self.count,
        )

    def fit(self) -> tuple[list[tuple[float, ...]], float]:
        """Tables of the points, the values, c0, c1 ... of all pieces, and the largest weighted error."""
        found = [fit(f) for f in self.fits()]
        columns = [(*point, *c) for point, (c, _) in zip(self.points(), found, strict=True)]
        return list(zip(*columns, strict=True)), max(error for _, error in found)

    def error_of(self, tables: Sequence[Sequence[float]]) -> float:
        """The largest weighted error with these tables, whose points and values must be those of `points`."""
        same = [tuple(map(float, map(np.float32, x))) for x in zip(*tables[:2], strict=True)] == self.points()
        errors = (error_of(f, c) for f, c in zip(self.fits(), zip(*tables[2:], strict=True), strict=True))
        return max(errors) if same else float("inf")


def factors(value: mp.mpf) -> tuple[float, float]:
    """Two float32 whose exact product is `value` almost to float64: for an fma, a constant of twice the precision."""
    best = (mp.inf, 0.0, 0.0)
    for a in np.arange(0x3F800000, 0x3F800000 + (1 << 17), dtype=np.uint32).view(np.float32):
        b = np.float32(float(value) / float(a))
        best = min(best, (abs(float(value) - float(a) * float(b)), float(a), float(b)))
    return best[1], best[2]


def _log2_atanh(s: mp.mpf) -> mp.mpf:
    return mp.log((1 + s) / (1 - s)) / mp.log(2)


HALF_LN2 = 0.34657359 * 1.001
QUARTER_PI = 0.78539816 * 1.02
ERF_SPLIT = 0.921875

FITS = [
    Fit(
        "EXPM1",
        "exp(r) = 1 + r + r^2 P(r), |r| <= ln(2)/2; error relative to expm1(r)",
        lambda r: (mp.expm1(r) - r) / r**2,
        lambda r: r**2 / mp.expm1(r),
        (-HALF_LN2, HALF_LN2),
        5,
    ),
    Fit(
        "EXP_SHORT",
        "exp(r) = 1 + r + r^2 P(r), |r| <= ln(2)/32; error relative to exp(r)",
        lambda r: (mp.expm1(r) - r) / r**2,
        lambda r: r**2 / mp.exp(r),
        (-HALF_LN2 / 16, HALF_LN2 / 16),
        2,
    ),
    Fit(
        "EXP2",
        "2^f = 1 + f P(f), |f| <= 1/2; error relative to 2^f",
        lambda f: (mp.power(2, f) - 1) / f,
        lambda f: f / mp.power(2, f),
        (-0.501, 0.501),
        6,
    ),
    Fit(
        "LOG",
        "log(1 + f) = f + f^2 P(f), 2/3 <= 1 + f <= 4/3; error relative to log(1 + f)",
        lambda f: (mp.log1p(f) - f) / f**2,
        lambda f: f**2 / mp.log1p(f),
        (-0.33334, 0.33334),
        9,
    ),
    Fit(
        "LOG2_ATANH",
        "log2((1 + s)/(1 - s)) = 2 log2(e) s + s^3 P(s^2), |s| <= 0.172; error relative to the logarithm",
        lambda s: (_log2_atanh(s) - 2 * s / mp.log(2)) / s**3,
        lambda s: s**3 / _log2_atanh(s),
        (0.0, 0.1718),
        4,
        squared=True,
    ),
    Fit(
        "ERF",
        f"erf(x) = x + x P(x^2), |x| <= {ERF_SPLIT}; error relative to erf(x)",
        lambda x: mp.erf(x) / x - 1,
        lambda x: x / mp.erf(x),
        (0.0, ERF_SPLIT),
        6,
        squared=True,
    ),
    Fit(
        "ERFC_LOG2",
        f"1 - erf(t) = 2^(t P(t)), {ERF_SPLIT} <= t <= 4; error relative to erf(t)",
        lambda t: mp.log(mp.erfc(t)) / mp.log(2) / t,
        lambda t: t * mp.log(2) * mp.erfc(t) / mp.erf(t),
        (ERF_SPLIT, 4.0),
        7,
    ),
    Fit(
        "SIN",
        "sin(r) = r + r^3 P(r^2), |r| <= pi/4; error relative to sin(r)",
        lambda r: (mp.sin(r) - r) / r**3,
        lambda r: r**3 / mp.sin(r),
        (0.0, QUARTER_PI),
        3,
        squared=True,
    ),
    Fit(
        "COS",
        "cos(r) = 1 - r^2/2 + r^4 P(r^2), |r| <= pi/4; error relative to cos(r)",
        lambda r: (mp.cos(r) - 1 + r**2 / 2) / r**4,
        lambda r: r**4 / mp.cos(r),
        (0.0, QUARTER_PI),
        3,
        squared=True,
    ),
    Fit(
        "TAN",
        "tan(r) = r + r^3 P(r^2), |r| <= pi/4; error relative to tan(r)",
        lambda r: (mp.tan(r) - r) / r**3,
        lambda r: r**3 / mp.tan(r),
        (0.0, QUARTER_PI),
        6,
        squared=True,
    ),
    Fit(
        "ASIN",
        "asin(x) = x + x^3 P(x^2), |x| <= 1/2; error relative to asin(x)",
        lambda x: (mp.asin(x) - x) / x**3,
        lambda x: x**3 / mp.asin(x),
        (0.0, 0.5),
        5,
        squared=True,
    ),
    Fit(
        "ATAN",
        "atan(z) = z + z^3 P(z^2), |z| <= 1; error relative to atan(z)",
        lambda z: (mp.atan(z) - z) / z**3,
        lambda z: z**3 / mp.atan(z),
        (0.0, 1.0),
        8,
        squared=True,
    ),
    Fit(
        "SINH",
        "sinh(x) = x + x^3 P(x^2), |x| <= 1; error relative to sinh(x)",
        lambda x: (mp.sinh(x) - x) / x**3,
        lambda x: x**3 / mp.sinh(x),
        (0.0, 1.0),
        3,
        squared=True,
    ),
]

PIECES = [
    Pieces("ERF_PIECES", "erf(x), 0 <= x <= 4", mp.erf, 4.0, 5, beside=True),
    Pieces("TANH_PIECES", "tanh(x), 0 <= x <= 9.5", mp.tanh, 9.5, 5),
]


def render(fits: list[Fit], pieces: list[Pieces]) -> str:
    """The text of coefficients.py."""
    lines = [
        '"""Coefficients of the polynomials, lowest power first; every one is a float32.',
        "",
        "Written by ``benchmarks/fit_polynomials.py``: change that script, not this file.",
        '"""',
        "",
        f"ERF_SPLIT = {ERF_SPLIT}",
        "",
        "# two numbers whose product is pi/2 to float64 precision or nearly",
        "HALF_PI = ({}, {})".format(*map(np.float32, factors(mp.pi / 2))),
    ]
    for f in fits:
        coefficients, error = fit(f)
        lines += ["", f"# {f.doc}: {error:.1e}", f"{f.name} = ("]
        lines += [f"    {np.float32(c)!s}," for c in coefficients] + [")"]
    lines += ["", "# fmt: off"]
    for p in pieces:
        tables, error = p.fit()
        lines += ["", f"# {p.doc}: points, values and polynomials of 16 pieces; error relative to it: {error:.1e}"]
        lines += [f"{p.name}_SCALE = {np.float32(p.scale())!s}", f"{p.name} = ("]
        for table in tables:
            octaves = (", ".join(str(np.float32(c)) for c in table[i : i + 4]) for i in range(0, 16, 4))
            lines += ["    (", *(f"        {octave}," for octave in octaves), "    ),"]
        lines += [")"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the file instead of writing it")
    arguments = parser.parse_args()
    if not arguments.check:
        OUTPUT.write_text(render(FITS, PIECES), encoding="utf-8")
        print(f"wrote {OUTPUT.name}")
        return
    from tilewright.tensor.mathlib import coefficients

    for f in FITS:
        found, best = error_of(f, getattr(coefficients, f.name)), fit(f)[1]
        print(f"{f.name:12} {found:.1e} (fitted anew: {best:.1e})")
        if found > allowed(best):
            raise SystemExit(f"{f.name} of {OUTPUT.name} is worse than what this script finds")
    for p in PIECES:
        found, best = p.error_of(getattr(coefficients, p.name)), p.fit()[1]
        print(f"{p.name:12} {found:.1e} (fitted anew: {best:.1e})")
        if found > allowed(best):
            raise SystemExit(f"{p.name} of {OUTPUT.name} is worse than what this script finds")


if __name__ == "__main__":
    main()
