"""Math functions: bounds in ULP, special values, what is expanded, and the evaluator that measures all of it."""

from __future__ import annotations

import importlib.util
import math
import struct
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.description import host
from tilewright.tensor.evaluate import NUMPY, evaluate
from tilewright.tensor.expr import Const, Load, Op, Var, walk
from tilewright.tensor.mathlib import BINARY, FUNCTIONS, TABLED, coefficients, expand
from tilewright.tensor.mathlib.build import V

ROOT = Path(__file__).parents[3]
INF, NAN = math.inf, math.nan
X, Y = Var("x", "f32"), Var("y", "f32")


def script(name: str):
    """A module of benchmarks/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


accuracy = script("math_accuracy")


#: functions and whether they use tables
FORMS = [*((n, False) for n in sorted(FUNCTIONS)), *((n, True) for n in sorted(TABLED))]


def expanded(name: str, dtype: str = "f32", *, tables: bool = False):
    args = (Var("x", dtype), Var("y", dtype)) if name in BINARY else (Var("x", dtype),)
    result = expand(name, args, dtype, tables=tables)
    assert result is not None
    return result


def value(name: str, x: float, y: float = 0.0, *, tables: bool = False) -> float:
    return float(evaluate(expanded(name, tables=tables), {"x": np.float32(x), "y": np.float32(y)}))


# ---- accuracy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name, tables", FORMS)
def test_bound(name, tables):
    worst, where, count = accuracy.measure(name, step=10007, dense=300, tables=tables)
    assert count > 50_000
    assert worst <= accuracy.BOUNDS[name], f"{worst} ULP at {where}"


SPECIAL = [
    ("exp", -INF, 0.0), ("exp", INF, INF), ("exp", 0.0, 1.0), ("exp", 89.0, INF), ("exp", -104.0, 0.0),
    ("exp2", -149.0, 2.0**-149), ("exp2", 128.0, INF), ("exp2", 10.0, 1024.0), ("exp2", -151.0, 0.0),
    ("expm1", -INF, -1.0), ("expm1", INF, INF), ("expm1", -0.0, -0.0), ("expm1", 2.0**-149, 2.0**-149),
    ("sigmoid", INF, 1.0), ("sigmoid", -INF, 0.0), ("sigmoid", 0.0, 0.5),
    ("tanh", INF, 1.0), ("tanh", -INF, -1.0), ("tanh", -0.0, -0.0), ("tanh", 2.0**-149, 2.0**-149),
    ("log", 0.0, -INF), ("log", -0.0, -INF), ("log", -1.0, NAN), ("log", INF, INF), ("log", 1.0, 0.0),
    ("log2", 2.0**-149, -149.0), ("log2", 2.0**127, 127.0), ("log10", 1.0, 0.0), ("log2", -INF, NAN),
    ("log1p", -1.0, -INF), ("log1p", -0.0, -0.0), ("log1p", -2.0, NAN), ("log1p", INF, INF), ("log1p", -INF, NAN),
    ("erf", INF, 1.0), ("erf", -INF, -1.0), ("erf", -0.0, -0.0),
    ("sin", -0.0, -0.0), ("sin", INF, NAN), ("cos", 0.0, 1.0), ("cos", -INF, NAN), ("tan", -0.0, -0.0),
    ("tan", INF, NAN),
    ("asin", 1.5, NAN), ("asin", -0.0, -0.0), ("acos", 1.0, 0.0), ("acos", -1.01, NAN), ("atan", -0.0, -0.0),
    ("sinh", -INF, -INF), ("sinh", -0.0, -0.0), ("cosh", -INF, INF), ("cosh", 0.0, 1.0),
    ("asinh", -INF, -INF), ("asinh", -0.0, -0.0), ("acosh", 1.0, 0.0), ("acosh", 0.5, NAN), ("acosh", -5.0, NAN),
    ("acosh", INF, INF), ("acosh", -INF, NAN), ("atanh", 1.0, INF), ("atanh", -1.0, -INF), ("atanh", 2.0, NAN),
    ("atanh", -0.0, -0.0), ("atanh", INF, NAN), ("cbrt", -8.0, -2.0), ("cbrt", -0.0, -0.0), ("cbrt", -INF, -INF),
    ("rsqrt", 4.0, 0.5), ("rsqrt", 0.0, INF), ("rsqrt", -1.0, NAN), ("rsqrt", INF, 0.0),
]  # fmt: skip


@pytest.mark.parametrize("name, x, expected", SPECIAL)
def test_special_value(name, x, expected):
    for tables in (False, True):
        result = value(name, x, tables=tables)
        if math.isnan(expected):
            assert math.isnan(result)
        else:
            assert struct.pack("f", result) == struct.pack("f", expected)


@pytest.mark.parametrize("name, tables", FORMS)
@pytest.mark.parametrize("pattern", [0x7FC00000, 0xFFC00000, 0x7FC12345, 0xFFFFFFFF])
def test_every_nan_stays(name, tables, pattern):
    nan = np.uint32(pattern).view(np.float32)
    assert np.isnan(evaluate(expanded(name, tables=tables), {"x": nan, "y": np.float32(0.5)}))
    if name in BINARY:
        assert np.isnan(evaluate(expanded(name), {"x": np.float32(0.5), "y": nan}))


POW = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 2.5, 1e10, -1e10, 16777217.0, 8388609.0, INF, -INF, NAN]


@pytest.mark.parametrize("name", ["powf", "atan2"])
def test_special_pairs_agree_with_c(name):
    x, y = (a.ravel().astype(np.float32) for a in np.meshgrid(POW, POW))
    result = evaluate(expanded(name), {"x": x, "y": y})
    with np.errstate(all="ignore"):
        exact = (np.power if name == "powf" else np.arctan2)(x.astype(np.float64), y.astype(np.float64))
    errors = accuracy.ulps(result, exact)
    assert errors.max() <= accuracy.BOUNDS[name], [(x[i], y[i], result[i]) for i in np.flatnonzero(errors > 3)]


TRIGONOMETRIC = ["sin", "cos", "tan"]


@pytest.mark.parametrize("name", TRIGONOMETRIC)
def test_huge_angles(name):
    """Random bit patterns of every exponent, on both sides of where the reduction changes, and next to multiples of
    pi/2, where most bits cancel."""
    rng = np.random.default_rng(8)
    x = rng.integers(0x47000000, 0x7F800000, 200_000, dtype=np.uint32).view(np.float32)
    near = np.array([16367173.0 * 2.0**72, 10741887.0 * 2.0**11, 12438944.0 * 2.0**103], np.float32)
    edge = np.float32(2.0**17).view(np.uint32) + np.arange(-1000, 1000, dtype=np.int64)
    x = np.concatenate([x, near, edge.astype(np.uint32).view(np.float32), [np.float32(3.4028235e38)]])
    x = np.concatenate([x, -x])
    errors = accuracy.ulps(evaluate(expanded(name), {"x": x}), accuracy.truth(name, x.astype(np.float64), None))
    assert errors.max() <= accuracy.BOUNDS[name], x[errors.argmax()]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("shape", [(), (5,), (4, 64), (33, 100)])
def test_huge_angles_as_compiled(shape, dtype):
    """Scalars, whole vectors and rests, where all, some and no lanes are large: what the expansion means, bit for bit,
    and NaN for infinity."""
    rng = np.random.default_rng(9)
    t = "x".join([*map(str, shape), dtype])
    text = f"func.func @main(%x: tensor<{t}>) -> (tensor<{t}>, tensor<{t}>, tensor<{t}>) {{\n"
    text += "".join(f'%{i} = "tw.{name}"(%x) : (tensor<{t}>) -> tensor<{t}>\n' for i, name in enumerate(TRIGONOMETRIC))
    text += f"return %0, %1, %2 : tensor<{t}>, tensor<{t}>, tensor<{t}> }}"
    compiled = tw.compile(text, threads=1)
    for some in (0.0, 0.03, 0.5, 1.0):
        large = rng.integers(0x47000000, 0x7F800000, shape, dtype=np.uint32)
        large = np.where(rng.random(shape) < 0.1, np.uint32(0x7F800000), large).astype(np.uint32).view(np.float32)
        x = np.where(rng.random(shape) < some, large, rng.normal(0, 10, shape)).astype(NUMPY[dtype])
        for name, result in zip(TRIGONOMETRIC, compiled(x), strict=True):
            meant = evaluate(expanded(name, dtype), {"x": x}).astype(np.float32)
            np.testing.assert_array_equal(result.astype(np.float32), meant, err_msg=f"{name} {some}")


def test_measure_reports_errors():
    """The yardstick itself: one step up is an error, wrong signs and infinities are infinite ones."""
    exact = np.array([1.0, 0.0, 1.0, NAN, INF, 2.0**-149])
    wrong = np.array([np.nextafter(np.float32(1), np.float32(2)), -0.0, INF, 1.0, 1.0, 0.0], np.float32)
    np.testing.assert_array_equal(accuracy.ulps(wrong, exact), [1.0, INF, INF, INF, INF, 1.0])


# ---- what is expanded ----------------------------------------------------------------------------------------------

FLOAT = {"addf", "subf", "mulf", "divf", "negf", "fma", "sqrt", "absf", "floor", "copysign", "cmpf", "fptosi"}
INTEGER = {"addi", "subi", "andi", "ori", "xori", "shli", "shrsi", "cmpi", "sitofp", "select", "bitcast"}
LARGE_ANGLES = {"seldom", "muli", "shrui", "extui", "trunci", "truncf", "mulf"}
PRIMITIVES = FLOAT | INTEGER
TABLES = {"limit", "pick", "scalef"}


@pytest.mark.parametrize("name, tables", FORMS)
def test_only_machine_operations(name, tables):
    for node in walk(expanded(name, tables=tables)):
        if isinstance(node, Op):
            large = name in TRIGONOMETRIC
            more = LARGE_ANGLES if large else TABLES if tables else set()
            assert node.op.split(".")[0] in PRIMITIVES | more
            assert node.dtype in ("f32", "i32", "i1", *(("f64", "i64") if large else ()))
        if isinstance(node, Const) and node.dtype == "f32":
            assert math.isnan(node.value) or float(np.float32(node.value)) == node.value


@pytest.mark.parametrize("op", ["sqrt", "floor", "ceil", "absf", "roundeven", "trunc", "fma", "nonsense"])
def test_machine_operations_stay(op):
    assert expand(op, (X,), "f32") is None


@pytest.mark.parametrize("dtype", ["f64", "i32"])
def test_other_dtypes_stay(dtype):
    assert expand("exp", (Var("x", dtype),), dtype) is None


def test_wrong_argument_count():
    with pytest.raises(CompileError, match=r"powf takes 2 argument"):
        expand("powf", (X,), "f32")


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - BINARY - {"tan"}))
def test_sixteen_bit_floats(name, dtype):
    """All 65536 values agree with the float64 result rounded, but for one neighbour in rare double rounding."""
    x = np.arange(1 << 16, dtype=np.uint16).view(NUMPY[dtype])
    result = evaluate(expanded(name, dtype), {"x": x})
    assert result.dtype == NUMPY[dtype]
    with np.errstate(all="ignore"):
        exact = accuracy.truth(name, x.astype(np.float64), None).astype(NUMPY[dtype])
    same = (result == exact) | (np.isnan(result.astype(np.float32)) & np.isnan(exact.astype(np.float32)))
    assert same.mean() > 0.999
    steps = np.abs(result.view(np.int16).astype(int) - exact.view(np.int16).astype(int))[~same]
    assert steps.size == 0 or steps.max() == 1


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0, -1.0])
def test_constant_exponents_are_short(exponent):
    e = expand("powf", (X, Const(exponent, "f32")), "f32")
    assert e is not None
    assert sum(1 for _ in walk(e)) < 12
    x = np.array([0.0, -0.0, 1.0, 2.0, 3.5, 1e30, 1e-30, -2.0, INF, -INF, NAN], np.float32)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), np.full(len(x), exponent))
    assert accuracy.ulps(evaluate(e, {"x": x}), exact).max() <= 1.5


def test_coefficients_are_as_good_as_what_the_script_finds():
    """Not the same digits: NumPy's least squares rounds differently from processor to processor."""
    pytest.importorskip("mpmath", reason="mpmath is not installed: it gives the exact values")
    fits = script("fit_polynomials")
    for f in fits.FITS:
        found = getattr(coefficients, f.name)
        assert len(found) == f.count
        assert all(c == np.float32(c) for c in found)
        assert fits.error_of(f, found) <= fits.allowed(fits.fit(f)[1]), f.name
    for p in fits.PIECES:
        found = getattr(coefficients, p.name)
        assert all(c == np.float32(c) and len(table) == 16 for table in found for c in table)
        assert p.error_of(found) <= fits.allowed(p.fit()[1]), p.name


