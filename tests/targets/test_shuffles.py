"""Shuffles between the lanes of a warp: what they may ask of each other, what it becomes on GPUs, and mistakes that
are found."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from support.cuda_emulator import EmulationError, needs_compiler, run
from support.ptxas import assembled

from tilewright import te
from tilewright.codegen.amdgpu import emitter as amd
from tilewright.codegen.amdgpu.assemble import amd_assembly
from tilewright.codegen.nvptx.assemble import ptx as ptx_text
from tilewright.codegen.nvptx.emitter import emit
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import NestError, interpret_nest
from tilewright.schedule.rules.gpu import rows
from tilewright.schedule.text import NestSyntaxError, parse_nest
from tilewright.targets.amdgpu.description import MACHINES
from tilewright.targets.cuda.description import SM_80
from tilewright.targets.gpu.describe import GpuDescription

TEXT = """
def k(x: {dtype}[3, 2, {n}], y: out({dtype}[3, 2, {n}])):
    for g in grid.x(3):
        a = exchange({dtype}[2, {n}])
        b = exchange({dtype}[2, {n}])
        for w in warp(2):
            for l in lane({n}):
                s0: a[w, l] = x[g, w, l]
            barrier(warp)
            for l1 in lane({n}):
                s1: b[w, l1] = {add}(a[w, l1], a[w, xori(l1, {half})])
            barrier(warp)
            for l2 in lane({n}):
                s2: y[g, w, l2] = {add}(b[w, l2], b[w, max(l2 - 3, 0)])
"""


def nest_of(dtype: str = "f32", n: int = 32, machine=SM_80, text: str = TEXT):
    add = "ori" if dtype == "i1" else "addf" if "f" in dtype else "addi"
    return finish(parse_nest(text.format(dtype=dtype, n=n, half=n // 2, add=add).strip(), machine))


def drawn(dtype: str, n: int = 32) -> np.ndarray:
    kind = {"f32": "f4", "f64": "f8", "f16": "f2", "i64": "i8", "i8": "i1", "i1": "?"}[dtype]
    return np.round(np.random.default_rng(0).standard_normal((3, 2, n)) * 8).astype(kind)


@needs_compiler
@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i64", "i8", "i1"])
def test_numbers_of_all_sizes_go_between_lanes(dtype):
    nest, x = nest_of(dtype), drawn(dtype)
    assert illegal(nest.body, nest.buffers(), lambda: SM_80) is None
    emitted, want = emit(nest, SM_80), interpret_nest(nest, {"x": x}, SM_80)["y"]
    assert "shfl.sync.bfly" in emitted.text and "shfl.sync.idx" in emitted.text and not emitted.shared
    for backwards in (False, True):
        assert np.array_equal(run(nest, emitted, {"x": x}, backwards=backwards)["y"], want)


WRONG = {
    "for l2 in lane({n}):\n                s2": ("for l2 in lane(16):\n                s2", "not all 32 threads of"),
    "a[w, l] =": ("a[w, xori(l, 1)] =", "another thread than that of for l in lane holds"),
    "{add}(b[w, l2], b[w, max(l2 - 3, 0)])": (
        "guard(l2 < 3, b[w, l2], {add}(b[w, l2], b[w, l2 - 3]))", "under a condition"),
    "s2: y[g, w, l2] =": ("if l2 < 7:\n                    s2: y[g, w, l2] =", "under a condition"),
    "a = exchange({dtype}[2, {n}])": ("a = exchange({dtype}[2, 16])", "16 elements for the 32 threads of lane"),
}  # fmt: skip


@pytest.mark.parametrize("old", WRONG)
def test_what_units_cannot_exchange(old):
    new, why = WRONG[old]
    nest = parse_nest(TEXT.replace(old, new).format(dtype="f32", n=32, half=16, add="addf").strip(), SM_80)
    with pytest.raises(NestError) as e:
        interpret_nest(finish(nest), {"x": drawn("f32")}, SM_80)
    assert why in e.value.message


def test_a_barrier_stands_between_what_lanes_write_and_read():
    """A shuffle waits by itself on these GPUs; the nest says so all the same."""
    text = TEXT.replace("            barrier(warp)\n", "", 1)
    nest = nest_of(text=text)
    assert "others write, without a barrier between" in illegal(nest.body, nest.buffers(), lambda: SM_80)
    with pytest.raises(NestError, match="may be writing it"):
        interpret_nest(nest, {"x": drawn("f32")}, SM_80)


def test_a_machine_without_shuffles_has_no_such_memory():
    with pytest.raises(NestSyntaxError, match="a memory of the machine"):
        nest_of(machine=GpuDescription())


@needs_compiler
def test_the_emulator_finds_a_lane_that_does_not_come_and_one_that_is_none():
    nest, x = nest_of(), drawn("f32")
    emitted = emit(nest, SM_80)
    lines = emitted.text.splitlines()
    at = next(i for i, line in enumerate(lines) if "call i32 @llvm.nvvm.shfl.sync.bfly" in line)
    lane = re.search(r"(%v\d+) = urem i32 %v\d+, 32", emitted.text)[1]
    name = lines[at].split(" = ")[0].strip()
    some = [
        f"  %odd = icmp ult i32 {lane}, 8", "  br i1 %odd, label %some, label %all", "some:",
        lines[at].replace(name, "%early"), "  br label %all", "all:",
        f"  {name} = phi i32 [ 0, %entry ], [ %early, %some ]",
    ]  # fmt: skip
    with pytest.raises(EmulationError, match="do not come"):
        run(nest, emitted, {"x": x}, text="\n".join([*lines[:at], *some, *lines[at + 1 :]]))
    with pytest.raises(EmulationError, match="a lane that there is none of"):
        run(nest, emitted, {"x": x}, text=emitted.text.replace("i32 16, i32 31", "i32 40, i32 31"))


@pytest.mark.parametrize("gfx", ["gfx90a", "gfx1100"])
def test_what_they_become_on_amd_gpus(gfx):
    machine = MACHINES[gfx]
    nest = nest_of(n=machine.wave, machine=machine)
    text = amd_assembly(amd.emit(nest, machine), machine.llvm)
    assert "ds_bpermute_b32" in text and (machine.wave == 64 or "ds_swizzle_b32" in text)
    assert ".private_segment_fixed_size: 0" in text or "ScratchSize: 0" in text


@needs_compiler
def test_the_code_for_amd_means_what_the_nest_means():
    """In the emulator of NVIDIA's threads, with the shuffles of the others as its own."""
    machine = MACHINES["gfx1100"]
    nest, x = nest_of(machine=machine), drawn("f32")
    emitted = amd.emit(nest, machine)
    text = emitted.text.partition("\n!llvm.module")[0]
    text = re.sub(
        r"@llvm.amdgcn.ds.swizzle\(i32 (%v\d+), i32 (\d+)\)",
        lambda m: f"@llvm.nvvm.shfl.sync.bfly.i32(i32 -1, i32 {m[1]}, i32 {int(m[2]) >> 10}, i32 31)", text,
    )  # fmt: skip
    text = re.sub(
        r"(%v\d+) = call i32 @llvm.amdgcn.ds.bpermute\(i32 (%v\d+), i32 (%v\d+)\)",
        r"\1q = lshr i32 \2, 2\n  \1 = call i32 @llvm.nvvm.shfl.sync.idx.i32(i32 -1, i32 \3, i32 \1q, i32 31)", text,
    )  # fmt: skip
    for old, new in {
        "llvm.amdgcn.workgroup.id.": "llvm.nvvm.read.ptx.sreg.ctaid.",
        "llvm.amdgcn.workitem.id.": "llvm.nvvm.read.ptx.sreg.tid.", "llvm.amdgcn.wave.barrier()": "emu_warp_barrier()",
        "amdgpu_kernel": "ptx_kernel", " !reqd_work_group_size !0": "", "ptr addrspace(5)": "ptr",
        ", addrspace(5)\n": "\n", 'fence syncscope("wavefront")': "fence",
    }.items():  # fmt: skip
        text = text.replace(old, new)
    text = "\n".join(x for x in text.splitlines() if not x.startswith("declare void @emu"))
    want = interpret_nest(nest, {"x": x}, machine)["y"]
    assert np.array_equal(run(nest, replace(emitted, text=text), {"x": x})["y"], want)


