"""The last, partial tile of a loop whose number of iterations is known only from above: causal attention, where a block
of queries sees a number of keys of its own."""

from dataclasses import replace

import numpy as np
import pytest
from support.machines import RULES_AVX2, RULES_AVX512

import tilewright as tw
from tilewright import Schedule
from tilewright.driver.kernels import BuiltKernel
from tilewright.lang import te
from tilewright.schedule.finish import finish
from tilewright.schedule.nest import For, exprs, stores, walk_stmts
from tilewright.schedule.rules import schedule
from tilewright.schedule.text import parse_nest
from tilewright.targets.base import find
from tilewright.targets.cpu.description import describe_x86
from tilewright.tensor.expr import variables
from tilewright.tensor.read import read_kernel

WIDE = (*RULES_AVX512, "avx512bf16")
#: processors with 16 lanes, with 8, and with tile registers
MACHINES = [describe_x86("x86_64-unknown-linux-gnu", f) for f in (WIDE, RULES_AVX2, (*WIDE, "amx-tile", "amx-bf16"))]
SIZES = [(a, a + o) for a in (40, 64, 70, 100, 128, 200) for o in (0, 1, 30, 36)]


def attention(queries: int, keys: int, dtype: str = "f32") -> str:
    q, k = f"tensor<1x2x{queries}x32x{dtype}>", f"tensor<1x2x{keys}x32x{dtype}>"
    return f"""func.func @main(%q: {q} {{tw.name = "q"}}, %k: {k} {{tw.name = "k"}}, %v: {k} {{tw.name = "v"}})
          -> ({q} {{tw.name = "y"}}) {{
      %y = "tw.attention"(%q, %k, %v) {{scale = 0.2, causal = true, offset = {keys - queries},
        operandSegmentSizes = array<i32: 1, 1, 1, 0>}} : ({q}, {k}, {k}) -> {q}
      return %y : {q}
    }}"""


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_laid_out_loops_have_constant_extents(sizes, dtype):
    fused = tw.compile(attention(*sizes, dtype), stop_after="fuse")
    (function,) = fused.functions()
    kernel = read_kernel(function)
    for machine in MACHINES:
        nest = finish(schedule(kernel, machine).schedule.nest())
        loops = [s for s in walk_stmts(nest.body) if isinstance(s, For) and s.kind in ("unroll", "vector")]
        assert loops and [s.var for s in loops if s.trip is None or s.trip < 1] == []


@pytest.mark.parametrize(("queries", "keys"), [(100, 100), (70, 71)])
def test_causal_attention_of_odd_sizes(queries, keys):
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, n, 32)).astype(np.float32) for n in (queries, keys, keys))
    got = tw.compile(attention(queries, keys), threads=2).run({"q": q[None], "k": k[None], "v": v[None]})[0]
    scores = 0.2 * q.astype(np.float64) @ k.transpose(0, 2, 1)
    scores[:, np.arange(keys) > np.arange(queries)[:, None] + keys - queries] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ v
    assert np.abs(got[0] - want).max() <= 1e-5 * np.abs(want).max()


#: 56 rows in tiles of 6, which two threads take five of at a time, and a border after each panel of columns
RUNS = """def k(x: f32[56, 128], y: out(f32[58, 128])):
    for i in serial(56):
        for j in serial(128):
            s0: y[i + 1, j] = x[i, j]
    for e in serial(128):
        s1: y[57, e] = f32(0.0)
"""


@pytest.mark.parametrize(("size", "runs"), [(6, 5), (6, 2), (10, 3), (11, 2)])
def test_threads_that_take_runs_of_tiles_stay_clear_of_a_border(size, runs):
    s = Schedule(te.from_nest(RUNS))
    outer, inner = s.split("i", size)
    run, inside = s.split(outer, runs)
    panel, column = s.split("j", 64)
    s.reorder(run, panel, inside, inner, column)
    s.parallel(s.fuse(s.fuse(run, panel), inside))
    assert "thread(" in str(s)
    s.parallel("e")


def test_what_one_thread_runs_is_not_divided():
    s = Schedule(replace(te.from_nest(RUNS), one_thread=True))
    s.parallel("i")
    assert "thread(" not in str(s)


def test_a_tile_of_tiles_in_a_long_loop_is_understood():
    """Whether tiles of a buffer end inside of other tiles depends on few values of a loop of 960."""
    s = Schedule(
        te.from_nest("""def k(x: f32[480, 76], y: out(f32[480, 76])):
    t = local(f32[480, 76])
    for i in serial(480):
        for j in serial(76):
            s0: t[i, j] = exp(x[i, j])
    for a in serial(480):
        for b in serial(76):
            s1: y[a, b] = negf(t[a, b])
""")
    )
    outer, _ = s.split("j", 13)
    run, _ = s.split(outer, 3)
    at = s.fuse("i", run)
    assert s.reverse_compute_at("s1", at)
    assert "t = local(f32[1, 39])" in str(s)


#: a loop that runs once or not at all, over what stays in a register
AT_MOST_ONCE = """def k(x: f32[5, 16], y: out(f32[5, 16])):
    for o in serial(6):
        t = register(f32[1, 16])
        for i in serial(min(1, 5 - o)):
            for j in vector(16, lanes=16):
                s0: t[i, j] = exp(x[o + i, j])
            for j in vector(16, lanes=16):
                s1: y[o + i, j] = t[i, j]
"""


def test_loops_that_run_once_at_most_index_nothing():
    nest = finish(parse_nest(AT_MOST_ONCE))
    assert not {v for s in stores(nest.body) for e in exprs(s) for v in variables(e)} - {"o", "j"}
    x = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    np.testing.assert_allclose(BuiltKernel(nest, find("cpu"), 1)(x), np.exp(x), rtol=1e-5)