# ---- the evaluator -------------------------------------------------------------------------------------------------


def run(op: str, dtype: str, *operands, operand_dtype: str | None = None):
    source = operand_dtype or dtype
    names = "abc"[: len(operands)]
    e = Op(op, tuple(Var(n, source) for n in names), dtype)
    return evaluate(e, {n: np.asarray(v, NUMPY[source]) for n, v in zip(names, operands, strict=True)})


def test_fma_rounds_once():
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 1 << 32, 4000, dtype=np.uint32).view(np.float32) for _ in range(2))
    near = (1 + rng.integers(-2, 3, 4000) * 2.0**-23).astype(np.float32)
    with np.errstate(all="ignore"):
        c = (-(a.astype(np.float64) * b)).astype(np.float32) * near  # sums that cancel
        c[::2] = c[::2] * np.float32(2**-24)  # and sums close to a tie
    keep = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    a, b, c = a[keep], b[keep], c[keep]
    result = run("fma", "f32", a, b, c)
    for p, q, r, got in zip(a, b, c, result, strict=True):
        exact = Fraction(float(p)) * Fraction(float(q)) + Fraction(float(r))
        assert np.isinf(got) or _is_nearest(exact, got), (p, q, r, got)


def _is_nearest(exact: Fraction, got: np.float32) -> bool:
    low, high = np.nextafter(got, np.float32(-INF)), np.nextafter(got, np.float32(INF))
    distances = [abs(exact - Fraction(float(n))) for n in (low, high) if np.isfinite(n)]
    mine = abs(exact - Fraction(float(got)))
    tie = mine in distances
    return mine <= min(distances) and (not tie or int(got.view(np.int32)) % 2 == 0)


