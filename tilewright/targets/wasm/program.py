"""LLVM IR of a model's entry point in WebAssembly: one function that calls the kernels in order, run by all threads
together.

    run(thread, threads, passed, count, weights, arena, arrays)

`weights` begins with the first weight (`weight_offsets`), `arena` is followed by the scratch memory of one thread after
the other (`memory`), `arrays` is a table of the addresses of inputs and outputs, then two for each state: where its
value is, and where its next value goes. `count` is a word in memory where arrivals at barriers are counted, never set
back: `passed` is what it was when the run began.

A module for one thread has the same function, in which nobody waits.
"""

from __future__ import annotations

from ...codegen.llvm.function_text import FunctionText, copy_llvm
from ...program.barriers import barriers, is_parallel
from ...program.program import ALIGN, COPY, BufferRef, Call, Program, align_up

#: polls of a barrier before a thread sleeps
_SPINS = 2000


def weight_offsets(program: Program) -> list[int]:
    """Where each weight begins, and then where all of them end."""
    offsets = [0]
    for t in program.constants:
        offsets.append(align_up(offsets[-1] + t.nbytes))
    return offsets


def scratch_stride(program: Program) -> int:
    """Bytes from the scratch memory of one thread to that of the next; it begins behind the arena."""
    return align_up(program.scratch_size, 2 * ALIGN)


def barrier_count(program: Program) -> int:
    """Barriers of a run; all threads meet at its end too, where the outputs are complete."""
    return sum(barriers(program.calls)) + 1


def program_llvm(program: Program, threads: bool) -> str:
    """The LLVM IR of the function, for several threads or for one."""
    body = _RunFunction(program)
    waits = barriers(program.calls)
    for number, (call, wait) in enumerate(zip(program.calls, waits, strict=True)):
        if wait and threads:
            body.barrier()
        body.call(call, number, threads)
    if threads:
        body.barrier()
    arities = {c.symbol: len(c.args) for c in program.calls if c.symbol != COPY}
    kernels = [f"declare void @{s}({'ptr, ' * (n + 1)}i64, i64) nounwind" for s, n in arities.items()]
    head = (
        "define void @run(i32 %thread, i32 %threads, i32 %passed, ptr %count, ptr %weights, ptr %arena, ptr %arrays) "
        "nounwind {\n  %first = icmp eq i32 %thread, 0\n  %tid = zext i32 %thread to i64\n"
        "  %n = zext i32 %threads to i64"
    )
    own = [
        f"  %own = mul i64 %tid, {scratch_stride(program)}",
        f"  %behind = getelementptr i8, ptr %arena, i64 {align_up(program.arena_size)}",
        "  %scratch = getelementptr i8, ptr %behind, i64 %own",
    ]
    parts = (
        *kernels,
        copy_llvm("internal void @copy"),
        _BARRIER if threads else "",
        head,
        *own,
        *body.lines,
        "  ret void\n}\n",
    )
    return "\n".join(parts)


class _RunFunction(FunctionText):
    """The text of the function."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program, self.passed = program, 0
        self.offsets = weight_offsets(program)

    def barrier(self) -> None:
        self.passed += 1
        before = self.value(f"mul i32 %threads, {self.passed}")
        target = self.value(f"add i32 %passed, {before}")
        self.add(f"call void @barrier(ptr %count, i32 {target})")

    def pointer(self, ref: BufferRef) -> str:
        if ref.space in ("input", "output", "state", "next"):
            place = self.place(ref)
            slot = self.value(f"getelementptr ptr, ptr %arrays, i32 {place}")
            base, offset = self.value(f"load ptr, ptr {slot}"), ref.offset
        elif ref.space == "constant":
            base, offset = "%weights", self.offsets[ref.index] + ref.offset
        else:
            base, offset = "%arena", ref.offset
        return self.behind(base, offset)

    def place(self, ref: BufferRef) -> int:
        """The entry of the table that has the address."""
        inputs, outputs = len(self.program.inputs), len(self.program.outputs)
        if ref.space in ("input", "output"):
            return ref.index + (inputs if ref.space == "output" else 0)
        return inputs + outputs + 2 * ref.index + (ref.space == "next")

    def call(self, call: Call, number: int, threads: bool) -> None:
        """All threads run a call that divides its work, the first alone any other."""
        alone = threads and not is_parallel(call)
        if alone:
            self.add(f"br i1 %first, label %alone{number}, label %after{number}")
            self.label(f"alone{number}")
        team = "i64 0, i64 1" if alone or not threads else "i64 %tid, i64 %n"
        pointers = [self.pointer(ref) for ref in call.args]
        if call.symbol == COPY:
            self.add(f"call void @copy(ptr {pointers[1]}, ptr {pointers[0]}, i64 {call.args[0].nbytes}, {team})")
        else:
            args = "".join(f"ptr {p}, " for p in (*pointers, "%scratch"))
            self.add(f"call void @{call.symbol}({args}{team})")
        if alone:
            self.add(f"br label %after{number}")
            self.label(f"after{number}")


_BARRIER = f"""\
declare i32 @llvm.wasm.memory.atomic.wait32(ptr, i32, i64)
declare i32 @llvm.wasm.memory.atomic.notify(ptr, i32)

; Count this arrival and wait until `target` are there: poll, then sleep. The last one wakes the others. Whoever looks
; too early sees another number than the one it goes to sleep on, and does not sleep.
define internal void @barrier(ptr %count, i32 %target) nounwind noinline {{
  %before = atomicrmw add ptr %count, i32 1 acq_rel, align 4
  %mine = add i32 %before, 1
  %last = icmp eq i32 %mine, %target
  br i1 %last, label %wake, label %poll
wake:
  %woken = call i32 @llvm.wasm.memory.atomic.notify(ptr %count, i32 -1)
  ret void
poll:
  %i = phi i32 [ 0, %0 ], [ %i1, %again ], [ %i1, %sleep ]
  %now = load atomic i32, ptr %count acquire, align 4
  %ahead = sub i32 %now, %target                ; the count goes round
  %there = icmp sge i32 %ahead, 0
  br i1 %there, label %done, label %again
again:
  %i1 = add i32 %i, 1
  %long = icmp ugt i32 %i1, {_SPINS}
  br i1 %long, label %sleep, label %poll
sleep:
  %slept = call i32 @llvm.wasm.memory.atomic.wait32(ptr %count, i32 %now, i64 -1)
  br label %poll
done:
  ret void
}}
"""
