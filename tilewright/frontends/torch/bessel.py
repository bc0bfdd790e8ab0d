"""Bessel's functions and Airy's, in double precision inside: sums over places of their integrals (see `special`), power
series for small and asymptotic ones for large arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .formulas import Real
from .node import FxNode, FxTensor
from .registry import aten

#: beyond these the asymptotic series are used
ORDINARY, MODIFIED = 25.0, 50.0
EULER = 0.5772156649015329
#: angles of the integrals over half a turn, and their weights: the ends count half
COUNT = 64
ANGLES = np.arange(COUNT + 1) * (math.pi / COUNT)
HALF_TURN = np.where((np.arange(COUNT + 1) % COUNT) == 0, 0.5, 1.0) / COUNT


def asymptotic(order: float, terms: int) -> list[float]:
    """Coefficients a_k of Hankel's expansions, in powers of 1 / x."""
    made = [1.0]
    for k in range(1, terms):
        made.append(made[-1] * (4 * order**2 - (2 * k - 1) ** 2) / (8 * k))
    return made


# ---- modified: I, K ------------------------------------------------------------------------------------------------


def scaled_i(x: Real, order: int) -> Real:
    """exp(-|x|) I(x), order 0 or 1."""
    size = x.abs()
    near = size.at_most(MODIFIED)
    weights = HALF_TURN * (np.sin(ANGLES) ** 2 if order else 1.0)
    made = near.total(lambda v: (v * (np.cos(ANGLES) - 1)).exp(), weights)
    made = made * near if order else made
    inverse = 1 / size.at_least(MODIFIED)
    signs = [(-1) ** k * a for k, a in enumerate(asymptotic(order, 16))]
    far = (inverse * (1 / (2 * math.pi))).sqrt() * inverse.polynomial(signs)
    made = (size > MODIFIED).where(far, made)
    return (x < 0.0).where(-made, made) if order else made


@aten("i0", "special_i0", "special_i1", "special_modified_bessel_i0", "special_modified_bessel_i1")
def modified_i(n: FxNode, x: FxTensor) -> FxTensor:
    v = Real.of(n, x)
    made = scaled_i(v, int(n.overload.endswith("1")))
    half = (v.abs() * 0.5).exp()  # in two factors: the product overflows where the function does
    return n.cast((made * half * half).t, n.dtype)


@aten("special_i0e", "special_i1e")
def modified_i_scaled(n: FxNode, x: FxTensor) -> FxTensor:
    return n.cast(scaled_i(Real.of(n, x), int(n.overload.endswith("i1e"))).t, n.dtype)


def scaled_k(x: Real, order: float) -> Real:
    """exp(x) K(x) for x >= 2: the integral of exp(-x (cosh t - 1)) cosh(order t) over t = s / sqrt(x) > 0."""
    step = 0.25
    places = np.arange(38) * step
    weights = np.where(places == 0, 0.5, 1.0) * step
    root = x.sqrt()

    def body(v: Real) -> Real:
        r = v.sqrt()
        t = places / r
        half = r * (t * 0.5).call("sinh")  # neither overflows nor underflows, as its parts may
        return (-2 * half * half).exp() * (t * order).call("cosh")

    return x.total(body, weights) / root


def small_k(x: Real, order: int) -> Real:
    """K(x) for 0 < x <= 2, by its power series."""
    q = x * x * 0.25
    logarithm = (x * 0.5).log()
    psi = [-EULER]
    for k in range(1, 20):
        psi.append(psi[-1] + 1 / k)
    if order == 0:
        squares = [1 / math.factorial(k) ** 2 for k in range(16)]
        return q.polynomial([c * psi[k] for k, c in enumerate(squares)]) - logarithm * q.polynomial(squares)
    products = [1 / (math.factorial(k) * math.factorial(k + 1)) for k in range(16)]
    rest = q.polynomial([c * (psi[k] + psi[k + 1]) for k, c in enumerate(products)])
    return 1 / x + x * 0.5 * logarithm * q.polynomial(products) - x * 0.25 * rest


@aten("special_modified_bessel_k0", "special_modified_bessel_k1", "special_scaled_modified_bessel_k0",
      "special_scaled_modified_bessel_k1")  # fmt: skip
def modified_k(n: FxNode, x: FxTensor) -> FxTensor:
    v, order, scaled = Real.of(n, x), int(n.overload.endswith("k1")), "scaled" in n.overload
    low, near, far = v <= 2.0, v.at_most(2.0), v.at_least(2.0)
    small, large = small_k(near, order), scaled_k(far, order)
    made = low.where(small * near.exp() if scaled else small, large if scaled else large * (-far).exp())
    made = v.equal(0.0).where(math.inf, made)
    made = v.equal(math.inf).where(0.0, made)
    return n.cast(((v < 0.0) | v.is_nan()).where(math.nan, made).t, n.dtype)


# ---- ordinary: J, Y ------------------------------------------------------------------------------------------------


