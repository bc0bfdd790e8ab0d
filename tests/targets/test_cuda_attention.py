"""Attention for NVIDIA GPUs: each form in the emulator against float64, and through NVIDIA's assembler, which must not
spill; tensor cores by warps, and by groups of warps on sm_90a."""

from __future__ import annotations

import numpy as np
import pytest
from support.attention_cases import KINDS, Case, drawn
from support.cuda_emulator import EmulationError, needs_compiler, run
from support.ptxas import assembled

from tilewright.codegen.nvptx.assemble import ptx
from tilewright.codegen.nvptx.emitter import emit
from tilewright.schedule.nest import Nest
from tilewright.schedule.rules import schedule
from tilewright.schedule.text import parse_nest
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.description import MACHINES, SM_80, SM_90A, CudaDescription

#: the GPU, a case, and what its text must have
FORMS = {
    "warps": ("sm_80", Case(40, 75, 32, 48, group=2, causal=True, offset=30, dtype="f16"), "mma.sync.aligned.m16n8k16"),
    "masked warps": ("sm_90a", Case(24, 33, 16, 16, mask="hqk", group=2, dtype="bf16"), "ldmatrix.sync.aligned"),
    "groups": ("sm_90a", Case(70, 90, 64, 128, causal=True, offset=20, dtype="f16"), "wgmma.mma_async.sync.aligned"),
    "one group": ("sm_90a", Case(33, 33, 64, 64, mask="k", dtype="bf16"), "wgmma.mma_async.sync.aligned"),
}


def scheduled(case: Case, sm: str, decisions=None) -> Nest:
    made = schedule(case.kernel, MACHINES[sm], decisions)
    assert made.rule == "block_attention"
    return made.nest


def emulated(nest: Nest, case: Case, emitted, **how) -> np.ndarray:
    names = [p.name for p in nest.params if p.name not in nest.outputs]
    return run(nest, emitted, dict(zip(names, case.inputs(), strict=True)), **how)[nest.outputs[0]]


@needs_compiler
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_drawn_sizes(seed, few):
    case = drawn(20 + seed, few=few)
    nest = scheduled(case, "sm_80")
    case.check(emulated(nest, case, emit(nest, SM_80)), case.inputs())


@needs_compiler
@pytest.mark.parametrize("form", FORMS)
def test_matrices_that_lanes_hold(form, tmp_path):
    sm, case, word = FORMS[form]
    nest = scheduled(case, sm)
    emitted = emit(nest, MACHINES[sm])
    inputs = case.inputs()
    for backwards in (False, True):
        case.check(emulated(nest, case, emitted, backwards=backwards), inputs)
    text = ptx(emitted, MACHINES[sm].llvm)
    copies = "cp.async.bulk.tensor" if "group" in form else "cp.async.cg.shared.global"
    assert word in text and copies in text and "shfl.sync.bfly" in text
    assert assembled(text, sm, tmp_path).spilled == 0


#: attention as models have it: registers at most
LARGE = {
    "prefill": (Case(2048, 2048, 128, 128, heads=8, causal=True, dtype="bf16"), {"sm_80": 232, "sm_90a": 255}),
    "heads of 64": (Case(1024, 1024, 64, 64, heads=12, dtype="f16"), {"sm_80": 168}),
    "f32": (Case(512, 512, 64, 64, heads=8), {"sm_80": 200}),
    "decode": (Case(1, 4096, 128, 128, heads=8, group=4, dtype="bf16"), {"sm_80": 168}),
}


@pytest.mark.parametrize(("name", "sm"), [(n, sm) for n, (_, taken) in LARGE.items() for sm in taken])
def test_nothing_is_spilled(name, sm, tmp_path):
    case, most = LARGE[name]
    text = ptx(emit(scheduled(case, sm), MACHINES[sm]), MACHINES[sm].llvm)
    taken = assembled(text, sm, tmp_path)
    print(f"{name} on {sm}: {taken}")
    assert (taken.spilled, taken.stack) == (0, 0) and taken.registers <= most[sm]
    if case.dtype != "f32" and case.queries > 1:
        assert ("wgmma.mma_async" in text) == ("cp.async.bulk.tensor" in text) == (sm == "sm_90a")
        assert ("mma.sync" in text) == (sm == "sm_80")


