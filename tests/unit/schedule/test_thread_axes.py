"""Nests for machines with axes, shared memories, barriers and asynchronous copies: a tiled matrix product on a GPU-like
record, what races look like, and what is refused."""

# ruff: noqa: E501 (nests as text)
from __future__ import annotations

import textwrap
from dataclasses import replace

import numpy as np
import pytest
from support.gpu_matmul import tiled_matmul
from support.machines import ACCELERATOR, GPU, MACHINES
from support.primitive_cases import DENSE, MATRIX, SUM, kernel, refuses

from tilewright.codegen.clike.c99 import C99
from tilewright.codegen.clike.printer import emit as emit_c
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import NestError, interpret_nest
from tilewright.schedule.machine import Machine
from tilewright.schedule.nest import Barrier, Nest, Stmt, Wait, transform, walk_stmts
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.text import format_nest, parse_nest
from tilewright.support.errors import CompileError, TilewrightError
from tilewright.targets.cpu.emit import emit as emit_cpu


def nest(text: str, machine: Machine = GPU) -> Nest:
    return parse_nest(textwrap.dedent(text).strip(), machine)


def reason(n: Nest, machine: Machine = GPU) -> str | None:
    return illegal(n.body, n.buffers(), lambda: machine)


def run(n: Nest, machine: Machine = GPU, **arrays: np.ndarray) -> dict[str, np.ndarray]:
    return interpret_nest(n, arrays, machine)


X = np.arange(8, dtype=np.float32)


# ---- a matrix product ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def product() -> tuple[Nest, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in (("a", (4, 6)), ("b", (6, 4)))}
    return tiled_matmul(4, 4, 6, tile=2, depth=2).nest(), arrays


def test_a_tiled_product_is_what_it_says(product):
    made, arrays = product
    assert parse_nest(format_nest(made), GPU) == made
    for n in (made, finish(made)):
        assert reason(n) is None
        np.testing.assert_allclose(run(n, **arrays)["c"], arrays["a"] @ arrays["b"], rtol=1e-5, atol=1e-5)


def test_three_stages():
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((2, 10)).astype(np.float32), rng.standard_normal((10, 2)).astype(np.float32)
    made = tiled_matmul(2, 2, 10, tile=2, depth=2, stages=3).nest()
    assert "wait(a_c_t, pending=2)" in str(made)
    np.testing.assert_allclose(run(made, a=a, b=b)["c"], a @ b, rtol=1e-5, atol=1e-5)


def test_without_a_barrier_or_wait_it_races(product):
    made, arrays = product
    stops = [s for s in walk_stmts(made.body) if isinstance(s, (Barrier, Wait))]
    assert len(stops) == 4
    for stop in stops:

        def weaker(s: Stmt, stop: Stmt = stop) -> Stmt | None:
            if s is not stop:
                return s
            return replace(s, pending=s.pending + 1) if isinstance(s, Wait) else None

        worse = replace(made, body=transform(made.body, weaker))
        assert reason(worse) is not None
        with pytest.raises(
            NestError, match=r"[ab]_c\[.*\] is (read|written) by grid.x=0, grid.y=0.* though .*block s0"
        ):
            run(worse, **arrays)


# ---- what the interpreter finds, and the static check with it --------------------------------------------------------

SHARED = """
def k(x: f32[8], y: out(f32[8])):
    t = shared(f32[8])
    for i in block.x(8):
        s0: t[i] = x[i]
    {between}
    for j in block.x(8):
        s1: y[j] = t[7 - j]
"""
SPMD = """
def k(x: f32[8], y: out(f32[8])):
    t = shared(f32[2])
    for i in block.x(2):
        for k in serial(4):
            {first}
            s0: t[i] = x[k * 2 + i]
            {second}
            s1: y[k * 2 + i] = t[1 - i]
"""
COPIED = """
def k(x: f32[8], y: out(f32[8])):
    t = shared(f32[8])
    for i in block.x(8):
        with async_copy(c):
            s0: t[i] = x[i]
        {between}
        s1: y[i] = t[i]
"""


def test_units_meet_at_barriers():
    np.testing.assert_array_equal(run(nest(SHARED.format(between="barrier(block)")), x=X)["y"], X[::-1])
    n = nest(SPMD.format(first="barrier(block)", second="barrier(block)"))
    assert reason(n) is None
    np.testing.assert_array_equal(run(n, x=X)["y"], X.reshape(4, 2)[:, ::-1].reshape(-1))
    n = nest(COPIED.format(between="wait(c)"))
    assert reason(n) is None
    np.testing.assert_array_equal(run(n, x=X)["y"], X)


