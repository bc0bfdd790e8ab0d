"""Running sums, top-k, scatter and places of what is not zero by blocks: drawn sizes with drawn decisions, in the
interpreter of nests, which finds races, and in the emulator of NVIDIA's threads."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support import opaque_kernels as ops
from support.cuda_emulator import needs_compiler, run

from tilewright.codegen.nvptx.emitter import emit
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.finish import finish
from tilewright.schedule.inplace import inplace_pairs
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.machine import Machine
from tilewright.schedule.nest import Barrier, transform
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import compact, scan, scatter, top_k
from tilewright.targets.cuda.description import SM_80
from tilewright.targets.gpu.describe import GpuDescription

GPU = GpuDescription(block_threads=8, vector_registers=16, shared_bytes=2048, cores=16)


def drawn_decisions(made, draw: random.Random, threads: int = 64) -> dict:
    """Others than the default ones, with few threads: the interpreter runs one after the other."""

    def few(value) -> bool:
        numbers = [v for v in value if isinstance(v, int)] if isinstance(value, tuple) else [value]
        return all(not isinstance(v, int) or v <= threads for v in numbers)

    return {
        d.name: draw.choice([c for c in d.candidates if few(c)] or list(d.candidates)) for d in made.decisions.values()
    }


def results(rule, kernel, arrays, draw, machine, turns: int = 2):
    """What a kernel's nests give: by the default decisions, and by drawn ones."""
    decisions = None
    for _ in range(turns):
        made = rule.apply(kernel, machine, decisions)
        assert not isinstance(made, str), made
        nest = finish(made.nest())
        if machine is GPU:
            yield interpret_nest(nest, arrays, machine), nest
        else:
            yield run(nest, emit(nest, machine), arrays), nest
        decisions = drawn_decisions(made, draw)


machines = pytest.mark.parametrize("machine", [GPU, pytest.param(SM_80, marks=needs_compiler)], ids=["threads", "cuda"])


@machines
@pytest.mark.parametrize("seed", range(5))
def test_running_sums(seed, machine):
    draw = random.Random(seed)
    shape = tuple(draw.choice((1, 2, 3, 5, 9, 17, 40)) for _ in range(draw.randint(1, 3)))
    if seed == 0:
        shape = (2, 333) if machine is SM_80 else (2, 60)
    axis, reverse, exclusive = draw.randrange(len(shape)), draw.random() < 0.5, draw.random() < 0.5
    dtype, product = draw.choice(("f32", "i32", "f16", "i64")), seed == 1
    x = np.random.default_rng(seed).integers(-4, 5, shape).astype(ops.NUMPY[dtype])
    kernel, want = (
        ops.scan(shape, dtype, axis, reverse, exclusive, product),
        ops.scanned(x, axis, reverse, exclusive, product),
    )
    for got, nest in results(scan, kernel, {"x": x}, draw, machine):
        assert np.array_equal(got["y"], want)
        assert illegal(nest.body, nest.buffers(), lambda: machine) is None


@needs_compiler
@pytest.mark.parametrize("team", [(1, 256, 4), (2, 32, 4), (1, 64, 1), (4, 128, 2)])
def test_running_sums_by_warps(team):
    x = np.random.default_rng(0).integers(-4, 5, (3, 1500)).astype("f4")
    nest = finish(scan.apply(ops.scan(x.shape, "f32", 1, False, True), SM_80, {"team": team}).nest())
    emitted = emit(nest, SM_80)
    assert "shfl.sync" in emitted.text and sum(emitted.shared.values()) <= 64
    assert np.array_equal(run(nest, emitted, {"x": x})["y"], ops.scanned(x, 1, False, True))


@machines
@pytest.mark.parametrize(
    ("seed", "form"), [(0, "rank"), (1, "rank"), (0, "select"), (2, "select"), (1, "sort"), (2, "sort")]
)
def test_the_first_of_an_order(seed, form, machine):
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    shape = tuple(draw.choice((2, 3, 5, 9, 17)) for _ in range(draw.randint(1, 2)))
    if machine is GPU and form == "select":
        shape = (9,)
    axis, largest, dtype = draw.randrange(len(shape)), draw.random() < 0.6, ("f32", "i8", "f16")[seed]
    k = draw.randint(1, shape[axis] - 1)
    x = numbers.integers(-3, 4, shape).astype(ops.NUMPY[dtype])
    if dtype[0] == "f":  # with NaN, infinity and zeros of both signs
        for value in (np.nan, np.inf, -0.0):
            x[numbers.random(shape) < 0.15] = value
    kernel, want = ops.top_k(shape, k, dtype, axis, largest), ops.first_of(x, k, axis, largest)
    plans = [p for p in top_k.plans(top_k.TopKKernel(kernel), machine) if p.form == form and p.rows * p.threads <= 64]
    plan = draw.choice(plans)
    for got, _ in results(_with({"plan": plan.numbers}), kernel, {"x": x}, draw, machine, turns=1):
        assert np.array_equal(got["p"], want[1]) and np.array_equal(got["y"], want[0], equal_nan=dtype[0] == "f")


def _with(decisions):
    """The rule of top-k with given decisions."""

    class Rule:
        @staticmethod
        def apply(kernel, machine, _):
            return top_k.apply(kernel, machine, decisions)

    return Rule


