"""Several devices as one compilation target (``opencl+cpu``).

    tw.compile(model, target="opencl+cpu")                          a GPU, and the processor for what it cannot
    tw.compile(model, target="cuda:sm_90a+cpu", place={"Softmax": "cpu"})
    tw.compile(model, target="opencl:device=0+opencl:device=1")     two GPUs

Device 0 is the host's memory, where inputs and outputs are; its kernels are those of the member that works in it, if
there is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..base import Target, TargetStage
from .machine import Machines
from .segments import link

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.program import Program
    from ...program.states import StateBuffers
    from .runner import MultiDeviceRunner

#: what the host's memory is called where none of its kernels run there
MEMORY = "host"


class MultiDeviceTarget(Target):
    """See `tilewright.targets.base.Target`."""

    keeps_states = True

    def __init__(self, members: Sequence[Any]) -> None:
        self.host: Target | None = next((m for m in members if m.shares == "host"), None)
        devices = [m for m in members if m.shares == "device"]
        self.name = "+".join(m.name for m in members)
        self.doc = f"{', '.join(m.name for m in members)} in one program"
        #: by the number of the device
        self.members: tuple[Any, ...] = (self.host, *devices)
        self.device_names = tuple(MEMORY if m is None else m.name for m in self.members)

    def own(self) -> list[tuple[str, Any]]:
        """The devices with kernels, by name."""
        return [(n, m) for n, m in zip(self.device_names, self.members, strict=True) if m is not None]

    def describe(self) -> Machines:
        first, *others = [m.describe() for m in self.ordered()]
        return Machines(first, others)

    def start(self, workers: int) -> None:
        for _, member in self.own():
            member.start(workers)

    def stages(self) -> Sequence[TargetStage]:
        from .stages import stages

        return stages(self.own())

    def link(self, program: Program, objects: dict[str, bytes], description: object) -> dict[str, bytes]:
        return link(program, objects, self.host, self.host.describe() if self.host is not None else None)

    def check(self, description: dict[str, Any]) -> None:
        """PackageError if one of the devices' code cannot run here, as far as that is known without a driver."""
        for member, own in zip(self.ordered(), description["machines"], strict=True):
            member.check(own)

    def ordered(self) -> list[Any]:
        """All members, as `describe` has them: what the processor takes is the rest."""
        return [m for m in (*self.members[1:], self.host) if m is not None]

    def load(self, package: Package, threads: int, states: StateBuffers | None = None) -> MultiDeviceRunner:
        from .runner import MultiDeviceRunner

        machine = None if self.host is None else package.description["machines"][self.ordered().index(self.host)]
        return MultiDeviceRunner(package, threads, self.members, machine, states)


__all__ = ["MEMORY", "MultiDeviceTarget"]
