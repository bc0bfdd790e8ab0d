"""Gamma and error functions, computed in double precision.

Sums over a few places replace tables of coefficients: an integral of an analytic function that dies off at both ends
is the sum over equidistant places, times their distance, but for an error that falls exponentially with that distance.
"""

from __future__ import annotations

import math

import numpy as np

from .formulas import Real
from .node import FxNode, FxTensor
from .registry import aten

#: Bernoulli's numbers B2, B4, ...
BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798, -174611 / 330)
#: where the asymptotic series of the gamma functions begin
SHIFT = 10


def zeta_less_1(k: int, terms: int = 20) -> float:
    """Riemann's zeta function of a whole number less its first term, by the formula of Euler and Maclaurin."""
    rest = terms ** (1 - k) / (k - 1) + terms**-k / 2
    for j, b in enumerate(BERNOULLI[:6], 1):
        rest += b / math.factorial(2 * j) * math.prod(range(k, k + 2 * j - 1)) * terms ** (1 - k - 2 * j)
    return math.fsum([rest, *(float(n) ** -k for n in range(2, terms))])


#: the logarithm of gamma(2 + x) is x times a polynomial with these coefficients, up to a half
LOG_GAMMA_AT_2 = [1 - float(np.euler_gamma), *((-1) ** k * zeta_less_1(k) / k for k in range(2, 29))]


# ---- the gamma function --------------------------------------------------------------------------------------------


def log_gamma(x: Real) -> Real:
    """The logarithm of the absolute value. Below 1/2 by reflection, below `SHIFT` by the recurrence and the series at
    2, beyond by Stirling's series."""
    low = x < 0.5
    y = low.where(1 - x, x)
    inverse = 1 / y
    tail = inverse * (inverse * inverse).polynomial([b / (2 * k * (2 * k - 1)) for k, b in enumerate(BERNOULLI, 1)])
    stirling = (y - 0.5) * y.log() - y + 0.5 * math.log(2 * math.pi) + tail
    below = y < 1.5
    product = below.where(y, 1.0)
    for k in range(1, SHIFT - 1):
        factor = y - k
        product = product * (factor >= 1.5).where(factor, 1.0)
    logarithm, rest = product.log(), y - (y + 0.5).floor()
    near = below.where(-logarithm, logarithm) + rest * rest.polynomial(LOG_GAMMA_AT_2)
    made = (y < float(SHIFT)).where(near, stirling)
    made = y.equal(math.inf).where(math.inf, made)
    sine = sine_of_pi_by_pi(x)
    mirrored = sine.equal(0.0).where(math.inf, -sine.log() - made)  # a pole, also where `made` is infinite
    made = low.where(mirrored, made)
    return x.equal(-math.inf).where(math.inf, made)


def sine_of_pi_by_pi(x: Real) -> Real:
    """sin(pi x) / pi but for its sign; x itself near 0, where the product with pi may be subnormal."""
    size = x.abs()  # a small negative number would round when a whole one is added
    part = size - size.floor()
    part = (part > 0.5).where(1 - part, part)
    return (part < 2.0**-30).where(part, (part * math.pi).sin() / math.pi)


def cotangent_of_pi(x: Real) -> Real:
    """cot(pi x), with exact zeros: the cosine is the sine of what is left to a half."""
    part = x - (x + 0.5).floor()
    return ((0.5 - part.abs()) * math.pi).sin() / (part * math.pi).sin()


@aten("lgamma", "special_gammaln")
def lgamma(n: FxNode, x: FxTensor) -> FxTensor:
    return n.cast(log_gamma(Real.of(n, x)).t, n.dtype)


@aten("digamma", "special_psi")
def digamma(n: FxNode, x: FxTensor) -> FxTensor:
    v = Real.of(n, x)
    low = v <= 0.0
    y = low.where(1 - v, v)
    inverse = 1 / (y + float(SHIFT))
    square = inverse * inverse
    made = -inverse.log() - inverse * 0.5
    made = made - square * square.polynomial([b / (2 * k) for k, b in enumerate(BERNOULLI, 1)])
    made = made - y.total(lambda y: 1 / (y + np.arange(float(SHIFT))), np.ones(SHIFT))
    made = low.where(made - cotangent_of_pi(v) * math.pi, made)
    pole = low & v.equal(v.floor())
    made = pole.where(v.equal(0.0).where(-1 / v, math.nan), made)
    return n.cast(v.equal(math.inf).where(math.inf, made).t, n.dtype)


@aten("polygamma")
def polygamma(n: FxNode, order: int, x: FxTensor) -> FxTensor:
    """The derivative of the digamma function of this order, by the sum of 1 / (x + k)^(order + 1) and what the formula
    of Euler and Maclaurin has for the rest."""
    if order == 0:
        return digamma(n, x)
    v = Real.of(n, x)
    low = v < 0.5
    y = low.where(1 - v, v)
    made = hurwitz(y, order + 1, SHIFT + order) * float((-1) ** (order + 1) * math.factorial(order))
    # (-1)^n f(1 - x) - f(x) = pi d^n/dx^n cot(pi x), a polynomial of the cotangent
    derivative = np.polynomial.Polynomial([0.0, 1.0])
    for _ in range(order):
        derivative = derivative.deriv() * np.polynomial.Polynomial([-1.0, 0.0, -1.0])
    turned = cotangent_of_pi(v).polynomial([c * math.pi ** (order + 1) for c in map(float, derivative.coef)])
    made = low.where(made * float((-1) ** order) - turned, made)
    pole = low & v.equal(v.floor())
    made = pole.where(math.inf if order % 2 else -math.inf, made)
    return n.cast(v.equal(math.inf).where(0.0, made).t, n.dtype)


