"""Lanes a few elements apart, or in reverse: whole vectors are read and shuffled, nothing outside of the lanes is."""

import itertools

import numpy as np
import pytest
from support.machines import AVX512F as MACHINE
from support.machines import LANES16
from support.teams import teams

import tilewright as tw
from tilewright.ir.types import NUMPY
from tilewright.lang import te
from tilewright.schedule.rules import schedule
from tilewright.schedule.text import parse_nest
from tilewright.targets.cpu.emit import emit


def compiled(results, **options):
    """A model with a result for each (type of its input, operators as text that make %name of %xname, result type)."""
    inputs = ", ".join(f'%x{i}: {t} {{tw.name = "x{i}"}}' for i, (t, _, _) in enumerate(results))
    body = "\n".join(text.replace("%x", f"%x{i}").replace("%y", f"%y{i}") for i, (_, text, _) in enumerate(results))
    types = ", ".join(t for _, _, t in results)
    made = ", ".join(f"%y{i}" for i in range(len(results)))
    text = f"func.func @main({inputs}) -> ({types}) {{\n{body}\n  return {made} : {types}\n}}\n"
    return tw.compile(text, threads=1, **options)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i64", "i32", "i8", "i1"])
def test_slices(dtype):
    """All in one model: each slice is a kernel."""
    cases, results, given = list(itertools.product([2, 3, 4, 5, -1, -2], [5, 16, 23, 40])), [], []
    for step, count in cases:
        n = abs(step) * (count - 1) + 1  # the last lane is the last element, or the first
        start = 0 if step > 0 else n - 1
        t, r = f"tensor<3x{n}x{dtype}>", f"tensor<3x{count}x{dtype}>"
        at = f"starts = array<i64: 0, {start}>, sizes = array<i64: 3, {count}>, steps = array<i64: 1, {step}>"
        results.append((t, f'  %y = "tw.slice"(%x) {{{at}}} : ({t}) -> {r}', r))
        given.append((np.arange(3 * n) % 251).reshape(3, n).astype(NUMPY[dtype]))
    for (step, count), x, y in zip(cases, given, compiled(results)(*given), strict=True):
        assert y.tobytes() == np.ascontiguousarray(x[:, ::step]).tobytes(), (step, count)


NEST = """
def k(x: f32[{size}], y: out(f32[16])):
    for i in vector({trip}, lanes=16):
        s0: y[i] = x[i * {step} + {first}]
"""


@pytest.mark.parametrize("step, first, loads", [(2, 0, 2), (3, 1, 3), (4, 0, 4), (7, 2, 7), (-1, 20, 1), (-2, 40, 2)])
@pytest.mark.parametrize("trip", [16, 9])
def test_no_gather(step, first, loads, trip):
    text = emit(parse_nest(NEST.format(size=120, trip=trip, step=step, first=first)), LANES16).text
    assert "vector.gather" not in text
    assert text.count("vector.load") + text.count("vector.maskedload") <= loads


@pytest.mark.parametrize("step", [17, -20])
def test_far_lanes_are_gathered(step):
    text = emit(parse_nest(NEST.format(size=400, trip=16, step=step, first=300 if step < 0 else 0)), LANES16).text
    assert "vector.gather" in text


@pytest.mark.parametrize("kind, start", [("max_pool", ""), ("avg_pool", "")])
@pytest.mark.parametrize("size, window, stride, pad", [(23, 3, 2, 1), (20, 2, 2, 0), (17, 5, 1, 2), (30, 3, 3, 0)])
def test_pools_with_channels_first(kind, start, size, window, stride, pad):
    out = (size + 2 * pad - window) // stride + 1
    t, r = f"tensor<2x3x{size}x{size}xf32>", f"tensor<2x3x{out}x{out}xf32>"
    given = f"kernel = array<i64: {window}, {window}>, strides = array<i64: {stride}, {stride}>, "
    given += f"pads = array<i64: {pad}, {pad}, {pad}, {pad}>, dilations = array<i64: 1, 1>"
    text = f"""
func.func @main(%x: {t}) -> {r} {{
  %0 = "tw.{kind}"(%x) {{{given}}} : ({t}) -> {r}
  return %0 : {r}
}}
"""
    x = np.random.default_rng(0).standard_normal((2, 3, size, size)).astype(np.float32)
    model = tw.compile(text, threads=2, verify=True)
    fill = -np.inf if kind == "max_pool" else np.nan
    padded = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)], constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (window, window), (2, 3))[:, :, ::stride, ::stride]
    want = windows.max((-1, -2)) if kind == "max_pool" else np.nanmean(windows, (-1, -2))
    np.testing.assert_allclose(model(x)[0], want, rtol=1e-5, atol=1e-6)
    assert "guard" not in tw.compile(text, threads=1, stop_after="schedule").text().split("def ")[-1]


