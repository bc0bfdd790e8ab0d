"""Special functions of PyTorch in float64 against SciPy, over wide ranges, by the references of the operators; what is
compiled is compared in the sample of PyTorch's own table."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")
special = pytest.importorskip("scipy.special", reason="SciPy is not installed: pip install tilewright[torch]")

import numpy as np  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.frontends.protocol import find  # noqa: E402
from tilewright.frontends.torch import polynomials  # noqa: E402
from tilewright.graph.interpret import interpret  # noqa: E402

T = torch.special


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *xs):
        return self.function(*xs)


def ours(function, x):
    """A function of PyTorch at the places x, by the graph that is made of it."""
    module, given = Function(function), (torch.from_numpy(x),)
    graph = find(module).trace(module, given, None).graph({})
    return next(iter(interpret(graph, {graph.inputs()[0][0]: x}).values()))


def both_ways(*sizes):
    return np.concatenate([v for s in sizes for v in (s, -s)] + [np.zeros(1)])


WIDE = np.geomspace(1e-8, 1e3, 89)
NEAR = np.linspace(0.01, 30, 173)
POSITIVE = np.concatenate([WIDE, NEAR])
FUNCTIONS = {
    "lgamma": (torch.lgamma, special.gammaln, both_ways(WIDE, NEAR[:40])),
    "digamma": (torch.digamma, special.psi, np.concatenate([POSITIVE, -NEAR[:60] - 0.003])),
    "trigamma": (lambda x: torch.polygamma(1, x), lambda x: special.polygamma(1, x), POSITIVE),
    "polygamma4": (lambda x: torch.polygamma(4, x), lambda x: special.polygamma(4, x), NEAR),
    "erfc": (torch.erfc, special.erfc, both_ways(np.geomspace(1e-9, 26, 99))),
    "erfcx": (T.erfcx, special.erfcx, np.concatenate([WIDE, NEAR, -NEAR[:100]])),
    "log_ndtr": (T.log_ndtr, special.log_ndtr, both_ways(NEAR)),
    "erfinv": (torch.erfinv, special.erfinv, both_ways(1 - np.geomspace(1e-12, 0.999999, 99))),
    "ndtri": (
        T.ndtri,
        special.ndtri,
        np.concatenate([np.geomspace(1e-300, 0.5, 99), 1 - np.geomspace(1e-12, 0.5, 50)]),
    ),
    "i0": (torch.i0, special.i0, both_ways(np.geomspace(1e-8, 700, 99), NEAR)),
    "i0e": (T.i0e, special.i0e, both_ways(WIDE, NEAR)),
    "i1": (T.i1, special.i1, both_ways(np.geomspace(1e-8, 700, 99), NEAR)),
    "i1e": (T.i1e, special.i1e, both_ways(WIDE, NEAR)),
    "k0": (T.modified_bessel_k0, special.k0, np.concatenate([WIDE[:70], NEAR])),
    "k1": (T.modified_bessel_k1, special.k1, np.concatenate([WIDE[:70], NEAR])),
    "k0e": (T.scaled_modified_bessel_k0, special.k0e, POSITIVE),
    "k1e": (T.scaled_modified_bessel_k1, special.k1e, POSITIVE),
    "j0": (T.bessel_j0, special.j0, both_ways(WIDE, NEAR)),
    "j1": (T.bessel_j1, special.j1, both_ways(WIDE, NEAR)),
    "y0": (T.bessel_y0, special.y0, POSITIVE),
    "y1": (T.bessel_y1, special.y1, POSITIVE),
    "airy": (T.airy_ai, lambda x: special.airy(x)[0], np.concatenate([np.linspace(-40, 15, 257), [-1e3, 1e-9, 50]])),
    "spherical_j0": (T.spherical_bessel_j0, lambda x: np.sinc(x / math.pi), both_ways(WIDE)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name):
    function, reference, x = FUNCTIONS[name]
    np.testing.assert_allclose(ours(function, x), reference(x), rtol=1e-9, atol=2e-13)


SMALL = np.concatenate([np.geomspace(1e-12, 0.4, 30), -np.geomspace(1e-12, 0.4, 30)])
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, -3.0, 2.0, math.inf, -math.inf, math.nan, 1e-40, 1e30, -1e30])


@pytest.mark.parametrize(
    "name",
    sorted(set(FUNCTIONS) - {"trigamma", "polygamma4", "airy", "i0", "i1", "y0", "y1", "j0", "j1"}),
)
def test_special_numbers(name):
    """What is infinite, not a number or at a pole is as PyTorch has it; so is the sign."""
    function, _, _ = FUNCTIONS[name]
    got, want = ours(function, SPECIAL), function(torch.from_numpy(SPECIAL)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-7, atol=1e-12)


def test_the_logarithm_of_gamma_to_the_last_digits():
    """Near its zeros, too, and below 0; it was a difference of numbers near 16. Far below 0 there are only poles."""
    x = np.concatenate([np.linspace(-4.9, 12, 400), 1 + SMALL, 2 + SMALL, [-9e307, -1e300]])
    want = torch.lgamma(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(ours(torch.lgamma, x), want, rtol=2e-15, atol=1e-15)


def test_ends_of_bessel_functions():
    """-2 x overflowed in K. Integers become f32, as in PyTorch, before they are anything else."""
    x = np.array([1e300, 1.7e308])
    assert (ours(T.modified_bessel_k0, x) == 0).all()
    np.testing.assert_allclose(ours(T.scaled_modified_bessel_k1, x), np.sqrt(math.pi / 2 / x), rtol=1e-14)
    whole = np.array([2**31 - 1, 2**24 + 1])
    np.testing.assert_allclose(
        ours(T.spherical_bessel_j0, whole), T.spherical_bessel_j0(torch.from_numpy(whole)).numpy(), rtol=1e-6
    )


def test_incomplete_gamma_functions():
    a, x = np.meshgrid(np.geomspace(1e-3, 3e3, 41), np.geomspace(1e-4, 4e3, 53))
    lower, upper = polynomials.incomplete_gamma(a, x)
    np.testing.assert_allclose(lower, special.gammainc(a, x), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(upper, special.gammaincc(a, x), rtol=1e-9, atol=1e-14)


def test_zeta():
    x, q = np.meshgrid([1.5, 2.0, 3.0, 7.25, 30.0], np.concatenate([np.geomspace(1e-3, 1e4, 31), [math.inf]]))
    np.testing.assert_allclose(polynomials.zeta(x, q), special.zeta(x, q), rtol=1e-11)
    below = np.array([-0.5, -20.5, -60.25])
    want = torch.special.zeta(torch.tensor(3.0, dtype=torch.float64), torch.from_numpy(below)).numpy()
    np.testing.assert_allclose(polynomials.zeta(3.0, below), want, rtol=1e-9)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("chebyshev_polynomial_t", special.eval_chebyt), ("chebyshev_polynomial_u", special.eval_chebyu),
        ("hermite_polynomial_h", special.eval_hermite), ("hermite_polynomial_he", special.eval_hermitenorm),
        ("laguerre_polynomial_l", special.eval_laguerre), ("legendre_polynomial_p", special.eval_legendre),
    ],
)  # fmt: skip
def test_polynomials(name, reference):
    x, n = np.meshgrid(np.linspace(-2, 2, 41), np.arange(14))
    np.testing.assert_allclose(polynomials.polynomial(name, False)(x, n), reference(n, x), rtol=1e-9, atol=1e-9)
    assert (polynomials.polynomial(name, False)(x, n - 20) == 0).all()


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("kind", "tuvw")
def test_polynomials_of_any_degree(kind, shifted):
    """Degrees that are infinite or NaN ended the program, and large ones took as many steps."""
    degrees = [-math.inf, -1, 3, 7, 40, 1e15, 1e15 + 1, math.inf, math.nan]
    x, n = np.meshgrid([-1.5, -1, -0.3, 0, 0.7, 1, 1.5, math.inf, math.nan], degrees)
    name = f"chebyshev_polynomial_{kind}"
    with np.errstate(all="ignore"):
        got = polynomials.polynomial(name, shifted)(x, n)
    eager = getattr(T, f"{'shifted_' * shifted}{name}")
    np.testing.assert_allclose(got, eager(torch.from_numpy(x), torch.from_numpy(n)).numpy(), rtol=1e-12, atol=1e-12)


def test_compiled():
    """In float32, as compiled code; against SciPy, for PyTorch's own j0 is off by 4e-7 even in float64."""
    x = torch.linspace(0.05, 12, 150)
    chosen = [FUNCTIONS[name] for name in ("lgamma", "digamma", "erfc", "i1e", "j0")]
    run = tw.compile(Function(lambda x: [f(x) for f, _, _ in chosen]), (x,), threads=1)
    for got, (_, reference, _) in zip(run(x), chosen, strict=True):
        np.testing.assert_allclose(got.numpy(), reference(x.double().numpy()), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("function", [torch.lgamma, torch.erfinv, T.bessel_j0])
def test_a_function_is_few_operations_in_one_kernel(function):
    """They were 75, 112 and 70 operations; lgamma was 12 kernels, erfinv 7."""
    text = tw.compile(Function(function), (torch.rand(4, 8),), stop_after="fuse").text()
    assert text.count("func.func private") == 1 and text.count("linalg.generic") <= 6


def test_a_long_series_is_several_operators():
    """Its steps one behind the other are more than one operator has: what walks expressions may recurse."""
    x = np.linspace(0.7, 30, 50)
    function = lambda x: torch.polygamma(60, x)  # noqa: E731
    text = tw.compile(Function(function), (torch.from_numpy(x),), stop_after="import").text()
    assert text.count('"tw.formula"') > 3
    np.testing.assert_allclose(ours(function, x), special.polygamma(60, x), rtol=1e-9)


def test_gradients():
    """Of lgamma and of what its gradient is made of, by torch.compile."""

    def loss(x):
        return (torch.lgamma(x) + torch.digamma(x) + torch.erfinv(x / 8)).sum()

    x = torch.linspace(0.1, 7, 40, requires_grad=True)
    torch.compile(loss, backend="tilewright")(x).backward()
    y = x.detach().double().requires_grad_()
    loss(y).backward()
    torch.testing.assert_close(x.grad, y.grad.float(), rtol=3e-6, atol=1e-6)
