"""Products of bytes on devices: four at once, out of words in shared memory."""

from __future__ import annotations

import numpy as np
import pytest
from support.gpus import device_of, run_on

from tilewright import te
from tilewright.codegen.clike.opencl import OPENCL
from tilewright.codegen.clike.printer import emit
from tilewright.codegen.clike.wgsl import WGSL, WGSL_64
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import contraction
from tilewright.targets.gpu.describe import GpuDescription
from tilewright.targets.gpu.kernels import kernel

MACHINE = GpuDescription(byte_products=True)
DIALECTS = {"opencl": OPENCL, "vulkan": WGSL_64}

PRODUCT = """
def f(a: i8[{m}, {k}], b: i8[{b}], y: out(i32[{m}, {n}])):
    for i in serial({m}):
        for j in serial({n}):
            for k in serial({k}):
                s0: y[i, j] = reduce(addi(y[i, j], muli({ext}[i32](a[i, k]), {ext}[i32](b[{at}]))), init=i32(0), over=(k,))
"""  # noqa: E501


def product(m: int, n: int, k: int, turned: bool, sign: str):
    """`turned`: rows of b are columns of the product."""
    shape, at = (f"{n}, {k}", "j, k") if turned else (f"{k}, {n}", "k, j")
    return te.from_nest(PRODUCT.format(m=m, n=n, k=k, b=shape, at=at, ext="extsi" if sign == "s" else "extui"))


def numbers(m: int, n: int, k: int, turned: bool, sign: str):
    random = np.random.default_rng(m)
    a = random.integers(-128, 128, (m, k)).astype("i1")
    b = random.integers(-128, 128, (n, k) if turned else (k, n)).astype("i1")
    x, w = (v.view("u1").astype("i4") if sign == "u" else v.astype("i4") for v in (a, b))
    return a, b, x @ (w.T if turned else w)


@pytest.mark.parametrize("target", DIALECTS)
@pytest.mark.parametrize(
    ("m", "n", "k", "turned", "sign"),
    [(47, 61, 64, True, "s"), (64, 44, 23, False, "s"), (31, 64, 40, False, "u"), (128, 128, 128, True, "s")],
)
def test_products(target, m, n, k, turned, sign):
    made = schedule(product(m, n, k, turned, sign), MACHINE)
    assert made.rule == "block_contraction"
    a, b, want = numbers(m, n, k, turned, sign)
    got = np.zeros((m, n), "i4")
    built = kernel(emit(finish(made.nest), DIALECTS[target]), DIALECTS[target])
    run_on(device_of(target), built, [a, b, got])
    assert (got == want).all()
    word = {"s": "dot4I8Packed(", "u": "dot4U8Packed("}[sign] if target == "vulkan" else f"tw_dot4_{sign}{sign}("
    assert word in built.text


def test_the_nest_means_the_product():
    a, b, want = numbers(17, 20, 22, True, "s")
    made = contraction.apply(product(17, 20, 22, True, "s"), MACHINE, {"tile": (16, 16, 4, 4, 8)})
    nest = finish(made.nest())
    assert illegal(nest.body, nest.buffers(), lambda: MACHINE) is None and "'dot': 'dot4_ss'" in str(nest)
    assert (interpret_nest(nest, {"a": a, "b": b}, MACHINE)["y"] == want).all()


def test_words_in_shared_memory():
    made = schedule(product(64, 64, 64, True, "s"), MACHINE)
    text = kernel(emit(finish(made.nest), WGSL_64), WGSL_64).text
    assert "array<u32," in text.partition("@compute")[0] and "atomic" not in text
    other = schedule(product(64, 64, 64, True, "s"), GpuDescription())  # browsers
    assert "dot" not in str(other.nest) and "Packed" not in kernel(emit(finish(other.nest), WGSL), WGSL).text
