"""What a GPU's driver has to be able to do: memory, kernels, and lists of calls that are made once and run often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


class Kernel(Protocol):
    """A kernel as its device knows it."""

    @property
    def scratch_bytes(self) -> int:
        """Scratch memory of all units, whose buffer is one more argument; 0 for none."""


@dataclass(frozen=True)
class Part:
    """`nbytes` from byte `offset` of a buffer of the device."""

    buffer: Any
    offset: int
    nbytes: int


@dataclass(frozen=True)
class Dispatch:
    """A call of a kernel: its arguments in order, and the buffer with scratch memory if it needs any."""

    kernel: Any
    arguments: tuple[Part, ...]
    scratch: Any = None


@dataclass(frozen=True)
class Move:
    """A copy within the device."""

    source: Part
    target: Part


Step = Dispatch | Move


class Device(Protocol):
    """One device of one driver. What the driver says where it fails is a `TilewrightError`."""

    name: str

    def allocate(self, nbytes: int) -> Any:
        """A buffer of at least so many bytes; its memory goes when nobody has it any more."""

    def write(self, buffer: Any, data: np.ndarray) -> None:
        """Copy the bytes of a contiguous array to the beginning of a buffer."""

    def read(self, buffer: Any, out: np.ndarray) -> None:
        """Copy the beginning of a buffer to a contiguous array; waits for all that runs."""

    def record(self, steps: Sequence[Step]) -> Any:
        """Make ready to run steps in order: kernels are compiled here."""

    def run(self, recorded: Any) -> None:
        """Begin what was recorded; `read` waits for it."""
