"""The program as one native function that all threads run together, and the worker loop around it, in LLVM IR.

``tw_main(inputs, outputs, constants, arena, scratch, tid, n, state, stamps)`` calls the kernels in order. Every thread
runs it with its own `tid` of `n` and its own `scratch`; kernels divide their work by these, and threads that are done
help others (`work_stealing.py`). Between two calls that touch the same bytes stands a barrier, unless thread 0 alone
runs both; nowhere else. Where sizes are small, each thread makes for itself what is not worth dividing
(`program.small_calls`), and fewer barriers are passed.

A program has no clock in it, so that measuring costs nothing where nobody measures. `program_llvm(..., timed=True)`
is the same program with time stamps of every call on every thread, in the layout of `program.timeline`. What is not
@tw_main is the same for all programs, and made once (`runtime_llvm`): it takes longer to compile than a small model.

    tw_run(state)            thread 0: publish a job for the first `team` threads, wake who sleeps of them, do a share,
                             wait for the others
    tw_worker(state, tid)    the other threads: wait for jobs and do a share of each that they are in until tw_stop
    tw_stop(state)           end all workers
    tw_clock()               the clock of the time stamps and of the spin time, in ticks
    tw_enter(self, ...)      a call from Python, which ends in tw_run: an object of its own (`entry.py`)

The state is one block of memory laid out below; the fields that threads write to each other lie in lines of their own.
A thread that waits, for a job or at a barrier, polls for some microseconds, at a barrier then offers its core to others
for a while, and sleeps: it blocks on a lock of its own through functions of the interpreter's C library (a futex on
Linux), which need no GIL. No wake-up is lost: who sleeps says so and then looks once more for what it waits for, who
publishes a job or is the last at a barrier looks for sleepers after that, all sequentially consistent, and an exchange
decides who clears the flag.
The number of a job carries the size of its team, so that a worker which is late cannot take one job for another.

Every job leaves the ticks it took and the ticks for which threads waited long in it, from which `active_threads.py`
decides how many threads the next one gets. The result does not depend on that: kernels divide their results, never
their sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ...codegen.llvm.assemble import assemble
from ...codegen.llvm.builtins import BUILTINS, builtins_llvm
from ...codegen.llvm.function_text import FunctionText, copy_llvm
from ...program.barriers import barriers, by_all, is_parallel
from ...program.program import COPY, BufferRef, Call, Program, align_up
from ...program.small_calls import own_arguments
from ...program.timeline import CALL, JOB_BEGIN, JOB_END, PER_CALL, RUN_BEGIN, RUN_END, row_bytes
from .description import CpuDescription
from .entry import entry_llvm
from .work_stealing import call_in_pieces, in_pieces, pieces_llvm

# ---- layout of the state, in bytes ----
GENERATION = 0  # number of the job times 65536, plus the size of its team; -1 to stop
COUNT = 128  # arrivals at barriers since the job began
SLEEPERS = 136  # threads that sleep at a barrier, or are about to
WAITED = 256  # ticks that threads have waited long since the job began, all together
DUE = 264  # whether it is time to ask how many processors there are (`active_threads.py`)
CHECK_AT, CHECK_TICKS = 272, 280  # the time from which on it is, and from one time to the next
NAP_TICKS = 288  # how long a thread offers its core at a barrier before it sleeps
CONFIG = 384  # what does not change during a job: the fields below, 8 bytes each
FIELDS = (
    *("threads", "inputs", "outputs", "constants", "arena", "scratch", "scratch_stride"),
    *("yield_function", "acquire_function", "release_function", "spin_ticks", "stamps", "team", "ran"),
    "states",  # the table of `program.states.StateBuffers`
    "sizes",  # the table of `program.open_sizes.SizeTable`
)
SLOTS = 512  # one slot a thread: asleep flag, address of its lock, and what `work_stealing.py` keeps there
SLOT_BYTES = 128

#: the objects with a program's own functions of this file, and with those that all programs have
MAIN, RUNTIME = "tw.main", "tw.runtime"
#: the object with the entry from Python, which is the same for all programs
ENTRY = "tw.entry"
#: polls of a barrier before a thread offers its core to others, and its wait counts as a long one
_SPINS = 4000


def field_offset(name: str) -> int:
    """Byte offset of a field of the configuration in the state."""
    return CONFIG + 8 * FIELDS.index(name)


def state_bytes(threads: int) -> int:
    return SLOTS + SLOT_BYTES * threads


def program_llvm(program: Program, timed: bool = False) -> str:
    """The LLVM IR of a program: @tw_main, and what `runtime_llvm` asks. Kernels and the functions that are the same for
    all programs are external."""
    waits = _Waits.of(program)
    row = row_bytes(len(program.calls)) if timed else 0
    told = _TOLD.format(few=_small_llvm(program), large=sum(waits.large), small=sum(waits.small), row=row)
    return "\n".join((_DECLARED, _main(program, waits, timed), _swap(program), told))


def runtime_llvm(description: CpuDescription, timed: bool, swaps: bool) -> str:
    """The LLVM IR of the other functions; for programs with time stamps, and with states of two buffers."""
    helpers = _HELPERS.format(**_parts(description))
    pieces = pieces_llvm(SLOTS, SLOT_BYTES)
    return "\n".join((copy_llvm("void @tw_copy"), helpers, pieces, _runtime(timed, swaps)))


def assemble_program(program: Program, kernels: Mapping[str, bytes], description: CpuDescription) -> dict[str, bytes]:
    """All objects of a package: the kernels that are called, the program's own, the entry from Python, and LLVM's
    support functions if needed.

    KeyError if a kernel is missing.
    """
    objects = {symbol: kernels[symbol] for symbol in program.symbols}
    objects |= own_objects(program, description)
    objects[ENTRY] = _entry(description)
    if any(name.encode() in data for name in BUILTINS for data in objects.values()):
        objects["tw.builtins"] = assemble(builtins_llvm(), description)
    return objects


def own_objects(program: Program, description: CpuDescription, timed: bool = False) -> dict[str, bytes]:
    """The objects of a program beside its kernels; `timed`: with time stamps."""
    swaps = any(s.swapped for s in program.states)
    return {
        MAIN: assemble(program_llvm(program, timed), description),
        RUNTIME: _runtime_object(description, timed, swaps),
    }


@lru_cache(maxsize=8)
def _runtime_object(description: CpuDescription, timed: bool, swaps: bool) -> bytes:
    return assemble(runtime_llvm(description, timed, swaps), description)


@lru_cache(maxsize=8)
def _entry(description: CpuDescription) -> bytes:
    return assemble(entry_llvm(WAITED, DUE), description)


def _quoted(symbol: str) -> str:
    return '@"' + "".join(c if c.isalnum() or c in "._-$" else f"\\{ord(c):02X}" for c in symbol) + '"'


# ---- the calls ----


@dataclass(frozen=True)
class _Waits:
    """For every call whether a barrier stands before it, where sizes are small and there are several threads, and
    otherwise."""

    small: list[bool]
    large: list[bool]

    @staticmethod
    def of(program: Program) -> _Waits:
        large = barriers(program.calls)
        differs = any(c.small for c in program.calls)
        return _Waits(barriers(program.calls, small=True) if differs else large, large)


def _small_llvm(program: Program) -> str:
    """The lines that say whether sizes are small, for @tw_is_small."""
    if not any(c.small for c in program.calls):
        return "  ret i1 false"
    if program.open is None:
        return "  %several = icmp ugt i64 %n, 1\n  ret i1 %several"
    return _IS_SMALL.format(sizes=field_offset("sizes"), place=program.open.is_large)


class _Body(FunctionText):
    """The text of @tw_main."""

    def __init__(self, program: Program, timed: bool) -> None:
        super().__init__()
        self.program, self.timed = program, timed
        self.copies = 0  # that have been emitted
        self.own = own_arguments(program.calls)
        self.condition = ""  # of the block at hand
        self.opened = 0  # the line that leads into it

    def under(self, condition: str, number: int) -> None:
        """Go on, from call `number`, in a block that threads with a condition run; "" for all."""
        if condition == self.condition:
            return
        if self.condition:
            self.lines[self.opened] += f"%join{number}"
            self.add(f"br label %join{number}")
            self.label(f"join{number}")
        if condition:
            self.opened = len(self.lines)
            self.add(f"br i1 {condition}, label %block{number}, label ")
            self.label(f"block{number}")
        self.condition = condition

    def stamp(self, slot: int) -> None:
        """Write the time to a slot of this thread's row, in a timed program."""
        if self.timed:
            self.add(f"call void @tw_stamp(ptr %stamps, i64 {slot})")

    def entry(self, table: str, index: int) -> str:
        """A pointer from a table of pointers."""
        slot = self.value(f"getelementptr ptr, ptr {table}, i64 {index}")
        return self.value(f"load ptr, ptr {slot}, align 8")

    def size(self, index: int) -> str:
        """A number from the table of sizes."""
        slot = self.value(f"getelementptr i64, ptr %sizes, i64 {index}")
        return self.value(f"load i64, ptr {slot}, align 8")

    def pointer(self, ref: BufferRef) -> str:
        """The address of a buffer, as an SSA value."""
        base = "%arena"
        if ref.space != "arena":
            tables = {"input": "%inputs", "output": "%outputs", "constant": "%constants"}
            base = self.entry(tables.get(ref.space, "%states"), ref.index)
            if ref.space in ("state", "next"):
                base = self.entry(base, 0 if ref.space == "state" else 1)
        if ref.slot >= 0:
            assert self.program.open is not None
            return self.behind(base, self.size(self.program.open.start(ref.slot)))
        return self.behind(base, self.program.start(ref) if ref.space == "arena" else ref.offset)

    def argument(self, number: int, position: int, ref: BufferRef) -> str:
        """The address of an argument of call `number`."""
        shared, own = self.pointer(ref), self.own.get((number, position))
        if own is None:
            return shared
        return self.value(f"select i1 %small, ptr {self.behind('%own', own.offset)}, ptr {shared}")


