"""Coefficients of the polynomials, lowest power first; every one is a float32.

Written by ``benchmarks/fit_polynomials.py``: change that script, not this file.
"""

ERF_SPLIT = 0.921875

# two numbers whose product is pi/2 to float64 precision or nearly
HALF_PI = (1.0058075189590454, 1.5617265701293945)

# exp(r) = 1 + r + r^2 P(r), |r| <= ln(2)/2; error relative to expm1(r): 1.4e-08
EXPM1 = (
    0.49999997,
    0.16666546,
    0.041667435,
    0.008366272,
    0.0013870692,
)

# exp(r) = 1 + r + r^2 P(r), |r| <= ln(2)/32; error relative to exp(r): 1.6e-09
EXP_SHORT = (
    0.5000162,
    0.16666836,
)

# 2^f = 1 + f P(f), |f| <= 1/2; error relative to 2^f: 3.0e-09
EXP2 = (
    0.6931472,
    0.24022648,
    0.055503596,
    0.009618506,
    0.0013391024,
    0.00015326796,
)

# log(1 + f) = f + f^2 P(f), 2/3 <= 1 + f <= 4/3; error relative to log(1 + f): 4.6e-09
LOG = (
    -0.5,
    0.33333215,
    -0.24999805,
    0.20010436,
    -0.1668022,
    0.14005557,
    -0.12187423,
    0.13985473,
    -0.1287971,
)

# log2((1 + s)/(1 - s)) = 2 log2(e) s + s^3 P(s^2), |s| <= 0.172; error relative to the logarithm: 1.1e-11
LOG2_ATANH = (
    0.9617967,
    0.5770789,
    0.41192138,
    0.33662862,
)

# erf(x) = x + x P(x^2), |x| <= 0.921875; error relative to erf(x): 1.6e-08
ERF = (
    0.12837915,
    -0.37612498,
    0.112818435,
    -0.026767349,
    0.004994038,
    -0.0005994505,
)

# 1 - erf(t) = 2^(t P(t)), 0.921875 <= t <= 4; error relative to erf(t): 7.3e-10
ERFC_LOG2 = (
    -1.6282971,
    -0.91632354,
    -0.15327749,
    0.034290053,
    -0.0052590296,
    0.00046670533,
    -1.6302609e-05,
)

# sin(r) = r + r^3 P(r^2), |r| <= pi/4; error relative to sin(r): 4.6e-09
SIN = (
    -0.16666654,
    0.008332093,
    -0.00019505146,
)

# cos(r) = 1 - r^2/2 + r^4 P(r^2), |r| <= pi/4; error relative to cos(r): 1.5e-10
COS = (
    0.04166664,
    -0.001388713,
    2.4412086e-05,
)

# tan(r) = r + r^3 P(r^2), |r| <= pi/4; error relative to tan(r): 2.4e-08
TAN = (
    0.333331,
    0.13340306,
    0.053286344,
    0.024875948,
    0.0024057785,
    0.009807132,
)

# asin(x) = x + x^3 P(x^2), |x| <= 1/2; error relative to asin(x): 4.9e-09
ASIN = (
    0.16666752,
    0.074953094,
    0.045469154,
    0.024184743,
    0.042158388,
)

# atan(z) = z + z^3 P(z^2), |z| <= 1; error relative to atan(z): 1.7e-08
ATAN = (
    -0.33333153,
    0.19993767,
    -0.14211002,
    0.1066577,
    -0.07551664,
    0.0432048,
    -0.016363245,
    0.0029194376,
)

# sinh(x) = x + x^3 P(x^2), |x| <= 1; error relative to sinh(x): 2.4e-08
SINH = (
    0.16666716,
    0.008330271,
    0.0002037334,
)
