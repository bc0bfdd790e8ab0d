"""Transpositions in registers: every dtype, whole and partial tiles, alone and with arithmetic."""

import numpy as np
import pytest
from support.machines import LANES16
from support.teams import teams

import tilewright as tw
from tilewright.driver.kernels import fused_kernels
from tilewright.ir.types import NUMPY
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.rules import schedule
from tilewright.schedule.text import parse_nest
from tilewright.targets.cpu.description import CpuDescription
from tilewright.targets.cpu.emit import emit


def transpose(shape, permutation, dtype, extra=""):
    dims = "x".join(map(str, shape))
    to = "x".join(str(shape[p]) for p in permutation)
    t, r = f"tensor<{dims}x{dtype}>", f"tensor<{to}x{dtype}>"
    perm = ", ".join(map(str, permutation))
    return f"""
func.func @main(%x: {t}) -> {r} {{
  %0 = "tw.transpose"(%x) {{permutation = array<i64: {perm}>}} : ({t}) -> {r}
  {extra.replace("TYPE", r) or f"return %0 : {r}"}
}}
"""


def values(shape, dtype):
    return (np.arange(np.prod(shape)) % 251).reshape(shape).astype(NUMPY[dtype])


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i64", "i32", "i8", "ui8", "i1"])
def test_dtypes(dtype):
    x = values((48, 40), dtype)
    y = tw.compile(transpose(x.shape, (1, 0), dtype), threads=1)(x)[0]
    assert y.dtype == x.dtype
    assert y.tobytes() == np.ascontiguousarray(x.T).tobytes()


@pytest.mark.parametrize(
    "shape, permutation",
    [
        ((16, 16), (1, 0)),
        ((17, 33), (1, 0)),
        ((15, 64), (1, 0)),
        ((1, 56, 28, 48), (0, 3, 1, 2)),
        ((2, 32, 7, 9), (0, 2, 3, 1)),
        ((5, 18, 34), (2, 1, 0)),
    ],
)
def test_shapes(shape, permutation):
    x = values(shape, "f32")
    text = transpose(shape, permutation, "f32")
    for run in teams(tw.compile(text, threads=1)):
        assert (run(x)[0] == x.transpose(permutation)).all()


def test_with_arithmetic():
    x = values((64, 32), "f32")
    text = transpose(x.shape, (1, 0), "f32", '%1 = "tw.exp"(%0) : (TYPE) -> TYPE\n  return %1 : TYPE')
    assert np.allclose(tw.compile(text)(x % 3)[0], np.exp(x.T % 3), rtol=1e-5)


NEST = """
def k(x: f32[16, 16], y: out(f32[16, 16])):
    for a in unroll(16):
        for b in vector(16, lanes=16):
            s0: y[a, b] = addf(x[b, a], x[b, a])
"""


# five rows of nine are three vectors, of which each column takes two shuffles
@pytest.mark.parametrize("rows, columns, shuffles", [(13, 16, range(31, 65)), (16, 7, range(31, 65)), (5, 9, [18])])
def test_partial_tiles_are_shuffled_too(rows, columns, shuffles):
    text = NEST.replace("[16, 16]", f"[{rows}, {columns}]", 1).replace("[16, 16]", f"[{columns}, {rows}]")
    text = text.replace("unroll(16)", f"unroll({columns})").replace("vector(16,", f"vector({rows},")
    code = emit(parse_nest(text), LANES16).text
    assert "vector.gather" not in code and code.count("vector.shuffle") in shuffles
    x = values((rows, columns), "f32")
    assert (interpret_nest(parse_nest(text), {"x": x})["y"] == 2 * x.T).all()


@pytest.mark.parametrize(
    "shape", [(13, 301), (301, 13), (7, 50), (50, 5), (4, 4), (3, 40), (301, 4), (320, 8), (33, 6)]
)
def test_narrow_shapes(shape):
    x = values(shape, "f32")
    for run in teams(tw.compile(transpose(shape, (1, 0), "f32"), threads=1)):
        assert (run(x)[0] == x.T).all()


