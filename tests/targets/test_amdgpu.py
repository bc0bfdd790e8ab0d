"""AMD GPUs: what kernels become there, as LLVM writes it, and the files of an export. Nothing runs on one here."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from support.cuda_emulator import needs_compiler, run
from support.cuda_matmul import async_stages, register_tiles, shared_tiles

import tilewright as tw
from tilewright.codegen.amdgpu.assemble import amd_assembly, amd_object
from tilewright.codegen.amdgpu.emitter import emit
from tilewright.lang import te
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.rules import schedule
from tilewright.schedule.rules.gpu import row_mapping
from tilewright.schedule.rules.gpu.thread_binding import processors
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.text import parse_nest
from tilewright.support.errors import CompileError, UnsupportedError, UsageError
from tilewright.targets.amdgpu.code_object import LEAST_LINKER, linked
from tilewright.targets.amdgpu.description import MACHINES
from tilewright.targets.base import find
from tilewright.targets.linker import linker
from tilewright.targets.mcu.elf import read

GFX90A, GFX1100 = MACHINES["gfx90a"], MACHINES["gfx1100"]


def parsed(text: str, machine=GFX90A):
    return finish(parse_nest(text.strip(), machine))


def assembly(nest, machine=GFX90A) -> str:
    return amd_assembly(emit(nest, machine), machine.llvm)


def test_a_product_through_shared_memory_is_made_of_what_the_gpu_has():
    for gfx, machine in MACHINES.items():
        nest = finish(shared_tiles(64, 64, 32, machine).nest())
        text = assembly(nest, machine)
        wide = gfx.startswith("gfx9")
        for word in ("global_load_", "ds_read" if wide else "ds_load", "fmac_f32", "s_endpgm"):
            assert word in text, (gfx, word)
        assert ("s_barrier" if not gfx.startswith("gfx12") else "s_barrier_wait") in text
        assert ".amdhsa_group_segment_fixed_size 2048" in text
        assert ".amdhsa_kernarg_size 24" in text, "three pointers, and nothing hidden"
        assert ".max_flat_workgroup_size: 256" in text


def test_registers_hold_tiles_and_neighbours_are_read_together():
    text = assembly(finish(register_tiles(128, 128, 64, GFX90A).nest()))
    assert "global_load_dwordx4" in text and "ds_read_b128" in text
    assert ".private_segment_fixed_size: 0" in text, "sums are in registers"


def test_the_default_rules_make_blocks_with_barriers():
    kernel = te.from_nest("""
def product(a: f32[96, 64], b: f32[64, 80], c: out(f32[96, 80])):
    for i in serial(96):
        for j in serial(80):
            for k in serial(64):
                s0: c[i, j] = reduce(addf(c[i, j], mulf(a[i, k], b[k, j])), init=f32(0.0), over=(k,))