def hurwitz(y: Real, s: int, count: int) -> Real:
    """The sum of (y + k)^-s over all k >= 0, for y > 0."""

    def to_minus_s(v: Real) -> Real:
        inverse = made = 1 / v
        for _ in range(s - 1):
            made = made * inverse
        return made

    head = y.total(lambda y: to_minus_s(y + np.arange(float(count))), np.ones(count))
    z = y + float(count)
    inverse = 1 / z
    factors, rising = [], float(s)
    for j, b in enumerate(BERNOULLI, 1):
        factors.append(b / math.factorial(2 * j) * rising)
        rising *= (s + 2 * j - 1) * (s + 2 * j)
    tail = z / (s - 1.0) + 0.5 + inverse * (inverse * inverse).polynomial(factors)
    return head + to_minus_s(z) * tail


# ---- the error function --------------------------------------------------------------------------------------------

#: distance of the places of its integral; the error is exp(-(pi / STEP)^2) of the result
STEP = 0.5
PLACES = (np.arange(14) + 0.5) * STEP


def scaled_erfc(x: Real) -> Real:
    """exp(x^2) erfc(x) for x >= 0: x / pi times the integral of exp(-t^2) / (x^2 + t^2), whose poles at t = +-i x are
    between the places: the last term is what they add (Hunter and Regan, 1972)."""
    x2 = x * x
    weights = np.exp(-(PLACES**2)) * (2 * STEP / math.pi)
    total = x.total(lambda x: x / (x * x + PLACES**2), weights)
    far = x >= math.pi / STEP
    near = far.where(0.0, x)
    pole = 2 * (near * near).exp() / (1 + (near * (2 * math.pi / STEP)).exp())
    made = far.where(total, total + pole)
    return (x2 > 1e30).where(1 / (x * math.sqrt(math.pi)), made)


def erfc_of(x: Real) -> Real:
    size = x.abs()
    made = (-(size * size)).exp() * scaled_erfc(size.at_most(1e3))
    return (x < 0.0).where(2 - made, made)


@aten("erfc", "special_erfc")
def erfc(n: FxNode, x: FxTensor) -> FxTensor:
    return n.cast(erfc_of(Real.of(n, x)).t, n.dtype)


@aten("special_erfcx")
def erfcx(n: FxNode, x: FxTensor) -> FxTensor:
    v = Real.of(n, x)
    made = scaled_erfc(v.abs())
    return n.cast((v < 0.0).where(2 * (v * v).exp() - made, made).t, n.dtype)


# ---- quantiles of the normal distribution --------------------------------------------------------------------------

#: numerators and denominators of Wichura's algorithm AS 241 (Applied Statistics 37, 1988), right to 16 digits: near the
#: middle in 0.180625 - q^2, in the tails in the root of the logarithm, near and far
QUANTILES = (
    ((3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4,
      4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3),
     (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3,
      2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3)),
    ((1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
      1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4),
     (1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
      1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9)),
    ((6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1,
      2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7),
     (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2,
      7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15)),
)  # fmt: skip
MIDDLE, FAR = 0.425, 5.0


def quantile(q: Real, tail: Real) -> Real:
    """x with P(X <= x) = 1/2 + q, where tail = 1/2 - |q| is exact too. NaN for a tail below 0."""
    middle, near, far = QUANTILES
    root = (-tail.log()).sqrt()
    outer = (root <= FAR).where(_quotient(root - 1.6, near), _quotient(root - FAR, far))
    outer = tail.equal(0.0).where(math.inf, outer) * q.sign()
    return (q.abs() <= MIDDLE).where(q * _quotient(MIDDLE**2 - q * q, middle), outer)


def _quotient(x: Real, coefficients: tuple[tuple[float, ...], tuple[float, ...]]) -> Real:
    above, below = coefficients
    return x.polynomial(above) / x.polynomial(below)


@aten("erfinv", "special_erfinv")
def erfinv(n: FxNode, x: FxTensor) -> FxTensor:
    v = Real.of(n, x)
    return n.cast((quantile(v * 0.5, (1 - v.abs()) * 0.5) * math.sqrt(0.5)).t, n.dtype)


@aten("special_ndtri")
def ndtri(n: FxNode, x: FxTensor) -> FxTensor:
    """The quantiles of the normal distribution."""
    v = Real.of(n, x)
    q = v - 0.5
    return n.cast(quantile(q, (q > 0.0).where(1 - v, v)).t, n.dtype)


__all__: list[str] = []
