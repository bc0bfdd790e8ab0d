"""Functions whose number of steps depends on data, on the host: orthogonal polynomials of a degree that is a tensor,
zeta functions, incomplete gamma functions, greatest common divisors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .registry import on_host
from .special import BERNOULLI

Step = Callable[[int, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
#: from this degree on Chebyshev's polynomials are not computed degree by degree within -1 and 1
CLOSED = 7

#: the polynomial of degree 1 of x, and that of degree k of those of degrees k - 1 and k - 2
POLYNOMIALS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Step]] = {
    "chebyshev_polynomial_t": (lambda x: x, lambda k, x, p, q: 2 * x * p - q),
    "chebyshev_polynomial_u": (lambda x: 2 * x, lambda k, x, p, q: 2 * x * p - q),
    "chebyshev_polynomial_v": (lambda x: 2 * x - 1, lambda k, x, p, q: 2 * x * p - q),
    "chebyshev_polynomial_w": (lambda x: 2 * x + 1, lambda k, x, p, q: 2 * x * p - q),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda k, x, p, q: 2 * x * p - 2 * (k - 1) * q),
    "hermite_polynomial_he": (lambda x: x, lambda k, x, p, q: x * p - (k - 1) * q),
    "laguerre_polynomial_l": (lambda x: 1 - x, lambda k, x, p, q: ((2 * k - 1 - x) * p - (k - 1) * q) / k),
    "legendre_polynomial_p": (lambda x: x, lambda k, x, p, q: ((2 * k - 1) * x * p - (k - 1) * q) / k),
}
#: Chebyshev's of degree n at cos(a), in closed form; at 1; at -1, but for the sign (-1)^n
Degrees = Callable[[np.ndarray], np.ndarray]
CLOSED_FORMS: dict[str, tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], Degrees, Degrees]] = {
    "chebyshev_polynomial_t": (lambda n, a: np.cos(n * a), np.ones_like, np.ones_like),
    "chebyshev_polynomial_u": (lambda n, a: np.sin((n + 1) * a) / np.sin(a), lambda n: n + 1, lambda n: n + 1),
    "chebyshev_polynomial_v": (lambda n, a: np.cos((n + 0.5) * a) / np.cos(a / 2), np.ones_like, lambda n: 2 * n + 1),
    "chebyshev_polynomial_w": (lambda n, a: np.sin((n + 0.5) * a) / np.sin(a / 2), lambda n: 2 * n + 1, np.ones_like),
}


def polynomial(name: str, shifted: bool) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The polynomials of this name at x, of the degrees n (truncated; 0 below 0 and where they are infinite or NaN);
    `shifted` ones are at 2 x - 1."""
    first, step = POLYNOMIALS[name]

    def compute(x: np.ndarray, n: np.ndarray) -> np.ndarray:
        x, n = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(n, np.float64))
        x = 2 * x - 1 if shifted else x
        degree = np.where(np.isfinite(n), np.trunc(n), -1)
        closed = (degree >= CLOSED) & (np.abs(x) <= 1) if name in CLOSED_FORMS else np.zeros(x.shape, bool)
        steps = np.where(closed, 0, degree)
        before, last = np.ones_like(x), first(x)
        found = np.where(steps == 0, before, np.where(steps == 1, last, 0.0))
        for k in range(2, int(steps.max(initial=0)) + 1):
            before, last = last, step(k, x, last, before)
            found = np.where((steps == k) | (steps > k) & np.isnan(last), last, found)
            if not ((steps > k) & ~np.isnan(last)).any():
                break
        return np.where(closed, in_closed_form(name, np.where(closed, x, 1), degree), found) if closed.any() else found

    return compute


def in_closed_form(name: str, x: np.ndarray, n: np.ndarray) -> np.ndarray:
    """One of Chebyshev's polynomials of degree n, from -1 to 1."""
    between, at_1, at_minus_1 = CLOSED_FORMS[name]
    ends = np.where(x > 0, at_1(n), np.where(n % 2 == 0, 1, -1) * at_minus_1(n))
    inside = np.abs(x) < 1
    return np.where(inside, between(n, np.arccos(np.where(inside, x, 0))), ends)


for _name in POLYNOMIALS:
    for _shifted in (False, True) if _name.startswith("chebyshev") else (False,):
        _overload = f"special_{'shifted_' if _shifted else ''}{_name}"
        on_host(*(f"{_overload}{kind}" for kind in ("", ".x_scalar", ".n_scalar")))(polynomial(_name, _shifted))