""")
    made = schedule(kernel, GFX90A)
    assert made.rule == "block_contraction"
    text = emit(made.nest, GFX90A).text
    assert "llvm.amdgcn.s.barrier" in text and 'fence syncscope("workgroup") release' in text


NVIDIA_WORDS = {f"llvm.amdgcn.workgroup.id.{d}": f"llvm.nvvm.read.ptx.sreg.ctaid.{d}" for d in "xyz"}
NVIDIA_WORDS |= {f"llvm.amdgcn.workitem.id.{d}": f"llvm.nvvm.read.ptx.sreg.tid.{d}" for d in "xyz"}
NVIDIA_WORDS |= {"declare void @llvm.amdgcn.s.barrier()": "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)"}
NVIDIA_WORDS |= {"call void @llvm.amdgcn.s.barrier()": "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)"}
NVIDIA_WORDS |= {"amdgpu_kernel": "ptx_kernel", " !reqd_work_group_size !0": "", "ptr addrspace(5)": "ptr"}
NVIDIA_WORDS |= {", addrspace(5)\n": "\n", 'fence syncscope("workgroup")': "fence"}


@needs_compiler
@pytest.mark.parametrize("machine", [GFX90A, GFX1100], ids=["wave64", "wave32"])
def test_the_code_means_what_the_nest_means(machine):
    """In the emulator of NVIDIA's threads, which has the same of everything but the names."""
    wave = machine.wave
    nest = parsed(
        f"""
def k(x: f32[2, 2, {wave}], y: out(f32[2, 2, {wave}])):
    for g in grid.x(2):
        t = shared(f32[2, {wave}])
        for w in warp(2):
            for l in lane({wave}):
                own = local(f32[3])
                for i in serial(3):
                    s0: own[i] = mulf(x[g, w, l], x[g, w, i])
                s1: t[w, l] = addf(own[l % 3], f32(1.5))
        barrier(block)
        for v in warp(2):
            for m in lane({wave}):
                s2: y[g, v, m] = exp(t[1 - v, {wave - 1} - m])
""",
        machine,
    )
    emitted, arrays = emit(nest, machine), {"x": np.random.default_rng(0).standard_normal((2, 2, wave)).astype("f4")}
    assert emitted.launch.block == (2 * wave, 1, 1)
    text = emitted.text.partition("\n!llvm.module")[0]
    for word, other in NVIDIA_WORDS.items():
        text = text.replace(word, other)
    want = interpret_nest(nest, arrays, machine)["y"]
    np.testing.assert_allclose(run(nest, replace(emitted, text=text), arrays)["y"], want, rtol=1e-6)


@pytest.mark.parametrize(
    ("machine", "word"), [(GFX90A, "v_dot4"), (GFX1100, "v_dot4_i32_iu8")], ids=lambda x: str(x)[:6]
)
def test_products_of_bytes_are_one_instruction(machine, word):
    for dot in machine.dot_products:
        x, w = (f"ext{s}i[i32]" for s in dot.signs)
        nest = parsed(
            f"""
def k(x: i8[8, 16], w: i8[16], y: out(i32[8])):
    for j in block.x(8):
        for o in serial(4):
            for q in unroll(4, notes={{'dot': '{dot.name}'}}):
                s1: y[j] = addi(y[j], muli({x}(x[j, o * 4 + q]), {w}(w[o * 4 + q])))
""",
            machine,
        )
        assert word in assembly(nest, machine)


def test_rules_see_all_compute_units():
    """Also those that count cores: 8 to each of what other machines call multiprocessors."""
    for machine in MACHINES.values():
        assert machine.cores // 8 == processors(machine) == machine.compute_units
    assert row_mapping.at_once(MACHINES["gfx942"]) > row_mapping.at_once(MACHINES["gfx1201"])


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_functions_and_numbers_of_all_kinds_are_accepted(dtype):
    """As objects for all machines: LLVM has what every operation becomes."""
    floats = ("sqrt", "round", "roundeven", "floor", "absf", "rsqrt")
    floats += ("exp", "log", "tanh", "erf", "sin") if dtype != "f64" else ()
    text = f"def k(x: {dtype}[64], n: i64[64], b: i8[64], y: out({dtype}[64]), m: out(i64[64]), t: out(i1[64])):\n"
    text += "    for i in thread(64):\n"
    value = "x[i]"
    for name in floats:
        value = f"{name}({value})"
    text += f"        s0: y[i] = maximumf({value}, remf(x[i], fma(x[i], x[i], x[i])))\n"
    text += "        s1: m[i] = addi(floordivsi(n[i], extsi[i64](b[i])), fptosi[i64](x[i]))\n"
    text += "        s2: t[i] = isnan(x[i])\n"
    for machine in (GFX90A, GFX1100):
        assert amd_object(emit(parsed(text, machine), machine), machine.llvm)[:4] == b"\x7fELF"


@pytest.fixture(scope="module")
def exported(digits_path, tmp_path_factory, need):
    need("ld.lld", least=LEAST_LINKER)
    folder = tmp_path_factory.mktemp("amdgpu")
    made = tw.compile(digits_path, target="amdgpu", inputs={"image": (1, 1, 8, 8)})
    made.export(folder)
    return made, folder


