"""The rule for tensor cores: drawn products and convolutions with drawn tiles in the emulator against NumPy, what their
code is made of, and what NVIDIA's assembler says of it."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from support.cuda_emulator import conflicts, needs_compiler, run
from support.ptxas import assembled

from tilewright import te
from tilewright.codegen.kernel_info import pack_array
from tilewright.codegen.nvptx.assemble import ptx
from tilewright.codegen.nvptx.emitter import emit
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.nest import Nest
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import tensor_cores
from tilewright.schedule.schedule import Schedule
from tilewright.targets.cuda.description import MACHINES, SM_80
from tilewright.tensor.evaluate import NUMPY

#: what widens a factor, adds and multiplies, the sum's dtype and its zero
WORDS = {"f16": ("extf", "f", "f32", "0.0"), "bf16": ("extf", "f", "f32", "0.0"), "i8": ("extsi", "i", "i32", "0")}

PRODUCT = """
def f(a: {x}[{sa}], b: {x}[{sb}], z: {y}[{n}], d: {y}[{h}, {n}, {m}], c: out({y}[{h}, {m}, {n}]), e: out({y}[{h}, {n}, {m}])):
    for g in serial({h}):
        for i in serial({m}):
            for j in serial({n}):
                for k in serial({k}):
                    s0: c[g, i, j] = reduce(add{s}(c[g, i, j], mul{s}({w}[{y}](a[{ia}]), {w}[{y}](b[{ib}]))), init={y}({zero}), over=(k,))
    for g1 in serial({h}):
        for j1 in serial({n}):
            for i1 in serial({m}):
                s1: e[g1, j1, i1] = add{s}(add{s}(c[g1, i1, j1], z[j1]), d[g1, j1, i1])
"""  # noqa: E501

#: channels last, with weights as they come
CONVOLUTION = """
def f(x: bf16[{b}, {h}, {h}, {ci}], w: bf16[3, 3, {ci}, {co}], z: f32[{co}], y: out(bf16[{b}, {o2}, {o2}, {co}])):
    c = local(f32[{b}, {o}, {o}, {co}])
    for a in serial({b}):
        for i in serial({o}):
            for j in serial({o}):
                for n in serial({co}):
                    for p in serial(3):
                        for q in serial(3):
                            for d in serial({ci}):
                                s0: c[a, i, j, n] = reduce(addf(c[a, i, j, n], mulf(extf[f32](x[a, i * {stride} + p, j * {stride} + q, d]), extf[f32](w[p, q, d, n]))), init=f32(0.0), over=(p, q, d))
    for a1 in serial({b}):
        for i1 in serial({o}):
            for j1 in serial({o}):
                for n1 in serial({co}):
                    s1: y[a1, i1 + 1, j1 + 1, n1] = truncf[bf16](maximumf(addf(c[a1, i1, j1, n1], z[n1]), f32(0.0)))
    for a2 in serial({b}):
        for j2 in serial({o2}):
            for n2 in serial({co}):
                s2: y[a2, 0, j2, n2] = bf16(0.0)
    for a4 in serial({b}):
        for j4 in serial({o2}):
            for n4 in serial({co}):
                s3: y[a4, {o} + 1, j4, n4] = bf16(0.0)
    for a3 in serial({b}):
        for i3 in serial({o}):
            for n3 in serial({co}):
                s4: y[a3, i3 + 1, 0, n3] = bf16(0.0)
    for a5 in serial({b}):
        for i5 in serial({o}):
            for n5 in serial({co}):
                s5: y[a5, i5 + 1, {o} + 1, n5] = bf16(0.0)
"""  # noqa: E501


@dataclass(frozen=True)
class Case:
    """A product with two results; a factor that is `turned` has its last two dimensions the other way round."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    batch: int = 1
    turned: tuple[bool, bool] = (False, False)

    def text(self) -> str:
        w, s, y, zero = WORDS[self.dtype]
        m, n, k, h = self.m, self.n, self.k, self.batch
        sa, ia = (f"{h}, {k}, {m}", "g, k, i") if self.turned[0] else (f"{h}, {m}, {k}", "g, i, k")
        sb, ib = (f"{h}, {n}, {k}", "g, j, k") if self.turned[1] else (f"{h}, {k}, {n}", "g, k, j")
        return PRODUCT.format(m=m, n=n, k=k, h=h, x=self.dtype, y=y, w=w, s=s, zero=zero, sa=sa, sb=sb, ia=ia, ib=ib)

    def right(self, arrays: dict[str, np.ndarray], found: dict[str, np.ndarray]) -> None:
        """The results are those of NumPy, in f64 or i64."""
        wide = np.int64 if self.dtype == "i8" else np.float64
        a, b, z, d = (arrays[x].astype(wide) for x in "abzd")
        a, b = (x.swapaxes(1, 2) if t else x for x, t in zip((a, b), self.turned, strict=True))
        for name, want in (("c", a @ b), ("e", (a @ b + z).swapaxes(1, 2) + d)):
            assert np.abs(found[name] - want).max() <= (0 if wide is np.int64 else 2e-6) * np.abs(want).max()


def ruled(text: str, decisions=None) -> Schedule:
    made = tensor_cores.apply(te.from_nest(text), SM_80, decisions)
    assert not isinstance(made, str), made
    return made


