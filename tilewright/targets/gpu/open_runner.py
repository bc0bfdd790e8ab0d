"""Runs programs with dynamic shapes on a device: the kernels are compiled once, and a run is recorded for each set of
sizes.

The host evaluates what kernels need for a size (`codegen.gpu.open_sizes`), and the run is recorded with that: blocks,
places in the arena, and tables that kernels read. The recordings of the sizes used last are kept. No kernel is compiled
for a size.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.gpu.open_launch import LaunchAt
from ...program.open_sizes import SizeTable
from ...program.program import COPY, BufferRef, align_up
from ...program.versions import Limits, Versions
from ...support.errors import PackageError, TilewrightError
from ...support.formulas import evaluate, function
from .device import BufferSlice, Device, DeviceKernel, Dispatch, Move, Step
from .runner import GpuContext, GpuRunner

if TYPE_CHECKING:
    from ...program.program import TensorInfo

#: sizes whose recordings a context keeps, those used last
KEPT = 16
#: a buffer that has become too small is made so large, in hundredths of what it was, at least
GROWTH = 125
#: what parts of buffers begin at multiples of
PART_ALIGN_BYTES = 256


class OpenGpuRunner(GpuRunner):
    """See `GpuRunner`; PackageError for a kernel whose formulas are none of the program's dimensions."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        assert self.program.open is not None
        kernels = [v for k in self.kernels.values() for v in k.variants if v.open is not None]
        asked = {k: k.open.formulas for k in kernels if k.open is not None}
        every = tuple(dict.fromkeys(f for formulas in asked.values() for f in formulas))
        number = {f: i for i, f in enumerate(every)}
        #: kernels with open sizes, and the numbers of their formulas among those of all
        self.asked = {k: [number[f] for f in formulas] for k, formulas in asked.items()}
        try:
            self.formulas = function(every, len(self.program.open.dims))
        except ValueError as e:
            raise PackageError(f"the package is damaged: {e}", stage="load") from None

    def context(self) -> OpenGpuContext:
        return OpenGpuContext(self, self.open_device())

    def launches(self, sizes: Mapping[str, int]) -> dict[DeviceKernel, LaunchAt]:
        """What the kernels with open sizes need to be launched for these."""
        assert self.program.open is not None
        numbers, found = self.formulas(self.program.open.values(sizes)), {}
        for kernel, places in self.asked.items():
            assert kernel.open is not None
            found[kernel] = kernel.open.at([numbers[i] for i in places], kernel.name)
        return found


@dataclass
class AtSize:
    """What a context has for one size: dimensions, where the places of the arena begin, bytes of copies, inputs and
    outputs; recordings by where the states are; and the buffer with the tables of kernels."""

    sizes: dict[str, int]
    starts: tuple[int, ...]
    copies: tuple[int, ...]
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    recordings: dict[tuple[int, ...], object] = field(default_factory=dict)
    tables: object = None


