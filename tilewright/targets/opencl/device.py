"""Runs programs on OpenCL devices, through pyopencl.

Every run enqueues its commands anew: cl_khr_command_buffer, which would record them, is provisional, and pyopencl has
no functions for it.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...support.errors import PackageError, UsageError
from ..gpu.device import Dispatch, Move, Run, Step, StepTimes
from ..gpu.device_registry import Devices
from ..gpu.failure import Kind, failure
from ..gpu.kernels import GpuKernel

if TYPE_CHECKING:
    import pyopencl as cl

HINT = "pip install 'tilewright[opencl]', and a driver: of your GPU, or Debian's pocl-opencl-icd for the processor"
#: the longest access of a thread, which begins at a multiple of it
ACCESS_BYTES = 16
#: what drivers answer when memory is short
_MEMORY = ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_HOST_MEMORY", "INVALID_BUFFER_SIZE")
#: what they answer to every call once a device is gone or its queue was given up
_LOST = ("DEVICE_NOT_AVAILABLE", "INVALID_COMMAND_QUEUE", "INVALID_CONTEXT", "INVALID_DEVICE")


def devices() -> list[cl.Device]:
    """All devices, GPUs first; UsageError if there is no driver or pyopencl is not installed."""
    try:
        import pyopencl as cl
    except ImportError:
        raise UsageError("the target opencl needs pyopencl, which is not installed", hint=HINT) from None
    try:
        found = [d for p in cl.get_platforms() for d in p.get_devices()]
    except cl.Error as e:
        raise UsageError(f"OpenCL has no driver here: {e}", hint=HINT) from None
    if not found:
        raise UsageError("OpenCL has no device here", hint=HINT)
    return sorted(found, key=lambda d: not d.type & cl.device_type.GPU)


def _name(d: cl.Device) -> str:
    return f"{d.name.strip()} ({d.platform.name.strip()})"


@dataclass(frozen=True)
class OpenclRecording:
    """A run with kernels of the driver, whose arguments are set."""

    run: Run
    kernels: tuple[cl.Kernel | None, ...]


class ClDevice:
    """See `tilewright.targets.gpu.device.Device`. Commands run in order; the driver's functions may be called from any
    thread, but for those that change a kernel's arguments: every recording has kernels of its own."""

    def __init__(self, own: cl.Device) -> None:
        import pyopencl as cl

        self.cl, self.own = cl, own
        self.name = f"{own.name.strip()} (OpenCL)"
        self.lost = False
        with self.doing("opening it"):
            self.context = cl.Context([own])
            self.queue = cl.CommandQueue(self.context)
        self.programs: dict[str, cl.Program] = {}
        #: kernels of recordings that are gone, by their text: pyopencl takes long to make one
        self.free: dict[str, list[cl.Kernel]] = {}

    @property
    def largest(self) -> int:
        return int(self.own.max_mem_alloc_size)

    @property
    def version(self) -> str:
        """Of the driver."""
        return str(self.own.driver_version)

    @contextlib.contextmanager
    def doing(self, what: str, hint: str = "") -> Iterator[None]:
        """Whatever the driver says meanwhile is one error of ours."""
        if self.lost:
            raise failure(self.name, what, "it was lost before", "lost")
        try:
            yield
        except self.cl.Error as e:
            kind: Kind = "memory" if _any(e, _MEMORY) else "lost" if _any(e, _LOST) else "other"
            self.lost = kind == "lost"
            raise failure(self.name, what, e, kind, hint) from None

    # ---- memory

    def allocate(self, nbytes: int) -> cl.Buffer:
        most = f"it has {self.own.global_mem_size:,} bytes, and {self.own.max_mem_alloc_size:,} for one buffer"
        with self.doing(f"allocating {nbytes:,} bytes", most):
            return self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, max(nbytes, 16))

    def write(self, buffer: cl.Buffer, data: np.ndarray) -> None:
        with self.doing(f"writing {data.nbytes:,} bytes to it"):
            self.cl.enqueue_copy(self.queue, buffer, data)

    def read(self, buffer: cl.Buffer, out: np.ndarray) -> None:
        with self.doing(f"reading {out.nbytes:,} bytes from it"):
            self.cl.enqueue_copy(self.queue, out, buffer)

    # ---- kernels

    def compiled(self, kernel: GpuKernel) -> cl.Kernel:
        """The driver's kernel; PackageError if it refuses the text."""
        if kernel.launch.threads > self.own.max_work_group_size:
            raise PackageError(
                f"{kernel.name} needs blocks of {kernel.launch.block}; {self.name} has up to "
                f"{self.own.max_work_group_size} threads in a block",
                stage="load",
            )
        with contextlib.suppress(LookupError):
            return self.free[kernel.text].pop()
        if kernel.text not in self.programs:
            try:
                self.programs[kernel.text] = self.cl.Program(self.context, kernel.text).build()
            except self.cl.Error as e:
                raise PackageError(
                    f"{self.name} cannot compile {kernel.name}: {str(e)[:2000]}",
                    stage="load",
                    hint="please report it, with the text that --stop-after emit prints",
                ) from None
        return self.cl.Kernel(self.programs[kernel.text], kernel.name)

    def record(self, run: Run) -> OpenclRecording:
        with self.doing("loading kernels"):
            made = OpenclRecording(run, tuple(map(self.prepared, run.steps)))
        texts = [s.kernel.text if isinstance(s, Dispatch) else "" for s in run.steps]
        weakref.finalize(made, self.returned, texts, made.kernels).atexit = False
        return made

    def returned(self, texts: Sequence[str], kernels: Sequence[cl.Kernel | None]) -> None:
        """Keep kernels for the next recording."""
        for text, kernel in zip(texts, kernels, strict=True):
            if kernel is not None:
                self.free.setdefault(text, []).append(kernel)

    def prepared(self, step: Step) -> cl.Kernel | None:
        if isinstance(step, Move):
            return None
        made = self.compiled(step.kernel)
        arguments: list[Any] = []
        for part in step.arguments:
            if part.offset % ACCESS_BYTES:
                raise PackageError(
                    f"{step.kernel.name} needs arguments at multiples of {ACCESS_BYTES} bytes, not at {part.offset}",
                    stage="load",
                )
            arguments += [part.buffer, np.uint64(part.offset)]
        made.set_args(*arguments, *([step.scratch] if step.scratch is not None else []))
        return made

    # ---- running

    def run(self, recorded: OpenclRecording, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        self.finished(self.queue, recorded, inputs, outputs)

    def finished(
        self,
        queue: cl.CommandQueue,
        recorded: OpenclRecording,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> list[list[cl.Event]]:
        """The events of a run that is done: of copies to the device, steps, and copies from it; an error if any of them
        failed. The driver has the arrays until then, also where a command could not even be begun."""
        events: list[list[cl.Event]] = [[], [], []]
        with self.doing("running a model"):
            try:
                self.begin(queue, recorded, inputs, outputs, events)
                if began := [e for group in events for e in group]:
                    self.cl.wait_for_events(began)
            except BaseException:
                with contextlib.suppress(self.cl.Error):
                    queue.finish()
                if failed := self.failed(recorded, events[1]):
                    raise failure(self.name, "running a model", f"{failed} ended with an error") from None
                raise
        return events

    def begin(
        self,
        queue: cl.CommandQueue,
        recorded: OpenclRecording,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
        events: list[list[cl.Event]],
    ) -> None:
        """Enqueue a run, with the events in three groups."""
        copy = functools.partial(self.cl.enqueue_copy, queue, is_blocking=False)
        for part, array in zip(recorded.run.inputs, inputs, strict=True):
            events[0].append(copy(part.buffer, array, dst_offset=part.offset))
        for step, kernel in zip(recorded.run.steps, recorded.kernels, strict=True):
            events[1].append(self.enqueue(queue, step, kernel))
        for part, array in zip(recorded.run.outputs, outputs, strict=True):
            events[2].append(copy(array, part.buffer, src_offset=part.offset))

    def enqueue(self, queue: cl.CommandQueue, step: Step, kernel: cl.Kernel | None) -> cl.Event:
        if isinstance(step, Dispatch):
            assert kernel is not None
            block, grid = step.kernel.launch.block, step.kernel.launch.grid
            whole = tuple(b * g for b, g in zip(block, grid, strict=True))
            return self.cl.enqueue_nd_range_kernel(queue, kernel, whole, block)
        a, b = step.source, step.target
        if not a.nbytes:
            return self.cl.enqueue_marker(queue)
        return self.cl.enqueue_copy(
            queue, b.buffer, a.buffer, src_offset=a.offset, dst_offset=b.offset, byte_count=a.nbytes
        )

    def failed(self, recorded: OpenclRecording, events: Sequence[cl.Event]) -> str:
        """The name of the first step that ended with an error, if one did."""
        for step, event in zip(recorded.run.steps, events, strict=False):
            with contextlib.suppress(self.cl.Error):
                if event.command_execution_status < 0:
                    return step.kernel.name if isinstance(step, Dispatch) else "a copy"
        return ""

    # ---- timing

    @functools.cached_property
    def timed_queue(self) -> cl.CommandQueue:
        """A second queue, whose events have times."""
        return self.cl.CommandQueue(self.context, properties=self.cl.command_queue_properties.PROFILING_ENABLE)

    def check_clock(self) -> None:
        with self.doing("making a queue that times what runs"):
            _ = self.timed_queue

    def run_timed(
        self, recorded: OpenclRecording, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> StepTimes:
        events = self.finished(self.timed_queue, recorded, inputs, outputs)
        every = [e.profile for group in events for e in group]
        with self.doing("reading the times of a run"):
            zero = every[0].queued if every else 0
            steps = [(e.profile.start - zero, e.profile.end - zero) for e in events[1]]
            return StepTimes(np.array(steps, np.float64).reshape(-1, 2), every[-1].end - zero if every else 0)


def _any(error: cl.Error, names: Sequence[str]) -> bool:
    """Whether the driver answered with one of these codes."""
    import pyopencl as cl

    codes = (getattr(cl.status_code, n, None) for n in names)
    return getattr(error, "code", None) in [c for c in codes if c is not None]


DEVICES = Devices("opencl", devices, _name, ClDevice)


@functools.cache
def kind_of(which: str = "") -> str:
    """Whether the device of that number or name is a processor; "gpu" for all others, and where there is no driver."""
    try:
        there = devices()
        found = there[DEVICES.number(which, [_name(d) for d in there])]
    except UsageError:
        return "gpu"
    import pyopencl as cl

    return "processor" if found.type & cl.device_type.CPU else "gpu"


def device(which: str = "") -> ClDevice:
    """The device of that number or name, for this process; the first one without."""
    return DEVICES.open(which)
