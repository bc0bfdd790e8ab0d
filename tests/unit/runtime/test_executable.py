"""Running programs: values, threads, arguments, lifetimes."""

import gc
import os
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from tilewright.codegen.llvm.assemble import assemble, assembly, mlir_to_llvm
from tilewright.program.plan import CallEffects, StorageValue, plan_memory
from tilewright.program.program import COPY, BufferRef, Call, Program, TensorInfo
from tilewright.program.small_calls import with_small_calls
from tilewright.runtime.executable import MAX_CONTEXTS, Executable
from tilewright.support.errors import InputError, UsageError
from tilewright.targets.cpu.description import describe_arm, describe_x86, host
from tilewright.targets.cpu.device import _teams
from tilewright.targets.cpu.entry import entry_llvm
from tilewright.targets.cpu.program import DUE, WAITED, barriers, program_llvm, runtime_llvm


@pytest.fixture
def x():
    return np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)


def equal(got, wanted):
    return len(got) == len(wanted) and all(np.array_equal(g, w) for g, w in zip(got, wanted, strict=True))


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_values(small_package, small_reference, x, threads):
    run = Executable(small_package, threads)
    for _ in range(50):
        assert equal(run(x), small_reference(x))
    assert equal(run.run({"x": x}), small_reference(x))
    assert run.threads == threads
    assert [str(t) for t in run.inputs] == ["x: f32[64, 64]"]
    assert [t.name for t in run.outputs] == ["y", "x_again"]


def test_inputs_by_keyword_and_in_one_argument(small_package, small_reference, x):
    run = Executable(small_package, 1)
    wanted = small_reference(x)
    for got in (run(x=x), run(x=x, out=run(x)), run.run(x), run.run([x]), run.run((x,)), run.run({"x": x})):
        assert equal(got, wanted)
    assert run.profile(x, repeats=1).repeats == 1
    with pytest.raises(InputError, match=r"(?s)unknown input 'z'; missing input 'x'.*expected inputs: x: f32"):
        run(z=x)
    with pytest.raises(InputError, match="takes 1 input, 2 were given"):
        run(x, x=x)
    with pytest.raises(InputError, match=r"(?s)by a dict and by keywords at once.*put z into the dict"):
        run({"x": x}, z=x)
    with pytest.raises(InputError, match="takes 1 input, 2 were given"):
        run.run([x, x])
    with pytest.raises(InputError, match="input 'x' is a NoneType"):
        run.run(None)


def test_workers_that_went_to_sleep_wake_up(small_package, small_reference, x):
    run = Executable(small_package, 3)
    for pause in (0, 0.0001, 0.002) * 10:
        assert equal(run(x), small_reference(x))
        time.sleep(pause)


def test_outputs_are_fresh_and_aligned(small_package, x):
    run = Executable(small_package, 1)
    first, second = run(x), run(x)
    assert not np.shares_memory(first[0], second[0])
    assert all(a.ctypes.data % 64 == 0 and a.flags.writeable for a in first)


def test_preallocated_outputs(small_package, small_reference, x):
    run = Executable(small_package, 2)
    out = [np.zeros((64, 64), np.float32) for _ in range(2)]
    got = run(x, out=out)
    assert got[0] is out[0] and equal(out, small_reference(x))
    named = {"x_again": out[0], "y": out[1]}
    assert run(x, out=named)[0] is out[1]


def test_inputs_that_are_not_contiguous_read_only_or_foreign(small_package, small_reference, x):
    run = Executable(small_package, 2)
    assert equal(run(np.ascontiguousarray(x.T).T), small_reference(x))
    wide = np.zeros((64, 128), np.float32)
    wide[:, ::2] = x
    assert equal(run(wide[:, ::2]), small_reference(x))
    locked = x.copy()
    locked.flags.writeable = False
    assert equal(run(locked), small_reference(x))
    shifted = np.zeros(4 * 4096 + 1, np.uint8)[1:].view(np.float32).reshape(64, 64)
    shifted[...] = x
    assert equal(run(shifted), small_reference(x))

    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **more):
            return self.array.__dlpack__(**more)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    assert equal(run(Foreign(x)), small_reference(x))

    class Old:
        def __array__(self, *args, **more):
            return x

    assert equal(run(Old()), small_reference(x))


