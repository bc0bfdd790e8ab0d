"""What kernels and copies cost on a device, for the choice among the devices of one program (`driver/placement.py`).

Estimates by the ceilings of a machine: as they were measured (`schedule.ceilings`), else as its record says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .ceilings import Ceilings, Level

if TYPE_CHECKING:
    from .machine import Machine

#: the clock of a processor whose record says nothing of it
_CLOCK_HZ = 3e9
#: cores that keep a processor's memory busy
_MEMORY_CORES = 4
_CACHE_BYTES_PER_CYCLE = 32.0


@dataclass(frozen=True)
class DeviceCosts:
    """`threads` have to work at the same time to reach the ceilings; fewer reach that part of them. `launch_seconds`:
    of a kernel call. `copy_seconds`, `copy_bytes_per_second`: of a copy from or to the host's memory.

    >>> slow = Ceilings("", 1, {"f32": 1e9}, (Level("memory", None, 1e9, 1e9, 1e9),))
    >>> costs = DeviceCosts(slow, threads=100, launch_seconds=1e-6, copy_seconds=1e-5, copy_bytes_per_second=1e9)
    >>> f"{costs.copy(10_000):.0e}"
    '2e-05'
    """

    ceilings: Ceilings
    threads: int = 1
    launch_seconds: float = 1e-6
    copy_seconds: float = 0.0
    copy_bytes_per_second: float = float("inf")

    def kernel(self, operations: float, read: float, written: float, precision: str, threads: int) -> float:
        """Seconds of a kernel that so many threads run: the arithmetic, or the memory where that takes longer."""
        memory = self.ceilings.level(read + written).seconds(read, written)
        busy = min(threads / self.threads, 1.0)
        return self.launch_seconds + max(operations / self.ceilings.peak(precision), memory) / busy

    def copy(self, nbytes: int) -> float:
        """Seconds of a copy between this device and the host."""
        return self.copy_seconds + nbytes / self.copy_bytes_per_second

    def measured(self, found: Ceilings | None) -> DeviceCosts:
        """The same with ceilings that were measured, if there are any."""
        return self if found is None else replace(self, ceilings=found)


def of_processor(machine: Machine, threads: int) -> DeviceCosts:
    """Of a processor, by its vectors and cores."""
    cores = max(min(machine.cores, threads), 1)
    peak = cores * _CLOCK_HZ * 2 * machine.fma.per_cycle * machine.vector_bytes / 4
    memory = min(cores, _MEMORY_CORES) * _CLOCK_HZ * machine.far.bytes_per_cycle
    cache = cores * _CLOCK_HZ * _CACHE_BYTES_PER_CYCLE
    levels = (
        Level("cache", cores * machine.l2_bytes, cache, cache, cache),
        Level("memory", None, memory, memory, memory),
    )
    return DeviceCosts(Ceilings("", threads, {"f32": peak}, levels))


def of_device(
    f32: float, memory: float, threads: int, launch: float, copy: float, copy_bytes: float, **compute: float
) -> DeviceCosts:
    """Of a device with memory of its own: operations a second (in other precisions too), bytes a second, threads;
    seconds of a call and of a copy, and bytes of one a second."""
    level = Level("memory", None, memory, memory, memory)
    return DeviceCosts(Ceilings("", 1, {"f32": f32, **compute}, (level,)), threads, launch, copy, copy_bytes)


__all__ = ["DeviceCosts", "of_device", "of_processor"]
