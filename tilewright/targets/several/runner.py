"""Runs a program on several devices, segment by segment, and copies the tensors that the next segment needs."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...program.program import BufferRef
from ...program.states import StateBuffers
from ...support.aligned import address, aligned_empty
from ..base import ProgramRunner, not_at_once
from ..gpu.constants import Uploaded, uploaded
from ..gpu.device import Device, DeviceKernel
from ..gpu.states import DeviceState
from .memory import DeviceMemory
from .segments import BOUNCE, HOST, Segment, bounces, host_program, segments
from .states import Kept, kept, take
from .timing import RunClock

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.timeline import Stamps
    from .target import SeveralTarget


_UNTIMED = contextlib.nullcontext()


class SeveralRunner:
    """A package's code on its devices (`tilewright.targets.base.ProgramRunner`).

    Devices are asked for when the program first runs: code can be made where there are none. `states` are the buffers
    of its states. With `timed` the host's functions are linked with time stamps.
    """

    seconds_per_tick = 1e-9

    def __init__(
        self,
        package: Package,
        threads: int,
        target: SeveralTarget,
        states: StateBuffers | None = None,
        timed: bool = False,
    ) -> None:
        self.package, self.program, self.target, self.asked = package, package.program, target, threads
        self.states = StateBuffers(package.program.states) if states is None else states
        self.segments = segments(self.program)
        self.hosts: dict[int, ProgramRunner] = {}
        for n, segment in enumerate(self.segments):
            if segment.device == HOST and segment.symbols:
                made = self.on_host(n, segment)
                self.hosts[n] = made.timed() if timed else made
        #: of the host; devices have one each
        self.threads = max((r.threads for r in self.hosts.values()), default=1)
        self.kernels: dict[int, dict[str, DeviceKernel]] = {}
        for segment in self.segments:
            for symbol in segment.symbols if segment.device != HOST else ():
                known = self.kernels.setdefault(segment.device, {})
                if symbol not in known:
                    known[symbol] = target.members[segment.device].unpack(package.objects[symbol])
        self.constants: dict[int, Uploaded] = {}
        self.devices: dict[int, Device] = {}
        self.beginning = threading.Lock()

    def on_host(self, number: int, segment: Segment) -> ProgramRunner:
        """One of the host's segments, loaded."""
        host, head = self.target.host, f"part{number}/"
        assert host is not None
        own = {k.removeprefix(head): v for k, v in self.package.objects.items() if k.startswith(head)}
        program = host_program(self.program, segment.calls)
        description = self.package.description["machines"][self.target.ordered().index(host)]
        its = replace(self.package, target=host.name, description=description, program=program, objects=own)
        return host.load(its, self.asked)

    def opened(self) -> dict[int, Device]:
        """The devices by number, with the constants in their memory."""
        with self.beginning:
            if not self.devices:
                used = sorted({s.device for s in self.segments} - {HOST})
                found = {n: self.target.members[n].opened() for n in used}
                for i, info in enumerate(self.program.constants):
                    if info.device in found:
                        self.constants[i] = uploaded(found[info.device], self.package.constants[i])
                self.devices = found
        return self.devices

    def context(self) -> SeveralContext:
        return SeveralContext(self, self.opened())

    def timed(self) -> SeveralRunner:
        """The same program with time stamps; a device's clock is asked in those runs that are given memory for them."""
        for device in self.opened().values():
            device.check_clock()
        made = SeveralRunner(self.package, self.asked, self.target, self.states, timed=True)
        made.constants, made.devices = self.constants, self.devices
        return made


class SeveralContext:
    """Memory for one run at a time: the host's arena and contexts, and what each device has."""

    enter = staticmethod(not_at_once)

    def __init__(self, runner: SeveralRunner, devices: dict[int, Device]) -> None:
        self.runner, program = runner, runner.program
        self.program, self.segments = program, runner.segments
        self.arena = aligned_empty(max(program.devices[HOST].arena_size, 1))
        self.bounce = {n: np.empty(size, np.uint8) for n, size in bounces(program).items()}
        self.states: list[Kept] = [
            kept(devices.get(s.tensor.device), buffer, s.swapped)
            for s, buffer in zip(program.states, runner.states.buffers, strict=True)
        ]
        self.memory = {n: self.on_device(n, device) for n, device in devices.items()}
        self.contexts = {n: r.context() for n, r in runner.hosts.items()}
        for n, segment in enumerate(self.segments):
            if segment.device != HOST:
                self.memory[segment.device].whole(n, segment)

    def on_device(self, number: int, device: Device) -> DeviceMemory:
        states = {i: s for i, s in enumerate(self.states) if isinstance(s, DeviceState) and s.device is device}
        here = {i: c for i, c in self.runner.constants.items() if self.program.constants[i].device == number}
        return DeviceMemory(device, number, self.program, self.runner.kernels.get(number, {}), here, states)

    # ---- running ----

    def run(self, inputs: Sequence[int], outputs: Sequence[int], stamps: Stamps | None = None) -> None:
        """See `tilewright.targets.base.Context`."""
        for state, buffer in zip(self.states, self.runner.states.buffers, strict=True):
            take(state, buffer)
        run = _Run(self, inputs, outputs)
        clock = None if stamps is None else RunClock(stamps, self.runner.threads, len(self.program.calls))
        try:
            for n, segment in enumerate(self.segments):
                if segment.device == HOST:
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

    def judge(self) -> None:
        """Runs do not differ."""

    def close(self) -> None:
        for c in self.contexts.values():
            c.close()
        self.memory = {}


class _Run:
    """One run: where the caller's arrays are."""

    def __init__(self, context: SeveralContext, inputs: Sequence[int], outputs: Sequence[int]) -> None:
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
        if n not in self.context.contexts:  # copies alone
            for number, call in segment.calls:
                with clock.call(number) if clock is not None else _UNTIMED:
                    self.bytes_of(call.args[1])[...] = self.bytes_of(call.args[0])
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
