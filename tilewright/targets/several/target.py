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

from ...program.program import COPY
from ..base import Target, TargetStage, Warmable
from .machine import Machines
from .segments import HOST, host_program, segments

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.program import Program
    from ...program.states import StateBuffers
    from .runner import SeveralRunner

#: what the host's memory is called where none of its kernels run there
MEMORY = "host"


class SeveralTarget:
    """See `tilewright.targets.base.Target`, `SeveralDevices` (the driver places calls) and `Placing`."""

    def __init__(self, members: Sequence[Any]) -> None:
        from ..gpu.on_device import OnDevice

        hosts = [m for m in members if not isinstance(m, OnDevice)]
        self.host: Target | None = hosts[0] if hosts else None
        devices = [m for m in members if isinstance(m, OnDevice)]
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

    def part(self, state: Any, device: int) -> Any:
        """See `tilewright.targets.base.Placing`."""
        from .stages import part

        return part(state, self.members[device], self.device_names[device])

    def add(self, state: Any, part: Any) -> None:
        """See `tilewright.targets.base.Placing`."""
        from .stages import add

        add(state, part)

    def start(self, workers: int) -> None:
        """See `tilewright.targets.base.Warmable`."""
        for _, member in self.own():
            if isinstance(member, Warmable):
                member.start(workers)

    def stages(self) -> Sequence[TargetStage]:
        from .stages import stages

        return stages(self.own())

    def link(self, program: Program, objects: dict[str, bytes], description: object) -> dict[str, bytes]:
        """The kernels of devices, and the host's native function of each of its segments."""
        linked = {c.symbol: objects[c.symbol] for c in program.calls if c.device != HOST and c.symbol != COPY}
        for n, segment in enumerate(segments(program)):
            if segment.device == HOST and segment.symbols:
                assert self.host is not None
                own = {symbol: objects[symbol] for symbol in segment.symbols}
                made = self.host.link(host_program(program, segment.calls), own, self.host.describe())
                linked |= {f"part{n}/{name}": data for name, data in made.items()}
        return linked

    def check(self, description: dict[str, Any]) -> None:
        """PackageError if one of the devices' code cannot run here, as far as that is known without a driver."""
        for member, own in zip(self.ordered(), description["machines"], strict=True):
            member.check(own)

    def ordered(self) -> list[Any]:
        """All members, as `describe` has them: what the processor takes is the rest."""
        return [m for m in (*self.members[1:], self.host) if m is not None]

    def load(self, package: Package, threads: int) -> SeveralRunner:
        from .runner import SeveralRunner

        return SeveralRunner(package, threads, self)

    def load_with_states(self, package: Package, threads: int, states: StateBuffers) -> SeveralRunner:
        """See `tilewright.targets.base.StateKeeper`."""
        from .runner import SeveralRunner

        return SeveralRunner(package, threads, self, states)


__all__ = ["MEMORY", "SeveralTarget"]
