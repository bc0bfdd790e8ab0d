"""A host with user-supplied functions as one target: what a predicate takes becomes a kernel of its own.

Loading a package needs neither MLIR nor LLVM, so what compiles is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...schedule.machine import Machine
from ...support.dtypes import TYPES
from ...support.errors import UsageError
from ..base import Target, TargetStage
from ..beside.parts import link
from .api import Offload
from .operation import MAGIC, OperationArguments, of_level2

if TYPE_CHECKING:
    from torch_mlir import ir

    from ...program.package import Package
    from ...program.program import Program
    from ...tensor.kernel import Kernel
    from .runner import OffloadRunner
    from .stages import Offloaded


class OffloadBesideHost:
    """See `tilewright.targets.base.Partitioning`, and `Annotating`: the operations are chosen at level 2."""

    def __init__(self, offload: Offload, host: Target) -> None:
        self.offload, self.host = offload, host
        self.name = f"{host.name}+{offload.name}"
        self.doc = f"{host.doc}; operations of {offload.name} beside it"
        self.taken: dict[str, str] = {}

    def annotate(self, operation: ir.Operation) -> str:
        """See `tilewright.targets.base.Annotating`."""
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
        self.taken = {}
        made = {n: alone([n]).opaque for g in groups for n in g}
        return [[n] for n, o in sorted(made.items()) if o is not None and o.processor == self.offload.name]

    def notes(self) -> list[str]:
        """See `tilewright.targets.base.Partitioning`."""
        return [f"{k} runs on {self.offload.name}: {o}" for k, o in self.taken.items()] or [
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
        self.taken[kernel.name] = str(places.operation)
        return Offloaded(Schedule(kernel, self.describe()), self.offload.name, (), places=places)

    def describe(self) -> Machine:
        return self.host.describe()

    def stages(self) -> Sequence[TargetStage]:
        from ..beside.stages import with_other
        from .stages import assemble, text

        return with_other(self.host, assemble, f"what {self.offload.name} computes", {6: text})

    def link(self, program: Program, objects: dict[str, bytes], description: object) -> dict[str, bytes]:
        taken = {s for s, data in objects.items() if data.startswith(MAGIC)}
        return link(program, objects, taken, self.host, description)

    def check(self, description: dict[str, Any]) -> None:
        self.host.check(description)

    def load(self, package: Package, threads: int) -> OffloadRunner:
        from .runner import OffloadRunner

        return OffloadRunner(package, threads, self.offload, self.host)
