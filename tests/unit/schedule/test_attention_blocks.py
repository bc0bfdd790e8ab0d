"""Attention in blocks of queries: blocks that are not full, head dimensions that fill no vector, and queries that are
laid out as columns in registers."""

import numpy as np
import pytest
from support.machines import LANES16
from support.teams import teams

import tilewright as tw
from tilewright.driver.kernels import fused_kernels
from tilewright.schedule.finish import finish
from tilewright.schedule.nest import stores
from tilewright.schedule.rules import schedule
from tilewright.targets.cpu.description import CpuDescription, host
from tilewright.targets.cpu.emit import emit
from tilewright.tensor.expr import Load, walk


def attention(queries, keys, depth, heads=2, causal=False, dtype="f32"):
    q, k = (f"tensor<1x{heads}x{n}x{depth}x{dtype}>" for n in (queries, keys))
    more = ", causal = true" if causal else ""
    return f"""
func.func @main(%q: {q}, %k: {k}, %v: {k}) -> {q} {{
  %0 = "tw.attention"(%q, %k, %v) {{scale = 0.25 : f64{more}}} : ({q}, {k}, {k}) -> {q}
  return %0 : {q}
}}
"""


def exact(q, k, v, causal):
    scores = 0.25 * q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v.astype(np.float64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("queries, depth", [(8, 16), (13, 5), (16, 20), (33, 40), (77, 64), (41, 1)])
def test_partial_blocks(queries, depth, causal):
    g = np.random.default_rng(queries)
    q, k, v = (g.standard_normal((1, 2, queries, depth)).astype(np.float32) for _ in range(3))
    for run in teams(tw.compile(attention(queries, queries, depth, causal=causal), threads=1)):
        y = run(q, k, v)[0]
        np.testing.assert_allclose(y, exact(q, k, v, causal), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("vectors", [1, 2, 3])
def test_blocks_of_several_vectors(vectors):
    """Of the last block some vectors have a few queries and others none."""
    (kernel,) = fused_kernels(attention(37, 21, 12))
    g = np.random.default_rng(0)
    q, k, v = (g.standard_normal((1, 2, n, 12)).astype(np.float32) for n in (37, 21, 21))
    made = schedule(kernel, host(), {"query_vectors": vectors}).schedule
    for run in teams(made.build(threads=1)):
        y = run(q, k, v)
        np.testing.assert_allclose(y, exact(q, k, v, False), rtol=1e-5, atol=2e-6)


def test_halves():
    g = np.random.default_rng(1)
    q, k, v = (g.standard_normal((1, 2, 29, 24)).astype(np.float16) for _ in range(3))
    y = tw.compile(attention(29, 29, 24, dtype="f16"), threads=1)(q, k, v)[0]
    np.testing.assert_allclose(y, exact(q, k, v, False), rtol=2e-3, atol=1e-3)


def test_a_query_that_is_no_number_stays_alone():
    g = np.random.default_rng(2)
    q, k, v = (g.standard_normal((1, 2, 19, 16)).astype(np.float32) for _ in range(3))
    q[0, 1, 17] = np.nan
    y = tw.compile(attention(19, 19, 16), threads=1)(q, k, v)[0]
    bad = np.isnan(y).any(-1)
    assert bad[0, 1, 17] and bad.sum() == 1


def test_queries_are_turned_in_registers():
    (kernel,) = fused_kernels(attention(77, 77, 64))
    machine = CpuDescription("x86_64-unknown-linux-gnu", "x86-64-v4", ("avx512f",), vector_bytes=64)
    text = emit(finish(schedule(kernel, machine).schedule.nest()), LANES16).text
    assert "vector.gather" not in text and "vector.shuffle" in text


def masked(queries, keys, depth, shape):
    q, k = (f"tensor<2x3x{n}x{depth}xf32>" for n in (queries, keys))
    m = f"tensor<{'x'.join(map(str, shape))}xf32>"
    return f"""
func.func @main(%q: {q}, %k: {k}, %v: {k}, %m: {m}) -> {q} {{
  %0 = "tw.attention"(%q, %k, %v, %m) {{scale = 0.25 : f64}} : ({q}, {k}, {k}, {m}) -> {q}
  return %0 : {q}
}}
"""


@pytest.mark.parametrize("queries, keys", [(64, 32), (41, 53)])
def test_masks_are_turned_before_the_sums(queries, keys):
    """A row for each query is read as columns where lanes are queries; while registers hold sums, these would be put
    aside for it."""
    (kernel,) = fused_kernels(masked(queries, keys, 32, (2, 1, queries, keys)))
    machine = CpuDescription("x86_64-unknown-linux-gnu", "x86-64-v4", ("avx512f",), vector_bytes=64)
    nest = schedule(kernel, machine).schedule.nest()
    reads = {s.block for s in stores(nest.body) for t in s.targets for x in walk(t.value)
             if isinstance(x, Load) and x.buffer == kernel.inputs[3].name}  # fmt: skip
    assert reads == {"mask"}
    assert "vector.gather" not in emit(finish(nest), LANES16).text


@pytest.mark.parametrize("seed", range(4))
def test_masks(seed):
    """Sizes and shapes of masks drawn at random, in f32 and on pairs of bf16; a query that sees no key gives zeros."""
    g = np.random.default_rng(seed)
    queries, keys, depth = (int(g.integers(*r)) for r in ((5, 70), (5, 70), (1, 21)))
    depth += depth % 2
    shape = tuple(n if g.random() < 0.6 else 1 for n in (2, 3)) + ((queries, keys), (1, keys), (queries, 1))[seed % 3]
    q, k, v = (g.standard_normal((2, 3, n, depth)).astype(np.float32) for n in (queries, keys, keys))
    m = g.standard_normal(shape).astype(np.float32) * 2
    m[..., -1, :] = -np.inf
    scores = 0.25 * q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) + m
    e = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
    want = e / np.maximum(e.sum(-1, keepdims=True), 1e-300) @ v.astype(np.float64)
    for precision, error in (("f32", 2e-6), ("bf16", 2e-2)):
        y = tw.compile(masked(queries, keys, depth, shape), threads=1, precision=precision)(q, k, v, m)[0]
        assert np.abs(y - want).max() <= error * np.abs(want).max()
