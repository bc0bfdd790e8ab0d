"""A matrix product in steps, from one result a thread to tensor cores: each against NumPy in the emulator, and through
NVIDIA's assembler, which says what registers and shared memory it takes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from support.cuda_emulator import EmulationError, needs_compiler, run
from support.cuda_matmul import STEPS, warp_groups
from support.ptxas import assembled

from tilewright.codegen.nvptx.assemble import ptx
from tilewright.codegen.nvptx.emitter import emit
from tilewright.lang import te
from tilewright.schedule.finish import finish
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.schedule.text import parse_nest
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.description import MACHINES, SM_80, SM_90A

CORES = {"tile": (32, 32), "warps": (1, 2), "depth": 16}
#: sizes and tiles of a step, what its text must have, its registers at most, its shared memory
CASES = {
    "naive": ((32, 48, 40), {}, "fma.rn.f32", 40, 0),
    "shared_tiles": ((32, 48, 32), {}, "bar.sync", 48, 2048),
    "register_tiles": ((64, 32, 16), {"tile": 32, "depth": 8}, "ld.shared.v4", 80, 2048),
    "async_stages": ((32, 32, 24), {"tile": 32, "depth": 8}, "cp.async.cg.shared.global", 80, 6144),
    "tensor_cores": ((64, 32, 48), CORES, "mma.sync.aligned.m16n8k16", 80, 6144),
}  # fmt: skip


@pytest.fixture(scope="module")
def nests():
    """The finished nest of a step, made once."""
    made = {}

    def get(name):
        if name not in made:
            sizes, tiles, *_ = CASES[name]
            made[name] = finish(STEPS[name](*sizes, **tiles).nest())
        return made[name]

    return get


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_a_step_computes_the_product(name, nests):
    (m, n, k), _, *_ = CASES[name]
    nest = nests(name)
    rng = np.random.default_rng(1)
    dtype = nest.params[0].dtype
    a, b = (
        rng.standard_normal(s).astype(np.float32 if dtype == "f32" else ml_dtypes.bfloat16) for s in ((m, k), (k, n))
    )
    found = run(nest, emit(nest, SM_80), {"a": a, "b": b})["c"]
    want = a.astype(np.float64) @ b.astype(np.float64)
    assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()


@needs_compiler
def test_a_pipeline_is_as_deep_as_its_loop_is_long():
    """All copies begin before the loop: the groups in it have none, and waits count them all the same."""
    nest = finish(STEPS["register_tiles"](32, 32, 16, stages=3, tile=32, depth=8).nest())
    assert parse_nest(str(nest), SM_80) == nest
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((32, 16), (16, 32)))
    found = run(nest, emit(nest, SM_80), {"a": a, "b": b})["c"]
    assert np.abs(found - a @ b).max() <= 1e-5


@pytest.mark.parametrize("sm", MACHINES)
@pytest.mark.parametrize("name", CASES)
def test_a_step_fits_the_registers(name, sm, nests, tmp_path):
    *_, word, registers, shared = CASES[name]
    text = ptx(emit(nests(name), MACHINES[sm]), MACHINES[sm].llvm)
    assert word in text
    taken = assembled(text, sm, tmp_path)
    print(f"{name} on {sm}: {taken}")
    assert (taken.spilled, taken.stack, taken.shared) == (0, 0, shared)
    assert taken.registers <= registers


def test_tensor_cores_read_their_operands_with_ldmatrix(nests):
    text = ptx(emit(nests("tensor_cores"), SM_80), SM_80.llvm)
    assert "ldmatrix.sync.aligned.m8n8.x4.shared.b16" in text and "ldmatrix.sync.aligned.m8n8.x4.trans" in text
    assert text.count("st.global.v2") == 8  # two neighbouring sums at once


# ---- groups of four warps --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def grouped():
    """The finished nest of a product by groups of warps."""
    return finish(warp_groups(128, 64, 128, groups=2).nest())


def pair_of_factors() -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((128, 128), (64, 128)))
    return {"a": a, "b": b}, a.astype(np.float64) @ b.astype(np.float64).T


@needs_compiler
def test_groups_of_warps_read_their_factors_from_shared_memory(grouped, tmp_path):
    emitted = emit(grouped, SM_90A)
    arrays, want = pair_of_factors()
    for backwards in (False, True):
        found = run(grouped, emitted, arrays, backwards=backwards)["c"]
        assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()
    text = ptx(emitted, SM_90A.llvm)
    assert text.count("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16") == 4
    taken = assembled(text, "sm_90a", tmp_path)
    assert taken.spilled == 0 and taken.registers <= 96


@needs_compiler
@pytest.mark.parametrize(
    "line, why",
    [
        ('call void asm sideeffect "fence.proxy.async', "written without a fence"),
        ("call void @llvm.nvvm.wgmma.wait_group", "a product of a group of warps is not waited for"),
        ("call void @llvm.nvvm.wgmma.commit_group", "a product of a group of warps is not waited for"),
    ],
)
def test_what_a_product_of_groups_needs_around_it(grouped, line, why):
    emitted = emit(grouped, SM_90A)
    text = "\n".join(x for x in emitted.text.splitlines() if not x.strip().startswith(line))
    with pytest.raises(EmulationError, match=why):
        run(grouped, emitted, pair_of_factors()[0], text=text)


def test_a_factor_that_lies_otherwise_is_refused(grouped):
    for old, new in ((" % 8) * 8 +", " % 4) * 8 +"), ("xori(", "addi(")):
        read = next(line for line in str(grouped).splitlines() if " s0: " in line)
        text = str(grouped).replace(read, read.replace(old, new))
        with pytest.raises(CompileError, match="do not lie as the instruction takes them") as e:
            emit(parse_nest(text, SM_90A), SM_90A)
        assert "s.swizzle" in e.value.hint


# ---- one block of each instruction -----------------------------------------------------------------------------------

BLOCK = """
def k(a: {x}[16, {k}], b: {x}[{k}, 8], c: out({y}[16, 8])):
    acc = fragment({y}[16, 8])
    at = fragment({x}[16, {k}])
    bt = fragment({x}[{rows}])
    for w in warp(1):
        for i in serial(16):
            for j in serial(8):
                z: acc[i, j] = {y}({zero})
        for i in serial(16):
            for q in serial({k}):
                x: at[i, q] = a[i, q]
        for q in serial({k}):
            for j in serial(8):
                y: bt[{place}] = b[q, j]
        for i in serial(16):
            for j in serial(8):
                for q in serial({k}, notes={{'warp': 'mma_{name}'}}):
                    s: acc[i, j] = {add}(acc[i, j], {mul}({ext}[{y}](at[i, q]), {ext}[{y}](bt[{place}])))
        for i in serial(16):
            for j in serial(8):
                o: c[i, j] = acc[i, j]
