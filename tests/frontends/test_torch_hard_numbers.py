"""What PyTorch's operators make of NaN, infinities, zeros with a sign, ties, powers and limits that cross: all in one
graph, by the references of its operators for each type, and compiled where the code is more than one operation."""

import math

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install tilewright[torch]")

import numpy as np  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright.frontends.protocol import find  # noqa: E402
from tilewright.graph.interpret import interpret  # noqa: E402

F = torch.nn.functional
NAN, INF = math.nan, math.inf
CLOSE = {torch.float16: 2e-3, torch.float32: 4e-6, torch.float64: 1e-13}


class Results(torch.nn.Module):
    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def forward(self, *xs):
        return [f(*xs) for f in self.functions]


def numbers(dtype):
    """No number is so large that what a library loses on the way decides (its own fmod of 1e38 and 0.1 is NaN)."""
    limits = torch.finfo(dtype)
    ends = [NAN, INF, -INF, limits.tiny, -limits.tiny, limits.max]
    sizes = [0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 5.25, 7.0, 8.0, 20.0, 64.0, 100.0, 1e-3, 1e-7, 0.49999997]
    large = [] if dtype == torch.float16 else [2.0**15, 2.0**24 + 2, 2.0**23 - 0.5, 1e10]
    return torch.tensor([*ends, *(s * v for v in (*sizes, *large) for s in (1, -1))], dtype=torch.float64).to(dtype)


def differ(got, want, signs=True):
    """Where results are not the same: NaN with NaN, zeros of one sign, other numbers within the bound of their type."""
    got = torch.as_tensor(np.array(got))
    assert got.dtype == want.dtype and got.shape == want.shape
    if not want.dtype.is_floating_point:
        return got != want
    close = CLOSE[want.dtype]
    wide, right = got.double(), want.double()
    same = (wide == right) | (wide.isnan() & right.isnan()) | ((wide - right).abs() <= close * right.abs())
    return ~same | (signs & (right == 0) & (wide == 0) & (wide.signbit() != right.signbit()))


def check(functions, *xs, compiled=False, signs=True):
    """The functions by name in one graph."""
    module = Results(functions.values())
    if compiled:
        got = tw.compile(module, xs, threads=1)(*xs)
    else:
        graph = find(module).trace(module, xs, None).graph({})
        given = {name: x.numpy() for (name, _), x in zip(graph.inputs(), xs, strict=True)}
        with np.errstate(all="ignore"):
            got = list(interpret(graph, given).values())
    for name, ours, want in zip(functions, got, module(*xs), strict=True):
        wrong = differ(ours, want, signs)
        at = (
            torch.broadcast_tensors(wrong, *xs)[1:]
            if wrong.shape == torch.broadcast_shapes(*(x.shape for x in xs))
            else []
        )
        assert not wrong.any(), (name, [x[wrong][:5] for x in at], want[wrong][:5], torch.as_tensor(ours)[wrong][:5])


