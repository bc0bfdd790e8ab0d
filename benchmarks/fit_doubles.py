"""Fit the polynomials of the functions of f64: writes ``tilewright/tensor/mathlib/double_coefficients.py``.

    python benchmarks/fit_doubles.py            (needs mpmath)

Each is a Chebyshev fit in 60 digits, of the lowest degree whose error is below 2^-58 of the function that it is a part
of; its coefficients are rounded to float64.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpmath as mp

mp.mp.dps = 60
OUT = Path(__file__).resolve().parents[1] / "tilewright" / "tensor" / "mathlib" / "double_coefficients.py"
LIMIT = mp.mpf(2) ** -58
#: where the variable of the fit of erfc is 0
CENTER = mp.mpf("2.5")

HEAD = '''"""Coefficients of the polynomials of f64, lowest power first.

Written by ``benchmarks/fit_doubles.py``: change that script, not this file.
"""
'''


def series(f: Callable[[Any], Any], order: int) -> list[Any]:
    return mp.taylor(f, 0, order)


def near_zero(f: Callable[[Any], Any], drop: int, step: int) -> Callable[[Any], Any]:
    """What is left of a function of x behind the first powers, as one of u = x^step: (f(x) - ...) / x^drop."""
    terms = series(f, 40)

    def rest(u: Any) -> Any:
        x = mp.root(u, step) if step > 1 else u
        if abs(x) < mp.mpf("0.02"):
            return mp.fsum(t * x ** (i - drop) for i, t in enumerate(terms) if i >= drop)
        return (f(x) - mp.fsum(t * x**i for i, t in enumerate(terms[:drop]))) / x**drop

    return rest


def scaled_erfc(t: Any) -> Any:
    x = CENTER * (1 + t) / (1 - t)
    return mp.exp(x * x) * mp.erfc(x)


def at(x: float) -> Any:
    """The variable of the fit of erfc."""
    return (mp.mpf(x) - CENTER) / (mp.mpf(x) + CENTER)


#: name -> what it is, the function, where, and how much of the whole it is at most
FITS: dict[str, tuple[str, Callable[[Any], Any], tuple[Any, Any], float]] = {
    "EXPM1": ("exp(r) = 1 + r + r^2 P(r)", near_zero(mp.exp, 2, 1), (-0.3467, 0.3467), 0.2),
    "LOG": ("log((1 + s)/(1 - s)) = 2 s + s^3 P(s^2)", near_zero(lambda s: 2 * mp.atanh(s), 3, 2), (0, 0.02945), 0.02),
    "LOG_TAIL": (
        "log((1 + s)/(1 - s)) = 2 s (1 + s^2 (1/3 + P(s^2)))",
        lambda u: near_zero(mp.atanh, 5, 2)(u) * u,
        (0, 0.02945),
        0.002,
    ),
    "SIN": ("sin(r) = r + r^3 P(r^2)", near_zero(mp.sin, 3, 2), (0, 0.617), 0.1),
    "COS": ("cos(r) = 1 - r^2/2 + r^4 P(r^2)", near_zero(mp.cos, 4, 2), (0, 0.617), 0.02),
    "SINH": ("sinh(x) = x + x^3 P(x^2)", near_zero(mp.sinh, 3, 2), (0, 1), 0.2),
    "ASIN": ("asin(x) = x + x^3 P(x^2)", near_zero(mp.asin, 3, 2), (0, 0.25), 0.05),
    "ATAN": ("atan(z) = z + z^3 P(z^2)", near_zero(mp.atan, 3, 2), (0, 0.1716), 0.06),
    "ERF": ("erf(x) = x + x P(x^2), x <= 1", lambda u: near_zero(mp.erf, 1, 2)(u) - 1, (0, 1), 0.2),
    "ERFC": ("exp(x^2) erfc(x) = P((x - 2.5)/(x + 2.5)), 1 <= x <= 6", scaled_erfc, (at(1), at(6)), 0.1),
}


def fit(f: Callable[[Any], Any], where: tuple[Any, Any], part: float) -> tuple[list[float], Any]:
    scale = max(abs(f(mp.mpf(w) if w else mp.mpf("1e-30"))) for w in where)
    for n in range(3, 40):
        found, error = mp.chebyfit(f, [mp.mpf(w) for w in where], n, error=True)
        if error * part < LIMIT * scale:
            return [float(c) for c in reversed(found)], error
    raise SystemExit("no polynomial is good enough")


def main() -> None:
    lines = [HEAD]
    for name, (what, f, where, part) in FITS.items():
        found, error = fit(f, where, part)
        lines += [f"# {what}; error {mp.nstr(error, 2)}", f"{name} = (", *(f"    {c!r}," for c in found), ")", ""]
    OUT.write_text("\n".join(lines))
    print(OUT)


if __name__ == "__main__":
    main()
