"""The emulator of threads finds what a GPU would do wrong without a word: each test puts one mistake into a kernel that
is right, into its nest or into its LLVM IR."""

from __future__ import annotations

from functools import lru_cache

import ml_dtypes
import numpy as np
import pytest
from support.cuda_emulator import EmulationError, conflicts, needs_compiler, run
from support.cuda_matmul import tensor_cores

from tilewright.codegen.nvptx.emitter import NvptxKernel, emit
from tilewright.schedule.finish import finish
from tilewright.schedule.nest import Nest
from tilewright.schedule.text import parse_nest
from tilewright.targets.cuda.description import SM_80

pytestmark = needs_compiler

#: rows are turned around, two buffers in turns
REVERSE = """
def reverse(x: f32[4, 64], y: out(f32[4, 64])):
    t = shared(f32[2, 64])
    with async_copy(c):
        for j in block.x(64):
            p0: t[0, j] = x[0, j]
    for i in serial(4):
        with async_copy(c):
            if i + 1 < 4:
                for j in block.x(64):
                    p1: t[(i + 1) % 2, j] = x[i + 1, j]
        wait(c, pending=1)
        barrier(block)
        for j in block.x(64):
            s0: y[i, j] = t[i % 2, 63 - j]
        barrier(block)
"""


def reverse(old: str = "", new: str = "", count: int = -1) -> tuple[Nest, NvptxKernel, np.ndarray]:
    text = REVERSE.strip().replace(old, new, count) if old else REVERSE.strip()
    assert not old or text != REVERSE.strip()
    nest = finish(parse_nest(text, SM_80))
    return nest, emit(nest, SM_80), np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


def wrong(nest: Nest, emitted: NvptxKernel, arrays: dict[str, np.ndarray], text: str | None = None) -> str:
    """What the emulator says, the same in both orders of the threads but for who is named."""
    messages = []
    for backwards in (False, True):
        with pytest.raises(EmulationError) as e:
            run(nest, emitted, arrays, text=text, backwards=backwards)
        messages.append(str(e.value))
    return messages[0]


def edited(emitted: NvptxKernel, old: str, new: str, which: int = 0) -> str:
    """The LLVM IR with one line changed: the one in the function that has `old` for the time number `which`."""
    lines = emitted.text.splitlines()
    found = [i for i, line in enumerate(lines) if old in line and not line.startswith(("declare", "@"))]
    lines[found[which]] = lines[found[which]].replace(old, new) if new else ""
    return "\n".join(lines)


def test_the_kernel_is_right():
    nest, emitted, x = reverse()
    for backwards in (False, True):
        assert np.array_equal(run(nest, emitted, {"x": x}, backwards=backwards)["y"], x[:, ::-1])


def test_a_barrier_is_missing_before_others_read():
    nest, emitted, x = reverse("        wait(c, pending=1)\n        barrier(block)\n", "        wait(c, pending=1)\n")
    assert "reads byte 252 of reverse.t, which nobody has written" in wrong(nest, emitted, {"x": x})


def test_a_barrier_is_missing_before_others_write_again():
    nest, emitted, x = reverse("63 - j]\n        barrier(block)", "63 - j]")
    message = wrong(nest, emitted, {"x": x})
    assert "reverse.t, which others read without a barrier" in message or "has not been waited for" in message


def test_a_barrier_is_missing_after_a_plain_store():
    text = """
def k(x: f32[64], y: out(f32[64])):
    t = shared(f32[64])
    for j in block.x(64):
        s0: t[j] = x[j]
    for j in block.x(64):
        s1: y[j] = t[63 - j]
"""
    nest = parse_nest(text.strip(), SM_80)
    message = wrong(nest, emit(nest, SM_80), {"x": np.zeros(64, np.float32)})
    assert "k.t" in message and ("without a barrier between" in message or "nobody has written" in message)


def test_threads_write_the_same_element():
    nest = parse_nest(
        "def k(x: f32[64], y: out(f32[32])):\n    for j in block.x(64):\n        s0: y[j // 2] = x[j]", SM_80
    )
    assert "writes too without a barrier between" in wrong(nest, emit(nest, SM_80), {"x": np.zeros(64, np.float32)})


