"""Compile many kernels at once in worker processes that may die without harm.

    jobs = [Job("k0", mlir_text, ("/conv1/Conv", "/relu1/Relu")), ...]
    compiled = compile_many(jobs, host(), cache=KernelCache())

LLVM ends the process on some inputs, and MLIR can crash. Such a kernel is saved as a reproducer, the other kernels are
compiled all the same, and then one CompileError tells what happened.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ...support import child_processes, fork_server
from ...support.budget import check_time
from ...support.errors import CompileError, TilewrightError
from ...support.files import own_folder, replacing
from ...support.options import get
from .cache import KernelCache
from .machine import LlvmMachine, to_message
from .worker import compile_text, receive, repro_text, send

STAGE = "assemble"
_WORKER = compile_text.__module__
_REPROS_KEPT = 100
#: a process that has more memory ends after its kernel, and another one takes its place: MLIR's context only grows
WORKER_BYTES = 1 << 30


@dataclass(frozen=True)
class Job:
    """A kernel to compile: its symbol, its text at level 5, and the names of the source nodes it comes from.

    With a `maker` (``module:function``) the text is what that function makes a kernel of, at level 3 say: it is called
    with the text and the machine, in the worker, and gives what it made (with `to_json`), the object, and `stats`."""

    symbol: str
    mlir_text: str
    names: tuple[str, ...] = ()
    maker: str = ""


@dataclass(frozen=True)
class Compiled:
    """A kernel's object file; `stats` has ``mlir_seconds``, ``llvm_seconds``, ``bytes``; `cached`: it was on disk;
    `made`: what the job's maker made, as JSON."""

    symbol: str
    data: bytes
    stats: dict[str, Any] = field(default_factory=dict)
    cached: bool = False
    made: Any = None


Progress = Callable[[int, int, str], None]  # kernels done, kernels in all, the symbol just done


def compile_many(
    jobs: Sequence[Job],
    machine: LlvmMachine,
    *,
    workers: int | None = None,
    cache: KernelCache | None = None,
    progress: Progress | None = None,
    timeout: float | None = None,
) -> list[Compiled]:
    """Compile all jobs, in order of `jobs`; symbols must differ.

    `cache` None compiles everything. CompileError for the first job that failed, after all others have ended: it names
    the kernel and its source nodes, the saved kernel and the command that reproduces it.
    """
    symbols = [j.symbol for j in jobs]
    if len(set(symbols)) != len(symbols):
        twice = next(s for s in symbols if symbols.count(s) > 1)
        raise CompileError(f"two kernels have the symbol {twice!r}", stage=STAGE)
    results: dict[str, Compiled] = {}
    keys: dict[str, str] = {}
    done = 0

    def report(symbol: str) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(jobs), symbol)

    waiting: list[Job] = []
    for job in jobs:
        if cache is not None:
            keys[job.symbol] = cache.key(job.mlir_text, machine)
            found = cache.get(keys[job.symbol])
            if found is not None:
                results[job.symbol] = Compiled(job.symbol, *found, cached=True)
                report(job.symbol)
                continue
        waiting.append(job)

    failures: list[CompileError] = []

    def finish(job: Job, outcome: Compiled | _Failure) -> None:
        if isinstance(outcome, _Failure):
            failures.append(_error(job, machine, outcome))
        else:
            results[job.symbol] = outcome
            if cache is not None:
                cache.put(keys[job.symbol], outcome.data, outcome.stats)
        report(job.symbol)

    if waiting:
        # Long texts first: a big kernel started last would run alone at the end.
        waiting.sort(key=lambda j: -len(j.mlir_text))
        if get("TILEWRIGHT_COMPILE") == "inprocess":
            for job in waiting:
                finish(job, _compile_here(job, machine))
        else:
            limit = get("TILEWRIGHT_TIMEOUT") if timeout is None else timeout
            _shared_pool().run(waiting, machine, workers or get("TILEWRIGHT_JOBS"), limit, finish)
    if failures:
        raise _first_of(failures)
    return [results[s] for s in symbols]


def compile_each(
    jobs: Sequence[Job],
    machine: LlvmMachine,
    *,
    workers: int | None = None,
    timeout: float | None = None,
    progress: Progress | None = None,
) -> dict[str, Compiled | str]:
    """Compile kernels that may fail: by symbol the object, or the reason why there is none. Nothing is cached or
    saved."""
    results: dict[str, Compiled | str] = {}

    def finish(job: Job, outcome: Compiled | _Failure) -> None:
        results[job.symbol] = outcome.reason if isinstance(outcome, _Failure) else outcome
        if progress is not None:
            progress(len(results), len(jobs), job.symbol)

    limit = get("TILEWRIGHT_TIMEOUT") if timeout is None else timeout
    if jobs:
        _shared_pool().run(list(jobs), machine, workers or get("TILEWRIGHT_JOBS"), limit, finish)
    return results


