"""How threads share the pieces of a kernel: each is done once, whoever does it."""

from __future__ import annotations

import ctypes
import threading
from collections import Counter

import numpy as np
import pytest

from tilewright.codegen.kernel_info import divides_all
from tilewright.codegen.llvm.assemble import assemble
from tilewright.lang import te
from tilewright.program.program import BufferRef, Call
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.text import parse_nest
from tilewright.targets.cpu.description import host
from tilewright.targets.cpu.work_stealing import LEAST, PIECES, TAKEN, in_pieces, pieces_llvm

SLOTS, SLOT_BYTES, CALLS = 0, 128, 40
WRAPPERS = """
declare i64 @llvm.umin.i64(i64, i64)
define i64 @take(ptr %state, i64 %tid, i64 %n, i64 %first) {
  %r = call i64 @tw_take(ptr %state, i64 %tid, i64 %n, i64 %first)
  ret i64 %r
}
define void @fresh(ptr %state, i64 %n) {
  call void @tw_fresh(ptr %state, i64 %n)
  ret void
}
"""


@pytest.fixture(scope="module")
def functions():
    """tw_take and tw_fresh as functions of Python, which release the GIL."""
    from llvmlite import binding as llvm

    from tilewright.codegen.llvm.assemble import target_machine

    jit = llvm.create_lljit_compiler(target_machine(host()))
    builder = llvm.JITLibraryBuilder()
    builder.add_object_img(assemble(pieces_llvm(SLOTS, SLOT_BYTES) + WRAPPERS, host()))
    for name in ("take", "fresh"):
        builder.export_symbol(name)
    library = builder.link(jit, "pieces")
    i64, pointer = ctypes.c_int64, ctypes.c_void_p
    take = ctypes.CFUNCTYPE(i64, pointer, i64, i64, i64)(library["take"])
    fresh = ctypes.CFUNCTYPE(None, pointer, i64)(library["fresh"])
    yield take, fresh
    del library, jit


def taken(take, state, tid, n, number):
    """What a thread gets of one call until nothing is left: ranges of single pieces."""
    found = []
    while (got := take(state.ctypes.data, tid, n, number * PIECES)) != -1:
        piece, of = got >> 32, got & 0xFFFFFFFF
        size = n * PIECES // of
        found.append(range(piece * size, (piece + 1) * size))
    return found


def test_alone_a_thread_takes_all_at_once(functions):
    take, fresh = functions
    state = np.full(SLOTS + SLOT_BYTES, -1, np.int8)
    fresh(state.ctypes.data, 1)
    assert [taken(take, state, 0, 1, k) for k in range(3)] == [[range(PIECES)]] * 3


def test_an_owner_takes_halves_and_a_helper_single_pieces(functions):
    take, fresh = functions
    state = np.zeros(SLOTS + 2 * SLOT_BYTES, np.int8)
    fresh(state.ctypes.data, 2)
    assert take(state.ctypes.data, 1, 2, 0) == 2 << 32 | 4  # the first half of the second half
    own = taken(take, state, 0, 2, 0)
    assert own == [range(4), range(4, 6), range(6, 7), range(7, 8), *[range(12 + i, 13 + i) for i in range(4)]]
    assert taken(take, state, 1, 2, 0) == []


def test_pieces_of_another_call_are_left_alone(functions):
    take, fresh = functions
    state = np.zeros(SLOTS + 2 * SLOT_BYTES, np.int8)
    fresh(state.ctypes.data, 2)
    assert len(taken(take, state, 0, 2, 0)) == 4 + PIECES  # all of the first call, as nobody else was there
    assert taken(take, state, 0, 2, 1)[0] == range(4)
    counts = state.view(np.int64)[[TAKEN // 8, (SLOT_BYTES + TAKEN) // 8]]
    assert counts.tolist() == [2 * PIECES, 2 * PIECES]
    assert taken(take, state, 1, 2, 0) == [] == taken(take, state, 1, 2, 1)


@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_every_piece_is_done_once(functions, n):
    take, fresh = functions
    state = np.zeros(SLOTS + n * SLOT_BYTES, np.int8)
    fresh(state.ctypes.data, n)
    done: list[list] = [[] for _ in range(n)]
    start = threading.Barrier(n)

    def work(tid):
        start.wait()
        for number in range(CALLS):
            done[tid].append(taken(take, state, tid, n, number))

    threads = [threading.Thread(target=work, args=(t,)) for t in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for number in range(CALLS):
        pieces = Counter(p for t in range(n) for r in done[t][number] for p in r)
        assert pieces == Counter(range(n * PIECES)), number


def test_only_large_calls_of_kernels_that_divide_everything():
    large, small = BufferRef("arena", 0, 0, LEAST), BufferRef("arena", 0, 0, LEAST - 1)
    assert in_pieces(Call("k", (large,), (0,), pieces=True))
    assert not in_pieces(Call("k", (small,), (0,), pieces=True))
    assert not in_pieces(Call("k", (large,), (0,)))
    assert not in_pieces(Call("k", (large,), (0,), parallel=False, pieces=True))


def test_a_buffer_that_every_thread_fills_is_not_divided():
    divided = parse_nest("""
def k(x: f32[8], y: out(f32[8])):
    for i in thread(8):
        s0: y[i] = exp(x[i])
""")
    private = parse_nest("""
def k(x: f32[8], y: out(f32[8])):
    t = local(f32[8])
    for i in serial(8):
        s0: t[i] = exp(x[i])
    for j in thread(8):
        s1: y[j] = addf(t[j], f32(1.0))
""")
    assert divides_all(divided) and not divides_all(private)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_a_kernel_in_pieces_is_right(threads):
    """Also with more threads than cores, and with fewer iterations than pieces."""
    for rows, columns in ((1003, 64), (5, 40000)):
        x = te.placeholder((rows, columns), "x")
        s = Schedule(te.kernel(te.compute((rows, columns), lambda i, j, x=x: x[i, j] * 2.0 + 1.0, "y")))
        s.parallel(s.loops("y")[0])
        run = s.build(threads=threads)
        assert in_pieces(run.executable.package.program.calls[0])
        given = np.random.default_rng(0).standard_normal((rows, columns)).astype(np.float32)
        for _ in range(20):
            np.testing.assert_array_equal(run(given), given * np.float32(2) + np.float32(1))