SUM = """
def f(x: f32[{m}, {n}], y: out(f32[{m}, {n}]), p: out(i64[{m}])):
    total = local(f32[{m}])
    for i0 in serial({m}):
        for j0 in serial({n}):
            s0: total[i0] = reduce(addf(x[i0, j0], total[i0]), init=f32(0.0), over=(j0,))
    for i1 in serial({m}):
        for j1 in serial({n}):
            s1: p[i1] = reduce(addi(fptosi[i64](x[i1, j1]), p[i1]), init=i64(5), over=(j1,))
    for i2 in serial({m}):
        for j2 in serial({n}):
            s2: y[i2, j2] = divf(x[i2, j2], total[i2])
"""


@needs_compiler
@pytest.mark.parametrize(("m", "n", "team"), [(3, 42, (2, 32)), (5, 10, (8, 4)), (1, 70, (1, 64)), (1, 300, (1, 512))])
def test_rows_on_one_warp_and_on_several(m, n, team):
    kernel = te.from_nest(SUM.format(m=m, n=n))
    x = np.random.default_rng(n).integers(-9, 10, (m, n)).astype("f4") + np.float32(0.5)
    for shuffles in (True, False) if team[1] == 32 else (True,):
        made = rows.apply(kernel, SM_80, {"team": team, **({} if shuffles else {"shuffles": False})})
        nest = finish(made.nest())
        assert ("exchange" in str(nest)) == shuffles
        assert illegal(nest.body, nest.buffers(), lambda: SM_80) is None
        found = [run(nest, emit(nest, SM_80), {"x": x})]
        found += [interpret_nest(nest, {"x": x}, SM_80)] if team[1] < 512 else []
        for got in found:
            np.testing.assert_allclose(got["y"], x / x.sum(1, dtype="f8")[:, None], rtol=1e-5)
            assert (got["p"] == np.trunc(x).sum(1) + 5).all()


def test_what_the_assembler_makes_of_a_row_on_several_warps(tmp_path):
    kernel = te.from_nest(SUM.format(m=64, n=4096))
    made = rows.apply(kernel, SM_80, {"team": (1, 512)})
    emitted = emit(finish(made.nest()), SM_80)
    taken = assembled(ptx_text(emitted, SM_80.llvm), "sm_80", tmp_path)
    assert taken.spilled == 0 and taken.shared <= 1024 and taken.registers <= 64
