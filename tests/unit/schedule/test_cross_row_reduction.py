"""Reductions over rows that lie side by side in memory, rows in several dimensions, and what fusion leaves to a
transpose of its own."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.machines import AVX512F as MACHINE
from support.teams import teams

import tilewright as tw
from tilewright.driver.kernels import fused_kernels
from tilewright.ir.context import use
from tilewright.schedule import rules
from tilewright.schedule.rules import schedule
from tilewright.tensor.expr import Const, Op, Var, bounds, from_linear, linear

SHAPES = [(2, 5, 3, 37), (1, 21, 16, 16), (3, 7, 130), (1, 300, 65)]


def one(name, shape, attributes, result=None, dtype="f32"):
    t = f"tensor<{'x'.join(map(str, shape))}xf32>"
    r = f"tensor<{'x'.join(map(str, result or shape))}x{dtype}>"
    return f"""
func.func @main(%x: {t}) -> {r} {{
  %0 = "tw.{name}"(%x) {{{attributes}}} : ({t}) -> {r}
  return %0 : {r}
}}
"""


def rule_of(text):
    with use():
        (kernel,) = fused_kernels(text)
    return schedule(kernel, MACHINE)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmax_over_channels(name, shape):
    text = one(name, shape, "axis = 1 : i64")
    assert rule_of(text).rule == "columns"
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 5
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    want = e / e.sum(1, keepdims=True)
    want = np.log(want) if name == "log_softmax" else want
    for run in teams(tw.compile(text, threads=1)):
        np.testing.assert_allclose(run(x)[0], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("name", ["arg_max", "arg_min"])
def test_arg_over_channels(name, shape, last):
    attributes = f"axis = 1 : i64, keepdims = true, last = {str(last).lower()}"
    text = one(name, shape, attributes, (shape[0], 1, *shape[2:]), "i64")
    assert rule_of(text).rule == "columns"
    x = np.random.default_rng(1).integers(0, 9, shape).astype(np.float32)
    x[0, 1, 0] = np.nan
    find = np.argmax if name == "arg_max" else np.argmin
    want = shape[1] - 1 - find(np.flip(x, 1), 1) if last else find(x, 1)
    np.testing.assert_array_equal(tw.compile(text, threads=2)(x)[0], np.expand_dims(want, 1))


@pytest.mark.parametrize("shape", [(40, 9, 5), (131, 6, 3), (7, 12, 2), (3, 5, 31, 6), (90, 70, 3), (2, 300, 4)])
@pytest.mark.parametrize("name, last", [("arg_max", False), ("arg_max", True), ("arg_min", False)])
def test_arg_over_rows_of_a_few_columns(name, last, shape):
    """Rows of short vectors go beside each other; long ones have places of their own for every few elements."""
    axis = len(shape) - 2
    attributes = f"axis = {axis} : i64, keepdims = true, last = {str(last).lower()}"
    text = one(name, shape, attributes, (*shape[:axis], 1, shape[-1]), "i64")
    assert rule_of(text).rule == ("few_columns" if shape[axis] >= 64 else "columns")
    x = np.random.default_rng(1).integers(0, 9, shape).astype(np.float32)
    x[0, ..., 3, 1] = np.nan
    find = np.argmax if name == "arg_max" else np.argmin
    want = shape[axis] - 1 - find(np.flip(x, axis), axis) if last else find(x, axis)
    for run in teams(tw.compile(text, threads=1)):
        np.testing.assert_array_equal(run(x)[0], np.expand_dims(want, axis))


@pytest.mark.parametrize("columns", [5, 14, 16, 23, 40, 257])
@pytest.mark.parametrize("name", ["arg_max", "arg_min"])
def test_arg_along_short_rows(name, columns):
    text = one(name, (33, columns), "axis = 1 : i64", (33,), "i64")
    x = np.random.default_rng(2).integers(0, 5, (33, columns)).astype(np.float32)
    x[3, 2:] = np.nan
    find = np.argmax if name == "arg_max" else np.argmin
    np.testing.assert_array_equal(tw.compile(text, threads=1)(x)[0], find(x, 1))
    assert "vector(" in str(rule_of(text).schedule)


def test_few_rows_side_by_side_stay_rows():
    assert rule_of(one("softmax", (4, 50, 3), "axis = 1 : i64")).rule != "columns"


@pytest.mark.parametrize("shape", [(2, 6, 7, 9), (1, 4, 5, 16), (1, 3, 2, 3, 35)])
def test_rows_in_several_dimensions_are_one(shape):
    axes = ", ".join(map(str, range(2, len(shape))))
    text = one("reduce_sum", shape, f"axes = array<i64: {axes}>", shape[:2])
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    want = x.astype(np.float64).sum(tuple(range(2, len(shape))))
    np.testing.assert_allclose(tw.compile(text, threads=1)(x)[0], want, rtol=1e-5, atol=1e-5)
    assert "lanes=16" in str(rule_of(text).schedule)


def test_divisions_that_add_up():
    x = Var("x")
    parts = (x // 12400) * 12400 + (x // 248 % 50) * 248 + x % 248
    assert from_linear(*linear(parts)) == x
    o, i = Var("o"), Var("i")
    ranges = {"o": (0, 774), "i": (0, 15)}
    inside = o * 16 + i
    # // 12400 of o * 16 + i with the common factor 16 left out
    split = (o // 775) * 12400 + (inside // 248 % 50) * 248 + inside % 248
    assert linear(from_linear(*linear(split), ranges)) == linear(inside)
    wide = from_linear(*linear(split), {"o": (0, 774), "i": (0, 16)})  # i may reach the next multiple
    assert any(isinstance(t, Op) for t in linear(wide)[0])
    assert bounds(Const(3, "index"), {}) == (3, 3)


def test_product_with_a_transposed_operand():
    text = """