def test_guarded_loads_are_not_read_ahead():
    text = NEST.replace("addf(x[b, a], x[b, a])", "guard(cmpi.slt(b, 3), x[b, a], f32(0.0))")
    assert "vector.shuffle" not in emit(parse_nest(text), LANES16).text


@pytest.mark.parametrize("columns", [4, 8])
def test_rows_that_are_vectors_together_are_loaded_so(columns):
    text = NEST.replace("x: f32[16, 16]", f"x: f32[16, {columns}]").replace("f32[16, 16]", f"f32[{columns}, 16]")
    text = text.replace("unroll(16)", f"unroll({columns})")
    code = emit(parse_nest(text), LANES16).text
    assert code.count("vector.load") == columns and "maskedload" not in code
    x = values((16, columns), "f32")
    assert (interpret_nest(parse_nest(text), {"x": x})["y"] == 2 * x.T).all()


@pytest.mark.parametrize("shape, walk", [((870, 40), "operand"), ((512, 64), "result"), ((325, 545), "result")])
def test_tall_matrices_are_read_row_by_row(shape, walk):
    machine = CpuDescription("x86_64-unknown-linux-gnu", "x86-64-v4", ("avx512f",), vector_bytes=64)
    made = schedule(fused_kernels(transpose(shape, (1, 0), "f32"))[0], machine).schedule
    assert [d.default for n, d in made.decisions.items() if n.startswith("walk")] == [walk]


@pytest.mark.parametrize(
    "shape, permutation, walk",
    [
        ((66, 55, 63), (2, 1, 0), "slices"),
        ((20, 40, 700), (2, 1, 0), "result"),
        ((300, 10, 200), (2, 1, 0), "operand"),
        ((5, 19, 37, 18), (3, 1, 2, 0), "operand"),
        ((20, 9, 33, 18), (3, 1, 2, 0), "slices"),
    ],
)
def test_slices_are_transposed_one_after_the_other(shape, permutation, walk):
    machine = CpuDescription("x86_64-unknown-linux-gnu", "x86-64-v4", ("avx512f",), vector_bytes=64)
    (kernel,) = fused_kernels(transpose(shape, permutation, "f32"))
    made = schedule(kernel, machine).schedule
    (name,) = (n for n in made.decisions if n.startswith("walk"))
    assert made.decisions[name].default == walk
    x = values(shape, "f32")
    for other in ("result", "slices", "operand"):
        s = schedule(kernel, machine, {name: other}).schedule
        for run in teams(s.build(threads=1)):
            assert (run(x) == x.transpose(permutation)).all()


@pytest.mark.parametrize("rows", [1, 3, 9, 40])
@pytest.mark.parametrize("batch, permutation", [((), (1, 0)), ((3,), (0, 2, 1)), ((2, 3), (0, 2, 3, 1))])
def test_products_read_through_a_transposition(batch, permutation, rows):
    """Keys of attention: the second operand lies along the sum, and no kernel transposes it first."""
    depth, columns = 37, 45
    lies = tuple((*batch, depth, columns)[permutation.index(d)] for d in range(len(permutation)))
    given, turned, a, y = (
        f"tensor<{'x'.join(map(str, shape))}xf32>"
        for shape in (lies, (*batch, depth, columns), (*batch, rows, depth), (*batch, rows, columns))
    )
    text = f"""
func.func @main(%a: {a}, %b: {given}) -> {y} {{
  %0 = "tw.transpose"(%b) {{permutation = array<i64: {", ".join(map(str, permutation))}>}} : ({given}) -> {turned}
  %1 = "tw.matmul"(%a, %0) : ({a}, {turned}) -> {y}
  return %1 : {y}
}}
"""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((*batch, rows, depth), np.float32), rng.standard_normal(lies, np.float32)
    assert len(fused_kernels(text)) == 1
    for run in teams(tw.compile(text, threads=1)):
        found = run(a, b)[0]
        np.testing.assert_allclose(found, a @ b.transpose(permutation), rtol=1e-4, atol=1e-4)