def _main(program: Program, waits: _Waits, timed: bool) -> str:
    body = _Body(program, timed)
    if program.states:
        body.add(f"%p_states = getelementptr i8, ptr %state, i64 {field_offset('states')}")
        body.add("%states = load ptr, ptr %p_states, align 8")
    if program.open is not None:
        body.add(f"%p_sizes = getelementptr i8, ptr %state, i64 {field_offset('sizes')}")
        body.add("%sizes = load ptr, ptr %p_sizes, align 8")
    if any(c.small for c in program.calls):
        body.lines += _SMALL.format(own=align_up(program.scratch_size)).splitlines()
    passed = {True: 0, False: 0}
    divided = 0
    arities: dict[str, int] = {}
    for number, call in enumerate(program.calls):
        at = CALL + PER_CALL * number
        if waits.small[number] or waits.large[number]:
            body.under("", number)
            body.stamp(at)
            small, large = waits.small[number], waits.large[number]
            passed = {True: passed[True] + small, False: passed[False] + large}
            which = [str(passed[True] * small), str(passed[False] * large)]
            k = which[1] if which[0] == which[1] else body.value(f"select i1 %small, i64 {which[0]}, i64 {which[1]}")
            body.add(f"call void @tw_barrier(ptr %state, i64 %tid, i64 %n, i64 {k})")
        body.under(_runs(call), number)
        body.stamp(at + 1)
        if in_pieces(call):
            _emit_pieces(body, call, number, divided)
            divided += 1
        else:
            _emit_call(body, call, number)
        body.stamp(at + 2)
        if call.symbol != COPY and arities.setdefault(call.symbol, _arity(call)) != _arity(call):
            raise ValueError(f"kernel {call.symbol} is called with different numbers of arguments")
    body.under("", len(program.calls))
    declarations = [f"declare void {_quoted(s)}({'ptr, ' * (k + 1)}i64, i64) nounwind" for s, k in arities.items()]
    head = (
        "define void @tw_main(ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, ptr %scratch, "
        "i64 %tid, i64 %n, ptr %state, ptr %stamps) nounwind {\n  %first = icmp eq i64 %tid, 0"
    )
    return "\n".join((*declarations, head, *body.lines, "  ret void\n}"))