def waves(x: Real, order: float, phase: float) -> tuple[Real, Real]:
    """J and Y for large x, whose argument of the cosine is x - phase."""
    inverse = 1 / x
    a = asymptotic(order, 22)
    square = inverse * inverse
    p = square.polynomial([(-1) ** k * c for k, c in enumerate(a[0::2])])
    q = inverse * square.polynomial([(-1) ** k * c for k, c in enumerate(a[1::2])])
    # the phase is an odd number of quarter turns: cos(x - phase) of cos x and sin x, which lose nothing
    c, s = math.cos(phase), math.sin(phase)
    cosine, sine = x.cos() * c + x.sin() * s, x.sin() * c - x.cos() * s
    size = (inverse * (2 / math.pi)).sqrt()
    return size * (p * cosine - q * sine), size * (p * sine + q * cosine)


def ordinary_j(near: Real, order: int) -> Real:
    """J(x) for 0 <= x <= `ORDINARY`."""
    if order == 0:
        return near.total(lambda v: (v * np.sin(ANGLES)).cos(), HALF_TURN)
    return near * near.total(lambda v: (v * np.cos(ANGLES)).cos(), HALF_TURN * np.sin(ANGLES) ** 2)


@aten("special_bessel_j0", "special_bessel_j1")
def bessel_j(n: FxNode, x: FxTensor) -> FxTensor:
    v, order = Real.of(n, x), int(n.overload.endswith("1"))
    size = v.abs()
    far, _ = waves(size.at_least(ORDINARY).at_most(1e300), order, math.pi / 4 + order * math.pi / 2)
    made = (size > ORDINARY).where(far, ordinary_j(size.at_most(ORDINARY), order))
    made = size.equal(math.inf).where(0.0, made)
    return n.cast(((v < 0.0).where(-made, made) if order else made).t, n.dtype)


@aten("special_bessel_y0", "special_bessel_y1")
def bessel_y(n: FxNode, x: FxTensor) -> FxTensor:
    """Up to `ORDINARY` by the series of functions J of higher order (Neumann), each of which is an integral with other
    weights."""
    v, order = Real.of(n, x), int(n.overload.endswith("1"))
    near = v.at_most(ORDINARY)
    j = ordinary_j(near, order)
    weights = np.zeros(COUNT + 1)
    wave = np.sin if order else np.cos
    for k in range(1, 28):
        weights += (-1) ** k * (order + 2 * k) / (k * (order + k)) * wave((order + 2 * k) * ANGLES)
    rest = near.total(lambda v: (v * np.sin(ANGLES)).call("sin" if order else "cos"), HALF_TURN * weights)
    made = (near.log() + (EULER - order - math.log(2))) * j * (2 / math.pi) - rest * (2 / math.pi)
    made = made - ordinary_j(near, 0) * (2 / math.pi) / near if order else made
    _, far = waves(v.at_least(ORDINARY).at_most(1e300), order, math.pi / 4 + order * math.pi / 2)
    made = (v > ORDINARY).where(far, made)
    made = v.equal(0.0).where(-math.inf, v.equal(math.inf).where(0.0, made))
    return n.cast(((v < 0.0) | v.is_nan()).where(math.nan, made).t, n.dtype)


@aten("special_spherical_bessel_j0")
def spherical_j0(n: FxNode, x: FxTensor) -> FxTensor:
    v = Real.of(n, x)
    none = v.equal(0.0)
    made = none.where(1.0, v.sin() / none.where(1.0, v))
    return n.cast(v.abs().equal(math.inf).where(0.0, made).t, n.dtype)


# ---- Airy ----------------------------------------------------------------------------------------------------------

#: between these Airy's function is its power series
AIRY_LOW, AIRY_HIGH = -8.0, 3.0


@aten("special_airy_ai")
def airy(n: FxNode, x: FxTensor) -> FxTensor:
    v = Real.of(n, x)
    near = v.at_least(AIRY_LOW).at_most(AIRY_HIGH)
    f, g = [1.0], [1.0]
    for k in range(1, 32):
        f.append(f[-1] / ((3 * k - 1) * (3 * k)))
        g.append(g[-1] / ((3 * k) * (3 * k + 1)))
    cube = near * near * near
    first, second = 3 ** (-2 / 3) / math.gamma(2 / 3), 3 ** (-1 / 3) / math.gamma(1 / 3)
    series = cube.polynomial([first * c for c in f]) - near * cube.polynomial([second * c for c in g])
    # both ends are functions of order 1/3 of this number
    right, left = v.at_least(AIRY_HIGH).at_most(1e3), (-v).at_least(-AIRY_LOW).at_most(1e200)
    zeta: Any = right * right.sqrt() * (2 / 3)
    falling = (right / 3.0).sqrt() * (1 / math.pi) * scaled_k(zeta, 1 / 3) * (-zeta).exp()
    zeta = left * left.sqrt() * (2 / 3)
    # Ai(-x) = sqrt(x) / 3 (J_1/3 + J_-1/3): both waves of the same expansion, with phases on either side of a quarter
    plus, _ = waves(zeta, 1 / 3, math.pi / 4 + math.pi / 6)
    minus, _ = waves(zeta, 1 / 3, math.pi / 4 - math.pi / 6)
    swinging = left.sqrt() * (1 / 3) * (plus + minus)
    made = (v > AIRY_HIGH).where(falling, (v < AIRY_LOW).where(swinging, series))
    return n.cast(v.is_nan().where(math.nan, made).t, n.dtype)


__all__: list[str] = []