@pytest.mark.parametrize(
    ("text", "race", "static"),
    [
        (SHARED.format(between="pass"), r"t\[7\] is read by block.x=0 though block.x=7 may be writing it, in block s1", "elements of t that others write, without a barrier between: blocks s0, s1"),
        (SHARED.format(between="barrier(warp)"), r"t\[7\] is read by block.x=0 though block.x=7 may be writing it", "elements of t"),
        (SPMD.format(first="pass", second="barrier(block)"), r"t\[0\] is read by block.x=1 though block.x=0 may be writing it, in block s1", "elements of t"),
        (SPMD.format(first="barrier(block)", second="pass"), r"t\[1\] is read", "elements of t"),
        (COPIED.format(between="wait(c, pending=1)"), r"t\[0\] is read by block.x=0 though copy c may be writing it, in block s1", "block s1 may touch t while copy c"),
        (COPIED.format(between="s2: t[i] = f32(0.0)\n        wait(c)"), r"t\[0\] is written by block.x=0 though copy c may be using it, in block s2", "block s2 may touch t while copy c"),
        (
            """
            def k(x: f32[8], y: out(f32[8])):
                for i in grid.x(8):
                    for j in serial(2):
                        s0: y[(i + j) % 8] = x[i]
            """,
            r"y\[1\] is written by grid.x=1 and by grid.x=0 without a barrier between, in block s0",
            "threads of grid.x may touch elements of y",
        ),
        (
            """
            def k(x: f32[8], y: out(f32[8])):
                t = register(f32[8])
                for i in block.x(8):
                    s0: t[i] = x[i]
                barrier(block)
                for j in block.x(8):
                    s1: y[j] = t[7 - j]
            """,
            r"t\[7\] is read before it is written, in block s1",
            "t is memory of each thread of block.x: loops i, j use what other threads have written",
        ),
        (
            """
            def k(x: f32[8], y: out(f32[8])):
                t = local(f32[8])
                for i in block.x(8):
                    s0: t[i] = x[i]
                for j in serial(8):
                    s1: y[j] = t[j]
            """,
            r"t\[1\] is read before it is written",
            "t is memory of each thread of block.x: what loop i writes there block s1 outside does not see",
        ),
        (
            """
            def k(x: f32[8], y: out(f32[8])):
                t = shared(f32[8])
                with async_copy(c):
                    for i in serial(8):
                        s0: t[i] = x[i]
                wait(c)
                for j in block.x(8):
                    s1: y[j] = t[j]
            """,
            r"t\[1\] is read by block.x=1 though block.x=0 may be writing it",
            "elements of t",
        ),
    ],
)  # fmt: skip
def test_races_are_found(text, race, static):
    n = nest(text)
    with pytest.raises(NestError, match=race):
        run(n, x=X)
    assert static in str(reason(n))


def test_memory_of_a_unit_stays_its_own():
    """Each thread has its accumulators, also between the loops; what all write first, each one finds."""
    n = nest("""
    def k(x: f32[8], y: out(f32[4])):
        t = register(f32[4])
        for l in serial(4):
            s0: t[l] = f32(1.0)
        for k in serial(2):
            for i in block.x(4):
                s1: t[i] = addf(t[i], x[k * 4 + i])
        for j in block.x(4):
            s2: y[j] = t[j]
    """)
    assert reason(n) is None
    np.testing.assert_array_equal(run(n, x=X)["y"], X[:4] + X[4:] + 1)


def test_an_array_with_sums_of_its_own():
    """Rows and columns of multipliers, weights in a memory of each array, a barrier between filling and use."""
    n = nest(
        """
        def k(x: f32[4, 2], w: f32[2, 4], y: out(f32[4, 4])):
            for e in engine(2):
                xs = sram(f32[4, 2])
                ws = weights(f32[2, 2])
                with async_copy(d):
                    for a in array.row(2):
                        for b in array.column(2):
                            s0: ws[a, b] = w[a, e * 2 + b]
                wait(d)
                barrier(array)
                for c in array.column(2):
                    acc = accumulator(f32[1])
                    for m in serial(4):
                        s1: acc[0] = f32(0.0)
                        for k in serial(2):
                            s2: acc[0] = addf(acc[0], mulf(x[m, k], ws[k, c]))
                        s3: y[m, e * 2 + c] = acc[0]
        """,
        ACCELERATOR,
    )
    assert reason(n, ACCELERATOR) is None
    x, w = X.reshape(4, 2), X.reshape(2, 4) + 1
    np.testing.assert_array_equal(run(n, ACCELERATOR, x=x, w=w)["y"], x @ w)
    worse = replace(n, body=transform(n.body, lambda s: None if isinstance(s, Barrier) else s))
    assert "elements of ws" in str(reason(worse, ACCELERATOR))
    with pytest.raises(NestError, match=r"ws\[.*is read by engine=0"):
        run(worse, ACCELERATOR, x=x, w=w)