def test_blocks_write_the_same_element_and_no_barrier_helps():
    text = "def k(x: f32[64], y: out(f32[32])):\n    for i in grid.x(2):\n        for j in block.x(32):\n"
    text += "            s0: y[j] = x[i * 32 + j]\n        barrier(block)"
    nest = parse_nest(text, SM_80)
    message = wrong(nest, emit(nest, SM_80), {"x": np.zeros(64, np.float32)})
    assert "of block (1, 0, 0) writes byte 0 of y" in message and "of block (0, 0, 0) writes too" in message


def test_a_wait_leaves_one_group_too_many():
    nest, emitted, x = reverse()
    text = edited(emitted, "wait.group(i32 1)", "wait.group(i32 2)")
    assert "reads byte 252 of reverse.t, whose copy has not been waited for" in wrong(nest, emitted, {"x": x}, text)


def test_a_wait_is_missing():
    nest, emitted, x = reverse()
    text = edited(emitted, "call void @llvm.nvvm.cp.async.wait.group(i32 1)", "")
    assert "whose copy has not been waited for" in wrong(nest, emitted, {"x": x}, text)


def test_a_group_is_not_closed():
    nest, emitted, x = reverse()
    text = edited(emitted, "call void @llvm.nvvm.cp.async.commit.group()", "", 1)
    assert "whose copy has not been waited for" in wrong(nest, emitted, {"x": x}, text)


def test_copies_are_never_waited_for():
    text = """
def k(x: f32[64], y: out(f32[64])):
    t = shared(f32[64])
    with async_copy(c):
        for j in block.x(64):
            s0: t[j] = x[j]
    wait(c)
    for j in block.x(64):
        s1: y[j] = x[j]
"""
    nest = parse_nest(text.strip(), SM_80)
    emitted = emit(nest, SM_80)
    text = edited(emitted, "call void @llvm.nvvm.cp.async.wait.group(i32 0)", "")
    assert "never waited for" in wrong(nest, emitted, {"x": np.zeros(64, np.float32)}, text)


def test_an_access_is_out_of_bounds_of_global_memory():
    nest, emitted, x = reverse("x: f32[4, 64]", "x: f32[3, 64]")
    assert "byte 768 of x, which is out of bounds" in wrong(nest, emitted, {"x": x[:3]})


def test_an_access_is_out_of_bounds_of_shared_memory():
    text = "def k(x: f32[64], y: out(f32[64])):\n    t = shared(f32[64])\n    for j in block.x(64):\n"
    text += "        s0: t[j + 1] = x[j]\n        s1: y[j] = t[j + 1]"
    nest = parse_nest(text, SM_80)
    message = wrong(nest, emit(nest, SM_80), {"x": np.zeros(64, np.float32)})
    assert "writes byte 256 of k.t, which is out of bounds" in message


def test_some_threads_come_to_a_barrier_and_others_do_not():
    text = "def k(x: f32[64], y: out(f32[64])):\n    for j in block.x(64):\n        s0: y[j] = x[j]\n    barrier(block)"
    nest = parse_nest(text, SM_80)
    emitted = emit(nest, SM_80)
    lines = emitted.text.splitlines()
    lines[-3:-2] = [
        "  %low = icmp slt i32 %v1, 32",
        "  br i1 %low, label %some, label %all",
        "some:",
        lines[-3],
        "  br label %all",
        "all:",
    ]
    message = wrong(nest, emitted, {"x": np.zeros(64, np.float32)}, "\n".join(lines))
    assert "not all threads come to the same barrier" in message


def test_what_nobody_wrote_is_read():
    text = "def k(x: f32[64], y: out(f32[64])):\n    t = shared(f32[64])\n    for j in block.x(63):\n"
    text += "        s0: t[j] = x[j]\n    barrier(block)\n    for j in block.x(64):\n        s1: y[j] = t[j]"
    nest = parse_nest(text.replace("    barrier(block)\n", ""), SM_80)
    message = wrong(nest, emit(nest, SM_80), {"x": np.zeros(64, np.float32)})
    assert "thread (63, 0, 0) of block (0, 0, 0) reads byte 252 of k.t, which nobody has written" in message


