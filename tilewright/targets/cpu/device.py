"""Running a compiled program in this process: its objects linked (by `image` where it can, else by LLVM's JIT), and
teams of worker threads.

A worker is a thread of Python's that calls native code once and stays there, without the GIL, until it is told to stop.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from time import perf_counter_ns
from typing import TYPE_CHECKING

import numpy as np

from ...codegen.llvm.assemble import target_machine
from ...program.package import Package
from ...program.program import TensorInfo, align_up
from ...program.states import StateBuffers
from ...program.timeline import Stamps
from ...support.aligned import address, aligned_empty
from ...support.errors import PackageError
from ...support.forks import wait_for
from ...support.limits import usable_cores
from .. import base
from . import entry, image
from .active_threads import PERIOD, Team
from .description import CpuDescription, host
from .program import (
    CHECK_AT,
    CHECK_TICKS,
    DUE,
    NAP_TICKS,
    SLOT_BYTES,
    SLOTS,
    WAITED,
    field_offset,
    own_objects,
    state_bytes,
)

if TYPE_CHECKING:
    import llvmlite.binding as llvm

#: how long an idle worker polls for the next job before it sleeps: longer than the way through Python between two calls
SPIN_SECONDS = 50e-6
#: how long a thread that waits at a barrier offers its core to others before it sleeps
NAP_SECONDS = 500e-6
_ENTRIES = ("tw_run", "tw_worker", "tw_stop", "tw_clock", "tw_enter")
_link_lock = threading.Lock()
wait_for(_link_lock)


class CpuRunner(base.ProgramRunner):
    """The code of a package, loaded; `context` gives memory and threads to run it. PackageError if it does not link.

    With `timed` its program is linked anew, with time stamps in it. `states` are the buffers of its states, if it has
    any; only one of its contexts may run at a time then.
    """

    def __init__(self, package: Package, threads: int, timed: bool = False, states: StateBuffers | None = None) -> None:
        self.package, self.is_timed = package, timed
        self.states = states if states is not None else StateBuffers(package.program.states)
        self.program = package.program
        self.threads = threads if self.program.parallel else 1
        self.constants = package.constants
        missing = [s for s in self.program.symbols if s not in package.objects]
        if missing:
            raise PackageError(f"there is no code for kernel {', '.join(missing)}", stage="load")
        objects = package.objects
        if timed:
            description = CpuDescription.from_json(package.description)
            objects = {**objects, **own_objects(self.program, description, timed=True)}
        self._library = _link(objects)
        run, worker, stop, clock, self.tw_enter = (self._library[name] for name in _ENTRIES)
        # CFUNCTYPE releases the GIL for the time of the call.
        self.tw_run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(run)
        self.tw_worker = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(worker)
        self.tw_stop = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(stop)
        self.tw_clock = ctypes.CFUNCTYPE(ctypes.c_int64)(clock)
        self._constant_table = _pointers([address(c) for c in self.constants])
        sizes = self.program.open
        if sizes is not None:  # until a call says others
            self.typical = np.array(sizes.table({d.name: d.typical for d in sizes.dims})[0], np.int64)
        self.forms = entry.Forms(self.program.inputs, self.program.outputs)

    @property
    def seconds_per_tick(self) -> float:
        return _seconds_per_tick(self.tw_clock)

    def context(self) -> CpuContext:
        return CpuContext(self)

    def forms_of(self, inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> entry.Forms:
        return entry.Forms(inputs, outputs)

    def timed(self) -> CpuRunner:
        """The same program with time stamps; its contexts must be given memory for them."""
        return self if self.is_timed else CpuRunner(self.package, self.threads, timed=True, states=self.states)


class CpuContext(base.Context):
    """An arena, scratch memory and a team of threads."""

    def __init__(self, runner: CpuRunner) -> None:
        program, threads = runner.program, runner.threads
        stride = align_up(program.thread_bytes, 128)
        self.runner = runner
        self.arena = aligned_empty(program.arena_size)
        self.scratch = aligned_empty(stride * threads)
        self._first_output = len(program.inputs)
        self._addresses = _pointers([0] * (len(program.inputs) + len(program.outputs)))
        self.state = aligned_empty(state_bytes(threads), 128)
        self.state[:] = 0
        self._state = address(self.state)
        self._run = runner.tw_run
        self._stamps = self._word(field_offset("stamps"))
        tick = runner.seconds_per_tick
        for name, value in {
            "threads": threads,
            "team": threads,
            "inputs": ctypes.addressof(self._addresses),
            "outputs": ctypes.addressof(self._addresses) + 8 * self._first_output,
            "constants": ctypes.addressof(runner._constant_table),
            "arena": address(self.arena),
            "scratch": address(self.scratch),
            "scratch_stride": stride,
            "yield_function": _yield_address(),
            "acquire_function": _python_function("PyThread_acquire_lock"),
            "release_function": _python_function("PyThread_release_lock"),
            "states": runner.states.table_address,
            "spin_ticks": int(SPIN_SECONDS / tick),
        }.items():
            self._word(field_offset(name)).value = value
        self._word(NAP_TICKS).value = int(NAP_SECONDS / tick)
        self._word(CHECK_TICKS).value = int(PERIOD / tick)
        self._word(CHECK_AT).value = runner.tw_clock() + int(PERIOD / tick) if threads > 1 else (1 << 63) - 1
        self._sizes = self._word(field_offset("sizes"))
        if program.open is not None:
            self.resize(address(runner.typical), program.arena_size)
        self._team = Team(threads)
        self._size, self._ran = (self._word(field_offset(name)) for name in ("team", "ran"))
        self._waited, self._due = self._word(WAITED), self._word(DUE)
        if not runner.is_timed:  # every thread has a row of time stamps
            self._size.value = self._team.allow(usable_cores())
        self._entry: entry.Entry | None = None
        self.enter: Callable[..., int] = base.not_at_once
        if entry.usable() and not runner.is_timed:  # who calls a timed program gives memory for its stamps
            self._entry = entry.Entry(runner.tw_enter, self._state, ctypes.addressof(self._addresses), runner.forms)
            self.enter = self._entry.function
        workers = _Workers(runner, self.state, threads)
        # The threads hold the workers, not the context: a context that is dropped ends its threads. This comes before
        # the first one starts: an exception may come between any two steps (Ctrl-C, a signal's handler).
        self._finalizer = weakref.finalize(self, workers.stop)
        self._finalizer.atexit = False  # _stop_all does that, in time
        workers.start()

    def _word(self, at: int) -> ctypes.c_int64:
        """Eight bytes of the state."""
        return ctypes.c_int64.from_address(self._state + at)

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stamps: Stamps | None = None) -> None:
        """Run the program once on arrays at these addresses; returns when all threads are done."""
        assert (stamps is not None) == self.runner.is_timed
        addresses = self._addresses
        for i, pointer in enumerate(inputs):
            addresses[i] = pointer
        for i, pointer in enumerate(outputs, self._first_output):
            addresses[i] = pointer
        if stamps is not None:
            stamps.check(self.runner.threads, len(self.runner.program.calls))
            self._stamps.value = stamps.address
        self._run(self._state)
        if stamps is None and (self._waited.value or self._due.value or self._team.busy):
            self.judge()

    def resize(self, table: int, arena: int) -> None:
        """What comes runs with the table of sizes at this address, in an arena of so many bytes at least."""
        if arena > self.arena.nbytes:
            self.arena = aligned_empty(arena)
            self._word(field_offset("arena")).value = address(self.arena)
        self._sizes.value = table

    def expect(self, forms: entry.Forms) -> None:
        if self._entry is not None:
            self._entry.expect(forms)

    def judge(self) -> None:
        """How many threads the next run gets, after one in which threads waited, while the team is watched, and when it
        is time to ask how many processors there are."""
        self._size.value = self._team.after(self._ran.value, self._waited.value)
        if self._due.value:
            self._due.value = 0
            self._size.value = self._team.allow(usable_cores())
        if self._entry is not None:
            self._entry.watch(self._team.busy)

    def close(self) -> None:
        self._finalizer()

    @property
    def nbytes(self) -> int:
        return self.arena.nbytes + self.scratch.nbytes


class _Workers:
    """The worker threads of a context, and what they use. Every thread holds this as long as it runs: memory and
    locks stay whatever happens to those who made them.

    The threads are those of `_thread`: `threading.Thread.start` and `join` do not bear an exception in the middle.
    """

    def __init__(self, runner: CpuRunner, state: np.ndarray, threads: int) -> None:
        self.runner, self.state = runner, state
        self.process = os.getpid()
        self.locks: list[int] = []  # one a thread, that of the caller first
        self._free_lock = _python_api().PyThread_free_lock
        self.ended = {tid: _thread.allocate_lock() for tid in range(1, threads)}
        self.running: dict[int, int] = {}  # number -> identity
        self.complete = False  # all have been started

    def start(self) -> None:
        for tid in (0, *self.ended):
            lock = _python_api().PyThread_allocate_lock()
            self.locks.append(lock)
            _python_api().PyThread_acquire_lock(lock, 1)  # taken: a thread that acquires it sleeps
            ctypes.c_int64.from_address(address(self.state) + SLOTS + SLOT_BYTES * tid + 8).value = lock
        _teams.add(self)
        for tid, ended in self.ended.items():
            ended.acquire()
            _thread.start_new_thread(self._work, (tid,))
        self.complete = True

    def _work(self, tid: int) -> None:
        self.running[tid] = _thread.get_ident()
        try:
            self.runner.tw_worker(address(self.state), tid)
        finally:
            del self.running[tid]
            self.ended[tid].release()

    def stop(self) -> None:
        """Tell the threads to end and wait for them; nothing happens the second time."""
        if os.getpid() != self.process:  # a forked child: the threads live in the parent only
            return
        self.runner.tw_stop(address(self.state))
        # If an exception came while they were started, one may be about to begin: it will see that, and end at once.
        for tid in self.ended if self.complete else list(self.running):
            if self.running.get(tid) != _thread.get_ident():
                with self.ended[tid]:
                    pass

    def __del__(self) -> None:
        for lock in self.locks:
            self._free_lock(lock)


_teams: weakref.WeakSet[_Workers] = weakref.WeakSet()


def _stop_all() -> None:
    """No thread may run native code while the interpreter frees its memory."""
    for team in list(_teams):
        team.stop()


atexit.register(_stop_all)


# ---- native functions ----


def _link(objects: dict[str, bytes]) -> dict[str, int]:
    """Link object files with each other and with the C library; the addresses of the entries."""
    if image.usable():
        try:
            return image.link(objects, _ENTRIES)
        except image.Unlinkable:
            pass
    return _link_by_llvm(objects)


def _link_by_llvm(objects: dict[str, bytes]) -> dict[str, int]:
    from llvmlite import binding as llvm

    with _link_lock:
        jit = llvm.create_lljit_compiler(target_machine(host()))
        builder = llvm.JITLibraryBuilder()
        for data in objects.values():
            builder.add_object_img(data)
        builder.add_current_process()
        for name in _ENTRIES:
            builder.export_symbol(name)
        try:
            return _Library(builder.link(jit, "program"), jit)
        except RuntimeError as e:
            raise PackageError(f"the compiled program does not link: {str(e).strip()}", stage="load") from None


class _Library(dict[str, int]):
    """Addresses by name; holds the code they point into."""

    def __init__(self, tracker: llvm.ResourceTracker, jit: llvm.LLJIT) -> None:
        super().__init__((name, tracker[name]) for name in _ENTRIES)
        self._keep = (tracker, jit)


def _pointers(addresses: list[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * max(1, len(addresses)))(*addresses)


@lru_cache(maxsize=1)
def _python_api() -> ctypes.CDLL:
    """The lock functions of the interpreter's C library, which work without the GIL, on every system."""
    api = ctypes.CDLL(None, handle=ctypes.pythonapi._handle)
    api.PyThread_allocate_lock.restype = ctypes.c_void_p
    api.PyThread_allocate_lock.argtypes = []
    api.PyThread_acquire_lock.argtypes = [ctypes.c_void_p, ctypes.c_int]
    api.PyThread_release_lock.argtypes = [ctypes.c_void_p]
    api.PyThread_release_lock.restype = None
    api.PyThread_free_lock.argtypes = [ctypes.c_void_p]
    api.PyThread_free_lock.restype = None
    return api


