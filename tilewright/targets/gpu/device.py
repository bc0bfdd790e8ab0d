"""The interface of a GPU driver (`Device`): memory, kernels, and runs that are recorded once and replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...codegen.gpu.open_launch import LaunchAt, OpenLaunch


class DeviceKernel(Protocol):
    """A compiled kernel. One with dynamic shapes has a table of sizes as its last argument."""

    @property
    def open(self) -> OpenLaunch | None:
        """What the host computes for each size, if there are open ones."""

    @property
    def name(self) -> str: ...

    @property
    def variants(self) -> tuple[DeviceKernel, ...]:
        """Itself, and all others that `placed` gives."""

    def at(self, launch: LaunchAt) -> DeviceKernel:
        """The kernel with its launch parameters at a size."""

    @property
    def scratch_bytes(self) -> int:
        """Bytes of scratch memory of all threads, whose buffer is one more argument; 0 for none."""

    def placed(self, arguments: Sequence[BufferSlice]) -> tuple[DeviceKernel, tuple[BufferSlice, ...]]:
        """The kernel of a call with these arguments, and those that it takes: outputs may be inputs that may be
        overwritten."""


@dataclass(frozen=True)
class BufferSlice:
    """`nbytes` from byte `offset` of a buffer of the device."""

    buffer: Any
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Dispatch:
    """A call of a kernel: its arguments in order, and the buffer with scratch memory if it needs any."""

    kernel: Any
    arguments: tuple[BufferSlice, ...]
    scratch: Any = None


@dataclass(frozen=True)
class Move:
    """A copy within the device."""

    source: BufferSlice
    target: BufferSlice


Step = Dispatch | Move


@dataclass(frozen=True)
class Run:
    """A whole run, or what comes of one between two of another device: what is filled from the host first, the steps in
    order, and what is fetched at the end. Parts begin at multiples of a word and have at least a byte."""

    steps: tuple[Step, ...]
    inputs: tuple[BufferSlice, ...] = ()
    outputs: tuple[BufferSlice, ...] = ()


@dataclass(frozen=True)
class StepTimes:
    """Nanoseconds by the device's clock, from where a run began: [steps, 2] begin and end, and the end of the run."""

    steps: np.ndarray
    total: float


class Device(Protocol):
    """One device of one driver. What the driver says where it fails is one `TilewrightError` (`failure`), and nothing
    of a run that failed is used by the next one. Contexts of several threads may call at the same time."""

    name: str

    @property
    def version(self) -> str:
        """The driver's version."""

    def allocate(self, nbytes: int) -> Any:
        """A buffer of at least so many bytes; its memory goes when nobody has it any more."""

    def write(self, buffer: Any, data: np.ndarray) -> None:
        """Copy the bytes of a contiguous array to the beginning of a buffer."""

    def read(self, buffer: Any, out: np.ndarray) -> None:
        """Copy the beginning of a buffer to a contiguous array of bytes."""

    def record(self, run: Run) -> Any:
        """Prepares a run: compiles its kernels, and records its commands."""

    def run(self, recorded: Any, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        """Runs what was recorded, from and to these arrays of bytes, and waits until it is done."""

    def run_timed(self, recorded: Any, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> StepTimes:
        """`run` with the time of every step."""

    def check_clock(self) -> None:
        """UsageError if the device cannot time its kernels."""

    @property
    def largest(self) -> int:
        """Bytes of the largest buffer that a kernel can have."""

    @property
    def lost(self) -> bool:
        """Whether the device was lost: all calls fail, and it has to be opened again."""