@on_host("special_zeta", "special_zeta.self_scalar", "special_zeta.other_scalar")
def zeta(x: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The sum of (q + k)^-x over all k >= 0 (Hurwitz): term by term until q + k is large, the rest by the formula of
    Euler and Maclaurin. Not a number for x < 1, and below 0 for x that is no integer; infinite at the poles."""
    x, q = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(q, np.float64))
    s = np.where(x > 1, x, 2.0)
    low = np.where(np.isfinite(q), np.minimum(q, 20.0), 20.0)
    count = np.maximum(np.ceil(20 - low), 0)
    total = np.zeros(x.shape)
    for k in range(int(count.max(initial=0))):
        total += np.where(k < count, np.power(low + k, -s), 0)
    z = np.where(q > 20, q, low + count)
    tail = z / (s - 1) + 0.5
    factor = s / z
    for j, b in enumerate(BERNOULLI, 1):
        tail += factor * (b / math.factorial(2 * j))
        factor = factor * (s + 2 * j - 1) * (s + 2 * j) / (z * z)
    total += np.power(z, -s) * tail
    total = np.where(np.isinf(q) & (q > 0), 0, total)
    total = np.where((q <= 0) & (q == np.floor(q)), np.inf, total)
    total = np.where((q < 0) & (q != np.floor(q)) & (x != np.floor(x)), np.nan, total)
    total = np.where(x == 1, np.inf, np.where(x < 1, np.nan, total))
    return np.where(np.isnan(x) | np.isnan(q), np.nan, total)


def incomplete_gamma(a: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lower and the upper regularized incomplete gamma function: a power series where x is small, a continued
    fraction (Lentz) where it is large, each until nothing changes any more."""
    a, x = np.broadcast_arrays(a.astype(np.float64), x.astype(np.float64))
    inside = (a > 0) & (x > 0) & np.isfinite(a) & np.isfinite(x)
    b, y = np.where(inside, a, 1.0), np.where(inside, x, 1.0)
    gamma = np.vectorize(math.lgamma, otypes=[np.float64])(b)
    front = np.exp(b * np.log(y) - y - gamma)
    series = y < b + 1
    term = 1 / b
    total, k = term.copy(), 0
    while np.any(series & (term > total * 1e-17)):
        k += 1
        term = term * np.where(series, y / (b + k), 0)
        total += term
    tiny = 1e-300
    c, d = np.full(b.shape, 1 / tiny), 1 / np.where(series, 1.0, y + 1 - b)
    fraction, going, k = d.copy(), ~series, 0
    level = y + 1 - b
    while np.any(going):
        k += 1
        level = level + 2
        numerator = k * (b - k)
        d = 1 / _not_zero(numerator * d + level, tiny)
        c = _not_zero(level + numerator / c, tiny)
        fraction = np.where(going, fraction * (c * d), fraction)
        going = going & (np.abs(c * d - 1) > 1e-16)
    lower = np.where(series, front * total, 1 - front * fraction)
    upper = np.where(series, 1 - front * total, front * fraction)
    at_zero = (x == 0) & (a > 0) | (np.isinf(a) & (a > 0) & np.isfinite(x) & (x >= 0))
    full = ((a == 0) & (x > 0)) | (np.isinf(x) & (x > 0) & np.isfinite(a) & (a >= 0))
    edges = [(at_zero, 0.0), (full, 1.0)]
    for mask, value in edges:
        lower, upper = np.where(mask, value, lower), np.where(mask, 1 - value, upper)
    known = inside | at_zero | full
    return np.where(known, lower, np.nan), np.where(known, upper, np.nan)


def _not_zero(x: np.ndarray, tiny: float) -> np.ndarray:
    return np.where(np.abs(x) < tiny, tiny, x)


@on_host("igamma", "special_gammainc")
def igamma(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    return incomplete_gamma(a, x)[0]


@on_host("igammac", "special_gammaincc")
def igammac(a: np.ndarray, x: np.ndarray) -> np.ndarray:
    return incomplete_gamma(a, x)[1]


@on_host("gcd")
def gcd(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.gcd(x, y)


@on_host("lcm")
def lcm(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.abs(np.lcm(x, y))