func.func @main(%a: tensor<4x9x33xf32>, %b: tensor<4x21x33xf32>) -> tensor<4x9x21xf32> {
  %0 = "tw.transpose"(%b) {permutation = array<i64: 0, 2, 1>} : (tensor<4x21x33xf32>) -> tensor<4x33x21xf32>
  %1 = "tw.matmul"(%a, %0) : (tensor<4x9x33xf32>, tensor<4x33x21xf32>) -> tensor<4x9x21xf32>
  return %1 : tensor<4x9x21xf32>
}
"""
    assert len(fused_kernels(text)) == 1  # the keys lie along the sum: the product turns them round itself
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal((4, 9, 33)).astype(np.float32), rng.standard_normal((4, 21, 33)).astype(np.float32)
    np.testing.assert_allclose(tw.compile(text, threads=1)(a, b)[0], a @ b.transpose(0, 2, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("depth, kernels", [(13, 2), (64, 1)])
def test_rows_that_go_to_several_places(depth, kernels):
    n = 4 * depth
    text = f"""
func.func @main(%x: tensor<21x8xf32>, %w: tensor<8x{n}xf32>) -> tensor<4x21x{depth}xf32> {{
  %0 = "tw.matmul"(%x, %w) : (tensor<21x8xf32>, tensor<8x{n}xf32>) -> tensor<21x{n}xf32>
  %1 = "tw.reshape"(%0) {{shape = array<i64: 21, 4, {depth}>}} : (tensor<21x{n}xf32>) -> tensor<21x4x{depth}xf32>
  %2 = "tw.transpose"(%1) {{permutation = array<i64: 1, 0, 2>}} : (tensor<21x4x{depth}xf32>) -> tensor<4x21x{depth}xf32>
  return %2 : tensor<4x21x{depth}xf32>
}}
"""
    assert len(fused_kernels(text)) == kernels
    rng = np.random.default_rng(5)
    x, w = rng.standard_normal((21, 8)).astype(np.float32), rng.standard_normal((8, n)).astype(np.float32)
    want = (x @ w).reshape(21, 4, depth).transpose(1, 0, 2)
    np.testing.assert_allclose(tw.compile(text, threads=1)(x, w)[0], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
@pytest.mark.parametrize("low, high", [((0, 3, 2), (0, 1, 5)), ((2, 0, 19), (0, 0, 0)), ((0, 0, 0), (3, 7, 1))])
def test_pad_by_own_elements(mode, low, high):
    x = np.arange(3 * 4 * 20, dtype=np.float32).reshape(3, 4, 20)
    want = np.pad(x, list(zip(low, high, strict=True)), mode)
    sides = "".join(f"{k} = array<i64: {', '.join(map(str, v))}>, " for k, v in (("low", low), ("high", high)))
    text = one("pad", x.shape, f'{sides}mode = "{mode}"', want.shape)
    np.testing.assert_array_equal(tw.compile(text, threads=2)(x)[0], want)


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("n, k", [(128, 3), (129, 64), (1000, 5), (40, 2)])
def test_top_k_passes_over_blocks(n, k, largest):
    node = helper.make_node("TopK", ["x", "k"], ["y", "at"], axis=1, largest=largest)
    infos = [("x", TensorProto.FLOAT, n), ("y", TensorProto.FLOAT, k), ("at", TensorProto.INT64, k)]
    x_info, *results = [helper.make_tensor_value_info(name, kind, [4, m]) for name, kind, m in infos]
    count = numpy_helper.from_array(np.array([k], np.int64), "k")
    graph = helper.make_graph([node], "g", [x_info], results, [count])
    model = tw.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), threads=2)
    x = np.random.default_rng(6).integers(-50, 50, (4, n)).astype(np.float32)
    x[1], x[2, ::3], x[3] = 7, np.nan, np.nan  # all equal, some and all not numbers: the largest ones
    number, nan = np.nan_to_num(x, nan=np.inf), np.isnan(x)
    sign = -1 if largest else 1
    want = np.array([np.lexsort((np.arange(n), sign * nan[i], sign * number[i]))[:k] for i in range(4)])
    values, places = model(x)
    np.testing.assert_array_equal(places, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, 1))


def into_tables(norm, shape=(1, 900, 64)):
    """Rows side by side that are normalized and quantized, and a function of the numbers from its table."""
    t, q, one = (f"tensor<{'x'.join(map(str, s))}" for s in (shape, shape, (1, 1, shape[2])))
    f, q, one = f"{t}xf32>", f"{q}xi8>", f"{one}xf32>"
    body = {
        "softmax": f'%n = "tw.softmax"(%x) {{axis = 1 : i64}} : ({f}) -> {f}',
        "group_norm": f'%n = "tw.group_norm"(%x, %g, %g) {{groups = {shape[2]}, layout = "nhwc"}} : ({f}, '
        f"tensor<{shape[2]}xf32>, tensor<{shape[2]}xf32>) -> {f}",
        "mean": f'%m = "tw.reduce_mean"(%x) {{axes = array<i64: 1>, keepdims = true}} : ({f}) -> {one}\n'
        f'%n = "tw.sub"(%x, %m) : ({f}, {one}) -> {f}',
        "max": f'%m = "tw.reduce_max"(%x) {{axes = array<i64: 0, 1>, keepdims = true}} : ({f}) -> {one}\n'
        f'%n = "tw.div"(%x, %m) : ({f}, {one}) -> {f}',
    }[norm]
    return f"""
