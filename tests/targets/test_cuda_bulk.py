"""Bulk copies of sm_90a: boxes of all kinds against the interpreter of nests, a matrix product whose copies have a group
of warps of their own, and what the emulator finds if something is wrong with barriers, bytes, parities or swizzles."""

# ruff: noqa: E501 (nests as text)
from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache

import ml_dtypes
import numpy as np
import pytest
from support.cuda_bulk_matmul import bulk_matmul
from support.cuda_driver import EmulatedDriver
from support.cuda_emulator import EmulationError, conflicts, needs_compiler, run
from support.cuda_matmul import bulk_groups, tensor_cores
from support.ptxas import assembled

from tilewright.codegen.nvptx.assemble import optimized, ptx, shared_at_launch
from tilewright.codegen.nvptx.emitter import NvptxKernel, emit
from tilewright.schedule.concurrency import illegal
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.nest import Nest
from tilewright.schedule.text import format_nest, parse_nest
from tilewright.support.errors import CompileError, TilewrightError
from tilewright.targets.cuda.description import SM_80, SM_90A, SM_100
from tilewright.targets.cuda.device import CudaDevice
from tilewright.targets.cuda.driver import Driver
from tilewright.targets.cuda.stages import CudaKernel
from tilewright.targets.gpu.device import BufferSlice, Dispatch, Run
from tilewright.tensor.evaluate import NUMPY

#: rows of a box are brought, and written in reverse
COPY = """
def k(x: {dtype}[{shape}], y: out({dtype}[{blocks}, {size}])):
    for i in grid.x({blocks}):
        t = shared({dtype}[{size}])
        with bulk_copy(full):
{loops}
        wait(full)
        for u in block.x({size}):
            s1: y[i, u] = t[{size} - 1 - u]
"""


def copy(dtype: str, shape: str, blocks: int, sides: tuple[int, ...], place: str, value: str) -> Nest:
    """A kernel that copies a box with loops r0, r1, ... to places of t."""
    lines = [f"{' ' * 4 * d}for r{d} in serial({n}):" for d, n in enumerate(sides)]
    lines.append(f"{' ' * 4 * len(sides)}s0: t[{place}] = {value}")
    loops = "\n".join(" " * 12 + x for x in lines)
    return parse_nest(
        COPY.strip().format(dtype=dtype, shape=shape, blocks=blocks, size=int(np.prod(sides)), loops=loops), SM_90A
    )