def start_workers(count: int | None = None, ahead: str = "") -> None:
    """Start worker processes before there is work for them, so that what they do first (`worker.prepare`) overlaps with
    the front end's work. With a count of 0 this process, if it is one of ours, does that for those to come."""
    if get("TILEWRIGHT_COMPILE") != "inprocess":
        _shared_pool().start(get("TILEWRIGHT_JOBS") if count is None else count, ahead)


# ---- failures ----


@dataclass(frozen=True)
class _Failure:
    reason: str
    stderr: str = ""


def _compile_here(job: Job, machine: LlvmMachine) -> Compiled | _Failure:
    try:
        data, stats, made = compile_text(job.symbol, job.mlir_text, machine, job.maker)
    except TilewrightError as e:
        return _Failure(e.message)
    return Compiled(job.symbol, data, stats, made=made)


def _error(job: Job, machine: LlvmMachine, failure: _Failure) -> CompileError:
    saved = _save_repro(job, machine)
    names = ", ".join(job.names[:4]) + (f" and {len(job.names) - 4} more" if len(job.names) > 4 else "")
    tail = "".join(f"\n    {line}" for line in failure.stderr.strip().splitlines()[-8:])
    return CompileError(
        f"kernel {job.symbol} cannot be compiled: {failure.reason}{tail}",
        stage=STAGE,
        operator=f"{names or '(no source node)'} (kernel {job.symbol})",
        hint=f"to reproduce: {Path(sys.executable).name} -m tilewright.codegen.llvm.worker --repro {saved}"
        if saved
        else "the kernel could not be saved: set TILEWRIGHT_CACHE to a folder that can be written",
        saved=saved,
    )


def _first_of(failures: list[CompileError]) -> CompileError:
    first = failures[0]
    if len(failures) > 1:
        others = ", ".join(str(f.operator) for f in failures[1:5]) + (" ..." if len(failures) > 5 else "")
        first.hint = f"{first.hint}; {len(failures) - 1} more kernels failed: {others}"
    return first


def _save_repro(job: Job, machine: LlvmMachine) -> str | None:
    """Write the kernel to the folder of reproducers (the newest are kept); None if that is not possible."""
    folder = get("TILEWRIGHT_CACHE") / "repro"
    digest = hashlib.sha256(job.mlir_text.encode()).hexdigest()[:10]
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in job.symbol)[:80]
    path = folder / f"{name}-{digest}.mlir"
    try:
        if not own_folder(folder, folder.parent):
            return None
        with replacing(path) as f:
            f.write(repro_text(job.symbol, job.mlir_text, machine, job.maker).encode())
        for old in sorted(folder.glob("*.mlir"), key=lambda p: p.stat().st_mtime)[:-_REPROS_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:
        return None
    return str(path)


# ---- workers ----


class _Worker:
    """A worker process; it is started when first used and again after it died."""

    def __init__(self, pool: _Pool) -> None:
        self.pool = pool
        self.process: child_processes.Child | fork_server.Forked | None = None
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the worker)
        self.timed_out = False

    def start(self) -> child_processes.Child | fork_server.Forked:
        if self.process is None or self.process.poll() is not None:
            self.process = self.pool.new(self.log)
        return self.process

    def compile(self, job: Job, machine: LlvmMachine, timeout: float) -> Compiled | _Failure:
        process = self.start()
        assert process.stdin is not None and process.stdout is not None
        seen = self.log.seek(0, os.SEEK_END)
        self.timed_out = False
        timer = threading.Timer(timeout, self._give_up, (process,))
        timer.daemon = True
        timer.start()
        try:
            head = {
                "symbol": job.symbol, "maker": job.maker, "machine": to_message(machine), "memory": WORKER_BYTES,
            }  # fmt: skip
            send(process.stdin, head, job.mlir_text.encode())
            answer = receive(process.stdout)
        except (BrokenPipeError, OSError):
            answer = None
        finally:
            timer.cancel()
        if answer is None:
            return self._death(process, seen, timeout)
        result, data = answer
        if result["ends"]:
            self.close()
        if not result["ok"]:
            return _Failure(result["error"])
        return Compiled(job.symbol, data, result["stats"], made=result.get("made"))

    def _give_up(self, process: child_processes.Child | fork_server.Forked) -> None:
        self.timed_out = True
        process.kill()

    def _death(self, process: child_processes.Child | fork_server.Forked, seen: int, timeout: float) -> _Failure:
        process.kill()
        code = process.wait()
        self.close()
        self.log.seek(seen)
        text = self.log.read().decode(errors="replace")
        if self.timed_out:
            return _Failure(f"it took longer than {timeout:g} s (TILEWRIGHT_TIMEOUT)", text)
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return _Failure(f"the compiler process died ({how})", text)

    def close(self) -> None:
        """End the process: it goes when its input ends."""
        process, self.process = self.process, None
        if process is not None:
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                with contextlib.suppress(OSError):
                    stream.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _next(done: queue.SimpleQueue[tuple[Job, Compiled | _Failure]]) -> tuple[Job, Compiled | _Failure]:
    """The next result; CompileError if the compilation must not take any longer."""
    while True:
        check_time(STAGE)
        with contextlib.suppress(queue.Empty):
            return done.get(timeout=1.0)