@needs_compiler
@pytest.mark.parametrize(
    ("bulk", "what", "why"),
    [
        (False, 'call void asm sideeffect "fence.proxy.async', "written without a fence"),
        (True, "call void @llvm.nvvm.wgmma.wait_group", "a product of a group of warps is not waited for"),
        (False, "call void @llvm.nvvm.cp.async.wait.group", "not been waited for"),
        (False, "call void @llvm.nvvm.barrier", "without a barrier between"),
        (True, "call void @llvm.nvvm.barrier", "no barrier stands between"),
    ],
)
def test_what_groups_need_around_their_products(bulk, what, why, monkeypatch):
    sm, case, _ = FORMS["one group"]
    if not bulk:
        monkeypatch.setattr(CudaDescription, "bulk", None)
    nest = scheduled(case, sm)
    assert ("bulk_copy" in str(nest)) == bulk
    emitted = emit(nest, MACHINES[sm])
    text = "\n".join(x for x in emitted.text.splitlines() if not x.strip().startswith(what))
    with pytest.raises(EmulationError, match=why):
        emulated(nest, case, emitted, text=text)


def test_values_that_lie_otherwise_are_refused():
    case = FORMS["one group"][1]
    text = str(scheduled(case, "sm_90a"))
    line = next(x for x in text.splitlines() if " sum: " in x)
    with pytest.raises(CompileError, match="rows of values do not lie as the instruction takes them"):
        emit(parse_nest(text.replace(line, line.replace("xori(", "addi(")), SM_90A), SM_90A)


# ---- numbers of rows -------------------------------------------------------------------------------------------------

ROWS = """
def k(x: bf16[16, 16], y: bf16[16, 16], top: out(f32[16, 16])):
    a = fragment(bf16[16, 16])
    b = fragment(bf16[16, 16])
    s = fragment(f32[16, 16])
    r = fragment(f32[16])
    for w in warp(1):
        for i in serial(16):
            for j in serial(16):
                x1: a[i, j] = x[i, j]
        for i in serial(16):
            for j in serial(16):
                y1: b[i, j] = y[i, j]
        for i in serial(16):
            for j in serial(16):
                z: s[i, j] = f32(0.0)
        for n in unroll(2):
            for i in serial(16):
                for j in serial(8):
                    for q in serial(16, notes={'warp': 'mma_bf16'}):
                        m: s[i, n * 8 + j] = addf(s[i, n * 8 + j], mulf(extf[f32](a[i, q]), extf[f32](b[q, n * 8 + j])))
        for i in serial(16):
            r0: r[i] = f32(START)
        for i in serial(16):
            for j in serial(16, notes={'warp': 'fold'}):
                f: r[i] = FOLD(r[i], mulf(s[i, j], f32(2.0)))
        for i in serial(16):
            for j in serial(16):
                if i < 13:
                    o: top[i, j] = addf(r[i], s[i, j])
"""


@needs_compiler
@pytest.mark.parametrize(("fold", "start"), [("addf", "5.0"), ("maxnumf", "9.0")])
def test_rows_are_folded(fold, start):
    text = ROWS.strip().replace("FOLD", fold).replace("START", start)
    nest = parse_nest(text, SM_80)
    g = np.random.default_rng(0)
    x, y = (g.integers(-3, 4, (16, 16)).astype(KINDS["bf16"]) for _ in range(2))
    found = run(nest, emit(nest, SM_80), {"x": x, "y": y})["top"][:13]
    products = x.astype(np.float32) @ y.astype(np.float32)
    rows = 2 * products.sum(1) + 5 if fold == "addf" else np.maximum(2 * products.max(1), 9)
    assert (found == (rows[:, None] + products)[:13]).all()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("FOLD(r[i], mulf(s[i, j], f32(2.0)))", "mulf(r[i], s[i, j])", "does not fold rows by addf or maxnumf"),
        ("FOLD(r[i], mulf(s[i, j], f32(2.0)))", "addf(r[i], r[i])", "does not add to r"),
        ("r = fragment(f32[16])", "r = fragment(f32[17])", "no f32 for each of whole blocks of 16 rows"),
    ],
)
def test_rows_that_are_not_folded_are_refused(old, new, why):
    text = ROWS.strip().replace(old, new)
    text = text.replace("FOLD", "addf").replace("START", "0.0")
    with pytest.raises(CompileError, match=why):
        emit(parse_nest(text, SM_80), SM_80)
