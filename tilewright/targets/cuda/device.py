"""Runs programs on an NVIDIA GPU (`targets.gpu.device.Device`): a run is a CUDA graph, from the upload of its inputs to
the download of its outputs into pinned memory."""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from ...support.errors import PackageError
from ..gpu.device import BufferSlice, Dispatch, Run, Step, StepTimes
from ..gpu.device_registry import Devices
from ..gpu.failure import Kind, failure
from .driver import Driver, DriverFailed, names
from .stages import CudaKernel
from .tensor_maps import TensorMaps

#: CUDA_ERROR_OUT_OF_MEMORY
_MEMORY = 2
#: after these the driver answers every call of the process with the same, the context is gone: deinitialized, illegal
#: address, launch timeout, assert, hardware stack error, illegal instruction, misaligned address, invalid address
#: space, invalid pc, launch failed; ECC and NVLink
_LOST = frozenset({4, 214, 220, 700, 702, 710, *range(714, 720)})
_GONE = (
    "start the process anew: NVIDIA's driver gives up the GPU of a process after such an error; if one model loses it "
    "every time, please report it"
)
#: bytes at whose multiples parts of pinned memory begin
_PINNED_ALIGN = 256


def check(wanted: str, major: int, minor: int) -> None:
    """PackageError if a GPU of this generation cannot run the code."""
    number = int("".join(c for c in wanted if c.isdigit()))
    own = 10 * major + minor
    if number != own if wanted.endswith("a") else number > own:
        raise PackageError(
            f"the code is for {wanted}, the GPU is sm_{major}{minor}", stage="load", hint="compile it for this GPU"
        )


class CudaMemory:
    """Bytes of the GPU, which go when nobody has them any more."""

    def __init__(self, driver: Driver, nbytes: int) -> None:
        self.address = driver.allocate(nbytes)
        _free_with(self, driver, driver.free, self.address)


T = TypeVar("T")


def _free_with(owner: object, driver: Driver, free: Callable[[T], None], what: T) -> None:
    weakref.finalize(owner, _free, driver, free, what).atexit = False  # the driver goes first


def _free(driver: Driver, free: Callable[[T], None], what: T) -> None:
    with contextlib.suppress(DriverFailed):  # a GPU that was lost has freed all
        driver.enter()
        free(what)


@dataclass(eq=False)
class CudaRecording:
    """A run as a graph, and the addresses of its inputs and outputs in pinned memory of the host. `stamps` are the
    events of the graph that has some, `timed`: its begin, that of the first step, the end of every step, its end."""

    run: Run
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    graph: ctypes.c_void_p | None = None
    timed: ctypes.c_void_p | None = None
    stamps: list[ctypes.c_void_p] = field(default_factory=list)