class OpenGpuContext(GpuContext):
    """Memory on the device as large as the largest size so far asks for, and recordings for the sizes used last."""

    runner: OpenGpuRunner

    def __init__(self, runner: OpenGpuRunner, device: Device) -> None:
        self.kept: Versions[tuple[int, ...], AtSize, None] = Versions(Limits(KEPT))
        self.now: AtSize | None = None
        self.bytes: dict[str, list[int]] = {}
        super().__init__(runner, device)

    @property
    def open(self) -> SizeTable:
        assert self.program.open is not None
        return self.program.open

    def prepare(self) -> None:
        """Memory and recordings come with sizes."""
        inputs, outputs = len(self.program.inputs), len(self.program.outputs)
        self.bytes = {"input": [-1] * inputs, "output": [-1] * outputs, "arena": [-1], "scratch": [-1]}
        constants = [c.buffer for c in self.runner.constants]
        self.spaces = {"input": [None] * inputs, "output": [None] * outputs, "arena": [None], "constant": constants}

    # ---- sizes

    def resize(self, table: int, arena: int) -> None:
        """See `tilewright.targets.base.Context`."""
        names = self.open.names
        dims, starts = len(names), len(names) + len(self.open.starts)
        count = starts + len(self.open.copies)
        numbers = tuple((ctypes.c_int64 * count).from_address(table))
        found = self.kept.used(numbers[:dims])
        if found is None:
            sizes = dict(zip(names, numbers, strict=False))
            inputs = _sized(self.program.inputs, self.open.inputs, numbers[:dims])
            outputs = _sized(self.program.outputs, self.open.outputs, numbers[:dims])
            found = AtSize(sizes, numbers[dims:starts], numbers[starts:], inputs, outputs)
            needs = {"input": [t.nbytes for t in inputs], "output": [t.nbytes for t in outputs]}
            needs["arena"] = [arena + PART_ALIGN_BYTES]  # a part without elements begins in it too
            for space, wanted in needs.items():
                for number, nbytes in enumerate(wanted):
                    self.grow(space, number, nbytes)
            self.kept.keep(numbers[:dims], found)
        self.now, self.recordings = found, found.recordings

    def grow(self, space: str, number: int, nbytes: int) -> None:
        """Have so many bytes. What was recorded with less memory goes: its buffers are not used any more."""
        if nbytes <= self.bytes[space][number]:
            return
        more = self.bytes[space][number] * GROWTH // 100
        self.kept.clear()
        self.spaces[space][number], self.bytes[space][number] = None, -1  # the old one goes before there is a new one
        self.spaces[space][number], self.bytes[space][number] = self.allocated(nbytes, more)

    def allocated(self, nbytes: int, more: int) -> tuple[object, int]:
        """A buffer of `more` bytes, if there is room for that, and its bytes: sizes may go on to grow."""
        if more > nbytes:
            with contextlib.suppress(TilewrightError):
                return self.device.allocate(more), more
        return self.device.allocate(nbytes), nbytes

    @property
    def size(self) -> AtSize:
        assert self.now is not None, "a context is resized before it runs"
        return self.now

    # ---- what is run

    def tensors(self, space: str) -> Sequence[TensorInfo]:
        return self.size.inputs if space == "input" else self.size.outputs

    def steps(self) -> tuple[Step, ...]:
        made: list[Step] = []
        copies, launches = iter(self.size.copies), self.runner.launches(self.size.sizes)
        kernels = self.runner.kernels
        opened = (k.at(launches[k]) if k in launches else k for k in kernels.values())
        self.grow_scratch(max((k.scratch_bytes for k in opened), default=0))
        tables = self.tables({k: at.table for k, at in launches.items()})
        for call in self.program.calls:
            if call.symbol == COPY:
                count = next(copies)
                made.append(Move(*(self.placed(a, count) for a in call.args)))
                continue
            at = launches.get(kernels[call.symbol])
            nbytes = at.nbytes if at is not None else [a.nbytes for a in call.args]
            parts = [self.placed(a, n) for a, n in zip(call.args, nbytes, strict=True)]
            kernel, given = kernels[call.symbol].placed(parts)
            if kernel in launches:
                kernel, given = kernel.at(launches[kernel]), (*given, tables[kernel])
            made.append(Dispatch(kernel, given, self.scratch if kernel.scratch_bytes else None))
        return tuple(made)

    def placed(self, ref: BufferRef, nbytes: int) -> BufferSlice:
        """So many bytes of a buffer."""
        if ref.space == "arena":
            return BufferSlice(self.spaces["arena"][0], self.size.starts[ref.slot] if ref.slot >= 0 else 0, nbytes)
        return replace(self.part(ref), nbytes=nbytes)

    def grow_scratch(self, nbytes: int) -> None:
        if nbytes > self.bytes["scratch"][0]:
            self.kept.clear()
            self.scratch = None
            self.scratch = self.device.allocate(nbytes) if nbytes else None
            self.bytes["scratch"][0] = nbytes
            self.size.recordings.clear()
            self.kept[tuple(self.size.sizes.values())] = self.size

    def tables(self, numbers: Mapping[DeviceKernel, tuple[int, ...]]) -> dict[DeviceKernel, BufferSlice]:
        """The tables of kernels, one behind the other in a buffer of the device."""
        size = self.size
        arrays = {kernel: np.array(t or (0,), np.int32) for kernel, t in numbers.items()}
        ends = np.cumsum([align_up(a.nbytes, PART_ALIGN_BYTES) for a in arrays.values()]).tolist()
        starts = dict(zip(arrays, [0, *ends], strict=False))
        if size.tables is None and arrays:
            whole = np.zeros(ends[-1], np.uint8)
            for kernel, a in arrays.items():
                whole[starts[kernel] : starts[kernel] + a.nbytes] = a.view(np.uint8)
            size.tables = self.device.allocate(whole.nbytes)
            self.device.write(size.tables, whole)
        return {kernel: BufferSlice(size.tables, starts[kernel], a.nbytes) for kernel, a in arrays.items()}

    def close(self) -> None:
        super().close()
        self.kept.clear()
        self.now = None


def _sized(
    tensors: Sequence[TensorInfo], shapes: Sequence[Sequence[Any]], sizes: Sequence[int]
) -> tuple[TensorInfo, ...]:
    return tuple(replace(t, shape=evaluate(s, sizes) if s else ()) for t, s in zip(tensors, shapes, strict=True))


__all__ = ["OpenGpuContext", "OpenGpuRunner"]
