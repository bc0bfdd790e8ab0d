"""Products of a vector with a matrix: drawn sizes and types on devices and in the CUDA emulator against NumPy, and what
NVIDIA's assembler makes of a decoder's: long accesses, many at once."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest
from support.cuda_emulator import needs_compiler, run
from support.gpus import device_of
from support.ptxas import assembled

import tilewright as tw
from tilewright import te
from tilewright.codegen.kernel_info import pack_array
from tilewright.codegen.nvptx.assemble import ptx
from tilewright.codegen.nvptx.emitter import emit
from tilewright.driver.kernels import fused_kernels
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import vector_product
from tilewright.targets.cuda.description import MACHINES, SM_80

KINDS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "i8": np.int8}
WORDS = {"f32": ("", "f32", "f", "0.0"), "i8": ("extsi", "i32", "i", "0")}

PRODUCT = """
def f(x: {t}[{h}, {r}, {k}], w: {t}[{w}], z: {y}[{n}], c: out({y}[{h}, {r}, {n}])):
    s = local({y}[{h}, {r}, {n}])
    for g in serial({h}):
        for i in serial({r}):
            for j in serial({n}):
                for k in serial({k}):
                    s0: s[g, i, j] = reduce(add{f}(s[g, i, j], mul{f}({x}, {m})), init={y}({zero}), over=(k,))
    for g1 in serial({h}):
        for i1 in serial({r}):
            for j1 in serial({n}):
                s1: c[g1, i1, j1] = add{f}(s[g1, i1, j1], z[j1])