class CudaDevice:
    """See the file. The driver's context is made that of whichever thread calls; one at a time uses the stream."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.name = f"{driver.name} (CUDA)"
        self.lost = False
        self.lock = threading.RLock()
        self.functions: dict[str, ctypes.c_void_p] = {}
        self.maps = TensorMaps(driver)

    @property
    def version(self) -> str:
        """Of the driver."""
        return self.driver.version()

    @property
    def largest(self) -> int:
        """What is free now."""
        with self.doing("asking for its free memory"):
            return self.driver.free_bytes()

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Alone with the device; whatever the driver says meanwhile is one error of ours."""
        with self.lock:
            if self.lost:
                raise failure(self.name, what, "it was lost before", "lost", hint=_GONE)
            try:
                self.driver.enter()
                yield
            except DriverFailed as e:
                kind: Kind = "memory" if e.code == _MEMORY else "lost" if e.code in _LOST else "other"
                self.lost = kind == "lost"
                raise failure(self.name, what, e, kind, hint=_GONE if self.lost else "") from None

    # ---- memory

    def allocate(self, nbytes: int) -> CudaMemory:
        with self.doing(f"allocating {nbytes:,} bytes"):
            return CudaMemory(self.driver, nbytes)

    def write(self, buffer: CudaMemory, data: np.ndarray) -> None:
        """All has arrived when this returns: the stream of runs waits for no other."""
        with self.doing(f"writing {data.nbytes:,} bytes to it"):
            self.driver.to_device(buffer.address, data.ctypes.data, data.nbytes)
            self.driver.wait()

    def read(self, buffer: CudaMemory, out: np.ndarray) -> None:
        with self.doing(f"reading {out.nbytes:,} bytes from it"):
            self.driver.wait()
            self.driver.to_host(out.ctypes.data, buffer.address, out.nbytes)

    # ---- recording

    def record(self, run: Run) -> CudaRecording:
        with self.doing("loading kernels"):
            for step in run.steps:
                if isinstance(step, Dispatch):
                    self.function(step.kernel)  # loading may not be captured
            made = CudaRecording(run)
            self.pin(made)
            made.graph = self.captured(made, lambda: self.begin(made))
            return made

    def pin(self, recorded: CudaRecording) -> None:
        """Have pinned memory for what goes in and comes out."""
        parts, count = (*recorded.run.inputs, *recorded.run.outputs), len(recorded.run.inputs)
        sizes = [-(-p.nbytes // _PINNED_ALIGN) * _PINNED_ALIGN for p in parts]
        start = self.driver.pinned(sum(sizes))
        _free_with(recorded, self.driver, self.driver.free_pinned, start)
        places = tuple(start + sum(sizes[:i]) for i in range(len(sizes)))
        recorded.inputs, recorded.outputs = places[:count], places[count:]

    def captured(self, owner: CudaRecording, begin: Callable[[], None]) -> ctypes.c_void_p:
        """A graph, which goes with its owner."""
        graph = self.driver.captured(begin)
        _free_with(owner, self.driver, self.driver.drop_graph, graph)
        return graph

    def begin(self, recorded: CudaRecording, stamps: Sequence[ctypes.c_void_p] = ()) -> None:
        """Put a run into the stream, with as many stamps as it has, if there are any."""
        stamp = iter(stamps)
        self.stamp(stamp)
        for part, place in zip(recorded.run.inputs, recorded.inputs, strict=True):
            self.driver.upload(_place(part), place, part.nbytes)
        self.stamp(stamp)
        for step in recorded.run.steps:
            self.launch(step)
            self.stamp(stamp)
        for part, place in zip(recorded.run.outputs, recorded.outputs, strict=True):
            self.driver.fetch(place, _place(part), part.nbytes)
        self.stamp(stamp)

    def stamp(self, stamps: Iterator[ctypes.c_void_p]) -> None:
        for event in stamps:
            self.driver.stamp(event)
            return

    def function(self, kernel: CudaKernel) -> ctypes.c_void_p:
        """The driver's code of a kernel."""
        if kernel.ptx not in self.functions:
            self.functions[kernel.ptx] = self.driver.load(kernel.ptx, kernel.name, kernel.shared)
        return self.functions[kernel.ptx]

    def launch(self, step: Step) -> None:
        """Put a step into the stream."""
        if isinstance(step, Dispatch):
            k = step.kernel
            arguments = [_place(p) for p in step.arguments]
            arguments += self.maps.of(k, arguments)
            self.driver.launch(self.function(k), k.grid, k.block, k.shared, arguments)
        else:
            self.driver.copy(_place(step.target), _place(step.source), step.source.nbytes)

    # ---- running

    def run(self, recorded: CudaRecording, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        assert recorded.graph is not None
        self.launched(recorded, recorded.graph, inputs, outputs)

    def launched(
        self,
        recorded: CudaRecording,
        graph: ctypes.c_void_p,
        inputs: Sequence[np.ndarray],
        outputs: Sequence[np.ndarray],
    ) -> None:
        """Run one of the graphs of a recording."""
        with self.doing("running a model"):
            for place, array in zip(recorded.inputs, inputs, strict=True):
                ctypes.memmove(place, array.ctypes.data, array.nbytes)
            self.driver.run_graph(graph)
            for place, array in zip(recorded.outputs, outputs, strict=True):
                ctypes.memmove(array.ctypes.data, place, array.nbytes)

    # ---- timing

    def check_clock(self) -> None:
        """Every GPU has one."""

    def run_timed(
        self, recorded: CudaRecording, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
    ) -> StepTimes:
        """A graph of its own, in which events stand between the steps: a step begins where the one before it ended."""
        with self.doing("recording a run with time stamps"):
            if recorded.timed is None:
                while len(recorded.stamps) < len(recorded.run.steps) + 3:
                    event = self.driver.event()
                    _free_with(recorded, self.driver, self.driver.drop_event, event)
                    recorded.stamps.append(event)
                recorded.timed = self.captured(recorded, lambda: self.begin(recorded, recorded.stamps))
        self.launched(recorded, recorded.timed, inputs, outputs)
        with self.doing("reading the times of a run"):
            first = recorded.stamps[0]
            at = [1e6 * self.driver.milliseconds(first, e) for e in recorded.stamps[1:]]
        return StepTimes(np.array([at[:-2], at[1:-1]]).T.reshape(-1, 2), at[-1])


def _place(part: BufferSlice) -> int:
    return int(part.buffer.address) + part.offset


def _numbered() -> list[tuple[int, str]]:
    return list(enumerate(names()))


DEVICES = Devices("cuda", _numbered, lambda d: d[1], lambda d: CudaDevice(Driver(number=d[0])))
