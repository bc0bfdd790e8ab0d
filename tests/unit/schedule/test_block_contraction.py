"""Contractions for grids of blocks: random products and convolutions, against NumPy, race-free, with any tile."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np
import pytest

from tilewright import te
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.machine import Machine
from tilewright.schedule.nest import For, walk_stmts
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import contraction
from tilewright.targets.gpu.describe import GpuDescription

GPU = GpuDescription()


def take_small(monkeypatch):
    """Let the rule take products that it leaves to others: they are quick to interpret."""
    monkeypatch.setattr(contraction, "SMALL", 1)
    monkeypatch.setattr(contraction, "FEW_RESULTS", 0)


PRODUCT = """
def f(a: {t}[{b}, {m}, {k}], b: {t}[{b}, {k}, {n}], z: {t}[{n}], y: out({t}[{b}, {n}, {m}])):
    c = local({t}[{b}, {m}, {n}])
    for h in serial({b}):
        for i in serial({m}):
            for j in serial({n}):
                for k in serial({k}):
                    s0: c[h, i, j] = reduce(add{s}(c[h, i, j], mul{s}(a[h, i, k], b[h, k, j])), init={t}({zero}), over=(k,))
    for h1 in serial({b}):
        for j1 in serial({n}):
            for i1 in serial({m}):
                s1: y[h1, j1, i1] = add{s}(c[h1, i1, j1], z[j1])
"""  # noqa: E501

CONVOLUTION = """
def f(x: f32[2, {ci}, {s}, {s}], w: f32[{co}, {ci}, 3, 3], y: out(f32[2, {co}, {o}, {o}])):
    for b in serial(2):
        for c in serial({co}):
            for i in serial({o}):
                for j in serial({o}):
                    for d in serial({ci}):
                        for p in serial(3):
                            for q in serial(3):
                                s0: y[b, c, i, j] = reduce(addf(y[b, c, i, j], mulf(x[b, d, i * {stride} + p, j * {stride} + q], w[c, d, p, q])), init=f32(0.0), over=(d, p, q))
"""  # noqa: E501


def checked(text: str, decisions=None):
    """A kernel's finished nest by the rule, which must be free of races."""
    made = contraction.apply(te.from_nest(text), GPU, decisions)
    assert not isinstance(made, str), made
    nest = finish(made.nest())
    assert illegal(nest.body, nest.buffers(), lambda: GPU) is None
    return made, nest


@pytest.mark.parametrize("tile", [(16, 16, 4, 4, 8), (16, 16, 2, 8, 8), (16, 16, 4, 2, 8)])
def test_products_with_long_accesses(tile, monkeypatch):
    """Sizes that long accesses fit, with tiles of a thread that they fit and that they do not."""
    m, n, k = 20, 20, 12
    take_small(monkeypatch)
    text = PRODUCT.format(t="f32", s="f", b=1, m=m, n=n, k=k, zero="0.0")
    nest = checked(text, {"tile": tile})[1]
    assert any(isinstance(s, For) and s.kind == "vector" for s in walk_stmts(nest.body))
    numbers = np.random.default_rng(m)
    a, w, z = (numbers.integers(-8, 8, s).astype("f4") for s in ((1, m, k), (1, k, n), (n,)))
    want = (a @ w).transpose(0, 2, 1) + z[:, None]
    assert (interpret_nest(nest, {"a": a, "b": w, "z": z}, GPU)["y"] == want).all()