def _runs(call: Call) -> str:
    """The condition of threads that run a call; "" if all do."""
    small, large = by_all(call, True), by_all(call, False)
    if small == large:
        return "" if large else "%first"
    return "%first_or_small" if small else "%first_or_large"


def _arity(call: Call) -> int:
    return len(call.args) + call.sizes


def _emit_call(body: _Body, call: Call, number: int) -> None:
    tid, n = ("%tid", "%n") if is_parallel(call) else ("0", "1")
    if call.small and is_parallel(call):
        tid, n = "%tid_or_0", "%n_or_1"
    if call.symbol == COPY:
        source, target = (body.argument(number, position, ref) for position, ref in enumerate(call.args))
        size: int | str = call.args[0].nbytes
        if body.program.open is not None:
            size = body.size(body.program.open.copy(body.copies))
            body.copies += 1
        body.add(f"call void @tw_copy(ptr {target}, ptr {source}, i64 {size}, i64 {tid}, i64 {n})")
        return
    body.add(f"call void {_quoted(call.symbol)}({_pointers(body, call, number)}ptr %scratch, i64 {tid}, i64 {n})")


def _emit_pieces(body: _Body, call: Call, number: int, order: int) -> None:
    for line in call_in_pieces(number, order, _quoted(call.symbol), _pointers(body, call, number)):
        body.lines.append(line if line.endswith(":") else f"  {line}")