class _Pool:
    """The workers of this process. One `run` at a time; a second caller waits."""

    def __init__(self) -> None:
        self.workers: list[_Worker] = []
        self.server: fork_server.ForkServer | None = None
        self.ahead = ""
        self.lock = threading.Lock()

    def start(self, count: int, ahead: str) -> None:
        with self.lock:
            self._ready(count, ahead)
            for worker in self.workers[:count]:
                worker.start()

    def _ready(self, count: int, ahead: str) -> None:
        """Have so many workers, and what their processes are forked from."""
        self.ahead = ahead or self.ahead
        if (count or child_processes.can_fork()) and (self.server is None or not self.server.alive):
            with contextlib.suppress(OSError):
                self.server = fork_server.start(_WORKER, self.ahead)
        while len(self.workers) < count:
            self.workers.append(_Worker(self))

    def new(self, log: IO[bytes]) -> child_processes.Child | fork_server.Forked:
        """A new process for a worker: forked, or where that cannot be a new interpreter."""
        with contextlib.suppress(OSError):
            if self.server is not None and self.server.alive:
                return self.server.fork(log)
        call = f"from {_WORKER} import prepare, work; prepare({self.ahead!r}); work()"
        return child_processes.start(call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)

    def run(
        self,
        jobs: list[Job],
        machine: LlvmMachine,
        count: int,
        timeout: float,
        finish: Callable[[Job, Compiled | _Failure], None],
    ) -> None:
        """Compile `jobs` with up to `count` workers; `finish` is called in this thread, in order of completion."""
        todo: queue.SimpleQueue[Job] = queue.SimpleQueue()
        done: queue.SimpleQueue[tuple[Job, Compiled | _Failure]] = queue.SimpleQueue()
        for job in jobs:
            todo.put(job)

        def drive(worker: _Worker) -> None:
            while True:
                try:
                    job = todo.get_nowait()
                except queue.Empty:
                    return
                try:
                    done.put((job, worker.compile(job, machine, timeout)))
                except Exception as e:  # whatever happens, the caller must get an answer for every job
                    done.put((job, _Failure(f"the compiler process could not be used: {type(e).__name__}: {e}")))

        with self.lock:
            count = min(count, len(jobs))
            self._ready(count, jobs[0].maker.partition(":")[0])
            threads = [threading.Thread(target=drive, args=(w,), daemon=True) for w in self.workers[:count]]
            for thread in threads:
                thread.start()
            try:
                for _ in jobs:
                    finish(*_next(done))
            finally:
                while not todo.empty():  # interrupted: the workers end with what they have
                    with contextlib.suppress(queue.Empty):
                        todo.get_nowait()
                for thread in threads:
                    thread.join()

    def close(self, keep: int) -> None:
        with self.lock:
            for worker in self.workers[keep:]:
                worker.close()
            del self.workers[keep:]


_pool: _Pool | None = None
_pool_lock = threading.Lock()


def _shared_pool() -> _Pool:
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = _Pool()
            atexit.register(close_workers)
        return _pool


def close_workers(keep: int = 0) -> None:
    """End this process's worker processes but for the first few; the next compilation starts new ones."""
    with _pool_lock:
        pool = _pool
    if pool is not None:
        pool.close(keep)


def _forget_workers() -> None:
    """In a forked child the pipes belong to the parent."""
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_workers)
