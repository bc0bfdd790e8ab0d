"""Runs a program on several devices, segment by segment, and copies the tensors that the next segment needs; or on a
host and a coprocessor, which take turns on the same memory."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Sequence, Set
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...program.program import BufferRef, Call
from ...program.states import StateBuffers
from ...support.aligned import address, aligned_empty
from ...support.errors import UsageError
from ..base import Context, ProgramRunner, Target
from ..gpu.constants import Uploaded, uploaded
from ..gpu.device import Device, DeviceKernel
from ..gpu.states import DeviceState
from .memory import SegmentMemory
from .segments import BESIDE, BOUNCE, HOST, Segment, bounces, host_arena, host_program, segments
from .states import StateOnADevice, state_on, take
from .timing import RunClock

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.timeline import Stamps

_UNTIMED = contextlib.nullcontext()


class Other(Protocol):
    """A coprocessor, for one run at a time."""

    def run_call(self, number: int, call: Call, memory: Sequence[np.ndarray]) -> None:
        """Run call `number` of the program on the bytes of its arguments, those that it writes change."""


class MultiDeviceRunner(ProgramRunner):
    """A package's code on its devices (`tilewright.targets.base.ProgramRunner`).

    Devices are asked for when the program first runs: code can be made where there are none. `members` are the targets
    by the number of the device, the host's the first; `machine` is the description that the host's code was made for.
    `states` are the buffers of the program's states. What has a coprocessor overrides `other`; it runs the symbols
    `taken`.
    """

    def __init__(
        self,
        package: Package,
        threads: int,
        members: Sequence[Any],
        machine: Any,
        states: StateBuffers | None,
        taken: Set[str] = frozenset(),
    ) -> None:
        self.package, self.program, self.members, self.asked = package, package.program, members, threads
        self.states = StateBuffers(package.program.states) if states is None else states
        self.segments = segments(self.program, taken)
        self.hosts: dict[int, ProgramRunner] = {}
        for n, segment in enumerate(self.segments):
            if segment.device == HOST and segment.symbols:
                self.hosts[n] = self.on_host(n, segment, machine)
        #: of the host; devices have one each
        self.threads = max((r.threads for r in self.hosts.values()), default=1)
        self.kernels: dict[int, dict[str, DeviceKernel]] = {}
        for segment in self.segments:
            for symbol in segment.symbols if segment.device > HOST else ():
                known = self.kernels.setdefault(segment.device, {})
                if symbol not in known:
                    known[symbol] = members[segment.device].unpack(package.objects[symbol])
        self.constants: dict[int, Uploaded] = {}
        self.devices: dict[int, Device] = {}
        self.beginning = threading.Lock()

    def on_host(self, number: int, segment: Segment, machine: Any) -> ProgramRunner:
        """One of the host's segments, loaded."""
        host: Target | None = self.members[HOST]
        head = f"part{number}/"
        if host is None:
            raise UsageError(f"{self.package.target} alone cannot run {segment.symbols[0]}", stage="load")
        own = {k.removeprefix(head): v for k, v in self.package.objects.items() if k.startswith(head)}
        program = host_program(self.program, segment.calls)
        its = replace(self.package, target=host.name, description=machine, program=program, objects=own)
        return host.load(its, self.asked)

    def open_devices(self) -> dict[int, Device]:
        """The devices by number, with the constants in their memory."""
        with self.beginning:
            if not self.devices:
                used = sorted({s.device for s in self.segments} - {HOST, BESIDE})
                found = {n: self.members[n].open_device() for n in used}
                for i, info in enumerate(self.program.constants):
                    if info.device in found:
                        self.constants[i] = uploaded(found[info.device], self.package.constants[i])
                self.devices = found
        return self.devices

    def context(self) -> MultiDeviceContext:
        return MultiDeviceContext(self, self.open_devices())

    def timed(self) -> MultiDeviceRunner:
        """The same program with time stamps; a device's clock is asked in those runs that are given memory for them."""
        for device in self.open_devices().values():
            device.check_clock()
        made = copy(self)
        made.hosts = {n: r.timed() for n, r in self.hosts.items()}
        return made

    def other(self) -> Other | None:
        """The coprocessor, for one more context."""
        return None