def test_a_vector_is_read_where_it_is_not_aligned():
    text = "def k(x: f32[132], y: out(f32[128])):\n    for j in block.x(32):\n        for v in vector(4, lanes=4):\n"
    text += "            s0: y[j * 4 + v] = x[j * 4 + v]"
    nest = parse_nest(text, SM_80)
    emitted = emit(nest, SM_80)
    shifted = edited(emitted, "load <4 x float>, ptr addrspace(1) %", "load <4 x float>, ptr addrspace(1) %moved")
    at = next(line for line in shifted.splitlines() if "%moved" in line)
    name = at.split("%moved")[1].split(",")[0]
    shifted = shifted.replace(
        at,
        f"  %moved = getelementptr float, ptr addrspace(1) %{name}, i32 1\n{at.replace(f'%moved{name}', '%moved')}",
    )
    assert "of x, which is not aligned" in wrong(nest, emitted, {"x": np.zeros(132, np.float32)}, shifted)


# ---- tensor cores --------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def products() -> tuple[tuple[Nest, NvptxKernel], ...]:
    """One with rows in the order of the matrices, one with rows swizzled."""
    made = []
    s = tensor_cores(32, 32, 32, stages=2, tile=(32, 32), warps=(1, 2), depth=16, swizzled=False)
    for swizzled in (False, True):
        if swizzled:
            s.swizzle("a_c", 8, 4)
            s.swizzle("b_c", 8, 2)
        nest = finish(s.nest())
        made.append((nest, emit(nest, SM_80)))
    return tuple(made)


def product() -> tuple[Nest, NvptxKernel]:
    return products()[1]


def factors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"a": (32, 32), "b": (32, 32)}
    return {n: rng.standard_normal(s).astype(ml_dtypes.bfloat16) for n, s in shapes.items()}


def is_right(nest: Nest, emitted: NvptxKernel, text: str | None = None) -> bool:
    arrays = factors()
    want = arrays["a"].astype(np.float32) @ arrays["b"].astype(np.float32)
    return bool(np.abs(run(nest, emitted, arrays, text=text)["c"] - want).max() < 1e-4)


def test_tensor_cores_are_right_and_their_banks_do_not_meet():
    plain, swizzled = products()
    assert is_right(*plain)
    assert conflicts() > 0
    assert is_right(*swizzled)
    assert conflicts() == 0


def test_a_swizzle_is_another_one_where_it_is_read():
    nest, _ = product()
    read = next(line for line in str(nest).splitlines() if "a_c_c[" in line and "= a_c[" in line)
    text = str(nest).replace(read, read.replace("xori(", "addi(0 * ", 1))
    changed = parse_nest(text, SM_80)
    assert not is_right(changed, emit(changed, SM_80))


def test_registers_of_a_product_in_a_wrong_order():
    nest, emitted = product()
    line = next(x for x in emitted.text.splitlines() if "call {float" in x)
    inside = line[line.index("(") + 1 : line.rindex(")")].split(", ")
    inside[1], inside[2] = inside[2], inside[1]
    text = emitted.text.replace(line, f"{line[: line.index('(') + 1]}{', '.join(inside)})")
    assert not is_right(nest, emitted, text)


def test_half_a_warp_comes_to_an_instruction():
    nest, emitted = product()
    lines = emitted.text.splitlines()
    at = next(i for i, line in enumerate(lines) if "= call {i32" in line)
    lane = next(line.split(" = ")[0].strip() for line in lines if "urem i32" in line)
    name, call = lines[at].strip().split(" = ", 1)
    kind = call[len("call ") : call.index("}") + 1]
    label = next(line[:-1] for line in reversed(lines[:at]) if line.endswith(":"))
    lines[at : at + 1] = [
        f"  %low = icmp slt i32 {lane}, 16",
        "  br i1 %low, label %some, label %all",
        "some:",
        f"  %half = {call}",
        "  br label %all",
        "all:",
        f"  {name} = phi {kind} [ %half, %some ], [ zeroinitializer, %{label} ]",
    ]
    text = (
        "\n".join(lines)
        .replace(f", %{label} ]\n", ", %all ]\n")
        .replace("zeroinitializer, %all ]", f"zeroinitializer, %{label} ]")
    )
    assert "do not come to the same instruction" in wrong(nest, emitted, factors(), text)


def test_a_barrier_is_missing_between_the_copies_and_the_tensor_cores():
    nest, emitted = product()
    text = edited(emitted, "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)", "", 1)
    message = wrong(nest, emitted, factors(), text)
    assert "without a barrier between" in message or "has not been waited for" in message or "nobody" in message