def test_an_export_has_a_code_object_and_what_a_launch_needs(exported):
    made, folder = exported
    told = json.loads((folder / "model.json").read_text())
    (name,) = {k["file"] for k in told["kernels"].values()}
    code = (folder / name).read_bytes()
    found = read(code)
    assert code[7] == 64, "the ABI of HSA"
    assert ".note" in {s[0] for s in found.sections} and b"amdhsa.kernels" in code
    assert not found.undefined
    for name, kernel in told["kernels"].items():
        assert {name, f"{name}.kd"} <= set(found.defined), "a function and its descriptor"
        assert [a["offset"] for a in kernel["arguments"]] == [8 * i for i in range(len(kernel["arguments"]))]
        assert len(kernel["grid"]) == len(kernel["block"]) == 3
    assert any(k["lds_bytes"] for k in told["kernels"].values())
    weights = (folder / "weights.bin").read_bytes()
    for place, array in zip(told["buffers"]["constant"], made.package.constants, strict=True):
        assert weights[place["offset"] : place["offset"] + place["bytes"]] == array.tobytes()
    assert [s.get("kernel", "copy") for s in told["steps"]] == [c.symbol for c in made.package.program.calls]


def test_a_package_is_kept_but_does_not_run(exported, tmp_path):
    made, folder = exported
    made.save(tmp_path / "m.tw")
    tw.load(tmp_path / "m.tw").export(tmp_path / "again")
    assert (tmp_path / "again" / "model.hsaco").read_bytes() == (folder / "model.hsaco").read_bytes()
    with pytest.raises(UsageError, match="code for amdgpu does not run in this process") as e:
        made(np.zeros((1, 1, 8, 8), "f4"))
    assert "load its code object with HIP or HSA" in str(e.value)


def test_a_linker_that_is_missing_or_old_is_named(tmp_path, monkeypatch):
    """Debian's plain `ld.lld` is of LLVM 14, which does not know these objects; one with a newer version in its name is
    taken."""
    for name, text in {"ld.lld": "Debian LLD 14.0.6 (compatible with GNU linkers)", "ld.lld-19": "LLD 19.1.7"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert linker("ld.lld", "emulation", "emulate") == str(tmp_path / "ld.lld")
    assert linker("ld.lld", "code", "package", LEAST_LINKER) == str(tmp_path / "ld.lld-19")
    (tmp_path / "ld.lld-19").unlink()
    with pytest.raises(UsageError, match=r"ld.lld of LLVM 18 or newer; \S*ld.lld is of LLVM 14[\s\S]*install lld-19"):
        linked([b""])
    (tmp_path / "ld.lld").unlink()
    with pytest.raises(UsageError, match=r"the linker ld.lld, which was not found[\s\S]*apt install lld"):
        linked([b""])


def test_a_schedule_shows_its_code():
    kernel = te.from_nest("def k(x: f32[64], y: out(f32[64])):\n  for i in serial(64):\n    s0: y[i] = exp(x[i])")
    s = Schedule(kernel, "amdgpu:gfx942")
    s.bind("i", "block.x")
    assert "amdgpu_kernel" in s.source("ll")
    assert 'amdgcn_target "amdgcn-amd-amdhsa--gfx942"' in s.source("s")


def test_what_there_is_not_is_an_error_with_a_hint():
    with pytest.raises(UsageError, match="there is no GPU 'gfx1'") as e:
        find("amdgpu:gfx1")
    assert "gfx90a, gfx942, gfx1100" in str(e.value)
    with pytest.raises(UsageError, match="amdgpu has no parameter 'sm'"):
        find("amdgpu:sm=sm_80")
    with pytest.raises(CompileError, match="AMD GPUs have no asynchronous copies") as e:
        emit(finish(async_stages(16, 16, 16, GFX90A, tile=16, depth=8).nest()), GFX90A)
    assert "behind a barrier" in str(e.value)
    with pytest.raises(UnsupportedError, match="kernels for AMD GPUs have no arrays of 2147483648 elements"):
        emit(parsed("def k(x: i8[2147483648], y: out(i8[1])):\n  for i in thread(1):\n    s0: y[i] = x[i]"), GFX90A)