class MultiDeviceContext(Context):
    """Memory for one run at a time: the host's arena and contexts, and what each device has."""

    def __init__(self, runner: MultiDeviceRunner, devices: dict[int, Device]) -> None:
        self.runner, program = runner, runner.program
        self.program, self.segments = program, runner.segments
        self.arena = aligned_empty(max(host_arena(program), 1))
        self.other = runner.other()
        self.bounce = {n: np.empty(size, np.uint8) for n, size in bounces(program).items()}
        self.states: list[StateOnADevice] = [
            state_on(devices.get(s.tensor.device), buffer, s.swapped)
            for s, buffer in zip(program.states, runner.states.buffers, strict=True)
        ]
        self.memory = {n: self.on_device(n, device) for n, device in devices.items()}
        self.contexts = {n: r.context() for n, r in runner.hosts.items()}
        for n, segment in enumerate(self.segments):
            if segment.device > HOST:
                self.memory[segment.device].whole(n, segment)

    def on_device(self, number: int, device: Device) -> SegmentMemory:
        states = {i: s for i, s in enumerate(self.states) if isinstance(s, DeviceState) and s.device is device}
        here = {i: c for i, c in self.runner.constants.items() if self.program.constants[i].device == number}
        return SegmentMemory(device, number, self.program, self.runner.kernels.get(number, {}), here, states)

    # ---- running ----

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stamps: Stamps | None = None) -> None:
        """See `tilewright.targets.base.Context`."""
        for state, buffer in zip(self.states, self.runner.states.buffers, strict=True):
            take(state, buffer)
        run = _Run(self, inputs, outputs)
        clock = None if stamps is None else RunClock(stamps, self.runner.threads, len(self.program.calls))
        try:
            for n, segment in enumerate(self.segments):
                if segment.device <= HOST:
                    run.on_host(n, segment, clock)
                elif clock is None:
                    run.on_device(n, segment)
                else:
                    run.timed_on_device(n, segment, clock)
        except BaseException:
            for state, info in zip(self.states, self.program.states, strict=True):
                state.failed(in_place=bool(info.output) and not info.swapped)
            raise
        if clock is not None:
            clock.end()
        for state, info in zip(self.states, self.program.states, strict=True):
            state.done(info.swapped)

    def close(self) -> None:
        for c in self.contexts.values():
            c.close()
        self.memory = {}


class _Run:
    """One run: where the caller's arrays are."""

    def __init__(self, context: MultiDeviceContext, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.context, self.inputs, self.outputs = context, inputs, outputs
        self.buffers = context.runner.states.buffers
        self.results = [*outputs, address(context.arena), *(a for b in self.buffers for a in b.addresses)]

    def bytes_of(self, ref: BufferRef) -> np.ndarray:
        """A buffer in the host's memory."""
        c = self.context
        if ref.space in ("input", "output"):
            return _at((self.inputs if ref.space == "input" else self.outputs)[ref.index] + ref.offset, ref.nbytes)
        if ref.space == "constant":
            whole = c.runner.package.constants[ref.index]
        elif ref.space in ("state", "next"):
            buffer = self.buffers[ref.index]
            whole = buffer.array if ref.space == "state" else buffer.following
        else:
            whole = c.bounce[ref.index] if ref.space == BOUNCE else c.arena
        return whole.reshape(-1).view(np.uint8)[ref.offset : ref.offset + ref.nbytes]

    def on_host(self, n: int, segment: Segment, clock: RunClock | None) -> None:
        if n not in self.context.contexts:  # copies alone, or a call of the coprocessor
            for number, call in segment.calls:
                memory = [self.bytes_of(r) for r in call.args]
                with clock.call(number) if clock is not None else _UNTIMED:
                    if segment.device == HOST:
                        memory[1][...] = memory[0]
                    else:
                        assert self.context.other is not None
                        self.context.other.run_call(number, call, memory)
            return
        host = self.context.contexts[n]
        if clock is None:
            host.run(self.inputs, self.results)
            return
        runner = self.context.runner.hosts[n]
        clock.host(runner, segment, lambda stamps: host.run(self.inputs, self.results, stamps))

    def on_device(self, n: int, segment: Segment) -> None:
        memory = self.context.memory[segment.device]
        given = [self.bytes_of(t.host) for t in segment.uploads]
        wanted = [self.bytes_of(t.host) for t in segment.downloads]
        memory.device.run(memory.whole(n, segment), given, wanted)

    def timed_on_device(self, n: int, segment: Segment, clock: RunClock) -> None:
        """Each copy by itself, by the host's clock; the calls by the device's."""
        memory = self.context.memory[segment.device]
        for t in segment.uploads:
            with clock.call(t.number):
                memory.device.run(memory.copy(t, to_device=True), [self.bytes_of(t.host)], ())
        if segment.calls:
            clock.device(segment, lambda: memory.device.run_timed(memory.calls(n, segment), (), ()))
        for t in segment.downloads:
            with clock.call(t.number):
                memory.device.run(memory.copy(t, to_device=False), (), [self.bytes_of(t.host)])


def _at(place: int, nbytes: int) -> np.ndarray:
    if not nbytes:
        return np.zeros(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_ubyte * nbytes).from_address(place))
