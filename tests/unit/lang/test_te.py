"""Tensor expressions, and what a schedule of them can do: build, source, trace, replay."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.hard_numbers import DTYPES, hard, is_float

import tilewright as tw
from tilewright.lang import te
from tilewright.ops.cast import Cast
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.schedule import ScheduleError
from tilewright.support.errors import InputError, UsageError

RNG = np.random.default_rng(0)


def array(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def run(kernel, *arrays):
    """The result of the unscheduled nest, by the interpreter."""
    inputs = {p.name: a for p, a in zip(kernel.inputs, arrays, strict=True)}
    results = interpret_nest(tw.Schedule(kernel).nest(), inputs)
    return [results[o] for o in kernel.outputs]


def matmul(m: int, n: int, k: int, constant: bool = True):
    a, b = te.placeholder((m, k), "a"), te.placeholder((k, n), "b", constant=constant)
    r = te.reduce_axis(k, "k")
    return te.kernel(te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], r), "c"), name="matmul")


def tiled(s: tw.Schedule, rows: int, columns: int) -> tw.Schedule:
    write = s.cache_write("c")
    i, j, k = s.loops("c")
    j_o, j_i = s.split(j, columns)
    i_o, i_i = s.split(i, rows)
    s.reorder(j_o, i_o, k, i_i, j_i)
    s.pack("b", ((), (columns,)), (1, 0, 2))
    at = s.fuse(j_o, i_o)
    m, n = s.reverse_compute_at(write, at)
    s.set_scope("c_c", "register")
    for row, column in ((i_i, j_i), (m, n)):
        s.unroll(row)
        vectors, lanes = s.split(column, 16)
        s.unroll(vectors)
        s.vectorize(lanes)
    s.parallel(at)
    return s


def test_matmul_and_epilogue():
    a, b, bias = te.placeholder((5, 7), "a"), te.placeholder((7, 6), "b"), te.placeholder((6,), "bias")
    k = te.reduce_axis(7)
    c = te.compute((5, 6), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c")
    kernel = te.kernel(te.compute((5, 6), lambda i, j: te.maximum(c[i, j] + bias[j], 0.0), "y"))
    assert [p.name for p in kernel.params] == ["a", "b", "bias", "y"] and [t.name for t in kernel.temporaries] == ["c"]
    x, y, z = array(5, 7), array(7, 6), array(6)
    np.testing.assert_allclose(run(kernel, x, y, z)[0], np.maximum(x @ y + z, 0), rtol=1e-5, atol=1e-6)


def test_padding_reads_nothing_outside():
    x = te.placeholder((4,), "x")
    padded = te.compute((8,), lambda i: te.where((i >= 2) & (i < 6), x[i - 2], 0.0), "p")
    v = array(4)
    np.testing.assert_array_equal(run(te.kernel(padded), v)[0], np.pad(v, 2))


def test_functions_casts_and_indices():
    x = te.placeholder((6,), "x")
    y = te.compute((6,), lambda i: te.exp(-x[i]) * te.sqrt(te.absf(x[i])) + te.cast(i, "f32") / 2, "y")
    v = array(6)
    expected = np.exp(-v) * np.sqrt(np.abs(v)) + np.arange(6) / 2
    np.testing.assert_allclose(run(te.kernel(y), v)[0], expected, rtol=1e-5)
    z = te.compute((6,), lambda i: x[(i * 5 + 1) % 6], "z")
    np.testing.assert_array_equal(run(te.kernel(z), v)[0], v[(np.arange(6) * 5 + 1) % 6])


@pytest.mark.parametrize("to", ["bool", "i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("source", ["f32", "f16", "bf16", "f64", "i8", "i64", "bool"])
def test_casts_out_of_range(source, to):
    """Floats become the nearest end, which was undefined; any number becomes a bool by whether it is zero, which was
    its lowest bit; f16 and bf16 become each other."""
    v = hard(DTYPES[source])
    with np.errstate(all="ignore"):
        wide = v.astype(np.float64)
    v = v[~((wide != 0) & (abs(wide) < 1e-30))] if is_float(v.dtype) else v  # which some processors flush in bf16
    x = te.placeholder(v.shape, "x", dtype=source)
    kernel = te.kernel(te.compute(v.shape, lambda i: te.cast(x[i], to), "y"))
    to = "i1" if to == "bool" else to
    want = Cast.reference(v, to=to, saturate=True, round_mode="up").astype(np.float64)
    np.testing.assert_array_equal(run(kernel, v)[0].astype(np.float64), want)
    if to in ("i1", "i8", "i64", "bf16"):
        s = tw.Schedule(kernel, "cpu")
        s.vectorize(s.split(*s.loops(), 8)[1])
        np.testing.assert_array_equal(s.build(threads=1)(v).astype(np.float64), want)


def test_casts_of_what_is_only_stored():
    x = te.placeholder((4,), "x")
    with pytest.raises(UsageError, match="makes no i4 of f32"):
        te.compute((4,), lambda i: te.cast(x[i], "i4"), "y")


@pytest.mark.parametrize(
    ("reduce", "expected"), [(te.sum, np.sum), (te.max, np.max), (te.min, np.min), (te.prod, np.prod)]
)
def test_reductions(reduce, expected):
    x, k, m = te.placeholder((3, 4, 5), "x"), te.reduce_axis(4), te.reduce_axis(5)
    v = array(3, 4, 5)
    kernel = te.kernel(te.compute((3,), lambda i: reduce(x[i, k, m], k, m), "y"))
    np.testing.assert_allclose(run(kernel, v)[0], expected(v, axis=(1, 2)), rtol=1e-5)


def test_axis_shared_by_two_stages():
    x, k = te.placeholder((3, 4), "x"), te.reduce_axis(4, "k")
    a = te.compute((3,), lambda i: te.sum(x[i, k], k), "a")
    b = te.compute((3,), lambda i: te.max(x[i, k] - a[i], k), "b")
    v = array(3, 4)
    np.testing.assert_allclose(run(te.kernel(b), v)[0], (v - v.sum(1, keepdims=True)).max(1), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda x: te.compute((4,), lambda i: x, "y"), "index it"),
        (lambda x: te.compute((4,), lambda i: x[i, i], "y"), "1 dimensions"),
        (lambda x: te.compute((4, 4), lambda i: x[i], "y"), "2 dimensions"),
        (lambda x: te.compute((4,), lambda i: te.sum(x[i], te.reduce_axis(4)) + 1.0, "y"), "unsupported"),
        (lambda x: te.compute((4,), lambda i: x[i] + te.cast(x[i], "f64"), "y"), "f32 and f64"),
        (lambda x: te.compute((4,), lambda i: te.exp(i), "y"), "wants a float"),
        (lambda x: te.compute((4,), lambda i: x[te.reduce_axis(4, "loose")], "y"), "loose"),
        (lambda x: te.compute((4,), lambda i: x[i] if x[i] > 0 else 0.0, "y"), "te.where"),
        (lambda x: te.placeholder((0,), "z"), "positive"),
        (lambda x: te.placeholder((4,), "not a name"), "not a name"),
        (lambda x: te.placeholder((4,), "z", dtype="f33"), "f33"),
        (lambda x: te.kernel(), "needs an output"),
        (lambda x: te.kernel(x), "placeholder"),
    ],
)
def test_mistakes_are_explained(make, words):
    with pytest.raises((UsageError, TypeError), match=words) as error:
        make(te.placeholder((4,), "x"))
    if words not in str(error.value.args[0]):
        assert words in str(error.value)


X = te.placeholder((12,), "x")
AT = te.placeholder((12,), "at", dtype="i64")
INSIDE = {
    "guard": lambda i: te.where((i >= 2) & (i < 6), X[i - 2], 0.0),
    "guard by a sum": lambda i: te.where((i * 2 - 3 >= 0) & (i * 2 - 3 < 12), X[i * 2 - 3], 0.0),
    "equal": lambda i: te.where((i * 100).equal(300), X[i], 0.0),
    "clamped": lambda i: X[te.minimum(te.maximum(i - 5, 0), 11)],
    "quotient and remainder": lambda i: X[i // 4 * 4 + i % 4],
    "only by trying": lambda i: X[i * 3 - (i * 5) // 2],
    "only by trying, guarded": lambda i: te.where((i * i) // 2 < 12, X[i * i // 2], 0.0),
    "data, clamped": lambda i: X[te.minimum(te.maximum(AT[i], 0), 11)],
    "data, guarded": lambda i: te.where((AT[i] >= 0) & (AT[i] < 12), X[AT[i]], 0.0),
    "data, one bit": lambda i: X[te.cast(X[i] > 0.0, "i64") * 11],
}
OUTSIDE = {
    "above": lambda i: X[i + 1],
    "below": lambda i: X[i - 1],
    "far": lambda i: X[i + (1 << 40)],
    "guarded too widely": lambda i: te.where(i < 11, X[i + 2], 0.0),
    "the other arm": lambda i: te.where(i < 2, 0.0, X[i - 2]),
    "another condition": lambda i: te.where(X[i] > 0.0, X[i - 1], 0.0),
    "in a condition": lambda i: te.where(X[i + 1] > 0.0, X[i], 0.0),
    "in an index": lambda i: X[te.minimum(te.maximum(AT[i + 1], 0), 11)],
    "data": lambda i: X[AT[i]],
    "data, clamped on one side": lambda i: X[te.minimum(AT[i], 11)],
    "data that wraps": lambda i: X[te.minimum(te.maximum(AT[i], 0) + (1 << 62) * 2 - 1, 11)],
    "negative remainder": lambda i: X[(3 - i) % 12],
}


@pytest.mark.parametrize("body", INSIDE.values(), ids=INSIDE)
def test_what_lies_inside_is_taken(body):
    kernel = te.kernel(te.compute((12,), body, "y"), inputs=(X, AT))
    x, at = array(12), RNG.integers(-20, 20, 12)
    np.testing.assert_array_equal(tw.Schedule(kernel).build(threads=1)(x, at), run(kernel, x, at)[0])


@pytest.mark.parametrize("body", OUTSIDE.values(), ids=OUTSIDE)
def test_what_may_lie_outside_is_refused(body):
    with pytest.raises(UsageError, match=r"y goes out of bounds: index 0 of (x|at), .*(elements|cannot be shown)"):
        te.compute((12,), body, "y")


def test_reductions_and_nests_are_checked_too():
    k = te.reduce_axis(3, "k")
    with pytest.raises(UsageError, match="is 0 to 13, but x has 12"):
        te.compute((12,), lambda i: te.sum(X[i + k], k), "y")
    assert te.compute((10,), lambda i: te.sum(X[i + k], k), "y").shape == (10,)
    text = "def k(x: f32[4], y: out(f32[4])):\n    for i in serial(4):\n        s0: y[i{}] = negf(x[i])"
    te.from_nest(text.format(""))
    with pytest.raises(UsageError, match=r"index 0 of y, \(i \+ 2\), is 2 to 5, but y has 4"):
        te.from_nest(text.format(" + 2"))


@pytest.mark.parametrize("seed", range(40))
def test_random_indices_are_taken_if_they_lie_inside(seed):
    rng = np.random.default_rng(seed)
    n, m, size = (int(v) for v in rng.integers(2, 9, 3))
    a, b, c = (int(v) for v in rng.integers(-3, 4, 3))
    d, e = (int(v) for v in rng.integers(1, 5, 2))
    x = te.placeholder((size,), "x")
    i, j = np.meshgrid(range(n), range(m), indexing="ij")
    index = (a * i + b * j + c) // d + np.minimum(i * e, j)
    holds = i * a <= j + c

    def body(p, q):
        at = (p * a + q * b + c) // d + te.minimum(p * e, q)
        return te.where(p * a <= q + c, x[at], 0.0)

    if np.all((index >= 0) & (index < size) | ~holds):
        te.compute((n, m), body, "y")
    else:
        with pytest.raises(UsageError, match="out of bounds"):
            te.compute((n, m), body, "y")


def test_from_mlir():
    text = """func.func @main(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> tensor<4x8xf32> {
      %0 = "tw.add"(%x, %y) : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
      return %0 : tensor<4x8xf32> }"""
    kernel = te.from_mlir(text)
    a, b = array(4, 8), array(4, 8)
    np.testing.assert_array_equal(tw.Schedule(kernel).build(threads=1)(a, b), a + b)
    with pytest.raises(UsageError, match="0 kernels"):
        te.from_mlir(text, "conv")


def test_built_schedule_computes_what_the_interpreter_says():
    kernel = matmul(20, 40, 24)
    s = tiled(tw.Schedule(kernel), 6, 32)
    a, b = array(20, 24), array(24, 40)
    built = s.build(threads=2)
    np.testing.assert_allclose(built(a, b), run(kernel, a, b)[0], rtol=1e-5, atol=1e-5)
    assert built.time(a, b, seconds=0.01) > 0 and built.time(seconds=0.01) > 0
    with pytest.raises(InputError, match="takes 2 arrays"):
        built(a)


def test_source_forms():
    s = tiled(tw.Schedule(matmul(12, 32, 8)), 6, 32)
    assert "vector.fma" in s.source("mlir") or "math.fma" in s.source("mlir")
    assert "define" in s.source("ll") and "matmul" in s.source("asm")
    assert "for" in s.source("c") and "thread(" in s.source("nest")
    with pytest.raises(UsageError, match="no form 'ptx'"):
        s.source("ptx")


def test_trace_replays_on_another_kernel_of_the_form():
    first = tiled(tw.Schedule(matmul(12, 64, 8)), 6, 32)
    text = str(first.trace)
    again = tw.Schedule.replay(matmul(12, 64, 8), text)
    assert str(again) == str(first) and str(again.trace) == text
    a, b = te.placeholder((30, 16), "left"), te.placeholder((16, 96), "right", constant=True)
    r = te.reduce_axis(16, "depth")
    other = te.kernel(te.compute((30, 96), lambda p, q: te.sum(a[p, r] * b[r, q], r), "c"))
    s = tw.Schedule.replay(other, text)
    x, y = array(30, 16), array(16, 96)
    np.testing.assert_allclose(s.build(threads=1)(x, y), x @ y, rtol=1e-4, atol=1e-4)


def test_trace_of_the_rules_replays():
    from tilewright.schedule.rules import schedule
    from tilewright.targets.base import find

    kernel = matmul(12, 64, 8)
    made = schedule(kernel, find("cpu").describe()).schedule
    assert str(tw.Schedule.replay(kernel, str(made.trace))) == str(made)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s.split('i_c', ", "not readable"),
        ("import os", "no call"),
        ("s.nest()", "no primitive"),
        ("s.split('i_c', open('x'))", "cannot be read"),
        ("# loops: i\n", "1 loops"),
        ("a = s.split('i_c', 4)", "gives 2 names"),
    ],
)
def test_bad_traces_are_refused(text, words):
    with pytest.raises(UsageError, match=words):
        tw.Schedule.replay(matmul(4, 4, 4), text)


def test_an_illegal_step_says_why():
    with pytest.raises(ScheduleError, match="no loop nowhere"):
        tw.Schedule.replay(matmul(4, 4, 4), "s.split('nowhere', 4)")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("for i in thread(4):\n        y[i] = x[i]", "loop i of a kernel written as a nest must be serial(4)"),
        ("for i in serial(2):\n        y[i] = x[i]\n        y[i + 2] = x[i]", "has perfect loop nests"),
        ("for i in serial(min(4, 3)):\n        y[i] = x[i]", "must be serial(constant)"),
    ],
)
def test_a_nest_that_is_no_kernel_is_refused(text, reason):
    with pytest.raises(UsageError) as error:
        te.from_nest(f"def k(x: f32[4], y: out(f32[4])):\n    {text}")
    assert reason in error.value.message
    with pytest.raises(UsageError, match="z is no parameter of k"):
        te.from_nest("def k(x: f32[4], y: out(f32[4])):\n    for i in serial(4):\n        y[i] = x[i]", ["z"])


def test_dtypes_as_numpy_calls_them():
    for name, short in (
        ("float32", "f32"),
        ("f32", "f32"),
        (np.float64, "f64"),
        ("int64", "i64"),
        ("bfloat16", "bf16"),
    ):
        assert te.placeholder((np.int64(4),), "z", name).dtype == short
    x = te.placeholder((4,), "x")
    assert te.compute((4,), lambda i: te.cast(x[i], "float64"), "y").dtype == "f64"
    for wrong in ("uint8", "float33", 3):
        with pytest.raises(UsageError, match="unknown dtype"):
            te.placeholder((4,), "z", wrong)


def test_arguments_of_primitives_are_checked():
    def fresh():
        return tw.Schedule(matmul(8, 8, 8))

    s = fresh()
    s.tile(("i_c", "j_c"), (np.int32(4), np.int64(2)))
    assert "(4, 2)" in str(s.trace) and tw.Schedule.replay(s.kernel, str(s.trace)).loops() == s.loops()
    for step, words in (
        (lambda s: s.split("j_c", 2.5), "split: factor is an integer, not 2.5"),
        (lambda s: s.split("j_c", "8"), "split: factor is an integer, not '8'"),
        (lambda s: s.split("j_c", True), "split: factor is an integer, not True"),
        (lambda s: s.split(1, 8), "split: var is a name, not 1"),
        (lambda s: s.reorder("j_c", 3), "reorder: order is a name, not 3"),
        (lambda s: s.tile("i_c", (4,)), "tile: loops is a list, not 'i_c'"),
        (lambda s: s.tile(["i_c"], [4.0]), "tile: sizes is an integer, not 4.0"),
        (
            lambda s: s.set_scope("nope", "register"),
            "there is no buffer nope\n  stage: schedule\n  hint: buffers: a, b, c",
        ),
        (lambda s: s.pack("nope", ((), (4,)), (0, 1, 2)), "there is no buffer nope"),
        (lambda s: s.cache_read("nope", "a"), "there is no block nope\n  stage: schedule\n  hint: blocks: c"),
        (lambda s: s.parallel("k"), r"block c reduces over k\n  stage: schedule\n  hint: rfactor\('c', 'k'\) first"),
    ):
        s, before = fresh(), str(fresh())
        with pytest.raises(ScheduleError) as error:
            step(s)
        assert re.match(words, str(error.value)), str(error.value)
        assert str(s) == before and not s.trace


def test_unrolling_has_a_limit():
    s = tw.Schedule(matmul(128, 128, 128))
    s.unroll("k")
    with pytest.raises(ScheduleError, match="unrolling j_c would make 16384 statements of one") as error:
        s.unroll("j_c")
    assert "split it" in error.value.hint
    _, inner = s.split("j_c", 32)
    s.unroll(inner)
    with pytest.raises(ScheduleError, match="unrolling i_c would make 524288"):
        s.unroll("i_c")


@pytest.mark.parametrize("name", ["\u017f", "\ufb01", "\u00b5", "u\u0308", "and", "True", "lambda", "a b", "2x", ""])
def test_names_that_the_text_of_a_nest_cannot_have(name):
    """Python's parser reads that text: it takes the first for s, the second for fi, and others for no names."""
    with pytest.raises(UsageError, match="is not a name"):
        te.placeholder((4,), name)
    assert te.placeholder((4,), "\u03bc").name == "\u03bc"