def test_fma_double_rounding_case():
    """1 + 2^-24 + 2^-60: float64 loses the last term and would then round the tie down."""
    assert run("fma", "f32", 2.0**-30, 2.0**-30, 1.0) == 1.0
    assert run("fma", "f32", 1 + 2.0**-23, 1 + 2.0**-23, 2.0**-47) == np.float32(1 + 2.0**-22)
    a = np.float32(1 + 2.0**-12)
    assert run("fma", "f32", a, np.float32(2.0**-24), np.float32(1)) == np.float32(1 + 2.0**-23)
    assert run("fma", "f64", 1 + 2.0**-52, 1 + 2.0**-52, -1.0) == 2.0**-51 + 2.0**-104


def test_integer_operations():
    assert run("divsi", "i32", -7, 2) == -3
    assert run("floordivsi", "index", -7, 2) == -4
    assert run("ceildivsi", "i32", -7, 2) == -3
    assert run("remsi", "i32", -7, 2) == -1
    assert run("divui", "i8", -1, 2) == 127
    assert run("ceildivui", "i8", -1, 2) == -128
    assert run("remui", "i8", -1, 16) == 15
    assert run("divsi", "i32", 5, 0) == 0
    assert run("shrsi", "i8", -128, 3) == -16
    assert run("shrui", "i8", -128, 3) == 16
    assert run("shli", "i8", 1, 7) == -128
    assert run("shli", "i8", 1, 8) == 0
    assert run("shrsi", "i8", -5, 9) == -1
    assert run("maxui", "i8", -1, 5) == -1
    assert run("minui", "i8", -1, 5) == 5
    assert run("addi", "i8", 127, 1) == -128
    assert run("ctlz", "i32", 1) == 31
    assert run("cttz", "i32", 8) == 3
    assert run("cttz", "i16", 0) == 16
    assert run("ctpop", "i8", -1) == 8
    assert run("ipowi", "i32", 3, 4) == 81
    assert run("ipowi", "i32", -1, -3) == -1
    assert bool(run("addi", "i1", True, True)) is False


