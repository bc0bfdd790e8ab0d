"""What the tests of the primitives share: small kernels, and what a primitive does to them."""

# ruff: noqa: E501 (kernels as text)
from __future__ import annotations

import textwrap

import numpy as np
import pytest

from tilewright.driver.build_program import pack_array
from tilewright.lang import te
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.schedule.text import format_nest
from tilewright.tensor.evaluate import NUMPY
from tilewright.tensor.kernel import Kernel


def kernel(text: str, constants: tuple[str, ...] = ()) -> Kernel:
    return te.from_nest(text, constants)


def outcome(s: Schedule) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    nest = s.nest()
    arrays = {b.name: (rng.standard_normal(b.shape) * 3).astype(NUMPY[b.dtype]) for b in s.kernel.inputs}
    return interpret_nest(nest, {n: pack_array(a, nest.packs[n]) if n in nest.packs else a for n, a in arrays.items()})


def body(s: Schedule) -> str:
    """The printed nest without its head."""
    lines = format_nest(s.nest()).split("):\n", 1)[1]
    return textwrap.dedent(lines).strip()


def becomes(s: Schedule, text: str) -> None:
    """The nest is now as written, and still computes what its kernel says."""
    assert body(s) == textwrap.dedent(text).strip()
    before = outcome(Schedule(s.kernel))
    for name, got in outcome(s).items():
        np.testing.assert_allclose(got, before[name], rtol=1e-5, atol=1e-6)


def refuses(s: Schedule, reason: str, primitive: str, *args) -> None:
    """A primitive is refused with a reason that contains `reason`, and changes nothing."""
    before, trace = body(s), len(s.trace)
    with pytest.raises(ScheduleError) as info:
        getattr(s, primitive)(*args)
    assert reason in info.value.message
    assert body(s) == before
    assert len(s.trace) == trace


COPY = """
def k(x: f32[100], y: out(f32[100])):
    for i in serial(100):
        s0: y[i] = negf(x[i])
"""
MATRIX = """
def k(x: f32[4, 8], y: out(f32[4, 8])):
    for i in serial(4):
        for j in serial(8):
            s0: y[i, j] = negf(x[i, j])
"""
SUM = """
def k(x: f32[5, 32], y: out(f32[5])):
    for i in serial(5):
        for k in serial(32):
            s0: y[i] = reduce(addf(y[i], x[i, k]), init=f32(0.0), over=(k,))
"""
CHAIN = """
def k(x: f32[40], y: out(f32[40])):
    t = local(f32[40])
    for i in serial(40):
        s0: t[i] = exp(x[i])
    for j in serial(40):
        s1: y[j] = addf(t[j], f32(1.0))
"""
ARGMAX = """
def k(x: f32[6, 4], y: out(f32[4]), z: out(i64[4])):
    for i in serial(4):
        for k in serial(6):
            for l in serial(1):
                s0: (y[i], z[i]) = reduce(select(cmpf.ogt(x[k, i], y[i]), x[k, i], y[i]), select(cmpf.ogt(x[k, i], y[i]), index_cast[i64](k), z[i]), init=(f32(-inf), i64(-1)), over=(k, l))
"""
DENSE = """
def k(a: f32[6, 5], b: f32[5, 8], y: out(f32[6, 8])):
    c = local(f32[6, 8])
    for m in serial(6):
        for n in serial(8):
            for k in serial(5):
                s0: c[m, n] = reduce(addf(c[m, n], mulf(a[m, k], b[k, n])), init=f32(0.0), over=(k,))
    for i in serial(6):
        for j in serial(8):
            s1: y[i, j] = maximumf(c[i, j], f32(0.0))
"""