BOXES = {
    "row": copy("f32", "96", 3, (32,), "r0", "x[i * 32 + r0]"),
    "plane": copy("f16", "20, 40", 3, (8, 40), "r0 * 40 + r1", "guard(i * 8 + r0 < 20, x[i * 8 + r0, r1], f16(0.0))"),
    "space": copy("i8", "2, 5, 32", 2, (3, 32), "r0 * 32 + r1", "x[i, 1 + r0, r1]"),
    "before": copy("i32", "6, 8", 2, (4, 8), "r0 * 8 + r1", "guard(andi(i * 4 + r0 >= 1, i * 4 + r0 < 7), x[i * 4 + r0 - 1, r1], i32(0))"),
    "five": copy("f32", "2, 2, 3, 3, 4", 2, (2, 2, 3, 4), "((r0 * 2 + r1) * 3 + r2) * 4 + r3", "x[r0, i, r1, r2, r3]"),
    "swizzle32": copy("f32", "8, 16", 2, (8, 8), "r0 * 8 + (xori(r1 // 4, r0 // 4 % 2) * 4 + r1 % 4)", "x[r0, i * 8 + r1]"),
    "swizzle64": copy("bf16", "8, 64", 2, (8, 32), "r0 * 32 + (xori(r1 // 8, r0 // 2 % 4) * 8 + r1 % 8)", "x[r0, i * 32 + r1]"),
    "swizzle128": copy("bf16", "8, 128", 2, (8, 64), "r0 * 64 + (xori(r1 // 8, r0 % 8) * 8 + r1 % 8)", "x[r0, i * 64 + r1]"),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize("name", BOXES)
def test_a_box_is_what_the_interpreter_says(name, tmp_path):
    nest = BOXES[name]
    assert parse_nest(format_nest(nest), SM_90A) == nest and illegal(nest.body, nest.buffers(), lambda: SM_90A) is None
    rng = np.random.default_rng(0)
    x = rng.integers(-100, 100, nest.params[0].shape).astype(NUMPY[nest.params[0].dtype])
    want = interpret_nest(nest, {"x": x}, SM_90A)["y"]
    emitted = emit(nest, SM_90A)
    assert emitted.maps[0].swizzle == int(re.sub(r"\D", "", name) or 0)
    for backwards in (False, True):
        assert np.array_equal(run(nest, emitted, {"x": x}, backwards=backwards)["y"], want)
    for machine in (SM_90A, SM_100):
        text = ptx(emit(nest, machine), machine.llvm)
        assert f"cp.async.bulk.tensor.{len(nest.params[0].shape)}d.shared::cluster.global" in text
        assert assembled(text, machine.sm, tmp_path).spilled == 0


def test_another_gpu_has_no_such_engine():
    with pytest.raises(CompileError, match="the machine has no engine for bulk copies"):
        emit(BOXES["row"], SM_80)


#: a ring that is filled again and again
ROUNDS = """
def k(x: f32[3, 10, 32], y: out(f32[3, 10, 32])):
    t = shared(f32[3, 32])
    for o in serial(3):
        barrier(block)
        for p in serial(2):
            with bulk_copy(full):
                for q in serial(32):
                    s0: t[p, q] = x[o, p, q]
        for i in serial(10):
            barrier(block)
            with bulk_copy(full):
                if i + 2 < 10:
                    for q in serial(32):
                        s1: t[(i + 2) % 3, q] = x[o, i + 2, q]
            wait(full, pending=2)
            for l in lane(32):
                s2: y[o, i, l] = t[i % 3, 31 - l]
        wait(full)
"""


@needs_compiler
def test_a_ring_goes_on_from_round_to_round():
    nest = parse_nest(ROUNDS.strip(), SM_90A)
    assert illegal(nest.body, nest.buffers(), lambda: SM_90A) is None
    x = np.random.default_rng(0).standard_normal((3, 10, 32)).astype(np.float32)
    for backwards in (False, True):
        found = run(nest, emit(finish(nest), SM_90A), {"x": x}, backwards=backwards)["y"]
        assert np.array_equal(found, x[:, :, ::-1])
    with pytest.raises(CompileError, match="ends 1 groups of copies at one time and 3 at another"):
        emit(parse_nest(ROUNDS.strip().removesuffix("wait(full)").rstrip(), SM_90A), SM_90A)


#: threads use the memory before the engine does
BEFORE = """
def k(x: f32[64], y: out(f32[64]), z: out(f32[64])):
    t = shared(f32[64])
    for u in block.x(64):
        s0: t[u] = x[u]
    barrier(block)
    for v in block.x(64):
        s1: y[v] = t[63 - v]
    barrier(block)
    with bulk_copy(full):
        for r in serial(64):
            s2: t[r] = x[r]
    wait(full)
    for w in block.x(64):
        s3: z[w] = t[63 - w]
"""


@needs_compiler
def test_the_engine_writes_where_threads_did():
    nest = parse_nest(BEFORE.strip(), SM_90A)
    emitted = emit(nest, SM_90A)
    x = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    for name, found in run(nest, emitted, {"x": x}).items():
        assert np.array_equal(found, x[::-1]), name
    text = re.sub('  call void asm sideeffect "fence.proxy.async.*', "", emitted.text)
    with pytest.raises(EmulationError, match="which was written without a fence for this way of writing"):
        run(nest, emitted, {"x": x}, text=text)


def test_who_begins_copies_is_one_more_team():
    text = ROUNDS.strip().replace("for i in serial(10):", "for i in serial(10, notes={'producer': True}):")
    text = text.replace("s2: y[o, i, l] = t[i % 3, 31 - l]", "s2: r[l] = t[i % 3, 31 - l]").replace(
        "    t =", "    r = register(f32[32])\n    t =", 1
    )
    nest = parse_nest(text.replace("            for l in lane(32):", "            for l in block.x(32):"), SM_90A)
    with pytest.raises(CompileError, match="no loop is bound to teams") as e:
        emit(nest, SM_90A)
    assert e.value.hint == "bind loops to warp or group"
    nest = parse_nest(text.replace("for l in lane(32)", "for l in warp(32)"), SM_90A)
    with pytest.raises(CompileError, match="there is no warp left that could begin copies"):
        emit(nest, SM_90A)


def test_barriers_need_room_too():
    text = ROUNDS.strip().replace(
        "f32[3, 32])\n", f"f32[3, 32])\n    u = shared(i8[{SM_90A.shared_bytes - 3 * 128}])\n", 1
    )
    assert "u = shared" in text
    nest = parse_nest(text, SM_90A)
    with pytest.raises(CompileError, match="the barriers of bulk copies need 232472 bytes; the machine has 232448"):
        emit(nest, SM_90A)


# ---- a matrix product ------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def product() -> tuple[Nest, NvptxKernel, dict[str, np.ndarray]]:
    """One of ragged sizes, two groups and one that begins copies."""
    nest = finish(bulk_matmul(100, 44, 200, columns=64, groups=2, stages=3))
    return nest, emit(nest, SM_90A), factors(100, 44, 200)


def factors(m: int, n: int, k: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(m + n + k)
    return {x: rng.standard_normal(s).astype(ml_dtypes.bfloat16) for x, s in (("a", (m, k)), ("b", (n, k)))}


def is_right(nest: Nest, emitted: NvptxKernel, arrays: dict[str, np.ndarray], **how) -> bool:
    want = arrays["a"].astype(np.float64) @ arrays["b"].astype(np.float64).T
    found = run(nest, emitted, arrays, **how)["c"]
    return bool(np.abs(found - want).max() <= 1e-5 * np.abs(want).max())


@needs_compiler
@pytest.mark.parametrize(
    "sizes, tiles",
    [
        ((100, 44, 200), {"columns": 64, "groups": 2, "stages": 3}),
        ((70, 33, 72), {"columns": 64, "groups": 1}),
        ((128, 128, 192), {"columns": 128, "groups": 1, "stages": 2}),
        ((100, 130, 136), {"columns": 128, "groups": 2, "producer": False}),
    ],
)
def test_a_product_of_any_sizes(sizes, tiles):
    raw = bulk_matmul(*sizes, **tiles)
    assert illegal(raw.body, raw.buffers(), lambda: SM_90A) is None
    nest = finish(raw)
    for backwards in (False, True):
        assert is_right(nest, emit(nest, SM_90A), factors(*sizes), backwards=backwards)


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (4095, 4094, 4096)])
def test_a_large_product_spills_nothing(sizes, tmp_path):
    nest = finish(bulk_matmul(*sizes, columns=256))
    emitted = emit(nest, SM_90A)
    text = ptx(emitted, SM_90A.llvm)
    assert emitted.launch.block == (384, 1, 1) and shared_at_launch(emitted) <= SM_90A.shared_bytes
    assert text.count("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16") == 4
    waits = re.findall(r"wgmma.wait_group.sync.aligned\s+(\d);", text)
    assert waits == ["1", "0"]  # for the four products of the step before, and at the end
    assert text.count("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes") == 4
    taken = assembled(text, "sm_90a", tmp_path)
    print(f"{sizes}: {taken}, {shared_at_launch(emitted)} bytes of shared memory")
    assert (taken.spilled, taken.stack) == (0, 0) and taken.registers <= 168  # of 65536 for 384 threads


