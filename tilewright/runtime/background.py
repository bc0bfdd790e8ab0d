"""Background specialization: fixed versions of a program with open dimensions, compiled while it serves the calls.

run = tw.compile("bert.onnx", inputs={"ids": ("batch:1..64", "seq:1..512")}, specialize="background")
y, = run(ids)                           # three calls of 8 x 128 later a process begins to compile for 8 x 128
print(run.background.sizes())           # [{'batch': 8, 'seq': 128}]: from now on calls of that size run this program

`Background` has the fixed versions (`program/versions.py`); a `BackgroundCompiler` compiles them in another process.
Callers wait for neither: a thread loads what was compiled, and the next call uses it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..program.open_sizes import SizeTable
from ..program.package import Package
from ..program.program import Program, TensorInfo
from ..program.versions import Demand, Limits, Versions
from ..support import huge_pages
from ..support.aligned import address
from ..support.errors import CompileError, TilewrightError
from ..support.numbers import count, size
from . import indices, random_seed
from .constant_pool import ConstantPool
from .executable import Executable

if TYPE_CHECKING:
    from .arrays import NamedInfo

log = logging.getLogger("tilewright")

#: a size gets a program when it is called for the third time
CALLS = 3
#: programs kept when the options give no number, and the bytes that they may take together
KEPT, KEPT_BYTES = 16, 1 << 30
#: sizes without a program whose calls are counted, those called last
COUNTED = 1024
#: so many sizes one after the other that no program could be made for are enough
FAILURES = 3
#: seconds that the end of this process waits for a program that is being loaded
PATIENCE = 10.0

Shapes = tuple[tuple[int, ...], ...]
#: one program is made at a time in this process
_turn = threading.Lock()


class BackgroundCompiler(Protocol):
    """Compiles the model for single sizes, in another process."""

    def make(self, shapes: Mapping[str, tuple[int, ...]]) -> Package:
        """The package for these shapes of inputs; TilewrightError if there is none, `Stopped` after `stop`."""

    def stop(self) -> None:
        """End the process. Nothing is made any more."""

    def forget(self) -> None:
        """In a forked process: the process that compiles is the parent's."""


class Stopped(Exception):
    """The program is not needed any more."""


@dataclass
class Special:
    """A program for one size. `nbytes`: of its arena, its code, and the weights that the program for all sizes does not
    have in this layout; `last`: when it was called last."""

    executable: Executable
    sizes: dict[str, int]
    nbytes: int
    seconds: float
    last: int
    calls: int = 0

    def __str__(self) -> str:
        return _text(self.sizes)