@pytest.mark.parametrize("seed", range(4))
def test_random_products(seed, monkeypatch):
    take_small(monkeypatch)
    draw = random.Random(seed)
    t = draw.choice(["f32", "f32", "i32"])
    b, m, n, k = draw.randint(1, 2), draw.randint(2, 18), draw.randint(2, 20), draw.randint(3, 12)
    text = PRODUCT.format(t=t, s=t[0], b=b, m=m, n=n, k=k, zero="0.0" if t == "f32" else "0")
    made, nest = checked(text)
    numbers = np.random.default_rng(seed)
    kind = np.dtype("f4" if t == "f32" else "i4")
    a, w, z = (numbers.integers(-8, 8, s).astype(kind) for s in ((b, m, k), (b, k, n), (n,)))
    want = (a @ w).transpose(0, 2, 1) + z[:, None]
    assert (interpret_nest(nest, {"a": a, "b": w, "z": z}, GPU)["y"] == want).all()
    other = draw.choice([t for t in made.decisions["tile"].candidates if t[0] // t[2] * t[1] // t[3] <= 32])
    nest = checked(text, {"tile": other})[1]
    assert (interpret_nest(nest, {"a": a, "b": w, "z": z}, GPU)["y"] == want).all(), other


@pytest.mark.parametrize(("ci", "co", "s", "stride"), [(3, 5, 6, 1), (5, 17, 6, 2)])
def test_convolutions_gather_their_windows(ci, co, s, stride, monkeypatch):
    take_small(monkeypatch)
    o = (s - 3) // stride + 1
    _, nest = checked(CONVOLUTION.format(ci=ci, co=co, s=s, o=o, stride=stride))
    numbers = np.random.default_rng(1)
    x, w = numbers.integers(-4, 5, (2, ci, s, s)).astype("f4"), numbers.integers(-4, 5, (co, ci, 3, 3)).astype("f4")
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::stride, ::stride]
    want = np.einsum("bdijpq,cdpq->bcij", windows, w)
    assert (interpret_nest(nest, {"x": x, "w": w}, GPU)["y"] == want).all()


def test_processors_and_other_kernels_are_left_to_other_rules():
    text = PRODUCT.format(t="f32", s="f", b=1, m=32, n=32, k=32, zero="0.0")
    assert contraction.apply(te.from_nest(text), Machine()) == "the machine has no grid of blocks"
    small = te.from_nest(PRODUCT.format(t="f32", s="f", b=1, m=4, n=4, k=4, zero="0.0"))
    assert contraction.apply(small, GPU) == "one of its factors is a vector, or it is small"
    assert schedule(te.from_nest(text), GPU).rule == "block_contraction"


def test_tiles_fit_the_machine():
    made, _ = checked(PRODUCT.format(t="f32", s="f", b=1, m=512, n=512, k=64, zero="0.0"))
    for rows, columns, a, b, depth in made.decisions["tile"].candidates:
        assert rows // a * (columns // b) <= GPU.block_threads
        assert 4 * depth * (rows + columns) <= GPU.shared_bytes and a * b <= GPU.vector_registers


PADDED = """
def f(a: f32[{m}, {k}], b: f32[{k}, {n}], y: out(f32[{h}, {w}])):
    c = local(f32[{m}, {n}])
    for i in serial({m}):
        for j in serial({n}):
            for k in serial({k}):
                s0: c[i, j] = reduce(addf(c[i, j], mulf(a[i, k], b[k, j])), init=f32(0.0), over=(k,))
    for i1 in serial({m}):
        for j1 in serial({n}):
            s1: y[i1 + {p}, j1 + {p}] = negf(c[i1, j1])
    for i2 in serial({p}):
        for j2 in serial({w}):
            s2: y[i2, j2] = f32(0.0)
    for i3 in serial({p}):
        for j3 in serial({w}):
            s3: y[i3 + {m} + {p}, j3] = f32(0.0)
    for i4 in serial({m}):
        for j4 in serial({p}):
            s4: y[i4 + {p}, j4] = f32(0.0)
    for i5 in serial({m}):
        for j5 in serial({p}):
            s5: y[i5 + {p}, j5 + {n} + {p}] = f32(0.0)
"""


@pytest.mark.parametrize(("m", "n", "k", "p"), [(9, 18, 5, 1), (3, 5, 4, 9)])
def test_borders_are_shared_out_among_the_tiles(m, n, k, p, monkeypatch):
    """A border larger than the result needs no blocks of its own: none leaves the barriers of the tiles out."""
    take_small(monkeypatch)
    made = contraction.apply(te.from_nest(PADDED.format(m=m, n=n, k=k, p=p, h=m + 2 * p, w=n + 2 * p)), GPU)
    assert not isinstance(made, str), made
    nest = finish(made.nest())  # the interpreter finds races; that there are none cannot be shown of borders
    numbers = np.random.default_rng(2)
    a, b = numbers.integers(-4, 5, (m, k)).astype("f4"), numbers.integers(-4, 5, (k, n)).astype("f4")
    assert (interpret_nest(nest, {"a": a, "b": b}, GPU)["y"] == np.pad(-(a @ b), p)).all()
    grids = [s for s in walk_stmts(nest.body) if isinstance(s, For) and s.kind.startswith("grid")]
    assert len({s.kind for s in grids}) == len(grids)


def test_buffers_and_blocks_of_a_kernel_keep_their_names(monkeypatch):
    take_small(monkeypatch)
    text = PRODUCT.format(t="i32", s="i", b=1, m=3, n=4, k=5, zero="0")
    for own, name in (("a", "sums"), ("b", "piece_a"), ("z", "piece_b"), ("s0", "begin"), ("s1", "multiply")):
        text = re.sub(rf"\b{own}\b", name, text)
    _, nest = checked(text)
    a, w, z = (np.random.default_rng(0).integers(-8, 8, s).astype("i4") for s in ((1, 3, 5), (1, 5, 4), (4,)))
    want = (a @ w).transpose(0, 2, 1) + z[:, None]
    assert (interpret_nest(nest, {"sums": a, "piece_a": w, "piece_b": z}, GPU)["y"] == want).all()


def test_no_more_blocks_along_an_axis_than_the_machine_has(monkeypatch):
    take_small(monkeypatch)
    text = PRODUCT.format(t="i32", s="i", b=9, m=40, n=40, k=5, zero="0")
    few = replace(GPU, grid_side=8)
    assert contraction.apply(te.from_nest(text), few) == "no tile fits the machine"
    few = replace(GPU, grid_side=9)
    made = contraction.apply(te.from_nest(text), few)
    assert illegal(made.body, made.nest().buffers(), lambda: few) is None
    assert illegal(made.body, made.nest().buffers(), lambda: replace(GPU, grid_side=8)) == (
        "grid.z has 8 threads, a loop on it has 9 iterations"
    )
