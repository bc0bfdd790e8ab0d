"""Noise control of measurements: a lock so that one process of a machine measures at a time, detection of other load,
and rejection of implausible times.

Two tuners side by side measure each other. Whole seconds go missing from one side of a race then, and a ratio of 2,500
would be kept as a result."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..schedule.machine import Machine
from ..schedule.work import work_of

if TYPE_CHECKING:
    from ..tensor.kernel import Kernel

try:
    import fcntl
except ImportError:  # Windows: its users see that they tune twice
    fcntl = None  # type: ignore[assignment]

#: cores taken by others above which a measurement is not to be trusted
BUSY_CORES = 0.25
#: seconds between two looks at the lock, and over which the load is seen
STEP = 0.3
#: what no core exceeds: clock in Hz, fused multiply-adds a cycle; and how much more than f32 vectors do the
#: instructions for tiles of bf16 and bytes may do
MOST_HERTZ, MOST_FMAS, MOST_NARROW = 6.5e9, 2, 64
#: how much longer than in the model, measured before, the default schedule may take in a race
MOST_SLOWER = 5.0


def folder() -> Path:
    """Where all processes of this machine find the lock."""
    return Path(tempfile.gettempdir())


@contextlib.contextmanager
def alone(tell: Callable[[str], None] = lambda what: None) -> Iterator[None]:
    """Hold the lock of the machine's one measuring process; wait for it, and `tell` so, where another one has it."""
    with contextlib.ExitStack() as stack:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # a folder where nothing can be locked must not end the tuning
                _lock(stack, tell)
        yield


def _lock(stack: contextlib.ExitStack, tell: Callable[[str], None]) -> None:
    path = folder() / "tilewright-measuring.lock"
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o666)  # whatever the umask: other users measure on this machine too
    stack.callback(os.close, descriptor)
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not told:
                told = True
                tell("another process measures on this machine: waiting until it ends")
            time.sleep(STEP)


def busy_cores(stat: Path = Path("/proc/stat"), seconds: float = STEP) -> float | None:
    """Cores that processes are using while this one sleeps for `seconds`; None where the system does not tell."""
    before = _used(stat)
    if before is None:
        return None
    time.sleep(seconds)
    after = _used(stat)
    if after is None:
        return None
    used, total = after[0] - before[0], after[1] - before[1]
    return after[2] * used / total if total else 0.0


def _used(stat: Path) -> tuple[int, int, int] | None:
    """Ticks of all cores in which something ran, all ticks, and the number of cores."""
    try:
        lines = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
        ticks = [int(n) for n in lines[0][1:9]]  # user nice system idle iowait irq softirq steal
    except (OSError, ValueError, IndexError):
        return None
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks), len(lines) - 1


def warning() -> str:
    """What to say if others use the machine; empty if they do not, or nobody knows."""
    busy = busy_cores()
    if busy is None or busy <= BUSY_CORES:
        return ""
    return (
        f"other processes use {busy:.1f} cores of this machine: what is measured now may be wrong; "
        "tune again when it is quiet"
    )


# ---- times that cannot be ----


def least_seconds(kernel: Kernel, description: Machine, threads: int) -> float:
    """A time below that of any machine with vectors of this width: what is measured faster was not measured.

    >>> from tilewright import te
    >>> from tilewright.targets.cpu.description import CpuDescription
    >>> a, b, k = te.placeholder((64, 512), "a"), te.placeholder((512, 64), "b"), te.reduce_axis(512)
    >>> kernel = te.kernel(te.compute((64, 64), lambda i, j: te.sum(a[i, k] * b[k, j], k), "c"))
    >>> f"{1e6 * least_seconds(kernel, CpuDescription('x86_64', '', (), vector_bytes=64), 1):.1f} us"
    '10.1 us'
    """
    work = work_of(kernel)
    narrow = 1 if work.precision in ("f32", "f64") else MOST_NARROW
    lanes = description.vector_bytes / 4
    return work.flops / (2 * MOST_FMAS * lanes * MOST_HERTZ * max(threads, 1) * narrow)


def doubt(seconds: float, baseline: float, least: float, known: float = 0.0) -> str:
    """Why a result cannot be right, empty if it can: its time and the default's in a race, the least time there is,
    and what the default took in the model (0: not known).

    >>> doubt(1e-6, 2e-6, 5e-7, 2e-6), doubt(1e-9, 2e-6, 5e-7)
    ('', 'it took 0.001 us, which no machine can: at least 0.500 us')
    >>> doubt(1e-5, 2.5e-2, 5e-7, 1.1e-5)
    'the default schedule took 2273 times as long as in the model: something else was running'
    """
    if not seconds >= least:
        return f"it took {seconds * 1e6:.3f} us, which no machine can: at least {least * 1e6:.3f} us"
    if known and baseline > MOST_SLOWER * known + 2e-6:
        return (
            f"the default schedule took {baseline / known:.0f} times as long as in the model: "
            "something else was running"
        )
    return ""


__all__ = ["alone", "busy_cores", "doubt", "least_seconds", "warning"]