def arrays_for(nest: Nest, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for p in nest.params:
        if p.name not in nest.outputs:
            x = rng.integers(-99, 99, p.shape) if p.dtype.startswith("i") else rng.standard_normal(p.shape)
            found[p.name] = x.astype(NUMPY[p.dtype])
    return found


def drawn(seed: int) -> tuple[Case, dict]:
    """A product of a drawn kind and size, and a drawn tile for it; the rule's own for the first ones."""
    rng = random.Random(seed)
    sizes = [rng.choice((rng.randint(9, 90), 8 * rng.randint(2, 10))) for _ in range(3)]
    turned = rng.random() < 0.5, rng.random() < 0.5
    case = Case(*sizes, ("bf16", "f16", "i8")[seed % 3], rng.choice((1, 1, 2)), turned)
    tile = ruled(case.text()).decisions["tile"]
    return case, {} if seed < 3 else {"tile": rng.choice(tile.candidates)}


@needs_compiler
@pytest.mark.parametrize("seed", range(9))
def test_drawn_products_are_right_with_drawn_tiles(seed):
    case, decisions = drawn(seed)
    made = ruled(case.text(), decisions)
    print(case, made.plan)
    nest = finish(made.nest())
    arrays = arrays_for(nest, seed)
    case.right(arrays, run(nest, emit(nest, SM_80), arrays, backwards=seed % 2 == 1))


@needs_compiler
def test_rows_of_a_constant_are_filled_up_for_copies():
    """A row of 37 numbers of 16 bits begins nowhere: as a constant it gets zeros behind it."""
    case = Case(24, 37, 128)
    made = tensor_cores.apply(te.from_nest(case.text(), constants=["b"]), SM_80)
    nest = finish(made.nest())
    assert nest.packs["b"].splits == ((), (), (8,))
    arrays = arrays_for(nest, 5)
    plain = np.random.default_rng(5).standard_normal((1, 128, 37)).astype(NUMPY["bf16"])
    emitted = emit(nest, SM_80)
    assert "cp.async.cg.shared.global.16" in emitted.text
    found = run(nest, emitted, {**arrays, "b": pack_array(plain, nest.packs["b"])})
    case.right({**arrays, "b": plain}, found)


@needs_compiler
@pytest.mark.parametrize("ci, co, h, stride, batch", [(16, 24, 9, 1, 1), (24, 17, 12, 2, 2), (3, 40, 11, 1, 1)])
def test_convolutions_are_products_of_their_windows(ci, co, h, stride, batch):
    """With what follows, and a border around the result for the next one."""
    o = (h - 3) // stride + 1
    made = ruled(CONVOLUTION.format(b=batch, h=h, ci=ci, co=co, o=o, o2=o + 2, stride=stride))
    nest = finish(made.nest())
    arrays = arrays_for(nest, ci)
    found = run(nest, emit(nest, SM_80), arrays)["y"].astype(np.float64)
    x, w = (arrays[n].astype(np.float64) for n in "xw")
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))[:, ::stride, ::stride]
    want = np.maximum(np.einsum("bijdpq,pqdn->bijn", windows, w) + arrays["z"], 0)
    assert np.abs(found[:, 1:-1, 1:-1] - want).max() <= 2**-8 * want.max()
    found[:, 1:-1, 1:-1] = 0
    assert not found.any()


def test_the_nest_is_free_of_races_and_the_interpreter_runs_it():
    case = Case(24, 16, 96)
    nest = finish(ruled(case.text(), {"tile": (16, 16, 16, 8, 32, 2)}).nest())
    assert illegal(nest.body, nest.buffers(), lambda: SM_80) is None
    arrays = arrays_for(nest, 1)
    case.right(arrays, interpret_nest(nest, arrays, SM_80))


@needs_compiler
def test_copies_run_ahead_and_rows_lie_in_different_banks():
    nest = finish(ruled(Case(64, 128, 128).text(), {"tile": (64, 128, 32, 64, 32, 3)}).nest())
    emitted = emit(nest, SM_80)
    run(nest, emitted, arrays_for(nest, 0))
    assert conflicts() == 0
    text = ptx(emitted, SM_80.llvm)
    counts = {
        w: text.count(w) for w in ("cp.async.cg", "ldmatrix", "mma.sync", "bar.sync", "st.global.v2", "ld.shared")
    }
    copies = 2 * (64 + 128) * 32 // 8 // 128  # pieces of 16 bytes, by 128 threads, before the loop and in it
    assert counts == {
        "cp.async.cg": copies, "ldmatrix": 2 * (2 + 4), "mma.sync": 2 * 2 * 8, "bar.sync": 1,
        "st.global.v2": 64 // 2, "ld.shared": 0,
    }  # fmt: skip


@pytest.mark.parametrize("sm", MACHINES)
@pytest.mark.parametrize("m, n, k, most", [(128, 768, 768, 168), (49, 512, 4608, 168), (1024, 1024, 1024, 232)])
def test_the_rules_own_tiles_fit_the_registers(m, n, k, most, sm, tmp_path):
    made = schedule(te.from_nest(Case(m, n, k).text()), MACHINES[sm])
    assert made.rule == ("warpgroup_tensor_cores" if (m, sm) == (1024, "sm_90a") else "tensor_cores")
    taken = assembled(ptx(emit(made.nest, MACHINES[sm]), MACHINES[sm].llvm), sm, tmp_path)
    assert (taken.spilled, taken.stack) == (0, 0) and taken.registers <= most


def test_products_in_f32_stay_in_f32():
    text = (
        Case(64, 64, 64)
        .text()
        .replace("extf[f32](a[g, i, k])", "a[g, i, k]")
        .replace("extf[f32](b[g, k, j])", "b[g, k, j]")
    )
    made = schedule(te.from_nest(text.replace("bf16", "f32")), SM_80)
    assert made.rule == "block_contraction"
    assert dict(made.refused)["tensor_cores"] == "no instruction of a warp multiplies its factors"