def test_several_python_threads_at_once(small_package, small_reference):
    run = Executable(small_package, 2)
    wrong = []

    def work(seed):
        own = np.random.default_rng(seed).standard_normal((64, 64)).astype(np.float32)
        wrong.extend(1 for _ in range(30) if not equal(run(own), small_reference(own)))

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(MAX_CONTEXTS + 4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong
    assert len(run._contexts) <= MAX_CONTEXTS


WAIT = """
define void @wait(ptr %flag, ptr %result, ptr %scratch, i64 %tid, i64 %n) {
  br label %loop
loop:
  %i = phi i64 [ 0, %0 ], [ %j, %again ]
  %v = load atomic i64, ptr %flag acquire, align 8
  %set = icmp ne i64 %v, 0
  br i1 %set, label %end, label %again
again:
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, 20000000000
  br i1 %more, label %loop, label %end
end:
  store i64 %v, ptr %result, align 8
  ret void
}
"""


def test_the_gil_is_released(make_package):
    """A kernel waits for a flag that another Python thread sets: it would wait for ever with the GIL held."""
    flag = TensorInfo("flag", (1,), "i64")
    call = Call("wait", (BufferRef("input", 0, 0, 8), BufferRef("output", 0, 0, 8)), (1,), parallel=False)
    program = Program((flag,), (TensorInfo("seen", (1,), "i64"),), (), (call,))
    run = Executable(make_package(program, {"wait": assemble(WAIT, host())}), 1)
    array, results = np.zeros(1, np.int64), []
    thread = threading.Thread(target=lambda: results.extend(run(array)))
    thread.start()
    while not len(run._contexts):
        time.sleep(0.001)
    array[0] = 7
    thread.join()
    assert results[0][0] == 7


def test_a_thread_inside_while_the_interpreter_ends(tmp_path, make_package):
    """Its call comes back when the interpreter is half gone: the thread ends there, quietly."""
    flag, seen = TensorInfo("flag", (1,), "i64"), TensorInfo("seen", (1,), "i64")
    call = Call("wait", (BufferRef("input", 0, 0, 8), BufferRef("output", 0, 0, 8)), (1,), parallel=False)
    make_package(Program((flag,), (seen,), (), (call,)), {"wait": assemble(WAIT, host())}).save(tmp_path / "wait.tw")
    code = """
import sys, threading, time
import numpy as np
from tilewright.runtime.load import load

run, flag = load(sys.argv[1], threads=1), np.zeros(1, np.int64)
threading.Thread(target=lambda: run(flag), daemon=True).start()
while not len(run._contexts) or run._free:
    time.sleep(0.01)

class Last:
    flag, sleep = flag, time.sleep

    def __del__(self):
        self.flag[0] = 1
        Last.sleep(0.2)

sys.modules["last"] = Last()
"""
    command = [sys.executable, "-c", code, str(tmp_path / "wait.tw")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_threads_end_with_the_executable(small_package, x):
    def running():
        return sum(len(team.running) for team in _teams)

    gc.collect()  # the executables of other tests
    before = running()
    run = Executable(small_package, 4)
    run(x)
    assert running() == before + 3
    run.close()
    assert running() == before
    run(x)
    assert running() == before + 3
    del run
    gc.collect()
    assert running() == before


def test_the_interpreter_ends_while_workers_wait(small_package, x, tmp_path):
    """Neither a hang nor a crash at exit, with workers asleep or spinning."""
    small_package.save(tmp_path / "m.tw")
    np.save(tmp_path / "x.npy", x)
    for pause in ("0", "0.01"):
        code = (
            "import sys, time, numpy as np; from tilewright.runtime.load import load\n"
            "run = load(sys.argv[1] + '/m.tw', threads=3); y = run(np.load(sys.argv[1] + '/x.npy'))\n"
            f"time.sleep({pause}); print(float(y[0].sum()))"
        )
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own(small_package, small_reference, x):
    run = Executable(small_package, 2)
    run(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if equal(run(x), small_reference(x)) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert equal(run(x), small_reference(x))


def test_times_memory_and_explain(small_package, x):
    run = Executable(small_package, 2)
    times = run.time_calls([x], runs=3)
    assert times.shape == (3, 4) and (times >= 0).all()
    assert run.time_calls({"x": x}, runs=1, warm=False).shape == (1, 4)
    with pytest.raises(UsageError, match="the number of runs must be an integer of at least 1"):
        run.time_calls([x], runs=0)
    memory = run.memory
    assert memory.weights == 4 * 4096 and memory.arena == memory.arena_bound == 8 * 4096
    assert memory.peak == memory.weights + memory.arena + memory.scratch + memory.code
    text = run.explain()
    for part in (
        "model: small",
        "input  x: f32[64, 64]",
        "4 kernel calls, 2 kernels",
        "elementwise",
        "/b/Mul, /b/Relu",
    ):
        assert part in text


@pytest.mark.parametrize("threads", [0, -1, 2.0, True, "2"])
def test_bad_thread_counts(small_package, threads):
    with pytest.raises(UsageError, match="threads must be an integer of at least 1 or None"):
        Executable(small_package, threads)


def test_no_more_threads_than_can_help(kernel_objects, make_package):
    """A program whose kernels all run on one thread gets one."""
    ref = [BufferRef(space, 0, 0, 4 * 4096) for space in ("input", "output")]
    call = Call("add", (ref[0], ref[0], ref[1]), (2,), parallel=False)
    info = TensorInfo("x", (4096,), "f32")
    program = Program((info,), (info,), (), (call,))
    run = Executable(make_package(program, kernel_objects), 4)
    assert run.threads == 1
    ones = np.ones(4096, np.float32)
    assert (run(ones)[0] == 2).all()


def test_scalars_empty_arrays_and_bfloat16(make_package):
    """Programs that only copy: every dtype and odd shapes go through unchanged."""
    infos = [TensorInfo("s", (), "f64"), TensorInfo("e", (0, 3), "f32"), TensorInfo("b", (5,), "bf16")]
    infos += [TensorInfo("m", (3,), "i1"), TensorInfo("big", (300, 300), "i32")]
    calls = [
        Call(COPY, (BufferRef("input", i, 0, t.nbytes), BufferRef("output", i, 0, t.nbytes)), (1,))
        for i, t in enumerate(infos)
    ]
    program = Program(tuple(infos), tuple(infos), (), tuple(calls))
    package = make_package(program, {})
    given = [np.array(2.5), np.zeros((0, 3), np.float32), np.arange(5).astype(infos[2].numpy_dtype)]
    given += [np.array([True, False, True]), np.arange(90000, dtype=np.int32).reshape(300, 300)]
    for threads in (1, 3):
        got = Executable(package, threads)(*given)
        assert [(g.dtype, g.shape) for g in got] == [(g.dtype, g.shape) for g in given]
        assert equal(got, given)


@pytest.mark.parametrize("triple", ["aarch64-unknown-linux-gnu", "arm64-apple-macosx14.0", "x86_64-pc-windows-msvc"])
def test_the_program_compiles_for_other_systems(small_package, triple):
    describe = describe_x86 if triple.startswith("x86") else describe_arm
    assert "tw_main" in assembly(program_llvm(small_package.program), describe(triple, ()))
    listing = assembly(runtime_llvm(describe(triple, ()), timed=False, swaps=False), describe(triple, ()))
    assert ("isb" if "x86" not in triple else "pause") in listing
    assert ("cntvct" if "x86" not in triple else "rdtsc") in listing.lower()
    assert "tw_run" in assembly(entry_llvm(WAITED, DUE), describe(triple, ()))


# ---- barriers ----


def random_calls(rng):
    """Random calls of the kernel ``c[i] = reverse(a)[i] op b[i]`` on a few arena slots, an input and an output."""
    slots = [BufferRef("arena", 0, 4 * 4096 * i, 4 * 4096) for i in range(4)]
    source, calls, known = BufferRef("input", 0, 0, 4 * 4096), [], []
    for _ in range(rng.randrange(2, 12)):
        a, b = (rng.choice([source, *known]) for _ in range(2))
        c = rng.choice([s for s in slots if s not in (a, b)])
        calls.append(Call(rng.choice(["add", "mul"]), (a, b, c), (2,), parallel=rng.random() < 0.7))
        if c not in known:
            known.append(c)
    last = calls[-1]
    calls[-1] = Call(last.symbol, (*last.args[:2], BufferRef("output", 0, 0, 4 * 4096)), (2,), parallel=last.parallel)
    return calls


@pytest.mark.parametrize("seed", range(40))
def test_barriers_stand_between_all_conflicts(seed):
    calls = random_calls(random.Random(seed))
    waits = barriers(calls)
    assert not waits[0]
    for j, later in enumerate(calls):
        for i, earlier in enumerate(calls[:j]):
            conflict = any((w or v) and a.overlaps(b) for a, w in earlier.accesses() for b, v in later.accesses()) and (
                earlier.parallel or later.parallel
            )
            assert not conflict or any(waits[i + 1 : j + 1]), (i, j)


def test_no_barrier_where_none_is_needed():
    a, b, c, d = (BufferRef("arena", 0, 64 * i, 64) for i in range(4))
    independent = [Call("k", (a, b), (1,)), Call("k", (a, c), (1,)), Call("k", (a, d), (1,))]
    assert barriers(independent) == [False, False, False]
    alone = [Call("k", (a, b), (1,), parallel=False), Call("k", (b, c), (1,), parallel=False)]
    assert barriers(alone) == [False, False]
    assert barriers([*alone, Call("k", (c, d), (1,))]) == [False, False, True]
    assert barriers([Call("k", (a, b), (1,)), Call("k", (c, a), (1,))]) == [False, True]  # write after read


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_with_several_threads(seed, kernel_objects, make_package):
    """Races show as wrong values: every kernel reads what other threads wrote."""
    calls = random_calls(random.Random(1000 + seed))
    info = TensorInfo("x", (4096,), "f32")
    program = Program((info,), (info,), (), tuple(calls), arena_size=4 * 4 * 4096)
    # what one thread does is small: each thread makes it for itself where others read it
    program = with_small_calls(program, [(4096, ((4 * 4096, 4 * 4096),))] * len(calls), 4096)
    program.check()
    assert sum(barriers(program.calls, small=True)) <= sum(barriers(calls))
    package = make_package(program, kernel_objects)
    x = np.random.default_rng(seed).integers(-1, 2, 4096).astype(np.float32)
    memory = {("input", 0): x}
    for call in calls:
        a, b = (memory[r.space, r.offset] for r in call.args[:2])
        result = a[::-1] + b if call.symbol == "add" else a[::-1] * b
        memory[call.args[2].space, call.args[2].offset] = result
    for threads in (1, 2, 5):
        run = Executable(package, threads)
        for _ in range(20):
            assert np.array_equal(run(x)[0], memory["output", 0])


def test_planned_programs_with_several_threads(kernel_objects, make_package):
    """The planner's reuse of memory and the barriers together."""
    rng = random.Random(5)
    values = [StorageValue(4 * 4096, home=("input", 0))]
    steps = []
    for i in range(20):
        reads = (rng.randrange(max(0, i - 3), i + 1), rng.randrange(max(0, i - 3), i + 1))
        steps.append(CallEffects(reads, (i + 1,)))
        values.append(StorageValue(4 * 4096))
    plan = plan_memory(values, steps, [20])
    assert plan.arena_size < 8 * 4 * 4096
    refs = [tuple(plan.refs[v] for v in (*s.reads, *s.writes)) for s in steps]
    calls = tuple(Call("add", args, (2,), parallel=rng.random() < 0.5) for args in refs)
    info = TensorInfo("x", (4096,), "f32")
    program = Program((info,), (info,), (), calls, plan.arena_size)
    program = with_small_calls(program, [(4096, ((4 * 4096, 4 * 4096),))] * len(calls), 4096)
    assert {c.small for c in program.calls} == {"", "each"}
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    known = [x]
    for s in steps:
        known.append(known[s.reads[0]][::-1] + known[s.reads[1]])
    package = make_package(program, kernel_objects)
    for threads in (1, 2, 4):
        run = Executable(package, threads)
        for _ in range(20):
            assert np.array_equal(run(x)[0], known[20])


def test_kernels_call_the_math_library_and_float_conversions(make_package):
    """expf is in the process, the conversion of doubles to bfloat16 comes with the program."""
    text = """func.func @k(%x: memref<4xf64>, %y: memref<4xbf16>, %s: memref<1xi8>, %tid: index, %nt: index) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      scf.for %i = %c0 to %c4 step %c1 {
        %v = memref.load %x[%i] : memref<4xf64>
        %e = math.exp %v : f64
        %b = arith.truncf %e : f64 to bf16
        memref.store %b, %y[%i] : memref<4xbf16>
      }
      return
    }"""
    infos = TensorInfo("x", (4,), "f64"), TensorInfo("y", (4,), "bf16")
    call = Call("k", (BufferRef("input", 0, 0, 32), BufferRef("output", 0, 0, 8)), (1,), parallel=False)
    program = Program((infos[0],), (infos[1],), (), (call,))
    x = np.array([0.0, 1.0, -2.0, 80.0])
    got = Executable(make_package(program, {"k": assemble(mlir_to_llvm(text, "k"), host())}))(x)[0]
    assert np.array_equal(got, np.exp(x).astype(infos[1].numpy_dtype))