@needs_compiler
@pytest.mark.parametrize(
    "plan", [("select", 1, 64, 0), ("select", 1, 256, 4), ("rank", 1, 128, 2), ("sort", 1, 128, 0)]
)
def test_the_first_of_long_lines(plan):
    x = np.round(np.random.default_rng(0).standard_normal((2, 900)) * 20).astype("f4")
    nest = finish(top_k.apply(ops.top_k(x.shape, 37, "f32", 1, True), SM_80, {"plan": plan}).nest())
    got, want = run(nest, emit(nest, SM_80), {"x": x}), ops.first_of(x, 37, 1, True)
    assert np.array_equal(got["p"], want[1]) and np.array_equal(got["y"], want[0])


@machines
@pytest.mark.parametrize("seed", range(6))
def test_scatter(seed, machine, monkeypatch):
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    shape = tuple(draw.choice((1, 2, 3, 5, 7, 12)) for _ in range(draw.randint(1, 3)))
    reduction, dtype = draw.choice(("none", "none", "add", "mul", "max")), draw.choice(("f32", "i32", "f16"))
    monkeypatch.setattr(scatter, "PIECE", draw.choice((4, 512)))
    axis = draw.randrange(len(shape))
    if seed % 3 == 0:
        name, attributes = "scatter_elements", {"axis": axis, "reduction": reduction}
        i = tuple(draw.randint(0, 9) if d == axis else draw.randint(1, n) for d, n in enumerate(shape))
        u, indices = i, numbers.integers(-shape[axis], shape[axis], i)
    else:
        name, attributes, depth = "scatter_nd", {"reduction": reduction}, draw.randint(1, len(shape))
        lead = tuple(draw.randint(0, 6) for _ in range(draw.randint(1, 2)))
        i, u = (*lead, depth), (*lead, *shape[depth:])
        indices = np.stack([numbers.integers(-n, n, lead) for n in shape[:depth]], -1)
    x, updates = (
        numbers.integers(-9, 9, shape).astype(ops.NUMPY[dtype]),
        numbers.integers(-3, 4, u).astype(ops.NUMPY[dtype]),
    )
    kernel = ops.scatter(name, shape, i, u, dtype, **attributes)
    want = ops.scattered(name, x, indices, updates, reduction, axis)
    for got, nest in results(scatter, kernel, {"x": x, "i": indices, "u": updates}, draw, machine):
        assert np.array_equal(got["y"], want)
        assert ("y", "x") in inplace_pairs(nest) or x.size == 1


@machines
@pytest.mark.parametrize(("rows", "axis", "start"), [((2, 3, 4), 1, 5), ((2, 9, 1), 2, 3), ((0, 9, 4), 0, 1)])
def test_append(rows, axis, start, machine):
    x, more = np.arange(72, dtype="f4").reshape(2, 9, 4), -np.ones(rows, "f4")
    want = x.copy()
    np.moveaxis(want, axis, 0)[start : start + rows[axis]] = np.moveaxis(more, axis, 0)
    operands = {"x": (x.shape, "f32"), "rows": (rows, "f32")}
    kernel = ops.kernel("append", {"axis": axis, "start": start}, operands, {"y": (x.shape, "f32")})
    for got, nest in results(scatter, kernel, {"x": x, "rows": more}, random.Random(0), machine):
        assert np.array_equal(got["y"], want) and ("y", "x") in inplace_pairs(nest)


@machines
@pytest.mark.parametrize("seed", range(3))
def test_places_of_what_is_not_zero(seed, machine):
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    shape = tuple(draw.choice((1, 3, 5, 7, 12)) for _ in range(draw.randint(1, 3)))
    x = (numbers.integers(-1, 2, shape) * (numbers.random(shape) < 0.7)).astype("f4")
    places = np.array(np.nonzero(x))
    for got, _ in results(compact, ops.non_zero(shape, "f32"), {"x": x}, draw, machine):
        assert got["n"] == places.shape[1] and np.array_equal(got["y"][:, : got["n"]], places)
        assert not got["y"][:, got["n"] :].any()


def test_rules_say_what_they_do_not_take():
    assert "no grid" in scan.apply(ops.scan((4, 4), "f32", 1, False, False), Machine())
    huge = ops.top_k((1, 1 << 22), 1 << 22, "f32", 1, True)
    assert schedule(huge, GpuDescription()).rule == "opaque", "comparing each with each takes too long"
    assert schedule(ops.top_k((4, 60), 3, "f32", 1, True), GpuDescription()).rule == "block_top_k"
    assert "no elements" in compact.apply(ops.non_zero((0, 3), "f32"), GpuDescription())


@pytest.mark.parametrize("rule", ["scan", "top_k", "scatter"])
def test_without_barriers_there_are_races(rule):
    """The interpreter finds each rule's forgotten barriers."""
    rows = ops.scatter("scatter_nd", (6, 8), (5, 1), (5, 8), "f32", reduction="none")
    made = {
        "scan": lambda: scan.apply(ops.scan((1, 60), "f32", 1, False, False), GPU, {"team": (1, 8, 4)}),
        "top_k": lambda: top_k.apply(ops.top_k((1, 30), 3, "f32", 1, True), GPU, {"plan": ("sort", 1, 8, 0)}),
        "scatter": lambda: scatter.apply(rows, GPU),
    }[rule]()
    nest = finish(made.nest())
    body = transform(nest.body, lambda s: None if isinstance(s, Barrier) else s)
    arrays = {
        p.name: (np.arange(p.size) % 5).reshape(p.shape).astype(ops.NUMPY[p.dtype])
        for p in nest.params
        if p.name not in nest.outputs
    }
    with pytest.raises(Exception, match=r"may be|before it is written|without a barrier"):
        interpret_nest(type(nest)(nest.name, nest.params, nest.outputs, body), arrays, GPU)