@needs_compiler
@pytest.mark.parametrize("specialized", [True, False])
def test_primitives_make_the_same(specialized, tmp_path):
    nest = finish(bulk_groups(128, 64, 256, specialized=specialized).nest())
    emitted = emit(nest, SM_90A)
    assert emitted.launch.threads == (384 if specialized else 256)
    assert is_right(nest, emitted, factors(128, 64, 256))
    assert assembled(ptx(emitted, SM_90A.llvm), "sm_90a", tmp_path).spilled == 0


@needs_compiler
def test_a_warp_begins_the_copies_of_others(tmp_path):
    nest = finish(tensor_cores(64, 64, 256, SM_100, depth=64, bulk=True).nest())
    emitted = emit(nest, SM_100)
    assert emitted.launch.threads == 160
    rng = np.random.default_rng(5)
    arrays = {x: rng.standard_normal(s).astype(ml_dtypes.bfloat16) for x, s in (("a", (64, 256)), ("b", (256, 64)))}
    want = arrays["a"].astype(np.float64) @ arrays["b"].astype(np.float64)
    assert np.abs(run(nest, emitted, arrays)["c"] - want).max() <= 1e-5 * np.abs(want).max()
    assert conflicts() == 0
    assert assembled(ptx(emitted, SM_100.llvm), "sm_100", tmp_path).spilled == 0


