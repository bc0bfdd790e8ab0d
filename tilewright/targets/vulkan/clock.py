"""Timestamp queries of wgpu: before and after each step of a run, in the order of its commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...support.errors import UsageError

if TYPE_CHECKING:
    import wgpu

#: beyond WebGPU's core: stamps at all, and stamps between passes
FEATURES = ("timestamp-query", "timestamp-query-inside-encoders")
#: stamps of a set, at most (WebGPU); a step has two
_SET = 4096
_BYTES = 8


class TimestampQueries:
    """Sets of queries for the stamps of so many steps, and the buffers they are read by."""

    def __init__(self, device: wgpu.GPUDevice, steps: int) -> None:
        from wgpu import BufferUsage as use
        from wgpu.backends.wgpu_native import lib

        if missing := [f for f in FEATURES if f not in device.features]:
            raise UsageError(
                f"the device has no {missing[0]}: its kernels cannot be timed",
                stage="run",
                hint="use the profiler of its driver, or another device",
            )
        self.steps, self.count = steps, 2 * steps
        #: nanoseconds of a tick
        self.period = float(lib.wgpuQueueGetTimestampPeriod(device.queue._internal))
        sizes = [min(_SET, self.count - at) for at in range(0, self.count, _SET)]
        self.sets = [device.create_query_set(type="timestamp", count=n) for n in sizes]
        self.sizes, self.nbytes = sizes, max(self.count, 1) * _BYTES
        self.found = device.create_buffer(size=self.nbytes, usage=use.QUERY_RESOLVE | use.COPY_SRC)
        self.staging = device.create_buffer(size=self.nbytes, usage=use.COPY_DST | use.MAP_READ)

    def stamp(self, encoder: wgpu.GPUCommandEncoder, number: int) -> None:
        """Stamp `number`, here in the list of commands."""
        from wgpu.backends.wgpu_native.extras import write_timestamp

        write_timestamp(encoder, self.sets[number // _SET], number % _SET)

    def fetch(self, encoder: wgpu.GPUCommandEncoder) -> None:
        """After all steps: the stamps are copied to where the host reads them."""
        for at, (queries, n) in enumerate(zip(self.sets, self.sizes, strict=True)):
            encoder.resolve_query_set(queries, 0, n, self.found, at * _SET * _BYTES)
        if self.count:
            encoder.copy_buffer_to_buffer(self.found, 0, self.staging, 0, self.nbytes)

    def nanoseconds(self, ticks: np.ndarray) -> np.ndarray:
        """[steps, 2]: from where the first step began."""
        table = ticks[: self.count].astype(np.int64).reshape(-1, 2)
        return (table - table.min(initial=table.max(initial=0))).astype(np.float64) * self.period


__all__ = ["FEATURES", "TimestampQueries"]
