"""Linear algebra on the host in batches, empty and full, against what the factors are for."""

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")
pytest.importorskip("scipy", reason="SciPy is not installed: pip install tilewright[torch]")

import numpy as np

from tilewright.frontends.torch import linalg


@pytest.mark.parametrize("batch", [(), (3,), (2, 0), (2, 1)])
@pytest.mark.parametrize("size", [0, 1, 5])
@pytest.mark.parametrize("left", [True, False])
def test_systems_of_equations(batch, size, left):
    rng = np.random.default_rng(0)
    a, x = rng.normal(size=(*batch, size, size)), rng.normal(size=(*batch, size, size))
    b = a @ x if left else x @ a
    np.testing.assert_allclose(linalg.solve_ex(a, b, left=left)[0], x, atol=1e-8)
    upper = np.triu(a) + 3 * np.eye(size)
    b = upper @ x if left else x @ upper
    np.testing.assert_allclose(linalg.solve_triangular(upper, b, upper=True, left=left), x, atol=1e-8)


@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 4, 4), (0, 3, 3)])
def test_lu(shape):
    a = np.random.default_rng(1).normal(size=shape)
    p, lower, upper = linalg.lu(a)
    np.testing.assert_allclose(p @ lower @ upper, a, atol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_ldl(size):
    """Of matrices that are not definite: with blocks of two."""
    rng = np.random.default_rng(2)
    for a in rng.normal(size=(8, size, size)):
        a = a + a.T
        np.fill_diagonal(a, 0.01)
        factors, pivots, _ = linalg.ldl_factor_ex(a)
        x = rng.normal(size=(size, 2))
        np.testing.assert_allclose(linalg.ldl_solve(factors, pivots, a @ x), x, atol=1e-6)
