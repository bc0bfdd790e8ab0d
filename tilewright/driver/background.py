"""Background specialization: compiles fixed-size versions while an open one serves the calls, in one process at a time,
of the lowest priority.

`runtime.background` says which sizes, and runs what is made. A process reads the model again: from its file, if that is
still what was compiled, or from a copy that this process keeps in a file without a name. It leaves the package in the
package cache, or in another such file. So nothing is left over, however either of the two ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..frontends import protocol
from ..program.package import MAGIC, Package, load_entries, write_package
from ..runtime.background import Background, Stopped
from ..runtime.dynamic import DynamicExecutable
from ..runtime.open_executable import OpenExecutable
from ..runtime.parts import StoredSource
from ..support import child_processes, persistent_process
from ..support.budget import SECONDS
from ..support.errors import CompileError, ModelError, TilewrightError, UsageError
from ..support.files import own_folder
from ..support.huge_pages import release_pages
from ..support.mapped_file import MappedFile, map_file
from ..support.options import Options, get
from ..targets import base
from .out_of_process import ending, produce
from .package_cache import CacheEntry, ModelFiles, bound
from .request import CompileRequest
from .unbounded_shapes import changed

_CALL = "from tilewright.driver.background import serve; serve()"
#: of a process that compiles: everything else comes first
NICE = 19
#: seconds beyond the deadline of the compilation after which its process is ended
GRACE = 60.0
#: bytes of what the process printed that an error shows
SHOWN = 2000


def in_background(run: object, source: object, options: Options, files: Callable[[], ModelFiles | None]) -> None:
    """Let sizes of an executable that recur have programs of their own; one that has no program for all sizes gets it
    in its first call. `files` gives what the files of the model were.

    UsageError for a source that no other process can have, and for options that a program for all sizes does not go
    together with.
    """
    if isinstance(run, DynamicExecutable):
        _check(options)
    if not isinstance(run, OpenExecutable):
        return
    maker = ProcessMaker(source, options, files)
    run.background = Background(maker, run.package, options.thread_count, options.specializations)


def resume(program: OpenExecutable, stored: StoredSource, options: Options) -> None:
    """`in_background` for a program that was saved with its model."""
    in_background(program, protocol.compilable(stored), options, lambda: None)


def _check(options: Options) -> None:
    if options.buckets:
        raise UsageError(
            "buckets are sizes that programs are made for, ahead or in calls: nothing is left for the background",
            hint="leave out buckets, or specialize='background'",
        )
    if not base.find(options.target).takes_sizes:
        raise UsageError(
            f"target {options.target!r} has no open dimensions, so while something is compiled in the background no "
            "program could serve the calls",
            hint="leave out specialize='background'",
        )


class ProcessMaker:
    """Compiles a model for sizes, each in a process of its own; see `runtime.background.BackgroundCompiler`."""

    def __init__(self, source: object, options: Options, files: Callable[[], ModelFiles | None]) -> None:
        front_end = protocol.find(source)
        path = protocol.path_of(source)
        quiet: dict[str, Any] = {"print_after": (), "dump": None, "time": False}
        self._options = replace(options, threads=options.thread_count, specialize="never", jobs=1, **quiet)
        self._file = isinstance(front_end, protocol.Digesting) and path is not None
        self._files = cache(files if self._file else lambda: ModelFiles("", {}))
        self._source = _kept(os.path.abspath(path) if self._file and path is not None else source, front_end)
        self._lock = threading.Lock()
        self._child: child_processes.Child | None = None
        self._stopped = False

    def make(self, shapes: Mapping[str, tuple[int, ...]]) -> Package:
        """See `runtime.background.BackgroundCompiler`."""
        if self._files() is None:
            raise ModelError("its file was written to while it was compiled", stage="specialize")
        options = replace(self._options, inputs={**(self._options.inputs or {}), **shapes})
        request = {"options": options, "files": self._files() if self._file else None}
        with _nameless() as result, _nameless() as log:
            child = self._start(result, log)
            # The end of this process closes the child's lifeline in the same way; what was made last comes first.
            ending = weakref.finalize(child, self.stop)
            try:
                self._send(child, pickle.dumps(request))
                child.wait((self._options.deadline or SECONDS) + GRACE)
            except subprocess.TimeoutExpired:
                raise CompileError("the process that compiles took too long", stage="specialize") from None
            finally:
                with child:  # closes its pipe, and waits for its end
                    child.kill()
                ending.detach()
                child.lifeline.close()
                with self._lock:
                    self._child = None
            if self._stopped:
                raise Stopped
            return self._answer(child.returncode, result, log)

    def _start(self, result: IO[bytes], log: IO[bytes]) -> child_processes.Child:
        with self._lock:
            if self._stopped:
                raise Stopped
            try:
                priority = getattr(subprocess, "IDLE_PRIORITY_CLASS", 0)
                self._child = child_processes.start(
                    _CALL, stdin=subprocess.PIPE, stdout=result, stderr=log, creationflags=priority
                )
            except OSError as e:
                raise CompileError(f"no process can be started: {e.strerror or e}", stage="specialize") from None
            return self._child

    def _send(self, child: child_processes.Child, request: bytes) -> None:
        """The request, then the model if it has no file. A process that ended before is not asked: its end tells."""
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(request)
            child.stdin.write(self._source.data)
            child.stdin.close()
        release_pages(self._source)

    def _answer(self, code: int, result: IO[bytes], log: IO[bytes]) -> Package:
        """What the process left: a package, where one is, or an error."""
        result.seek(0)
        head = result.read(len(MAGIC))
        if code == 0 and head == MAGIC:
            data = np.memmap(result, np.uint8, "r")
            return _loaded(MappedFile(Path("(the program of one size)"), data, None))
        result.seek(0)
        found = pickle.load(result) if code == 0 and head else None
        if isinstance(found, Path):
            package = _loaded(map_file(found))
            bound(found)
            return package
        if isinstance(found, TilewrightError):
            raise found
        log.seek(max(0, log.seek(0, os.SEEK_END) - SHOWN))
        said = log.read().decode(errors="replace").strip().splitlines()
        why = found or f"its process ended with {ending(code)}"
        raise CompileError(
            f"the compiler failed: {why}{''.join(f'{chr(10)}    {x}' for x in said)}", stage="specialize"
        )

    def stop(self) -> None:
        """See `runtime.background.BackgroundCompiler`."""
        with self._lock:
            self._stopped = True
            if self._child is not None:
                self._child.kill()

    def forget(self) -> None:
        """See `runtime.background.BackgroundCompiler`."""
        self._lock, self._child = threading.Lock(), None


def _loaded(file: MappedFile) -> Package:
    (package,) = load_entries(file, base.check).values()
    return package


def _nameless() -> IO[bytes]:
    """A file without a name, where caches lie if that is possible: memory is no place for the weights of a model."""
    folder = get("TILEWRIGHT_CACHE")
    with contextlib.suppress(OSError):
        if own_folder(folder, folder):
            return tempfile.TemporaryFile(dir=folder)
    return tempfile.TemporaryFile()


def _kept(source: object, front_end: protocol.FrontEnd) -> np.ndarray:
    """A source for other processes, pickled and mapped: paths, bytes and models as they are, else the graph."""
    kept = bytes(source) if isinstance(source, (bytearray, memoryview)) else source
    if not isinstance(front_end, protocol.Digesting) or isinstance(front_end, protocol.Tracing):
        kept = protocol.open_source(source, False).store()
    with _nameless() as file:
        try:
            pickle.dump(kept, file)
            file.flush()
            return np.memmap(file, np.uint8, "r")
        except Exception as e:  # whatever objects of others raise
            raise UsageError(
                f"no other process can be given this {type(source).__name__}, so nothing can be compiled in the "
                f"background: {e}",
                stage="import",
                hint="save the model and give the path of the file",
            ) from None


# ---- in the process ------------------------------------------------------------------------------------------------


def serve() -> None:
    """Compile what is asked for on stdin. Leaves on stdout a package, or pickled: the path of one, an error, or what
    went wrong unexpectedly."""
    if hasattr(os, "nice"):
        os.nice(NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the caller, who ends this process if he ends
    result = os.fdopen(os.dup(1), "w+b")
    os.dup2(2, 1)  # what libraries print to stdout is no result
    os.environ |= {"TILEWRIGHT_COMPILE": "inprocess", "TILEWRIGHT_PROGRESS": "0"}  # this process is the one that works
    request, source = pickle.load(sys.stdin.buffer), pickle.load(sys.stdin.buffer)

    def work() -> Path | None:
        found = _compile(source, request["options"], request["files"])
        if isinstance(found, Path):
            return found
        write_package(found, result)
        return None

    if (found := persistent_process.answer(work)) is not None:
        result.seek(0)
        result.truncate()
        result.write(pickle.dumps(found))
    result.flush()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to do, and taking apart what MLIR has made takes time


def _compile(source: object, options: Options, expected: ModelFiles | None) -> Package | Path:
    """The package for the sizes that the options give, or where one is kept."""
    entry = CacheEntry.of(source, options) if expected is not None else None
    if entry is not None and expected is not None:
        if entry.digest != expected.digest:
            raise changed(source)
        kept = entry.load()
        if kept is not None and kept.report["files"] == expected.files:
            return entry.path
    model = protocol.compilable(source) if isinstance(source, StoredSource) else source
    state, package, written = produce(CompileRequest(model, options), entry)
    if package is None:
        raise CompileError("with these sizes known the model is no single program", stage="specialize")
    if expected is not None and ModelFiles.of(state.files) != expected:
        raise changed(source)
    return entry.path if entry is not None and written else package
