"""Devices of OpenCL, through pyopencl."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...support.errors import PackageError, TilewrightError, UsageError
from ..base import Check
from ..gpu.device import Dispatch, Move, Step
from ..gpu.kernels import GpuKernel

HINT = "pip install 'tilewright[opencl]', and a driver: of your GPU, or Debian's pocl-opencl-icd for the processor"


def devices() -> list[Any]:
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


@functools.lru_cache(maxsize=1)
def device() -> ClDevice:
    """The first device, for this process."""
    return ClDevice(devices()[0])


def found() -> Check:
    """What `tilewright doctor` says."""
    try:
        names = ", ".join(f"{d.name.strip()} ({d.platform.name.strip()})" for d in devices())
    except UsageError as e:
        return Check("OpenCL", "note", e.message, e.hint or "")
    return Check("OpenCL", "ok", names)


@dataclass(frozen=True)
class Recorded:
    """Steps with kernels of the driver, whose arguments are set."""

    steps: tuple[tuple[Any, Any], ...]


class ClDevice:
    """See `tilewright.targets.gpu.device.Device`. Commands run in order."""

    def __init__(self, own: Any) -> None:
        import pyopencl as cl

        self.cl, self.own = cl, own
        self.name = f"{own.name.strip()} (OpenCL)"
        self.context = cl.Context([own])
        self.queue = cl.CommandQueue(self.context)
        self.programs: dict[str, Any] = {}

    def allocate(self, nbytes: int) -> Any:
        try:
            return self.cl.Buffer(self.context, self.cl.mem_flags.READ_WRITE, max(nbytes, 16))
        except self.cl.Error as e:
            raise TilewrightError(
                f"{self.name} has no room for a buffer of {nbytes:,} bytes: {e}",
                hint=f"it has {self.own.global_mem_size:,}, and {self.own.max_mem_alloc_size:,} for one buffer",
            ) from None

    def write(self, buffer: Any, data: np.ndarray) -> None:
        self.cl.enqueue_copy(self.queue, buffer, data)

    def read(self, buffer: Any, out: np.ndarray) -> None:
        self.cl.enqueue_copy(self.queue, out, buffer)

    def compiled(self, kernel: GpuKernel) -> Any:
        """The driver's kernel; PackageError if it refuses the text."""
        if kernel.launch.block[0] * kernel.launch.block[1] * kernel.launch.block[2] > self.own.max_work_group_size:
            raise PackageError(
                f"{kernel.name} needs blocks of {kernel.launch.block}; {self.name} has up to "
                f"{self.own.max_work_group_size} units in a block",
                stage="load",
            )
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

    def record(self, steps: Sequence[Step]) -> Recorded:
        return Recorded(tuple((s, self.prepared(s)) for s in steps))

    def prepared(self, step: Step) -> Any:
        if isinstance(step, Move):
            return None
        made = self.compiled(step.kernel)
        arguments: list[Any] = []
        for part in step.arguments:
            arguments += [part.buffer, np.uint64(part.offset)]
        made.set_args(*arguments, *([step.scratch] if step.scratch is not None else []))
        return made

    def run(self, recorded: Recorded) -> None:
        for step, kernel in recorded.steps:
            if isinstance(step, Dispatch):
                block, grid = step.kernel.launch.block, step.kernel.launch.grid
                whole = tuple(b * g for b, g in zip(block, grid, strict=True))
                self.cl.enqueue_nd_range_kernel(self.queue, kernel, whole, block)
            else:
                a, b = step.source, step.target
                if a.nbytes:
                    self.cl.enqueue_copy(
                        self.queue, b.buffer, a.buffer, src_offset=a.offset, dst_offset=b.offset, byte_count=a.nbytes
                    )