func.func @main(%x: {f}, %g: tensor<{shape[2]}xf32>, %s: tensor<f32>, %z: tensor<i8>, %t: tensor<256xi8>) -> {q} {{
  {body}
  %q = "tw.quantize_linear"(%n, %s, %z) {{to = "i8"}} : ({f}, tensor<f32>, tensor<i8>) -> {q}
  %y = "tw.lookup"(%q, %t) : ({q}, tensor<256xi8>) -> {q}
  return %y : {q}
}}
"""


def normalized(norm, x, g):
    x = x.astype(np.float64)
    if norm == "softmax":
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)
    if norm == "group_norm":
        return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * g + g
    return x - x.mean(1, keepdims=True) if norm == "mean" else x / x.max((0, 1), keepdims=True)


@pytest.mark.parametrize("norm", ["softmax", "group_norm", "mean", "max"])
def test_what_is_looked_up_keeps_vectors(norm):
    """A table has no neighbours along any loop: it took the norm before it off its vectors, and nobody said so."""
    text = into_tables(norm)
    made = rule_of(text)
    assert made.rule == "columns" and not made.problems
    assert made.executed.scalar == made.executed.gathered == 0
    rng = np.random.default_rng(5)
    x = rng.standard_normal((1, 900, 64)).astype(np.float32)
    g, table = rng.standard_normal(64).astype(np.float32), rng.integers(-128, 128, 256).astype(np.int8)
    step = np.float32(0.03 if norm != "softmax" else 1e-4)
    got = tw.compile(text, threads=1)(x, g, step, np.int8(3), table)[0]
    numbers = normalized(norm, x, g) / np.float64(step)
    sure = np.abs(numbers - np.floor(numbers) - 0.5) > 1e-2  # not next to a half
    want = table[np.clip(np.rint(numbers) + 3, -128, 127).astype(np.int8).view(np.uint8)]
    np.testing.assert_array_equal(got[sure], want[sure])
    assert sure.mean() > 0.9


def test_plain_loops_do_not_hide_what_goes_too_far(monkeypatch):
    """A norm around a table in plain loops says that it has no vectors, and one that is refused for less is taken."""
    text = into_tables("mean")
    found = rules.rules()
    monkeypatch.setattr(rules, "rules", lambda *_: [r for r in found if r.NAME in ("general", "rows")])
    made = rule_of(text)
    assert made.problems
    general = next(r for r in found if r.NAME == "general")
    monkeypatch.setattr(rules, "rules", lambda *_: [general])
    alone = rule_of(text)
    assert alone.rule == "general" and any("without vectors" in p for p in alone.problems)
    assert made.executed.cycles <= alone.executed.cycles