@pytest.mark.parametrize("dtype", ["f32", "i8", "i64"])
def test_every_element_several_times(dtype):
    cases, results, given = list(itertools.product([3, 8, 17], [2, 4, 3])), [], []
    for columns, factor in cases:
        shapes = f"5x{columns}x1", f"5x{columns}x{factor}", f"5x{columns * factor}"
        t, wide, r = (f"tensor<{d}x{dtype}>" for d in shapes)
        text = f"""
  %y_wide = "tw.expand"(%x) {{shape = array<i64: 5, {columns}, {factor}>}} : ({t}) -> {wide}
  %y = "tw.reshape"(%y_wide) {{shape = array<i64: 5, {columns * factor}>}} : ({wide}) -> {r}"""
        results.append((t, text, r))
        given.append(np.arange(5 * columns).reshape(5, columns, 1).astype(NUMPY[dtype]))
    for (_, factor), x, y in zip(cases, given, compiled(results)(*given), strict=True):
        np.testing.assert_array_equal(y, x[..., 0].repeat(factor, 1))


@pytest.mark.parametrize("size, block", [((2, 8, 3, 11), 2), ((1, 32, 5, 8), 4), ((1, 9, 4, 6), 3)])
@pytest.mark.parametrize("last", [False, True])
def test_depth_to_space(size, block, last):
    """Rows that take turns with channels first; with channels last, rows that go to several places."""
    n, c, h, w = size
    c //= block * block
    shape = (n, h, w, block, block, c) if last else (n, block, block, c, h, w)
    order = (0, 5, 1, 3, 2, 4) if last else (0, 3, 4, 1, 5, 2)
    t, r = (f"tensor<{'x'.join(map(str, s))}xf32>" for s in (shape, [shape[i] for i in order]))
    text = f"""
func.func @main(%x: {t}) -> {r} {{
  %0 = "tw.transpose"(%x) {{permutation = array<i64: {", ".join(map(str, order))}>}} : ({t}) -> {r}
  return %0 : {r}
}}
"""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    np.testing.assert_array_equal(tw.compile(text, threads=2)(x)[0], x.transpose(order))


@pytest.mark.parametrize("seed", range(24))
def test_places_of_any_form(seed):
    """Results of a few columns and of a few rows, read at random distances: in turns, in steps, in reverse, several
    times."""
    rng = np.random.default_rng(seed)
    few, many = int(rng.integers(2, 8)), int(rng.integers(5, 130))
    dtype = str(rng.choice(["f32", "f32", "f64", "i32", "i8"]))
    near, far = (int(x) for x in rng.choice([-3, -2, -1, 1, 2, 3, 5, many, many + 7], 2))
    size = (few - 1) * abs(far) + (many - 1) * abs(near) + 1
    start = (few - 1) * max(-far, 0) + (many - 1) * max(-near, 0)
    x, last = te.placeholder((size,), "x", dtype), bool(rng.integers(2))
    given = (np.arange(size) % 119).astype(NUMPY[dtype])
    i, c = np.meshgrid(np.arange(many), np.arange(few), indexing="ij")
    want = given[start + i * near + c * far]
    if last:
        made = te.compute((many, few), lambda i, c: x[i * near + c * far + start], "y")
    else:
        made, want = te.compute((few, many), lambda c, i: x[i * near + c * far + start], "y"), want.T
    s = schedule(te.kernel(made, name="places"), MACHINE).schedule
    for run in teams(s.build(threads=1)):
        np.testing.assert_array_equal(run(given), want)


@pytest.mark.parametrize("columns", range(2, 10))
@pytest.mark.parametrize("rows", [1, 5, 48, 131])
def test_a_number_for_every_column_and_for_every_row(rows, columns):
    """Rows of a few columns are one run, in which what belongs to the columns comes again and again."""
    x, scale, shift = (te.placeholder(n, v) for n, v in (((rows, columns), "x"), ((columns,), "a"), ((rows,), "b")))
    made = te.compute((rows, columns), lambda i, c: x[i, c] * scale[c] + shift[i], "y")
    s = schedule(te.kernel(made, name="scaled"), MACHINE).schedule
    rng = np.random.default_rng(columns)
    a, b, c = (rng.standard_normal(n).astype(np.float32) for n in ((rows, columns), columns, rows))
    for run in teams(s.build(threads=1)):
        np.testing.assert_allclose(run(a, b, c), a * b + c[:, None], rtol=1e-5, atol=1e-6)