"""


@needs_compiler
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("name", ["f16", "bf16", "s8"])
def test_an_instruction_on_operands_of_either_layout(name, turned, tmp_path):
    depth, dtype = (32, "i8") if name == "s8" else (16, name)
    words = {"add": "addi", "mul": "muli", "ext": "extsi", "y": "i32", "zero": 0}
    if name != "s8":
        words = {"add": "addf", "mul": "mulf", "ext": "extf", "y": "f32", "zero": 0.0}
    rows, place = (f"8, {depth}", "j, q") if turned else (f"{depth}, 8", "q, j")
    nest = parse_nest(BLOCK.strip().format(x=dtype, k=depth, name=name, rows=rows, place=place, **words), SM_80)
    rng = np.random.default_rng(2)
    kinds = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "s8": np.int8}
    a, b = ((rng.integers(-9, 10, s)).astype(kinds[name]) for s in ((16, depth), (depth, 8)))
    emitted = emit(nest, SM_80)
    found = run(nest, emitted, {"a": a, "b": b})["c"]
    assert np.array_equal(found, a.astype(np.int32) @ b.astype(np.int32))
    assert assembled(ptx(emitted, SM_80.llvm), "sm_80", tmp_path).spilled == 0


def test_an_instruction_of_a_warp_wants_loops_on_warps():
    words = {"add": "addf", "mul": "mulf", "ext": "extf", "y": "f32", "zero": 0.0}
    text = BLOCK.strip().format(x="f16", k=16, name="f16", rows="16, 8", place="q, j", **words)
    with pytest.raises(CompileError, match="mma_f16 is run by 32 threads together") as e:
        emit(parse_nest(text.replace("warp(1)", "block.x(1)"), SM_80), SM_80)
    assert "bind loops around it to warp" in e.value.hint


# ---- what the primitive refuses --------------------------------------------------------------------------------------

PRODUCT = """
def k(a: bf16[16, 32], b: bf16[32, 8], c: out(f32[16, 8])):
    for i in serial(16):
        for j in serial(8):
            for k in serial(32):
                s0: c[i, j] = reduce(addf(c[i, j], mulf(extf[f32](a[i, k]), extf[f32](b[k, j]))), init=f32(0.0), over=(k,))
"""  # noqa: E501 (a nest as it is printed)


def refused(loop: str, instruction: str = "mma_bf16", **scopes: str) -> str:
    s = Schedule(te.from_nest(PRODUCT), SM_80)
    if scopes:
        s.cache_write("s0", scope="fragment")
        step, _ = s.split("k", 16)
        s.reorder(step, "i", "j")
        for name, scope in scopes.items():
            s.cache_read("s0", name, step, scope=scope)
    with pytest.raises(ScheduleError) as e:
        s.tensorize(loop, instruction)
    return e.value.message


def test_loops_that_are_no_instruction_are_refused():
    assert "the target has no instruction 'mma_f64'" in refused("i", "mma_f64")
    assert "the sum has 32 steps, not 16" in refused("i")
    assert "a_c is in shared, not in fragment" in refused("i", a="shared", b="fragment")
    assert "these are 2" in refused("j", a="fragment", b="fragment")
    assert "is no copy from shared" in refused("m_a_c", "ldmatrix", a="fragment", b="fragment")


def test_a_product_is_tensorized_and_its_nest_is_read_back():
    s = Schedule(te.from_nest(PRODUCT), SM_80)
    s.cache_write("s0", scope="fragment")
    step, inner = s.split("k", 16)
    s.reorder(step, "i", "j")
    for name in ("a", "b"):
        s.cache_read("s0", name, step, scope="fragment")
    s.tensorize("i", "mma_bf16")
    assert s.loop(inner).note("warp") == "mma_bf16"
    nest = s.nest()
    assert parse_nest(str(nest), SM_80) == nest


def test_rows_that_are_no_power_of_two_of_pieces_are_not_swizzled():
    s = Schedule(te.from_nest(PRODUCT), SM_80)
    s.cache_read("s0", "a", "i", scope="shared")
    for buffer, piece, why in (("a", 8, "a is no temporary"), ("a_c", 5, "are no power of two of pieces of 5")):
        with pytest.raises(ScheduleError, match=why):
            s.swizzle(buffer, piece)