def _python_function(name: str) -> int:
    return ctypes.cast(getattr(_python_api(), name), ctypes.c_void_p).value or 0


@lru_cache(maxsize=1)
def _yield_address() -> int:
    """The function that offers this thread's core to others, 0 if the system has none."""
    try:
        if sys.platform == "win32":
            function = ctypes.windll.kernel32.SwitchToThread  # type: ignore[attr-defined]
        else:
            function = ctypes.CDLL(None).sched_yield
    except (AttributeError, OSError):
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0


_ticks: float | None = None


def _seconds_per_tick(clock: Callable[[], int]) -> float:
    """Measured once a process, against the system's clock, over half a millisecond."""
    global _ticks
    if _ticks is None:
        begin, begin_ns = _both_clocks(clock)
        while perf_counter_ns() - begin_ns < 500_000:
            pass
        end, end_ns = _both_clocks(clock)
        _ticks = (end_ns - begin_ns) * 1e-9 / max(1, end - begin)
    return _ticks


def _both_clocks(clock: Callable[[], int]) -> tuple[int, int]:
    """Both clocks at one moment: the pair that was read fastest, as another process may run in between."""
    best = None
    for _ in range(5):
        before = perf_counter_ns()
        ticks = clock()
        after = perf_counter_ns()
        if best is None or after - before < best[0]:
            best = after - before, ticks, (before + after) // 2
    assert best is not None
    return best[1], best[2]
