"""Convolution with 3x3 kernels by Winograd's minimal filtering: fewer multiplications, a little more rounding.

F(m x m, 3 x 3) makes an m x m tile of results from an (m + 2) x (m + 2) tile of the input:

    y = At [ (G g Gt) * (Bt d B) ] A          # * element by element, summed over input channels

so each of the (m + 2)^2 positions is a matrix product over channels, with m^2 * 9 / (m + 2)^2 times fewer
multiplications than the direct sum (2.25 times for m = 2, 4 for m = 4). The price is rounding: sums of large terms
that cancel. S. Winograd, Arithmetic Complexity of Computations, 1980; A. Lavin and S. Gray, Fast Algorithms for
Convolutional Neural Networks, 2015 (arXiv:1509.09308).
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np

from ..ir.dialect import Operator
from ..support.errors import OpError
from ..support.sizes import at_most
from .common import need, same_dtype

#: the points at which the polynomials are evaluated (infinity comes last), by m. Pairs +a, -a share their sums. For
#: m = 4 the error depends on them: measured 1e-6 of the largest result with these (64 channels), 4e-6 with the
#: textbook's 0, 1, -1, 2, -2; the direct sum has 3e-7.
POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(5, 8), Fraction(-5, 8), Fraction(3, 2), Fraction(-3, 2)),
}


@lru_cache
def matrices(m: int, r: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """At [m, p], G [p, r] and Bt [p, p] of F(m, r) with p = m + r - 1, exact in f64 for the points in use.

    y_i = sum_k d_(i+k) g_k for all i is At ((G g) * (Bt d)).

    >>> at, g, bt = matrices(2)
    >>> d, k = np.array([1.0, 2.0, 4.0, 8.0]), np.array([3.0, 5.0, 7.0])
    >>> at @ ((g @ k) * (bt @ d))
    array([41., 82.])
    """
    points = POINTS[m]
    p = m + r - 1
    at, g, bt = np.zeros((m, p)), np.zeros((p, r)), np.zeros((p, p))
    for j, a in enumerate(points):
        others = [x for x in points if x != a]
        scale = Fraction(1)
        for x in others:
            scale *= a - x
        at[:, j] = [float(a**i) for i in range(m)]
        g[j] = [float(a**k / scale) for k in range(r)]
        bt[j, : p - 1] = [float(c) for c in _polynomial(others)]
    at[m - 1, p - 1] = g[p - 1, r - 1] = 1.0
    bt[p - 1] = [float(c) for c in _polynomial(list(points))]
    return at, g, bt


def _polynomial(roots: list[Fraction]) -> list[Fraction]:
    """Coefficients of the product of (x - root), lowest power first."""
    c = [Fraction(1)]
    for root in roots:
        c = [(c[i - 1] if i else 0) - root * (c[i] if i < len(c) else 0) for i in range(len(c) + 1)]
    return c


def transform_weights(w: np.ndarray, m: int) -> np.ndarray:
    """Weights [F, C, 3, 3] as ``tw.winograd_conv`` takes them: [(m + 2)^2, C, F], rounded once."""
    _, g, _ = matrices(m)
    f, c, k, _ = w.shape
    rows = g @ w.transpose(2, 3, 1, 0).astype(np.float64).reshape(k, -1)
    u = g @ rows.reshape(len(g), k, -1)
    return u.astype(w.dtype).reshape(-1, c, f)


class WinogradConv(Operator):
    """A 3x3 convolution with strides 1 of x [N, H, W, C], channels last, by tiles of ``tile`` x ``tile`` results.

    x has its padding already and is as large as the tiles need: H = tile * ceil(h / tile) + 2 for ``size`` = (h, w);
    u are the transformed weights [(tile + 2)^2, C, F], see `transform_weights`. The result is [N, h, w, F]. Opaque: it
    has a loop nest of its own.

    ``"tw.winograd_conv"(%x, %u) {tile = 4 : i64, size = array<i64: 14, 14>} : (tensor<1x18x18x64xf32>,
    tensor<36x64x64xf32>) -> tensor<1x14x14x64xf32>``
    """

    kind = "opaque"

    @staticmethod
    def infer(x, u, *, tile: int, size: tuple[int, ...]):
        need("float", x, u)
        same_dtype(x, u)
        if tile not in POINTS:
            raise OpError(f"tile is one of {', '.join(map(str, POINTS))}, not {tile}")
        if x.rank != 4 or u.rank != 3 or len(size) != 2:
            raise OpError(f"needs x [N, H, W, C], u [(tile + 2)^2, C, F] and size (h, w), got {x}, {u} and {size}")
        needed = tuple((s + tile - 1) // tile * tile + 2 for s in size)
        if x.shape[1:3] != needed or not all(at_most(1, s) for s in size):
            raise OpError(f"tiles of {tile} for {size} results need an input of {needed}, got {x}")
        if u.shape[:2] != ((tile + 2) ** 2, x.shape[3]):
            raise OpError(f"u must be [{(tile + 2) ** 2}, {x.shape[3]}, F], got {u}")
        return x.with_shape((x.shape[0], *size, u.shape[2]))

    @staticmethod
    def reference(x, u, *, tile, size):
        at, _, bt = matrices(tile)
        p, (h, w) = tile + 2, size
        wide = np.float64 if x.dtype == np.float64 else np.float32
        windows = np.lib.stride_tricks.sliding_window_view(x.astype(wide), (p, p), axis=(1, 2))[:, ::tile, ::tile]
        d = np.einsum("ik,nyxckl,jl->ijnyxc", bt.astype(wide), windows, bt.astype(wide), optimize=True)
        v = np.einsum("ijnyxc,ijcf->ijnyxf", d, u.astype(wide).reshape(p, p, *u.shape[1:]), optimize=True)
        y = np.einsum("ai,ijnyxf,bj->nyaxbf", at.astype(wide), v, at.astype(wide), optimize=True)
        n, ty, _, tx, _, f = y.shape
        return np.ascontiguousarray(y.reshape(n, ty * tile, tx * tile, f)[:, :h, :w].astype(x.dtype))