def test_casts():
    assert run("fptosi", "i8", 200.7, operand_dtype="f32") == 127
    assert run("fptosi", "i32", -3.9, operand_dtype="f32") == -3
    assert run("fptoui", "i8", 200.7, operand_dtype="f32") == np.int8(-56)
    assert run("fptosi", "i32", NAN, operand_dtype="f32") == 0
    assert run("extsi", "i32", True, operand_dtype="i1") == -1
    assert run("extui", "i32", True, operand_dtype="i1") == 1
    assert run("extui", "i32", -1, operand_dtype="i8") == 255
    assert run("trunci", "i8", 511, operand_dtype="i32") == -1
    assert bool(run("trunci", "i1", 2, operand_dtype="i32")) is False
    assert run("uitofp", "f32", -1, operand_dtype="i8") == 255.0
    assert run("sitofp", "f32", True, operand_dtype="i1") == -1.0
    assert run("index_cast", "index", -5, operand_dtype="i32") == -5
    assert run("index_castui", "index", -1, operand_dtype="i8") == 255
    assert run("index_cast", "i8", 257, operand_dtype="index") == 1
    assert run("bitcast", "i32", 1.0, operand_dtype="f32") == 0x3F800000
    assert float(run("truncf", "bf16", 1 + 2.0**-8 + 2.0**-40, operand_dtype="f64")) == 1 + 2.0**-7
    assert float(run("sitofp", "bf16", (1 << 40) + (1 << 32) + 1, operand_dtype="i64")) == (1 << 40) + (1 << 33)