#: the sign of a zero counts
EXACT = {
    "sign": torch.sign,
    "sgn": torch.sgn,
    "clamp": lambda x: torch.clamp(x, -1, 1),
    "clamp crossed": lambda x: torch.clamp(x, 5, 2),
    "clamp NaN": lambda x: torch.clamp(x, NAN, 2),
    "clamp crossed tensors": lambda x: torch.clamp(x, torch.full_like(x, 5), torch.full_like(x, 2)),
    "hardtanh": F.hardtanh,
    "leaky_relu of 0": lambda x: F.leaky_relu(x, 0.0),
    "elu": F.elu,
    "celu": F.celu,
    "selu": F.selu,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log": torch.log,
    "log2": torch.log2,
    "log10": torch.log10,
    "floor log2": lambda x: torch.floor(torch.log2(x)),
    "sinh": torch.sinh,
    "tanh": torch.tanh,
    "asinh": torch.asinh,
    "round": torch.round,
    "round to a digit": lambda x: torch.round(x, decimals=3),
    "round to tens": lambda x: torch.round(x, decimals=-1),
    "trunc": torch.trunc,
    "frac": torch.frac,
    "remainder": lambda x: torch.remainder(x, 3),
    "remainder of a negative": lambda x: torch.remainder(x, -3),
    "remainder of inf": lambda x: torch.remainder(x, -INF),
    "fmod": lambda x: torch.fmod(x, -3),
    "floor_divide": lambda x: x // 3,
    "floor_divide by a negative": lambda x: x // -3,
    "floor_divide by inf": lambda x: torch.floor_divide(x, INF),
    "floor_divide by 0": lambda x: torch.floor_divide(x, 0.0),
    "floor_divide by a tenth": lambda x: (x // 0.1).where(x.abs() < 1e3, 0),
    "div trunc": lambda x: torch.div(x, 3, rounding_mode="trunc"),
    "times a small number": lambda x: x * 1e-8,
    "by a large number": lambda x: x / 1e6,
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0),
    "ldexp": lambda x: torch.ldexp(x, torch.tensor(-130)),
    "heaviside": lambda x: torch.heaviside(x, torch.full_like(x, 0.5)),
    "nan_to_num": torch.nan_to_num,
    "signbit": torch.signbit,
    "softplus": lambda x: F.softplus(x, 2.0, 10.0),
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 0.1, 20.0),
    "sinc": torch.sinc,
    "logit": torch.logit,
    "angle": torch.angle,
    "to int": lambda x: torch.where(x.abs() < 1e4, x, 0).to(torch.int64),
}
#: which of two zeros is the larger one is left open
OPEN = {"relu": F.relu, "relu6": F.relu6, "clamp at 0": lambda x: torch.clamp(x, min=0), "softshrink": F.softshrink}
PAIRS = {
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "nextafter": torch.nextafter,
    "logaddexp": torch.logaddexp,
    "xlogy": torch.xlogy,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "fmin": torch.fmin,
    "fmod": torch.fmod,
    "remainder": torch.remainder,
    "floor_divide": torch.floor_divide,
    "isclose": torch.isclose,
    "le": torch.le,
    "ne": torch.ne,
}
ROWS = {
    "amax": lambda x: x.amax(1),
    "argmin": lambda x: x.argmin(1),
    "cummax": lambda x: x.cummax(1)[1],
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "var": lambda x: x.var(1),
    "var of too few": lambda x: x.var(1, correction=9),
    "largest": lambda x: torch.linalg.vector_norm(x, INF, 1),
    "how many": lambda x: torch.linalg.vector_norm(x, 0, 1),
    "inverse norm": lambda x: torch.linalg.vector_norm(x, -1, 1),
    "softmax": lambda x: x.softmax(1),
    "sort": lambda x: torch.sort(x, dim=1, stable=True, descending=True)[1],
    "topk": lambda x: x.topk(3, 1, largest=False)[0],
    "median": lambda x: x.median(1)[0],
    "nanmedian": lambda x: x.nanmedian(1)[0],
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([0.0, 1, 1, 3]), right=True),
}


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
def test_hard_numbers(dtype):
    drop = ("sinc",) if dtype == torch.float16 else ()  # PyTorch rounds to f16 on the way
    check({n: f for n, f in EXACT.items() if n not in drop}, numbers(dtype))
    check(OPEN, numbers(dtype), signs=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_hard_numbers_compiled(dtype):
    names = (
        *("sign", "clamp crossed", "elu", "exp2", "expm1", "log2", "log10", "floor log2", "floor_divide by a negative"),
        *("floor_divide by inf", "remainder of a negative", "round to a digit", "leaky_relu of 0"),
    )
    check({n: EXACT[n] for n in names}, numbers(dtype), compiled=True)


def test_hard_pairs():
    x = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, -3.0, 7.0, -5.25, 100.0, 1e10])
    check(PAIRS, x[:, None], x[None], signs=False)
    ends = torch.iinfo(torch.int8)
    i = torch.tensor([0, 1, 2, 3, 7, -1, -2, -7, 100, ends.max, ends.min], dtype=torch.int8)
    check({"add": torch.add, "mul": torch.mul, "maximum": torch.maximum, "lt": torch.lt}, i[:, None], i[None])
    y = torch.tensor([1, 3, -1, -4, 100], dtype=torch.int8)
    check({n: PAIRS[n] for n in ("remainder", "fmod", "floor_divide")}, i[:, None], y[None])