class Background:
    """The fixed versions of one `OpenExecutable`, and how often other sizes are called.

    A size is *due* at its third call. At most `limit` versions are kept (None: 16, which take no more than 1 GiB
    together): then a size is due once it was called three times since the version used longest ago was called, which
    makes room for it. So sizes that take turns, more of them than are kept, compile nothing again and again.
    """

    def __init__(self, maker: BackgroundCompiler, package: Package, threads: int, limit: int | None = None) -> None:
        """`package` is that of the program for all sizes, with constants at the places where they stay."""
        program = package.program
        self.maker, self.limit, self.threads = maker, limit, threads
        self.inputs, self.outputs = _inputs(program), _outputs(program)
        self.open = sizes_of_inputs(program)
        self.name = str(package.report.get("model", "model"))
        self._pool, self._shared = ConstantPool(), {address(c) for c in package.constants}
        for constant in package.constants:
            self._pool.share("", constant)
        limits = Limits(1, KEPT, KEPT_BYTES) if limit is None else Limits(limit)
        self._programs: Versions[Shapes, Special, None] = Versions(limits, lambda special: special.nbytes)
        self._demand: Demand[Shapes] = Demand(CALLS, COUNTED)
        self._failed: set[Shapes] = set()
        self._failures = 0
        self._warned = self._stopped = False
        self._begin_anew()
        weakref.finalize(self, maker.stop)
        _all.add(self)

    def _begin_anew(self) -> None:
        """Nothing is being made; also in a forked process, which has no thread but its first."""
        self._changed = threading.Condition()  # guards what threads change together
        self._pending: OrderedDict[Shapes, None] = OrderedDict()
        self._thread: threading.Thread | None = None

    # ---- in calls ----

    def program(self, shapes: Shapes | None) -> Executable | None:
        """The program for inputs of these shapes, None if there is none yet."""
        special = self._programs.used(shapes)  # type: ignore[arg-type]
        if special is None:
            return None
        special.calls += 1
        special.last = self._demand.now()
        return special.executable

    def called(self, shapes: Shapes | None) -> None:
        """A call of these shapes, which are right, was answered by the program for all sizes."""
        if shapes is None or self._stopped or shapes in self._failed:
            return
        self._demand.called(shapes)
        if shapes not in self._pending and self._due(shapes):
            self._ask(shapes)

    def _due(self, shapes: Shapes) -> bool:
        """Whether a size is worth a version, for which another one may have to go."""
        since = self._demand.since(shapes)
        return since > 0 and (not self._programs.full(1) or since > min(p.last for p in self.programs()))

    def _ask(self, shapes: Shapes) -> None:
        with self._changed:
            if self._stopped or shapes in self._pending or shapes in self._programs:
                return
            if len(self._pending) >= (self.limit or KEPT):
                return  # its next call requests it again
            self._pending[shapes] = None
            if self._thread is None:
                # A daemon: the end of this process does not wait for it, but `_stop_all` does where it has to.
                self._thread = threading.Thread(
                    target=_work, args=(weakref.ref(self), self.maker), name="tilewright background", daemon=True
                )
                self._thread.start()

    # ---- in the thread ----

    def next(self) -> Shapes | None:
        """The size to make a program for; None if there is nothing to do any more, and the thread has to end."""
        with self._changed:
            while self._pending and not self._stopped:
                shapes = next(iter(self._pending))
                if self._due(shapes):
                    return shapes
                del self._pending[shapes]
            self._pending.clear()
            self._thread = None
            self._changed.notify_all()
            return None

    def install(self, shapes: Shapes, package: Package, begin: float) -> None:
        """Load a program and let the next call of its size have it."""
        sizes = self._sizes(shapes)
        self._check(package, shapes, sizes)
        own = self._share(package)
        executable = Executable(package, self.threads)
        with executable._between_calls():
            pass  # its memory and threads are there before the first call
        memory = executable.memory
        seconds = time.perf_counter() - begin
        with self._changed:
            if self._stopped:
                return
            special = Special(executable, sizes, own + memory.arena + memory.code, seconds, self._demand.now())
            dropped = self._programs.keep(shapes, special)
            self._demand.pop(shapes, None)
            self._failures = 0
            kept = len(self._programs)
        log.info(
            "%s: specialized for %s in the background in %.2f s (%d kept)", self.name, special, special.seconds, kept
        )
        for _, special in dropped:
            log.info("%s: the program for %s made room", self.name, special)

    def _sizes(self, shapes: Shapes) -> dict[str, int]:
        return self.open.sizes(shapes, [t.name for t in self.inputs])

    def _check(self, package: Package, shapes: Shapes, sizes: dict[str, int]) -> None:
        """CompileError for a program that does not take and give what the one for all sizes does."""
        given = [replace(t, shape=s) for t, s in zip(self.inputs, shapes, strict=True)]
        results = [replace(t, shape=s) for t, s in zip(self.outputs, self.open.shapes(sizes), strict=False)]
        if package.program.open is not None:
            raise CompileError("the program is none for a single size", stage="load")
        for wanted, found in ((given, _inputs(package.program)), (results, _outputs(package.program))):
            if list(map(str, wanted)) != list(map(str, found)):
                raise CompileError(f"the program has {found}, expected were {wanted}", stage="load")

    def _share(self, package: Package) -> int:
        """Let constants that are there in the same layout be the same memory; the bytes of the others, which are taken
        out of the file into large pages."""
        memory, own = huge_pages.HugePagePool(), 0
        for i, constant in enumerate(package.constants):
            known = self._pool.find("", constant)
            if known is None:
                known = memory.empty(constant.shape, constant.dtype)
                huge_pages.copy_released(constant, known)
                known = self._pool.share("", known)
            else:
                huge_pages.release_pages(constant)
            package.constants[i] = known
            own += 0 if address(known) in self._shared else known.nbytes
        package.file = None
        return own

    def failed(self, shapes: Shapes, error: BaseException) -> None:
        """There is no program for this size, and will be none."""
        with self._changed:
            self._failed.add(shapes)
            self._failures += 1
            over = self._failures >= FAILURES
            self._stopped |= over
        level = logging.DEBUG if self._warned else logging.WARNING
        self._warned = True
        why = error.message if isinstance(error, TilewrightError) else f"{type(error).__name__}: {error}"
        log.log(
            level,
            "%s: there is no program for %s alone, the one for all sizes goes on serving it: %s%s",
            self.name,
            _text(self._sizes(shapes)),
            why,
            "; no more are tried" if over else "",
        )

    def done(self, shapes: Shapes) -> None:
        with self._changed:
            self._pending.pop(shapes, None)
            self._changed.notify_all()

    # ---- from outside ----

    def sizes(self) -> list[dict[str, int]]:
        """The sizes that have a program, those called last at the end."""
        return [dict(p.sizes) for p in self.programs()]

    def programs(self) -> list[Special]:
        """Those there are, those called last at the end."""
        return list(self._programs.values())

    @property
    def nbytes(self) -> int:
        """Memory of the specializations alone; weights that some of them share count once."""
        programs = [p.executable for p in self.programs()]
        weights = {address(c): c.nbytes for e in programs for c in e.package.constants}
        own = sum(n for a, n in weights.items() if a not in self._shared)
        return own + sum(m.arena + m.scratch + m.code for m in (e.memory for e in programs))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no size is due any more; False if that took longer than `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def stop(self) -> None:
        """End the process that compiles; the programs there are go on. Nothing is made any more."""
        self._stopped = True
        self.maker.stop()

    def close(self) -> None:
        """`stop`, and end the threads of all programs."""
        self.stop()
        for special in self.programs():
            special.executable.close()

    def describe(self) -> list[str]:
        """What `Executable.explain` says of it."""
        programs, pending = self.programs(), len(self._pending)
        kept = f"at most {self.limit}" if self.limit else f"at most {KEPT}, {size(KEPT_BYTES)}"
        lines = ["", f"programs for single sizes: {len(programs)} ({kept}), {size(self.nbytes)}"]
        lines += [
            f"  {p}: {count(p.calls, 'call')}, {size(p.nbytes)}, made in {p.seconds:.2f} s" for p in reversed(programs)
        ]
        return [*lines, *([f"  {pending} more are to be made"] if pending else [])]


def shapes_of(infos: Sequence[NamedInfo], args: tuple[Any, ...]) -> Shapes | None:
    """The shapes of the arguments of a call; None where they are given in another way than as arrays."""
    if len(args) == 1 and type(args[0]) is not np.ndarray and isinstance(args[0], Mapping):  # which takes longer
        args = tuple([args[0].get(t.name) for t in infos])
    try:
        return tuple([tuple(a.shape) for a in args])
    except (AttributeError, TypeError):
        return None


def _text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {k}" for n, k in sizes.items())


def sizes_of_inputs(program: Program) -> SizeTable:
    """The sizes of an open program, of the inputs that callers have: not of the key of random numbers."""
    assert program.open is not None
    pairs = zip(program.inputs, program.open.inputs, strict=True)
    return replace(program.open, inputs=tuple(dims for t, dims in pairs if t.name != random_seed.KEY))


def _inputs(program: Program) -> list[TensorInfo]:
    return [t for t in program.inputs if t.name != random_seed.KEY]


def _outputs(program: Program) -> list[TensorInfo]:
    return [t for t in program.outputs if not t.name.startswith(indices.PREFIX)]


def _work(ref: weakref.ref[Background], maker: BackgroundCompiler) -> None:
    """The thread: compiles one size after the other, as long as the executable is referenced."""
    while True:
        with _turn:
            background = ref()
            shapes = background.next() if background is not None else None
            if background is None or shapes is None:
                return
            named = {t.name: s for t, s in zip(background.inputs, shapes, strict=True)}
            begin = time.perf_counter()
            background = None  # it may go meanwhile
            found: Package | BaseException
            try:
                found = maker.make(named)
            except Stopped:
                found = Stopped()
            except Exception as e:  # whatever happens, the dynamic-shape program serves the calls
                found = e
            background = ref()
            if background is None:
                return
            try:
                if isinstance(found, Package):
                    background.install(shapes, found, begin)
                elif not isinstance(found, Stopped):
                    background.failed(shapes, found)
            except Exception as e:
                background.failed(shapes, e)
            finally:
                background.done(shapes)
                background = None


# ---- the end of the process, and forks -----------------------------------------------------------------------------

_all: weakref.WeakSet[Background] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """End what is being made; wait for what is being loaded, which native code does that must not be cut off."""
    every = list(_all)
    for background in every:
        background.stop()
    end = time.monotonic() + PATIENCE
    for background in every:
        thread = background._thread
        if thread is not None:
            thread.join(max(0.0, end - time.monotonic()))


def _after_fork() -> None:
    """The thread lives in the parent only: the sizes that it had to do are asked for again."""
    global _turn
    _turn = threading.Lock()
    for background in list(_all):
        background._begin_anew()
        background.maker.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
