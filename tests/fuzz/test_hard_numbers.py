"""Chains of operators on hard numbers are right; `hard_numbers.py` draws more. What it found has a case of its own."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

sys.path.insert(0, str(Path(__file__).parent))
from hard_allowed import OPERATORS, Seen, excused
from hard_chains import Chain, Step, draw_chain, element
from hard_numbers import MODES, TARGETS, run_pack, tasks
from hard_reference import REFERENCES, Choices, Rules, Value, fma, moved, narrow, wrong
from support.gpus import device_of
from support.hard_numbers import BF16, DTYPES, hard, is_float
from support.onnx_models import model, node, value

import tilewright as tw

F32 = np.dtype(np.float32)


@pytest.mark.parametrize("mode", MODES)
def test_a_few_chains(mode):
    arguments = argparse.Namespace(target=["cpu"], mode=[mode], count=16, pack=16, seed=100, types=None)
    (task,) = tasks(arguments)
    found = run_pack(task)
    assert not found.wrong
    assert found.chains >= 13


def test_a_pack_is_decided_by_its_seed():
    one, two = (draw_chain("s1p2c3", tuple(DTYPES), (3, 5), "mixed") for _ in range(2))
    assert str(one) == str(two)
    assert all(np.array_equal(a, two.constants[n], equal_nan=is_float(a.dtype)) for n, a in one.constants.items())


# ---- what is right --------------------------------------------------------------------------------------------------


def reference(steps, x, constants=None, rules=Rules()):  # noqa: B008
    made = [Step(op, tuple(reads.split()), f"v{i}", F32) for i, (op, reads) in enumerate(steps)]
    return Chain("test", tuple(made), constants or {}).value({"float32_a": x}, rules)


def test_rewrites_that_are_wrong_are_seen():
    """Sums put together, a limit crossed, the sign of a zero lost, a power taken for a root."""
    x = np.array([[0.3, -0.3, 7.7]], np.float32)
    big = np.array(12582912, np.float32)
    want = reference([("Add", "float32_a c"), ("Sub", "v0 c")], x, {"c": big})
    assert not wrong(np.rint(x) + np.float32(0), want).any()  # of -0.3: 0, as a sum gives it
    assert wrong(x, want).all()
    zeros = np.array([[-0.0, 0.0]], np.float32)
    want = reference([("Add", "float32_a c")], zeros, {"c": np.array(0, np.float32)})
    assert wrong(zeros, want).tolist() == [[True, False]]
    low, high = np.array(5, np.float32), np.array(2, np.float32)
    want = reference([("Clip", "float32_a l h")], np.array([[np.inf, np.nan]], np.float32), {"l": low, "h": high})
    assert wrong(np.array([[np.nan, 2]], np.float32), want).all()


def test_products_may_be_contracted():
    x = hard(F32)[None]
    c = np.array(1 / 3, np.float32)
    want = reference([("Mul", "float32_a c"), ("Sub", "v0 float32_a")], x, {"c": c})
    with np.errstate(all="ignore"):
        assert not wrong(x * c - x, want).any()
        assert not wrong(fma(x, np.broadcast_to(c, x.shape), -x), want).any()
        assert wrong((x.astype(np.float64) * (float(c) - 1)).astype(np.float32), want).any()


@pytest.mark.parametrize("operator", ["ReduceSum", "CumSum"])
def test_products_may_be_contracted_into_sums(operator):
    """Where one overflows, and another to the other infinity, a sum of the rounded ones is NaN."""
    made = [Step("Mul", ("float32_a", "c"), "v0", F32), Step(operator, ("v0",), "v1", F32, {"axis": -1})]
    chain = Chain("test", tuple(made), {"c": np.array(2e38, np.float32)})
    want = chain.value({"float32_a": np.array([[3, -4], [3, 4], [1, -0.5]], np.float32)}, Rules())
    assert want.free[..., -1].tolist() == [True, True, False]
    assert np.allclose(want.samples[:, 2, -1].astype(float), 1e38, rtol=1e-5)


def test_a_logarithm_near_1_may_be_0():
    x = np.array([[0, 16.640625]], np.float16)
    steps = Step("LogSoftmax", ("float16_a",), "v0", x.dtype, {"axis": -1}), Step("Cast", ("v0",), "v1", np.dtype(bool))
    want = Chain("test", steps, {}).value({"float16_a": x}, Rules())
    assert not wrong(np.array([[True, False]]), want).any()
    assert wrong(np.array([[False, True]]), want).any()


def test_remainders_are_open_only_where_numbers_that_are_not_exact_decide_the_quotient():
    def free(x, y):
        x, y = (Value(np.array(v, np.float32).reshape(-1, 1, 1), np.zeros((1, 1), bool)) for v in (x, y))
        return bool(REFERENCES["Mod"](Choices(np.random.default_rng(0)), x, y, fmod=1).free)

    assert not free([6.0], [3.0]) and not free([7.0, 7.000001], [3.0]) and not free([7.0], [3.0, 3.0000002])
    assert free([5.999999, 5.9999995], [3.0]) and free([1e8], [3.0, 3.0000002])


def test_a_number_is_rounded_once():
    tie = 1 + 2.0**-8
    assert narrow(np.array([tie, tie + 2.0**-40, tie - 2.0**-40]), BF16).astype(float).tolist() == [1, 1.0078125, 1]
    assert narrow(np.array([np.longdouble(2**62 + 2**38 + 1)]), F32)[0] == 2.0**62 + 2**39
    for dtype in (np.float16, np.float32, np.float64, BF16):
        one = np.ones(2, dtype)
        assert (moved(one, np.array([1, 0])) > one).tolist() == [True, False]


def test_fma_rounds_once():
    a, b = np.float32(1 + 2.0**-12), np.float32(1 - 2.0**-12)
    assert fma(*(np.array([v]) for v in (a, b, np.float32(-1))))[0] == -(2.0**-24)


def test_subnormals_may_be_zero_where_a_target_says_so():
    x = np.array([[1e-40]], np.float32)
    assert wrong(np.zeros_like(x), reference([("Neg", "float32_a"), ("Neg", "v0")], x)).all()
    flushing = Rules(flushes=("float32",))
    assert not wrong(np.zeros_like(x), reference([("Neg", "float32_a"), ("Neg", "v0")], x, rules=flushing)).any()
    x = np.array([[np.finfo(np.float32).tiny]], np.float32)  # what is a little smaller is rounded to it
    assert wrong(-x * 0, reference([("Neg", "float32_a")], x)).all()
    assert not wrong(-x * 0, reference([("Neg", "float32_a")], x, rules=flushing)).any()


def test_products_of_halves_are_rounded_before_they_are_added():
    x = np.array([[1 + 2.0**-10]], np.float16)
    made = [Step("Mul", ("float16_a", "float16_a"), "v0", x.dtype), Step("Sub", ("v0", "c"), "v1", x.dtype)]
    want = Chain("test", tuple(made), {"c": np.array(1, np.float16)}).value({"float16_a": x}, Rules())
    assert set(want.samples.flat) == {2.0**-9}


def test_targets_are_known():
    assert {"cpu", "c", "opencl", "vulkan"} <= set(TARGETS)
    assert Choices(np.random.default_rng(0)).count == Value.of(np.zeros(3)).samples.shape[0] * 12


# ---- what it found --------------------------------------------------------------------------------------------------

GPUS = ("opencl", "vulkan", "vulkan:text=spirv")


def results(nodes, inputs, outputs, constants=None, target="cpu"):
    """What small ONNX nodes give on a target; `outputs` are names and dtypes."""
    given = [value(n, x.shape, element(x.dtype)) for n, x in inputs.items()]
    wanted = [value(n, None, element(np.dtype(d))) for n, d in outputs.items()]
    run = tw.compile(model(nodes, given, wanted, constants, opset=20), target=target, threads=1, cache=False)
    return run.run(inputs)


def test_weights_that_are_no_numbers_in_c():
    weights = np.array([np.inf, -np.inf, np.nan, -0.0, 1e-45], np.float32)
    x = np.full((1, 5), -1, np.float32)
    (got,) = results([node("Max", "x w", "y")], {"x": x}, {"y": "f4"}, {"w": weights}, "c")
    np.testing.assert_array_equal(got, np.maximum(x, weights))


@pytest.mark.parametrize("target", GPUS)
def test_doubles_become_halves_in_one_rounding(target):
    """By way of f32, a number beside a tie was first rounded to the tie."""
    device_of(target.partition(":")[0])
    ties = np.array([1 + 2.0**-8, 1 + 2.0**-11, 3 * 2.0**-25, 65520.0, 2.0**-130 * (1 + 2.0**-8)])
    x = np.concatenate([s * (ties * (1 + d)) for s in (1, -1) for d in (0, 2.0**-40, -(2.0**-40))])
    x = np.concatenate([x, [np.inf, -np.inf, np.nan, -0.0, 1e300, 1e-300]])[None]
    nodes = [node("Cast", "x", "h", to=element(np.dtype("f2"))), node("Cast", "x", "b", to=element(BF16))]
    h, b = results(nodes, {"x": x}, {"h": "f2", "b": BF16}, target=target)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(h, x.astype(np.float16))
    np.testing.assert_array_equal(b.astype(float), narrow(x, BF16).astype(float))


@pytest.mark.parametrize("target", GPUS)
def test_unsigned_numbers_become_wider_ones(target):
    """wgpu spreads the highest bit of a u32 that becomes an i64."""
    device_of(target.partition(":")[0])
    x = np.array([[0, 1, 2**31 - 1, 2**31, 2**32 - 1]], np.uint32)
    nodes = [node("Cast", "x", "y", to=element(np.dtype("i8"))), node("Cast", "x", "z", to=element(np.dtype("u8")))]
    for got in results(nodes, {"x": x}, {"y": "i8", "z": "u8"}, target=target):
        assert got.tolist() == x.tolist()


@pytest.mark.parametrize("target", GPUS)
def test_remainders_of_the_largest_numbers(target):
    """Beyond 3e38 they were NaN in WGSL, of f64 too."""
    device_of(target.partition(":")[0])
    for dtype in (np.float32, np.float64):
        x = np.array([[3.3e38, -3.4e38, 3e38, np.inf, 1, 7.5]], dtype) * dtype(2.0 if dtype == np.float64 else 1)
        y = np.array([[3.0, 7e37, np.inf, 2, 0, -2]], dtype)
        nodes = [node("Mod", "x y", "z", fmod=1)]
        (got,) = results(nodes, {"x": x, "y": y}, {"z": dtype}, target=target)
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(got, np.fmod(x, y))


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BF16], ids=str)
def test_one_over_a_root_of_halves_rounds_the_root(dtype):
    """1 / sqrt(x) became an operator that rounds once."""
    x = np.linspace(0.01, 9, 60).astype(dtype)[None]
    (got,) = results([node("Sqrt", "x", "r"), node("Reciprocal", "r", "y")], {"x": x}, {"y": dtype})
    root = narrow(np.sqrt(x.astype(np.float64)), dtype)
    np.testing.assert_array_equal(got.astype(float), narrow(1 / root.astype(np.float64), dtype).astype(float))


@pytest.mark.parametrize("operator", ["ArgMax", "ArgMin"])
def test_the_place_of_an_extreme_subnormal_half(operator):
    """x86 rounds such a number to 0 when it becomes bf16 again, and nothing is equal to that."""
    x = np.array([[-3.5, 3.5, 1e-39], [1e-40, -1e-40, -1e-39]], np.float32).repeat(100, 1).astype(BF16)
    types = [value("x", ["n", "m"], TensorProto.BFLOAT16)], [value("y", None, TensorProto.INT64)]
    made = model([node(operator, "x", "y", axis=0)], *types, opset=20)
    run = tw.compile(made, inputs={"x": (tw.Dim("n", 1, 512), tw.Dim("m", 1, 512))}, threads=1)
    find = np.argmax if operator == "ArgMax" else np.argmin
    np.testing.assert_array_equal(run(x)[0][0], find(x.astype(np.float32), 0))


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BF16], ids=str)
def test_comparisons_of_halves_as_numbers_of_any_width(dtype):
    """LLVM could not select those of vectors of bf16 that become 16-bit integers."""
    x = hard(dtype)
    x, y = (np.ascontiguousarray(v).reshape(1, -1) for v in (np.repeat(x, len(x)), np.tile(x, len(x))))
    compared = {"Equal": np.equal, "Less": np.less, "GreaterOrEqual": np.greater_equal}
    nodes, outputs, wanted = [], {}, []
    for name, compare in compared.items():
        nodes.append(node(name, "x y", name))
        for to in (np.int8, np.uint16, np.int16, np.int32, np.float32):
            nodes.append(node("Cast", name, f"{name}_{to.__name__}", to=element(np.dtype(to))))
            outputs[f"{name}_{to.__name__}"] = np.dtype(to)
            wanted.append(compare(x.astype(np.float32), y.astype(np.float32)).astype(to))
    for got, want in zip(results(nodes, {"x": x, "y": y}, outputs), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("columns", [2, 18, 34])
def test_halves_as_truth_as_integers(columns):
    """LLVM could not select that of a vector of bf16 that is loaded in part."""
    x = np.resize(hard(BF16), (1, columns))
    nodes = [node("Cast", "x", "b", to=TensorProto.BOOL), node("Cast", "b", "y", to=TensorProto.INT16)]
    (got,) = results(nodes, {"x": x}, {"y": np.dtype(np.int16)})
    np.testing.assert_array_equal(got, x.astype(np.float32) != 0)


@pytest.mark.parametrize("exponent", [0.5, -0.5])
@pytest.mark.parametrize("dtype", [np.dtype(np.float16), BF16, np.dtype(np.float32)], ids=str)
def test_powers_that_are_roots(dtype, exponent):
    """That of -1e-40 was -inf, as if it were -0: a sum of bf16 with 0 may make that of it."""
    x = hard(dtype).reshape(1, -1)
    c = numpy_helper.from_array(np.array(exponent, dtype), "c")
    (got,) = results([node("Constant", "", "c", value=c), node("Pow", "x c", "y")], {"x": x}, {"y": dtype})
    got, tiny = got.astype(np.float64), float(ml_dtypes.finfo(dtype).tiny)
    with np.errstate(all="ignore"):
        want = np.power(x.astype(np.float64), exponent)
    want[x.astype(np.float64) == -np.inf] = np.inf if exponent > 0 else 0  # NumPy takes a root
    flushed = (dtype == BF16) & (abs(x.astype(np.float64)) < tiny) & (got == (np.inf if exponent < 0 else 0))
    np.testing.assert_array_equal(np.isnan(got) | flushed, np.isnan(want) | flushed)
    bits = {"float16": 10, "bfloat16": 7, "float32": 21}[dtype.name]
    np.testing.assert_allclose(np.where(flushed, want, got), want, rtol=2.0**-bits, atol=tiny)


def test_limits_that_are_nan_stay():
    """They were lost where two clips became one."""
    x = np.array([[0, 5, -5, np.inf]], np.float32)
    limits = {"a": -1, "b": 0.5, "c": -8388610, "n": np.nan}
    nodes = [node("Clip", "x a b", "s"), node("Clip", "s c n", "high"), node("Clip", "s n b", "low")]
    made = results(nodes, {"x": x}, {"high": F32, "low": F32}, {k: np.array(v, np.float32) for k, v in limits.items()})
    assert all(np.isnan(got).all() for got in made)


def test_places_outside_that_are_infinite():
    """Their weights are NaN, which made NaN of the zeros there. NaN itself has no place."""
    x = np.arange(1, 13, dtype=np.float32).reshape(1, 1, 3, 4)
    grid = np.array([[np.inf, 0], [0, -np.inf], [1e30, np.inf], [0, 0], [np.nan, 0]], np.float32).reshape(1, 1, 5, 2)
    modes = ("linear", "cubic", "nearest")
    nodes = [node("GridSample", "x grid", mode, mode=mode) for mode in modes]
    nodes += [node("GridSample", "c places", f"{mode}_folded", mode=mode) for mode in modes]
    names = [n.output[0] for n in nodes]
    given = {"x": x, "grid": grid}
    made = results(nodes, given, dict.fromkeys(names, "f4"), {"c": x, "places": grid})
    for name, got in zip(names, made, strict=True):
        assert got[0, 0, 0, :3].tolist() == [0, 0, 0]
        assert 6 <= got[0, 0, 0, 3] <= 7
        assert got[0, 0, 0, 4] == 0 if "nearest" in name else np.isnan(got[0, 0, 0, 4])


def test_constants_of_doubles_become_bf16_in_one_rounding():
    x = np.array([[1 + 2.0**-8 + 2.0**-40, -(2.0**-14) * (1 + 2.0**-8 + 2.0**-40), 1e300, np.nan]])
    nodes = [node("Cast", name, f"{name}_b", to=element(BF16)) for name in ("x", "c")]
    for got in results(nodes, {"x": x}, {"x_b": BF16, "c_b": BF16}, {"c": x}):
        np.testing.assert_array_equal(got.astype(float), narrow(x, BF16).astype(float))


@pytest.mark.parametrize("dtype", [np.dtype(np.int64), np.dtype(np.uint64)], ids=str)
def test_integers_become_doubles_before_fewer_bits(dtype):
    """MLIR made one conversion of the two: beside a tie of bf16, f32 rounds to the tie, and beside one of f32, f64."""
    x = np.array([[2350879005487445255, 2**61 + 2**37 + 1]], dtype)
    nodes = [node("Cast", "x", "d", to=TensorProto.DOUBLE)]
    nodes += [node("Cast", "d", "b", to=TensorProto.BFLOAT16), node("Cast", "d", "f", to=TensorProto.FLOAT)]
    for name, to in (("b", BF16), ("f", F32)):
        (got,) = results([nodes[0], nodes[1 + (name == "f")]], {"x": x}, {name: to})
        np.testing.assert_array_equal(got.astype(float), narrow(x.astype(np.float64), to).astype(float))


# ---- what is allowed ------------------------------------------------------------------------------------------------


def allowed(operator, inputs, got, want, **attributes):
    got, want = (np.asarray(v, np.float32) for v in (got, want))
    return excused(OPERATORS[operator], Seen(inputs, attributes, 0, got, [want]))[0].tolist()


def test_only_the_rows_with_a_reason_are_allowed():
    q, k, v = (np.ones((1, 1, 3, 2), np.float32) for _ in range(3))
    k[0, 0, 2, 0] = np.nan
    nothing = np.full((1, 1, 3, 2), 9, np.float32)
    assert not np.any(allowed("Attention", [q, k[:, :, :2], v[:, :, :2]], nothing, v))
    rows = allowed("Attention", [q, k, v], nothing, v, is_causal=1)
    assert rows == [[[[True, True], [True, True], [False, False]]]]  # the last query sees the key that is NaN
    mask = np.array([[True, True, False], [False, False, False], [True, True, True]])
    zeros = np.zeros_like(nothing)
    tame = np.ones_like(k)
    assert allowed("Attention", [q, tame, v, mask], zeros, v) == [[[[False] * 2, [True] * 2, [False] * 2]]]
    q[0, 0, 0] = 3e38
    assert allowed("Attention", [q, tame, v], nothing, v) == [[[[True] * 2, [False] * 2, [False] * 2]]]


def test_only_the_end_of_an_integer_is_allowed():
    x, scale = np.array([1e20, -1e20, 1e20, 3], np.float32), np.array(1, np.float32)
    got, want = np.array([255, 0, 7, 4], np.uint8), np.zeros(4, np.uint8)
    seen = Seen([x, scale], {}, 0, got, [want])
    assert excused(OPERATORS["QuantizeLinear"], seen)[0].tolist() == [True, True, False, False]