# ---- what a nest may not have --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("for i in grid.x(8):\n  for j in warp(8):\n    for k in block.x(2):\n      y[i] = x[i]", "warp and block are no axes within each other"),
        ("for i in block.x(8):\n  for j in grid.x(8):\n    y[i] = x[j]", "loop j on grid.x is inside loop i on block.x"),
        ("for i in lane(8):\n  for j in lane(8):\n    y[i] = x[j]", "loop j on lane is inside loop i on lane"),
        ("for i in lane(64):\n  y[i % 8] = x[i % 8]", "lane has 32 threads, the loops on it have 64 iterations"),
        ("for i in block.x(64):\n  for j in block.y(32):\n    y[i] = x[j]", "block has 1024 threads, the loops on it have 2048 iterations"),
        ("for i in serial(8):\n  for j in lane(i):\n    y[i] = x[j]", "loop j on lane must have a constant extent"),
        ("for i in lane(8):\n  if i < 4:\n    barrier(warp)\n  y[i] = x[i]", "barrier(warp) may be reached by some threads only"),
        ("if cmpf.olt(x[0], f32(0.0)):\n  barrier(warp)", "barrier(warp) may be reached by some threads only"),
        ("for i in lane(8):\n  barrier(warp)\n  y[i] = x[i]\nfor j in lane(4):\n  y[j] = x[j]", "barrier(warp) in loop i: other loops on lane have more or less iterations"),
        ("for i in vector(8, lanes=8):\n  barrier(warp)\n  y[i] = x[i]", "barrier(warp) is in vectorized loop i"),
        ("wait(c)", "no async_copy begins what wait(c) waits for"),
        ("with async_copy(c):\n  y[0] = x[0]", "nothing waits for async_copy(c)"),
        ("with async_copy(c):\n  s0: y[0] = negf(x[0])\nwait(c)", "block s0 in async_copy(c) is no plain copy"),
        ("for i in serial(8):\n  if i < 2:\n    with async_copy(c):\n      y[i] = x[i]\nwait(c)", "async_copy(c) is in a condition"),
        ("t = shared(f32[16384])\ny[0] = x[0]", "buffers in shared need 65536 bytes; the machine has 49152"),
        ("for i in thread(8):\n  for j in lane(8):\n    y[i] = x[j]", "no axes within each other"),
    ],
)  # fmt: skip
def test_what_the_machine_has_not(body, message):
    n = nest("def k(x: f32[8], y: out(f32[8])):\n" + textwrap.indent(body, "    "))
    assert message in str(reason(n))
    with pytest.raises(NestError) as info:
        run(n, x=X)
    assert message in info.value.message


def test_names_that_the_machine_does_not_have():
    n = nest(SHARED.format(between="barrier(block)"))
    assert reason(n, Machine()) == "there is no axis block.x; the machine has thread"
    n = nest("def k(x: f32[8], y: out(f32[8])):\n    t = shared(f32[8])\n    barrier(block)")
    assert reason(n, Machine()) == "t is in shared; the machine has memories local, register"
    n = replace(n, body=Barrier("block"))
    assert reason(n, Machine()) == "there is no barrier block; the machine has none"


# ---- primitives ----------------------------------------------------------------------------------------------------


def test_bind_refuses_what_units_would_need_of_each_other():
    s = Schedule(kernel(SUM), GPU)
    refuses(s, "block s0 reduces over k", "bind", "k", "lane")
    refuses(s, "the target has no axis 'lanes'", "bind", "i", "lanes")
    s.bind("i", "lane")
    refuses(Schedule(kernel(MATRIX), GPU), "the target has no axis 'thread'", "bind", "i", "thread")
    s = Schedule(kernel(DENSE), GPU)
    s.set_scope("c", "shared")
    refuses(s, "threads of warp may touch elements of c that others write", "bind", "m", "warp")
    refuses(s, "there is no barrier grid", "barrier", "s1", "grid")
    s.barrier("s1", "block")
    s.bind("m", "warp")
    s.bind("i", "warp")


def test_a_copy_in_shared_memory_wants_a_barrier():
    s = Schedule(kernel(MATRIX), GPU)
    copy = s.cache_read("s0", "x", scope="shared")
    refuses(s, "there is no scope sram", "set_scope", "x_c", "sram")
    first, second = s.loops(copy)
    refuses(s, "threads of lane may touch elements of x_c that others write", "bind", second, "lane")
    s.barrier("s0", "warp")
    s.bind(second, "lane")
    s.bind("j", "lane")
    assert s.loops() == [first, second, "i", "j"]


# ---- targets without threads -----------------------------------------------------------------------------------------


def test_processors_copy_at_once_and_have_no_barriers():
    copied = nest(
        "def k(x: f32[8], y: out(f32[8])):\n    t = local(f32[8])\n    with async_copy(c):\n        for i in serial(8):\n"
        "            t[i] = x[i]\n    wait(c)\n    for j in serial(8):\n        y[j] = negf(t[j])"
    )
    assert emit_cpu(copied, MACHINES["avx2"]).text.count("scf.for") == 2
    assert emit_c(copied, C99).body.count("for (") == 2
    for text, lacks in (
        ("barrier(block)", r"barrier\(block\)"),
        ("for i in lane(8):\n        y[i] = x[i]", "a loop on axis lane"),
    ):
        with pytest.raises(TilewrightError, match=f"{lacks} cannot be written in C99"):
            emit_c(nest(f"def k(x: f32[8], y: out(f32[8])):\n    {text}"), C99)
    with pytest.raises(
        CompileError, match="a processor cannot run this nest: t is in shared; the machine has memories local, register"
    ):
        emit_cpu(nest("def k(x: f32[8], y: out(f32[8])):\n    t = shared(f32[8])\n    y[0] = x[0]"), MACHINES["avx2"])
