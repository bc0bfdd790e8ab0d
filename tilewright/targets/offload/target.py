"""A host with user-supplied functions as one target: what a predicate takes becomes a kernel of its own.

Loading a package needs neither MLIR nor LLVM, so what compiles is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from ...support.dtypes import TYPES
from ...support.errors import UsageError
from ..base import Coprocessor, Target, TargetStage
from ..multi_device.coprocessor import HostWithCoprocessor
from .api import Offload
from .operation import MAGIC, OperationArguments, of_level2

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.states import StateBuffers
    from ...tensor.kernel import Kernel
    from .runner import OffloadRunner
    from .stages import Offloaded


class OffloadKernels(Coprocessor):
    """See `tilewright.targets.base.Coprocessor`: the operations are chosen at level 2."""

    host: Target

    def __init__(self, offload: Offload, host: Target) -> None:
        self.offload, self.host = offload, host
        self.chosen: dict[str, str] = {}

    def annotate(self, operation: Any) -> str:
        about = of_level2(operation)
        if any(o is not None and TYPES[o.dtype].computed for o in (*about.operands, *about.results)):
            return ""  # codes of less than a byte
        try:
            return self.offload.name if self.offload.takes(about) else ""
        except Exception as e:
            raise UsageError(
                f"`takes` of {self.offload.name} failed: {type(e).__name__}: {e}",
                stage="lower",
                operator=f"{about} {', '.join(about.nodes)}".strip(),
            ) from e

    def claims(self, groups: Sequence[Sequence[int]], alone: Callable[[Sequence[int]], Kernel]) -> list[Sequence[int]]:
        """The operations that were annotated, each a kernel of its own."""
        self.chosen = {}
        made = {n: alone([n]).opaque for g in groups for n in g}
        return [[n] for n, o in sorted(made.items()) if o is not None and o.processor == self.offload.name]

    def notes(self) -> list[str]:
        return [f"{k} runs on {self.offload.name}: {o}" for k, o in self.chosen.items()] or [
            f"{self.offload.name} takes nothing of the model"
        ]

    def schedule(self, kernel: Kernel, trace: str | None) -> Offloaded:
        if trace is not None:
            raise UsageError(
                f"{kernel.name} has no schedule: {self.offload.name} computes it",
                stage="schedule",
                hint="leave it out of `schedules`",
            )
        from ...schedule.schedule import Schedule
        from .stages import Offloaded

        places = OperationArguments.of(kernel)
        self.chosen[kernel.name] = str(places.operation)
        return Offloaded(Schedule(kernel, self.host.describe()), self.offload.name, (), places=places)


class OffloadWithHost(HostWithCoprocessor):
    """See `tilewright.targets.base.Target`."""

    def __init__(self, offload: Offload, host: Target) -> None:
        super().__init__(host, offload.name, offload.name, f"operations of {offload.name}")
        self.offload, self.coprocessor = offload, OffloadKernels(offload, host)

    def stages(self) -> Sequence[TargetStage]:
        from ..multi_device.stages import with_other
        from .stages import assemble, text

        return with_other(self.host, assemble, f"what {self.offload.name} computes", {6: text})

    def taken(self, objects: Mapping[str, bytes]) -> Set[str]:
        return {s for s, data in objects.items() if data.startswith(MAGIC)}

    def load(self, package: Package, threads: int, states: StateBuffers | None = None) -> OffloadRunner:
        from .runner import OffloadRunner

        return OffloadRunner(package, threads, self.offload, self.host, states)
