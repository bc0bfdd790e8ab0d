"""Threads that wait at a barrier sleep and are woken; no more of them run than there are processors."""

import ctypes
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tilewright.codegen.llvm.assemble import assemble
from tilewright.runtime.executable import Executable
from tilewright.targets.cpu import device
from tilewright.targets.cpu import program as module
from tilewright.targets.cpu.description import host
from tilewright.targets.cpu.program import CHECK_AT, MAIN, NAP_TICKS, RUNTIME, SLEEPERS, SLOT_BYTES, SLOTS, runtime_llvm

BARRIERS = 200
#: calls the function in the first input with the number of the thread, then has a barrier
HELD = """
  %function = load ptr, ptr %x
  call void %function(i64 %tid)
  call void @tw_barrier(ptr %state, i64 %tid, i64 %n, i64 1)
"""
#: a thread writes the number of each barrier before it, and looks behind it whether all others have: else it counts
CHECKED = f"""
  %table = getelementptr i64, ptr %x, i64 64
  %mine = getelementptr i64, ptr %x, i64 %tid
  br label %next
next:
  %k = phi i64 [ 1, %0 ], [ %k1, %seen ]
  store atomic i64 %k, ptr %mine monotonic, align 8
  call void @tw_barrier(ptr %state, i64 %tid, i64 %n, i64 %k)
  br label %look
look:
  %i = phi i64 [ 0, %next ], [ %i1, %more ]
  %theirs = getelementptr i64, ptr %x, i64 %i
  %number = load atomic i64, ptr %theirs monotonic, align 8
  %late = icmp ult i64 %number, %k
  br i1 %late, label %wrong, label %more
wrong:
  %counted = atomicrmw add ptr %table, i64 1 monotonic
  br label %more
more:
  %i1 = add i64 %i, 1
  %others = icmp ult i64 %i1, %n
  br i1 %others, label %look, label %seen
seen:
  %k1 = add i64 %k, 1
  %again = icmp ule i64 %k1, {BARRIERS}
  br i1 %again, label %next, label %end
end:
"""


@pytest.fixture
def program_of(small_package, monkeypatch):
    """A function from the text of a program with some barriers, and a number of threads, to what runs it: its threads
    sleep as soon as they wait."""
    monkeypatch.setattr(module, "_SPINS", 0)
    monkeypatch.setattr(device, "NAP_SECONDS", 0.0)

    def make(body, barriers, threads):
        small_package.objects[MAIN] = assemble(
            f"""declare void @tw_barrier(ptr, i64, i64, i64) nounwind
define void @tw_main(ptr %inputs, ptr %o, ptr %c, ptr %a, ptr %s, i64 %tid, i64 %n, ptr %state, ptr %stamps) nounwind {{
  %x = load ptr, ptr %inputs
{body}  ret void
}}
define i64 @tw_passed() nounwind {{
  ret i64 {barriers}
}}
define i64 @tw_row() nounwind {{
  ret i64 0
}}""",
            host(),
        )
        small_package.objects[RUNTIME] = assemble(runtime_llvm(host(), timed=False, swaps=False), host())
        return Executable(small_package, threads)

    return make


def context_of(run):
    """The context that the next call has."""
    context = run._take()
    run._give(context)
    return context


def until(condition):
    """Wait for it; an error if it does not come."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def asleep(native_id):
    """Whether the system says that a thread is not running; nobody knows where there is no such file."""
    stat = Path(f"/proc/self/task/{native_id}/stat")
    return sys.platform != "linux" or stat.read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("held", [0, 1])
def test_a_thread_sleeps_until_the_other_is_there(program_of, held):
    """The caller while a worker is held, and a worker while the caller is."""
    run = program_of(HELD, 1, 2)
    go, seen = threading.Event(), {}

    @ctypes.CFUNCTYPE(None, ctypes.c_int64)
    def hold(tid):
        seen[tid] = threading.get_native_id()
        if tid == held:
            go.wait()

    x = np.zeros((64, 64), np.float32)
    x.view(np.int64)[0, 0] = ctypes.cast(hold, ctypes.c_void_p).value
    context = context_of(run)
    caller = threading.Thread(target=lambda: run(x))
    caller.start()
    try:
        until(lambda: context._word(SLEEPERS).value == 1 and context._word(SLOTS + SLOT_BYTES * (1 - held)).value == 1)
        until(lambda: asleep(seen[1 - held]))
    finally:
        go.set()
    caller.join(timeout=60)
    assert not caller.is_alive() and context._word(SLEEPERS).value == 0


@pytest.mark.parametrize("threads", [2, 7])
def test_many_threads_on_few_cores_pass_every_barrier_together(program_of, threads):
    run = program_of(CHECKED, BARRIERS, threads)
    for _ in range(5):
        context_of(run)._size.value = threads  # whatever waiting there was before
        x = np.zeros((64, 64), np.float32)
        run(x)
        numbers = x.view(np.int64).reshape(-1)
        assert numbers[:threads].tolist() == [BARRIERS] * threads
        assert numbers[64] == 0


def test_the_number_of_processors_is_asked_again(small_package, small_reference, monkeypatch):
    processors = [3]
    monkeypatch.setattr(device, "usable_cores", lambda: processors[0])
    run = Executable(small_package, 4)
    x = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    expected = small_reference(x)
    context = context_of(run)
    assert context._size.value == 3
    for processors[0], size in ((1, 1), (2, 2), (64, 4), (2, 2)):
        assert context._size.value != size
        context._word(CHECK_AT).value = 0  # as if the time had come
        assert all(map(np.array_equal, run(x), expected))
        assert context._size.value == size and context._word(CHECK_AT).value > 0
    assert context._word(NAP_TICKS).value > 0
