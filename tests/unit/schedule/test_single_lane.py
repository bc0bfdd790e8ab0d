"""A partial vector of one lane writes one element: LLVM's masked store of a truncated byte writes four."""

import numpy as np
import pytest

from tilewright.driver.kernels import BuiltKernel
from tilewright.lang import te
from tilewright.schedule.text import parse_nest
from tilewright.targets.base import find

NEST = """
def k(x: i32[48], y: out(TYPE[48])):
    for i in vector(16, lanes=16):
        s0: y[i] = TYPE(7)
    for j in vector(16, lanes=16):
        s1: y[j + 16] = TYPE(7)
    for l in vector(16, lanes=16):
        s2: y[l + 32] = TYPE(7)
    for m in vector(1, lanes=16):
        s3: y[m + 32] = trunci[TYPE](minsi(maxsi(addi(x[m + 32], i32(100)), i32(0)), i32(127)))
"""


@pytest.mark.parametrize("dtype", ["i8", "i16"])
def test_neighbours_stay(dtype):
    kernel = BuiltKernel(parse_nest(NEST.replace("TYPE", dtype)), find("cpu"), 1)
    y = kernel(np.arange(48, dtype=np.int32) - 60)
    assert y[32] == 72
    assert (np.delete(y, 32) == 7).all()


@pytest.mark.parametrize("columns", [17, 33, 49])
def test_cast_rows_of_odd_length(columns):
    x = te.placeholder((8, columns), "x")
    out = te.compute((8, columns), lambda i, j: te.cast(te.minimum(te.maximum(x[i, j], 0.0), 100.0), "i8"), "y")
    from tilewright import Schedule

    values = (np.arange(8 * columns).reshape(8, columns) % 101).astype(np.float32)
    s = Schedule(te.kernel(out), "cpu")
    i, j = s.loops()
    s.vectorize(s.split(j, 16)[1])
    s.parallel(i)
    assert (s.build(threads=2)(values) == values.astype(np.int8)).all()