def test_hard_rows():
    rows = [[1, 2, 3, 4, 5, 6], [NAN, 1, 2, 3, 4, 5], [5, 4, NAN, 3, NAN, 1], [INF, 1, 2, -INF, 3, INF], [-INF] * 6]
    rows += [[3, 3, 1, 1, 3, 1], [1e4, 10001, 1e4, 9999, 1e4, 1e4], [NAN] * 6, [0.5, 1.5, 2.5, -0.5, -1.5, -2.5]]
    check(ROWS, torch.tensor(rows), signs=False)
    x = torch.arange(101) * 0.01
    check({"histc": lambda x: torch.histc(x, 7), "by edges": lambda x: torch.histogram(x, 7)[0]}, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_powers_are_exact(dtype):
    """log2 of 2^k is k, log10 of 10^k too, 2^k is a power of two: for all k that the type has, denormal numbers too."""
    limits = {torch.float32: (-149, 128, -37, 39), torch.float64: (-1074, 1024, -300, 309)}[dtype]
    twos = torch.from_numpy(np.ldexp(1.0, np.arange(*limits[:2]))).to(dtype)
    tens = torch.tensor([float(f"1e{k}") for k in range(*limits[2:])], dtype=dtype)
    whole = torch.arange(*limits[:2], dtype=dtype)
    made = tw.compile(Results([lambda x, y, z: [torch.log2(x), torch.log10(y), torch.exp2(z)]]), (twos, tens, whole))
    got = [torch.as_tensor(v) for v in made(twos, tens, whole)[0]]
    for ours, want in zip(got, (whole, torch.arange(*limits[2:], dtype=dtype), twos), strict=True):
        assert torch.equal(ours, want)


def test_elements_outside_of_a_window_do_not_count():
    """Shorter windows than others were filled with a weight of zero, which made NaN of the next infinity."""
    x = torch.arange(11.0).repeat(2, 3, 4, 1)
    x[..., 5], x[..., 10] = INF, NAN
    functions = {
        "pool1": lambda x: F.adaptive_avg_pool1d(x[:, 0], 5),
        "pool2": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
        "linear": lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True),
        "cubic": lambda x: F.interpolate(x, (3, 4), mode="bicubic", antialias=True),
        "linear backward": lambda x: torch.ops.aten.upsample_linear1d_backward(x[0], [11], [3, 4, 4], False),
        "pool backward": lambda x: torch.ops.aten._adaptive_avg_pool2d_backward(x, x.new_zeros(2, 3, 6, 16)),
    }
    check(functions, x)


def test_powers_of_halves_that_overflow():
    """In norms, and in the statistics of a batch, whose results were infinite and 0."""
    x = torch.linspace(-3, 3, 96).reshape(4, 3, 8)
    x[2, :, 3] = 2046
    nothing = torch.ones(3, dtype=torch.float16)
    functions = {
        "norm": lambda x: torch.linalg.vector_norm(x, 3, dim=2),
        "dist": lambda x: torch.dist(x, -x, 4.0),
        **{
            f"batch {i}": lambda x, i=i: torch.native_batch_norm(x, nothing, -nothing, None, None, True, 0.1, 1e-5)[i]
            for i in (0, 2)
        },
        "layer": lambda x: torch.native_layer_norm(x, [8], None, None, 1e-5)[0],
    }
    check(functions, x.half())


def test_doubles_are_resized_in_doubles():
    """The places were rounded to f32."""
    x = torch.linspace(-3, 9, 2 * 7 * 5, dtype=torch.float64).reshape(1, 2, 7, 5)
    modes = [{"mode": m, "antialias": a} for m in ("bilinear", "bicubic") for a in (False, True)]
    check({str(m): lambda x, m=m: F.interpolate(x, scale_factor=0.73, **m) for m in modes}, x)


def test_zeros_of_gamma_functions():
    """The logarithm's at 1 and 2; the cotangent's between the poles, where that of a rounded pi / 2 was 27% of the
    sum. Near 0, pi x and x / 2 may be subnormal."""
    for dtype in (torch.float32, torch.float64):
        x = torch.tensor([0.0, -1.0, 1.0, 2.0, 3.0], dtype=dtype)
        check({"lgamma": torch.lgamma}, x)
    bessel = {"y0": torch.special.bessel_y0, "y1": torch.special.bessel_y1}
    check({"lgamma": torch.lgamma, **bessel}, torch.tensor([5e-324, -5e-324, 1.5e-323, 1e-310], dtype=torch.float64))
    x = torch.tensor([-8388607.5, -0.5, -7.5], dtype=torch.float64)
    (got,) = tw.compile(Results([lambda x: torch.special.polygamma(2, x)]), (x,), threads=1)(x)
    np.testing.assert_allclose(got, [-(2.0**-46), -0.82879664423432, -0.0155645117959039], rtol=1e-12)