@needs_compiler
@pytest.mark.parametrize("producer", [True, False])
def test_what_llvm_makes_of_it_is_right_too(producer):
    nest = finish(bulk_matmul(70, 33, 136, columns=64, groups=1, stages=2, producer=producer))
    emitted = emit(nest, SM_90A)
    assert shared_at_launch(emitted) == 0
    module, _ = optimized(emitted, SM_90A.llvm)
    for backwards in (False, True):
        assert is_right(nest, emitted, factors(70, 33, 136), text=str(module), backwards=backwards)


# ---- through the driver ----------------------------------------------------------------------------------------------


def launched(emitted: NvptxKernel) -> CudaKernel:
    launch = emitted.launch
    return CudaKernel(
        emitted.name, ".visible .entry", launch.grid, launch.block, shared_at_launch(emitted), emitted.maps
    )


@needs_compiler
def test_tensor_maps_are_encoded_for_the_addresses_of_a_call():
    nest, emitted, arrays = product()
    kernel = CudaKernel.from_bytes(launched(emitted).to_bytes())
    assert kernel == launched(emitted) and "maps" in kernel.to_json()
    device = CudaDevice(Driver(EmulatedDriver({"matmul": emitted}, (9, 0))))
    parts = []
    for p in nest.params:
        size = p.size * NUMPY[p.dtype].itemsize
        buffer = device.allocate(size)
        device.write(buffer, arrays.get(p.name, np.zeros(p.shape, np.float32)).reshape(-1).view(np.uint8))
        parts.append(BufferSlice(buffer, 0, size))
    found = np.empty((100, 44), np.float32)
    recorded = device.record(Run((Dispatch(kernel, tuple(parts)),), outputs=(parts[2],)))
    device.run(recorded, [], [found])
    want = arrays["a"].astype(np.float64) @ arrays["b"].astype(np.float64).T
    assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()


@needs_compiler
def test_a_map_that_the_driver_does_not_take():
    _, emitted, _ = product()
    kernel = replace(launched(emitted), maps=(replace(emitted.maps[0], sides=(512, 64)),))
    device = CudaDevice(Driver(EmulatedDriver({"matmul": emitted}, (9, 0))))
    step = Dispatch(kernel, tuple(BufferSlice(device.allocate(1 << 16), 0, 1 << 16) for _ in range(2)))
    with pytest.raises(TilewrightError, match="failed while loading kernels: cuTensorMapEncodeTiled"):
        device.record(Run((step,)))


# ---- mistakes --------------------------------------------------------------------------------------------------------


def wrong(emitted: NvptxKernel, text: str | None = None) -> str:
    """What the emulator says of the product, in both orders of the threads."""
    nest, _, arrays = product()
    messages = []
    for backwards in (False, True):
        with pytest.raises(EmulationError) as e:
            run(nest, emitted, arrays, text=text, backwards=backwards)
        messages.append(str(e.value))
    return " | ".join(messages)