def test_float_operations():
    assert math.copysign(1, run("maximumf", "f32", -0.0, 0.0)) == 1
    assert math.copysign(1, run("minimumf", "f32", 0.0, -0.0)) == -1
    assert math.isnan(run("maximumf", "f32", NAN, 1.0))
    assert run("maxnumf", "f32", NAN, 1.0) == 1.0
    assert run("minnumf", "f32", 1.0, NAN) == 1.0
    assert run("roundeven", "f32", 2.5) == 2.0
    assert run("round", "f32", -2.5) == -3.0
    assert run("remf", "f32", -7.0, 3.0) == -1.0
    assert math.copysign(1, run("negf", "f32", 0.0)) == -1
    assert float(run("addf", "bf16", 256.0, 1.0)) == 256.0
    assert bool(run("cmpf.ult", "i1", NAN, 1.0, operand_dtype="f32"))
    assert not bool(run("cmpf.one", "i1", NAN, 1.0, operand_dtype="f32"))
    assert bool(run("cmpi.ugt", "i1", -1, 1, operand_dtype="i32"))
    assert not bool(run("cmpi.slt", "i1", False, True, operand_dtype="i1")), "true is -1 as a signed bit"


def test_operations_of_machines_with_tables():
    table = tuple(Const(float(v), "f32") for v in range(16))
    e = Op("pick", (Var("i", "i32"), *table), "f32")
    np.testing.assert_array_equal(evaluate(e, {"i": np.array([0, 15, 16, -1, 37])}), [0, 15, 0, 15, 5])
    x, y = np.array([3, -3, 0.5, -0.5, -INF, NAN]), np.ones(6)
    np.testing.assert_array_equal(run("limit", "f32", x, y), [1, -1, 0.5, -0.5, -1, 1])
    x, y = np.array([1.5, 1.5, 1.5, 1.5, 1.5, NAN, 1.0]), np.array([2.7, -1.1, INF, -INF, NAN, 1.0, -149.0])
    np.testing.assert_array_equal(run("scalef", "f32", x, y), [6, 0.375, INF, 0, NAN, NAN, 2.0**-149])


@pytest.mark.parametrize("name", sorted(TABLED))
def test_as_compiled(name):
    """Bit for bit what the expansion means, with tables where the processor has them."""
    x = accuracy.patterns(20011, 300)
    x = np.concatenate([x, np.zeros(-len(x) % 16, np.float32)])
    t = f"tensor<{len(x)}xf32>"
    y = tw.compile(f'func.func @main(%x: {t}) -> {t} {{ %0 = "tw.{name}"(%x) : ({t}) -> {t} return %0 : {t} }}')(x)[0]
    wide = {"avx512f", "avx512dq"} <= set(host().features) and host().vector_bytes == 64
    np.testing.assert_array_equal(y, evaluate(expanded(name, tables=wide), {"x": x}))
    with np.errstate(all="ignore"):
        exact = accuracy.truth(name, x.astype(np.float64), None)
        assert accuracy.ulps(y, exact).max() <= accuracy.BOUNDS[name]


def test_loads_and_broadcasting():
    table = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    i, j = Var("i"), Var("j")
    e = Op("mulf", (Load("t", (i, j + 1), "f32"), Const(2.0, "f32")), "f32")
    result = evaluate(e, {"i": np.arange(3)[:, None], "j": np.arange(3)}, lambda name, at, dtype: table[at])
    np.testing.assert_array_equal(result, 2 * table[:, 1:])


@pytest.mark.parametrize(
    "e, message",
    [
        (Var("q", "f32"), "variable 'q' has no value"),
        (Load("b", (Const(0, "index"),), "f32"), "load of 'b'"),
        (Op("frob", (Const(1.0, "f32"),), "f32"), "unknown operation 'frob'"),
        (Op("cmpf.xx", (Const(1.0, "f32"), Const(1.0, "f32")), "i1"), "unknown predicate"),
        (Const(1, "i7"), "no NumPy type for dtype 'i7'"),
    ],
)
def test_evaluate_errors(e, message):
    with pytest.raises(CompileError, match=message):
        evaluate(e, {})


def test_the_negative_of_any_type():
    for dtype in ("f32", "f64", "i32", "i64"):
        e = (-V(Var("x", dtype))).e
        assert e.dtype == dtype and evaluate(e, {"x": NUMPY[dtype].type(3)}) == -3
        assert evaluate(e, {"x": NUMPY[dtype].type(3)}).dtype == NUMPY[dtype]