def _pointers(body: _Body, call: Call, number: int) -> str:
    table = "ptr %sizes, " if call.sizes else ""
    return "".join(f"ptr {body.argument(number, position, ref)}, " for position, ref in enumerate(call.args)) + table


#: whether sizes are small, who runs what is small, and the memory that a thread has for its own results
_SMALL = """\
  %small = call i1 @tw_is_small(ptr %state, i64 %n)
  %first_or_small = or i1 %first, %small
  %large = xor i1 %small, true
  %first_or_large = or i1 %first, %large
  %tid_or_0 = select i1 %small, i64 0, i64 %tid
  %n_or_1 = select i1 %small, i64 1, i64 %n
  %own = getelementptr i8, ptr %scratch, i64 {own}"""

_IS_SMALL = """\
  %p_sizes = getelementptr i8, ptr %state, i64 {sizes}
  %sizes = load ptr, ptr %p_sizes, align 8
  %p_large = getelementptr i64, ptr %sizes, i64 {place}
  %large = load i64, ptr %p_large, align 8
  %fits = icmp eq i64 %large, 0
  %several = icmp ugt i64 %n, 1
  %small = and i1 %fits, %several
  ret i1 %small"""


# ---- what is the same for all programs ----


def _parts(description: CpuDescription) -> dict[str, object]:
    arch = description.arch
    pause = {
        "x86_64": ("call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
        "aarch64": ("call void @llvm.aarch64.isb(i32 15)", "declare void @llvm.aarch64.isb(i32)"),
    }.get(arch, ("", ""))
    clock = "call i64 @llvm.readcyclecounter()", "declare i64 @llvm.readcyclecounter()"
    if arch == "aarch64":  # programs may not read the cycle counter there; the system's timer they may
        name = "llvm.read_volatile_register.i64"
        clock = f"call i64 @{name}(metadata !0)", f'declare i64 @{name}(metadata)\n!0 = !{{!"cntvct_el0"}}'
    return {
        "pause": pause[0],
        "declare_pause": pause[1],
        "clock": clock[0],
        "declare_clock": clock[1],
        "count": COUNT,
        "waited": WAITED,
        "spins": _SPINS,
        "sleepers": SLEEPERS,
        "nap": NAP_TICKS,
        "slots": SLOTS,
        "slot_bytes": SLOT_BYTES,
        **{n: field_offset(f"{n}_function") for n in ("yield", "acquire", "release")},
    }


_HELPERS = """\
{declare_pause}
{declare_clock}

define i64 @tw_clock() nounwind {{
  %t = {clock}
  ret i64 %t
}}

define internal void @tw_pause() nounwind alwaysinline {{
  {pause}
  ret void
}}

define void @tw_stamp(ptr %stamps, i64 %index) nounwind noinline {{
  %t = {clock}
  %slot = getelementptr i64, ptr %stamps, i64 %index
  store i64 %t, ptr %slot, align 8
  ret void
}}

; A thread that waits has said that it sleeps: whoever clears the flag releases its lock.
define internal void @tw_rouse(ptr %state, i64 %tid) nounwind {{
  %slot_at = mul i64 %tid, {slot_bytes}
  %slots = getelementptr i8, ptr %state, i64 {slots}
  %asleep = getelementptr i8, ptr %slots, i64 %slot_at
  %flag = load atomic i64, ptr %asleep seq_cst, align 8
  %sleeps = icmp ne i64 %flag, 0
  br i1 %sleeps, label %claim, label %done
claim:
  %old = atomicrmw xchg ptr %asleep, i64 0 seq_cst, align 8
  %ours = icmp ne i64 %old, 0
  br i1 %ours, label %wake, label %done
wake:
  %p_release = getelementptr i8, ptr %state, i64 {release}
  %release = load ptr, ptr %p_release, align 8
  %p_lock = getelementptr i8, ptr %asleep, i64 8
  %lock = load ptr, ptr %p_lock, align 8
  call void %release(ptr %lock)
  br label %done
done:
  ret void
}}

; Count an arrival; the last of `target` wakes those of the `n` threads that sleep. Whether it was the last.
define internal i1 @tw_arrive(ptr %state, i64 %n, i64 %target) nounwind {{
  %count = getelementptr i8, ptr %state, i64 {count}
  %before = atomicrmw add ptr %count, i64 1 seq_cst, align 8
  %mine = add i64 %before, 1
  %last = icmp uge i64 %mine, %target
  br i1 %last, label %look, label %done
look:
  %p_sleepers = getelementptr i8, ptr %state, i64 {sleepers}
  %sleepers = load atomic i64, ptr %p_sleepers seq_cst, align 8
  %any = icmp ne i64 %sleepers, 0
  br i1 %any, label %next, label %done
next:
  %tid = phi i64 [ 0, %look ], [ %tid1, %next ]
  call void @tw_rouse(ptr %state, i64 %tid)
  %tid1 = add i64 %tid, 1
  %more = icmp ult i64 %tid1, %n
  br i1 %more, label %next, label %done
done:
  ret i1 %last
}}

; Wait until `target` arrivals have been counted: poll, then offer the core to others, then sleep.
define internal void @tw_await(ptr %state, i64 %tid, i64 %target) nounwind {{
  %count = getelementptr i8, ptr %state, i64 {count}
  br label %poll
poll:
  %i = phi i64 [ 0, %0 ], [ %i1, %relax ]
  %now = load atomic i64, ptr %count acquire, align 8
  %there = icmp uge i64 %now, %target
  br i1 %there, label %done, label %again
again:
  %i1 = add i64 %i, 1
  %long = icmp ugt i64 %i1, {spins}
  br i1 %long, label %late, label %relax
relax:
  call void @tw_pause()
  br label %poll
late:
  %p_yield = getelementptr i8, ptr %state, i64 {yield}
  %yield = load ptr, ptr %p_yield, align 8
  %can_yield = icmp ne ptr %yield, null
  %p_nap = getelementptr i8, ptr %state, i64 {nap}
  %nap_ticks = load i64, ptr %p_nap, align 8
  %start = call i64 @tw_clock()
  br label %look
look:
  %then = load atomic i64, ptr %count acquire, align 8
  %arrived = icmp uge i64 %then, %target
  %time = call i64 @tw_clock()
  %ticks = sub i64 %time, %start
  br i1 %arrived, label %add, label %still
still:
  %tired = icmp ugt i64 %ticks, %nap_ticks
  br i1 %tired, label %nap, label %stay
stay:
  br i1 %can_yield, label %offer, label %rest
offer:
  %ignored = call i32 %yield()
  br label %look
rest:
  call void @tw_pause()
  br label %look
nap:
  call void @tw_nap(ptr %state, i64 %tid, i64 %target)
  br label %look
add:
  %waited = getelementptr i8, ptr %state, i64 {waited}
  %total = atomicrmw add ptr %waited, i64 %ticks monotonic, align 8
  br label %done
done:
  ret void
}}

; Sleep until somebody rouses this thread, unless `target` arrivals have been counted by now.
define internal void @tw_nap(ptr %state, i64 %tid, i64 %target) nounwind noinline {{
  %count = getelementptr i8, ptr %state, i64 {count}
  %sleepers = getelementptr i8, ptr %state, i64 {sleepers}
  %slot_at = mul i64 %tid, {slot_bytes}
  %slots = getelementptr i8, ptr %state, i64 {slots}
  %asleep = getelementptr i8, ptr %slots, i64 %slot_at
  store atomic i64 1, ptr %asleep seq_cst, align 8
  %before = atomicrmw add ptr %sleepers, i64 1 seq_cst, align 8
  %now = load atomic i64, ptr %count seq_cst, align 8
  %there = icmp uge i64 %now, %target
  br i1 %there, label %retract, label %block
retract:
  %flag = atomicrmw xchg ptr %asleep, i64 0 seq_cst, align 8
  %mine = icmp ne i64 %flag, 0
  br i1 %mine, label %awake, label %block
block:
  %p_acquire = getelementptr i8, ptr %state, i64 {acquire}
  %acquire = load ptr, ptr %p_acquire, align 8
  %p_lock = getelementptr i8, ptr %asleep, i64 8
  %lock = load ptr, ptr %p_lock, align 8
  %ignored = call i32 %acquire(ptr %lock, i32 1)
  br label %awake
awake:
  %after = atomicrmw add ptr %sleepers, i64 -1 seq_cst, align 8
  ret void
}}

; The k-th barrier of a job: arrivals are counted on, so the k-th is complete at k times n. There is none if k is 0.
define void @tw_barrier(ptr %state, i64 %tid, i64 %n, i64 %k) nounwind noinline {{
  %several = icmp ugt i64 %n, 1
  %some = icmp ne i64 %k, 0
  %both = and i1 %several, %some
  br i1 %both, label %arrive, label %done
arrive:
  %target = mul i64 %n, %k
  %last = call i1 @tw_arrive(ptr %state, i64 %n, i64 %target)
  br i1 %last, label %done, label %wait
wait:
  call void @tw_await(ptr %state, i64 %tid, i64 %target)
  br label %done
done:
  ret void
}}
"""


def _swap(program: Program) -> str:
    """A function that lets the two buffers of every state change places that has two; nothing if none has."""
    swapped = [i for i, state in enumerate(program.states) if state.swapped]
    lines = [
        "define void @tw_swap(ptr %state) nounwind {",
        f"  %p_states = getelementptr i8, ptr %state, i64 {field_offset('states')}",
        "  %states = load ptr, ptr %p_states, align 8",
    ]
    for i in swapped:
        lines += [
            f"  %slot{i} = getelementptr ptr, ptr %states, i64 {i}",
            f"  %cell{i} = load ptr, ptr %slot{i}, align 8",
            f"  %p_next{i} = getelementptr ptr, ptr %cell{i}, i64 1",
            f"  %now{i} = load ptr, ptr %cell{i}, align 8",
            f"  %next{i} = load ptr, ptr %p_next{i}, align 8",
            f"  store ptr %next{i}, ptr %cell{i}, align 8",
            f"  store ptr %now{i}, ptr %p_next{i}, align 8",
        ]
    return "\n".join((*lines, "  ret void\n}")) if swapped else ""


#: functions of `runtime_llvm` that programs call
_DECLARED = """\
declare void @tw_stamp(ptr, i64) nounwind
declare void @tw_copy(ptr, ptr, i64, i64, i64) nounwind
declare void @tw_barrier(ptr, i64, i64, i64) nounwind
declare i64 @tw_take(ptr, i64, i64, i64) nounwind
"""

#: what the runtime asks of a program: how many barriers it has, and the bytes of a thread's row of time stamps
_TOLD = """
define internal i1 @tw_is_small(ptr %state, i64 %n) nounwind {{
{few}
}}

define i64 @tw_passed(ptr %state, i64 %n) nounwind {{
  %small = call i1 @tw_is_small(ptr %state, i64 %n)
  %passed = select i1 %small, i64 {small}, i64 {large}
  ret i64 %passed
}}

define i64 @tw_row() nounwind {{
  ret i64 {row}
}}
"""


def _runtime(timed: bool, swaps: bool) -> str:
    """The functions around @tw_main. `swaps`: states change places after every run."""

    def stamp(row: str, slot: int) -> str:
        return f"call void @tw_stamp(ptr {row}, i64 {slot})" if timed else ""

    offsets = {name: field_offset(name) for name in FIELDS}
    loads = "\n".join(
        f"  %p_{f} = getelementptr i8, ptr %state, i64 {offsets[f]}\n  %{f} = load {kind}, ptr %p_{f}, align 8"
        for f, kind in (
            *((f, "ptr") for f in ("inputs", "outputs", "constants", "arena", "scratch", "stamps")),
            ("scratch_stride", "i64"),
        )
    )
    return _RUNTIME.format(
        loads=loads,
        swap="call void @tw_swap(ptr %state)" if swaps else "",
        run_begin=stamp("%stamps", RUN_BEGIN),
        run_end=stamp("%stamps", RUN_END),
        job_begin=stamp("%row", JOB_BEGIN),
        job_end=stamp("%row", JOB_END),
        slots=SLOTS,
        slot_bytes=SLOT_BYTES,
        generation=GENERATION,
        count=COUNT,
        waited=WAITED,
        due=DUE,
        check_at=CHECK_AT,
        check_ticks=CHECK_TICKS,
        **{f"at_{k}": v for k, v in offsets.items()},
    )


_RUNTIME = """\
declare i64 @tw_passed(ptr, i64) nounwind
declare i64 @tw_row() nounwind
declare void @tw_swap(ptr) nounwind
declare void @tw_main(ptr, ptr, ptr, ptr, ptr, i64, i64, ptr, ptr) nounwind

; One thread's part of the job described in the state, which `team` threads do.
define internal void @tw_share(ptr %state, i64 %tid, i64 %team) nounwind {{
{loads}
  %mine = mul i64 %scratch_stride, %tid
  %own = getelementptr i8, ptr %scratch, i64 %mine
  %row_bytes = call i64 @tw_row()
  %rows = mul i64 %tid, %row_bytes
  %row = getelementptr i8, ptr %stamps, i64 %rows
  {job_begin}
  call void @tw_main(
    ptr %inputs, ptr %outputs, ptr %constants, ptr %arena, ptr %own, i64 %tid, i64 %team, ptr %state, ptr %row)
  {job_end}
  ret void
}}

; Publish a generation and wake every worker below `threads` that sleeps.
define internal void @tw_publish(ptr %state, i64 %generation, i64 %threads) nounwind {{
  %p_generation = getelementptr i8, ptr %state, i64 {generation}
  store atomic i64 %generation, ptr %p_generation seq_cst, align 8
  br label %next
next:
  %tid = phi i64 [ 1, %0 ], [ %tid1, %one ]
  %more = icmp ult i64 %tid, %threads
  br i1 %more, label %one, label %done
one:
  call void @tw_rouse(ptr %state, i64 %tid)
  %tid1 = add i64 %tid, 1
  br label %next
done:
  ret void
}}

; Every so often it is time to ask how many processors there are.
define internal void @tw_check(ptr %state, i64 %now) nounwind {{
  %p_at = getelementptr i8, ptr %state, i64 {check_at}
  %at = load i64, ptr %p_at, align 8
  %due = icmp sge i64 %now, %at
  br i1 %due, label %set, label %done
set:
  %p_ticks = getelementptr i8, ptr %state, i64 {check_ticks}
  %ticks = load i64, ptr %p_ticks, align 8
  %next = add i64 %now, %ticks
  store i64 %next, ptr %p_at, align 8
  %p_due = getelementptr i8, ptr %state, i64 {due}
  store i64 1, ptr %p_due, align 8
  br label %done
done:
  ret void
}}

define void @tw_run(ptr %state) nounwind {{
  %p_team = getelementptr i8, ptr %state, i64 {at_team}
  %team = load i64, ptr %p_team, align 8
  %p_stamps = getelementptr i8, ptr %state, i64 {at_stamps}
  %stamps = load ptr, ptr %p_stamps, align 8
  {run_begin}
  %several = icmp ugt i64 %team, 1
  br i1 %several, label %together, label %alone
alone:
  call void @tw_fresh(ptr %state, i64 1)
  call void @tw_share(ptr %state, i64 0, i64 1)
  %now = call i64 @tw_clock()
  call void @tw_check(ptr %state, i64 %now)
  {swap}
  {run_end}
  ret void
together:
  %start = call i64 @tw_clock()
  %count = getelementptr i8, ptr %state, i64 {count}
  store atomic i64 0, ptr %count monotonic, align 8
  %waited = getelementptr i8, ptr %state, i64 {waited}
  store atomic i64 0, ptr %waited monotonic, align 8
  %p_generation = getelementptr i8, ptr %state, i64 {generation}
  %before = load atomic i64, ptr %p_generation monotonic, align 8
  %job = lshr i64 %before, 16
  %next = add i64 %job, 1
  %number = shl i64 %next, 16
  %generation = or i64 %number, %team
  call void @tw_fresh(ptr %state, i64 %team)
  call void @tw_publish(ptr %state, i64 %generation, i64 %team)
  call void @tw_share(ptr %state, i64 0, i64 %team)
  %passed = call i64 @tw_passed(ptr %state, i64 %team)
  %inside = mul i64 %team, %passed
  %others = add i64 %team, -1
  %all = add i64 %inside, %others
  call void @tw_await(ptr %state, i64 0, i64 %all)
  %end = call i64 @tw_clock()
  %ran = sub i64 %end, %start
  %p_ran = getelementptr i8, ptr %state, i64 {at_ran}
  store i64 %ran, ptr %p_ran, align 8
  call void @tw_check(ptr %state, i64 %end)
  {swap}
  {run_end}
  ret void
}}

define void @tw_stop(ptr %state) nounwind {{
  %p_threads = getelementptr i8, ptr %state, i64 {at_threads}
  %threads = load i64, ptr %p_threads, align 8
  call void @tw_publish(ptr %state, i64 -1, i64 %threads)
  ret void
}}

define void @tw_worker(ptr %state, i64 %tid) nounwind {{
  %p_generation = getelementptr i8, ptr %state, i64 {generation}
  %p_ticks = getelementptr i8, ptr %state, i64 {at_spin_ticks}
  %ticks = load i64, ptr %p_ticks, align 8
  %p_acquire = getelementptr i8, ptr %state, i64 {at_acquire_function}
  %acquire = load ptr, ptr %p_acquire, align 8
  %slot_at = mul i64 %tid, {slot_bytes}
  %slots = getelementptr i8, ptr %state, i64 {slots}
  %asleep = getelementptr i8, ptr %slots, i64 %slot_at
  %p_lock = getelementptr i8, ptr %asleep, i64 8
  %lock = load ptr, ptr %p_lock, align 8
  br label %idle
idle:
  %seen = phi i64 [ 0, %0 ], [ %job, %go ], [ %job, %share ], [ %seen, %block ]
  %start = call i64 @tw_clock()
  br label %spin
spin:
  %i = phi i64 [ 0, %idle ], [ %i1, %relax ]
  %new = load atomic i64, ptr %p_generation acquire, align 8
  %changed = icmp ne i64 %new, %seen
  br i1 %changed, label %work, label %relax
relax:
  call void @tw_pause()
  %now = call i64 @tw_clock()
  %waited = sub i64 %now, %start
  %i1 = add i64 %i, 1
  %over = icmp ugt i64 %waited, %ticks
  %many = icmp ugt i64 %i1, 1000000             ; should the clock stand still
  %tired = or i1 %over, %many
  br i1 %tired, label %sleep, label %spin
sleep:
  store atomic i64 1, ptr %asleep seq_cst, align 8
  %again = load atomic i64, ptr %p_generation seq_cst, align 8
  %late = icmp ne i64 %again, %seen
  br i1 %late, label %retract, label %block
retract:
  %flag = atomicrmw xchg ptr %asleep, i64 0 seq_cst, align 8
  %mine = icmp ne i64 %flag, 0
  br i1 %mine, label %work, label %block
block:
  %ignored = call i32 %acquire(ptr %lock, i32 1)
  br label %idle
work:
  %job = phi i64 [ %new, %spin ], [ %again, %retract ]
  %stop = icmp eq i64 %job, -1
  br i1 %stop, label %end, label %go
go:
  %team = and i64 %job, 65535
  %in = icmp ult i64 %tid, %team
  br i1 %in, label %share, label %idle
share:
  call void @tw_share(ptr %state, i64 %tid, i64 %team)
  %passed = call i64 @tw_passed(ptr %state, i64 %team)
  %inside = mul i64 %team, %passed
  %others = add i64 %team, -1
  %all = add i64 %inside, %others
  %last = call i1 @tw_arrive(ptr %state, i64 %team, i64 %all)
  br label %idle
end:
  ret void
}}
"""