def edited(pattern: str, new: str, which: int = 0) -> str:
    """The product's LLVM IR with one of the lines that match changed."""
    lines = product()[1].text.splitlines()
    found = [i for i, line in enumerate(lines) if re.search(pattern, line) and not line.startswith(("declare", "@"))]
    lines[found[which]] = re.sub(pattern, new, lines[found[which]])
    return "\n".join(lines)


#: lines of the text in order: waits of the producer, then of the others for a and for b
WAIT = r"call i1 @llvm.nvvm.mbarrier.try.wait.parity.*\((ptr addrspace\(3\) %v\d+), i32 (%?\w+)\)"
EXPECT = r"(mbarrier.arrive.expect.tx.*, i32) \S+\)"
ARRIVE = r"%\w+ = call i64 @llvm.nvvm.mbarrier.arrive.scope.*"


@needs_compiler
def test_too_many_bytes_are_expected():
    message = wrong(product()[1], edited(EXPECT, r"\1 20000)"))
    assert "waits for a phase of an mbarrier that does not end: 0 of 1 arrivals and 3616 bytes are missing" in message


@needs_compiler
def test_too_few_bytes_are_expected():
    assert "bytes more come than an mbarrier expects" in wrong(product()[1], edited(EXPECT, r"\1 4096)"))


@needs_compiler
@pytest.mark.parametrize("which", [1, 2])
def test_a_wait_for_a_copy_is_missing(which):
    assert "whose copy has not been waited for" in wrong(product()[1], edited(WAIT, "icmp eq i32 0, 0", which))


@needs_compiler
def test_the_producer_does_not_wait_until_tiles_are_free():
    message = wrong(product()[1], edited(WAIT, "icmp eq i32 0, 0"))
    assert "more threads arrive at an mbarrier than it counts, or bytes of its phase are missing" in message


@needs_compiler
def test_a_wait_is_for_the_other_parity():
    lines = edited(WAIT, r"call i1 @llvm.nvvm.mbarrier.try.wait.parity.scope.cta.space.cta(\1, i32 %other)", 1)
    parity = re.findall(WAIT, product()[1].text)[1][1]
    label = next(x for x in lines.splitlines() if "%other" in x)
    before = "  br label %asking"
    at = lines[: lines.index(label)].rindex(before)
    message = wrong(product()[1], f"{lines[:at]}  %other = xor i32 {parity}, 1\n{lines[at:]}")
    assert "whose copy has not been waited for" in message


@needs_compiler
def test_a_team_does_not_say_that_it_has_done():
    message = wrong(product()[1], edited(ARRIVE, ""))
    assert "waits for a phase of an mbarrier that does not end" in message and "arrivals" in message


@needs_compiler
def test_a_team_says_that_it_has_done_before_its_products_have():
    message = wrong(product()[1], edited(r"(wgmma.wait_group.*\(i64) 1\)", r"\1 4)"))
    assert "which others read without a barrier between" in message or "has not been waited for" in message


@needs_compiler
def test_an_mbarrier_counts_other_arrivals():
    message = wrong(product()[1], edited(r"(mbarrier.init.*), i32 8\)", r"\1, i32 9)"))
    assert "that does not end: 1 of 9 arrivals" in message


@needs_compiler
def test_barriers_are_used_before_they_are_there():
    text = re.sub("  call void @llvm.nvvm.barrier.cta.sync.*", "", product()[1].text)
    assert "an mbarrier is used" in wrong(product()[1], text)
    text = edited("call void @llvm.nvvm.fence.proxy.async.*", "")
    assert "initialized without a fence" in wrong(product()[1], text)


@needs_compiler
@pytest.mark.parametrize("swizzle", [0, 64])
def test_a_swizzle_is_another_one_than_the_instruction_reads(swizzle):
    nest, emitted, arrays = product()
    a, b = emitted.maps
    assert not is_right(nest, replace(emitted, maps=(replace(a, swizzle=swizzle), b)), arrays)


@needs_compiler
def test_a_box_is_larger_than_its_tile():
    emitted = product()[1]
    a, b = emitted.maps
    message = wrong(replace(emitted, maps=(a, replace(b, sides=(200, 64)))))
    assert "out of bounds" in message or "has not been waited for" in message or "bytes more come" in message
