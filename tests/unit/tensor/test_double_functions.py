"""Functions of f64 as expressions: within the errors that they state, against mpmath."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tilewright.tensor.evaluate import evaluate
from tilewright.tensor.expr import Const, Var
from tilewright.tensor.mathlib import BINARY
from tilewright.tensor.mathlib.build import V
from tilewright.tensor.mathlib.double import FUNCTIONS, short_power

mp = pytest.importorskip("mpmath", reason="mpmath is not installed: pip install mpmath")

COUNT = 40
UNIT = ("asin", "acos", "atanh")
#: where angles are as near to a multiple of pi/2 as they can be
NEAR = (6381956970095103.0 * 2.0**797, 1e22, 2.0**20 + 0.5)
EXACT = {
    "exp2": lambda x: mp.mpf(2) ** x,
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "log2": lambda x: mp.log(x) / mp.log(2),
    "log10": lambda x: mp.log(x) / mp.log(10),
    "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    "rsqrt": lambda x: 1 / mp.sqrt(x),
    "powf": lambda x, y: x**y,
}


def drawn(name: str) -> list[np.ndarray]:
    """Numbers of all magnitudes that the function takes, as many again near 1, and more where it is hard."""
    random = np.random.default_rng(len(name))
    signs = random.choice([-1.0, 1.0], COUNT)
    wide, near = signs * 10.0 ** random.uniform(-17, 300, COUNT), signs * random.uniform(0, 3, COUNT)
    if name in ("exp", "exp2", "expm1", "sinh", "cosh", "sigmoid", "tanh"):
        wide = signs * 10.0 ** random.uniform(-17, 2.8, COUNT)
    if name.startswith("log") or name in ("powf", "rsqrt", "acosh"):
        wide, near = abs(wide), 1.0 + (abs(near) if name == "acosh" else signs * 10.0 ** random.uniform(-15, -1, COUNT))
    if name == "log1p":
        near -= 1.0
    if name in UNIT:
        wide, near = 1.0 / (1.0 + abs(wide)), near / 3
    x = np.concatenate([wide, near, NEAR if name in ("sin", "cos", "tan") else []])
    if name == "acosh":
        x = x[x >= 1]
    if name == "powf":  # where the result is a number
        y = np.concatenate([random.uniform(-1, 1, COUNT), signs * 10.0 ** random.uniform(0, 15, COUNT)])
        return [x, np.where(abs(y * np.log(x)) < 700, y, 0.75)]
    return [x, x[::-1].copy()] if name == "atan2" else [x]


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_errors_are_as_stated(name):
    args = drawn(name)
    e = FUNCTIONS[name](*(V(Var(n, "f64")) for n in "xy"[: len(args)])).e
    with np.errstate(all="ignore"):
        got = np.broadcast_to(evaluate(e, dict(zip("xy", args, strict=False)), None), args[0].shape)
    (stated,) = re.findall(r"within ([\d.]+) ULP", FUNCTIONS[name].__doc__)
    with mp.workprec(1200 if name in ("sin", "cos", "tan") else 200):
        for i, found in enumerate(got):
            want = EXACT.get(name, getattr(mp, name, None))(*(mp.mpf(float(a[i])) for a in args))
            rounded = float(want)
            if not np.isfinite(rounded):
                assert found == rounded
                continue
            error = abs(mp.mpf(float(found)) - want) / mp.mpf(float(np.spacing(max(abs(rounded), 2.0**-1022))))
            assert error <= float(stated), (name, [a[i] for a in args], float(error))


def test_all_of_f32_are_there_and_short_powers_are_products():
    assert set(FUNCTIONS) >= BINARY
    x = Var("x", "f64")
    assert str(short_power(x, Const(2.0, "f64"))) == "(x *. x)" and short_power(x, Const(0.3, "f64")) is None


@pytest.mark.parametrize(
    "name, base, low, high", [("log2", 2, -1074, 1024), ("exp2", 2, -1074, 1024), ("log10", 10, -300, 309)]
)
def test_whole_powers_are_exact(name, base, low, high):
    whole = np.arange(low, high, dtype=np.float64)
    powers = np.ldexp(1.0, np.arange(low, high)) if base == 2 else np.array([float(f"1e{k}") for k in range(low, high)])
    x, want = (whole, powers) if name == "exp2" else (powers, whole)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(evaluate(FUNCTIONS[name](V(Var("x", "f64"))).e, {"x": x}, None), want)