"""


@dataclass(frozen=True)
class Case:
    """Vectors of `k` for each of `batch`, times a matrix of its own [k, n] (or [n, k]: `turned`), and a bias."""

    k: int
    n: int
    dtype: str = "bf16"
    batch: int = 1
    turned: bool = False
    rows: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.batch, self.n, self.k) if self.turned else (self.batch, self.k, self.n)

    def kernel(self):
        word, y, f, zero = WORDS.get(self.dtype, ("extf", "f32", "f", "0.0"))
        x, m = "x[g, i, k]", "w[g, j, k]" if self.turned else "w[g, k, j]"
        x, m = (f"{word}[{y}]({e})" if word else e for e in (x, m))
        text = PRODUCT.format(
            t=self.dtype, y=y, f=f, zero=zero, x=x, m=m, h=self.batch, r=self.rows, k=self.k, n=self.n,
            w=", ".join(map(str, self.shape)),
        )  # fmt: skip
        return te.from_nest(text)

    def arrays(self, seed: int) -> dict[str, np.ndarray]:
        g = np.random.default_rng(seed)
        kind = KINDS[self.dtype]
        if self.dtype == "i8":
            x, w = (g.integers(-128, 128, s).astype(kind) for s in ((self.batch, self.rows, self.k), self.shape))
            return {"x": x, "w": w, "z": g.integers(-99, 99, self.n).astype(np.int32)}
        x, w = (g.standard_normal(s).astype(kind) for s in ((self.batch, self.rows, self.k), self.shape))
        return {"x": x, "w": w, "z": g.standard_normal(self.n).astype(np.float32)}

    def check(self, arrays: dict[str, np.ndarray], found: np.ndarray) -> None:
        wide = np.int64 if self.dtype == "i8" else np.float64
        x, w, z = (arrays[n].astype(wide) for n in "xwz")
        want = np.einsum("gik,gjk->gij" if self.turned else "gik,gkj->gij", x, w) + z
        assert np.abs(found - want).max() <= (0 if wide is np.int64 else 2e-6) * np.abs(want).max(), self


def drawn(seed: int) -> Case:
    r = random.Random(seed)
    k, n = r.choice([200, 300, 511, 1024, 2000]), r.choice([24, 64, 70, 129, 256])
    case = Case(k, n, r.choice(list(KINDS)), r.choice([1, 1, 2]), r.random() < 0.5)
    return replace(case, rows=r.choice([1, 3, 7, 10])) if case.dtype == "f32" else case  # halves have tensor cores


@needs_compiler
@pytest.mark.parametrize("seed", range(8))
def test_cuda(seed):
    """The chosen way, and one of the others."""
    case = drawn(seed // 2)
    kernel = case.kernel()
    made = vector_product.apply(kernel, SM_80)
    other = {"share": random.Random(seed).choice(made.decisions["share"].candidates)}
    made = schedule(kernel, SM_80, other if seed % 2 else None)
    assert made.rule == "vector_product"
    nest, arrays = made.nest, case.arrays(seed)
    assert illegal(nest.body, nest.buffers(), lambda: SM_80) is None
    case.check(arrays, run(nest, emit(nest, SM_80), arrays)["c"])


@needs_compiler
def test_rows_of_constants_are_filled_up():
    case = Case(160, 203)
    kernel = replace(case.kernel(), constants=frozenset("w"))
    nest, arrays = schedule(kernel, SM_80).nest, case.arrays(0)
    assert "w" in nest.packs
    given = {**arrays, "w": pack_array(arrays["w"], nest.packs["w"])}
    emitted = emit(nest, SM_80)
    case.check(arrays, run(nest, emitted, given)["c"])
    assert "ld.global.nc.v4" in ptx(emitted, SM_80.llvm)


@pytest.mark.parametrize(
    ("target", "k", "n", "dtype"),
    [("opencl", 300, 70, "f32"), ("opencl", 1024, 48, "bf16"), ("vulkan", 257, 33, "f16")],
)
def test_devices(k, n, dtype, target):
    device_of(target)
    a, b, c = (f"tensor<{s}x{dtype}>" for s in (f"1x{k}", f"{k}x{n}", f"1x{n}"))
    run = tw.compile(
        f'func.func @main(%a: {a}, %b: {b}) -> {c} {{\n  %0 = "tw.matmul"(%a, %b) : ({a}, {b}) -> {c}\n'
        f"  return %0 : {c}\n}}",
        target=target,
    )
    assert "vector_product" in run.explain()
    g = np.random.default_rng(0)
    x, w = (g.standard_normal(s).astype(KINDS[dtype]) for s in ((1, k), (k, n)))
    want = x.astype(np.float64) @ w.astype(np.float64)
    error = np.abs(run(x, w)[0].astype(np.float64) - want).max() / np.abs(want).max()
    assert error <= {"f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}[dtype]


#: what a decoder multiplies: steps, columns
DECODE = [(4096, 16384, "sm_90a"), (16384, 4096, "sm_90a"), (4096, 4096, "sm_80")]


@pytest.mark.parametrize(("k", "n", "sm"), DECODE)
def test_the_matrix_is_read_in_long_accesses_many_at_once(k, n, sm, tmp_path):
    a, b, c = (f"tensor<{s}xbf16>" for s in (f"1x{k}", f"{k}x{n}", f"1x{n}"))
    (kernel,) = fused_kernels(
        f'func.func @main(%a: {a}, %b: {b}) -> {c} {{\n  %0 = "tw.matmul"(%a, %b) : ({a}, {b}) -> {c}\n'
        f"  return %0 : {c}\n}}"
    )
    machine = MACHINES[sm]
    made = schedule(kernel, machine)
    emitted = emit(made.nest, machine)
    text = ptx(emitted, machine.llvm)
    taken = assembled(text, sm, tmp_path)
    assert (taken.spilled, taken.stack) == (0, 0) and taken.registers <= 64
    share = vector_product.GemvShare(*made.schedule.decisions["share"].chosen)
    reads = len(re.findall(r"ld\.global\.nc\.v4\.b32", text))
    assert reads >= share.steps and "ld.global.nc.b16" not in text
    blocks, processors = emitted.launch.grid[0], machine.multiprocessors
    on_way = -(-blocks // processors) * share.threads * SM_80.occupancy.in_flight * 16
    assert 2 * blocks >= processors and on_way >= machine.flight_bytes
