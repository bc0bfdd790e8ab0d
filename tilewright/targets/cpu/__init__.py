"""The CPU this process runs on, and others like it: vector code through MLIR and LLVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..base import Check, TargetStage

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.program import Program
    from ...program.states import StateBuffers
    from .device import CpuRunner
    from .host import CpuDescription


class CpuTarget:
    """See `tilewright.targets.base.Target`."""

    name = "cpu"
    doc = "this machine's processor: AVX-512, AVX2 or NEON by the features found at run time"

    def describe(self) -> CpuDescription:
        from .host import host

        return host()

    def stages(self) -> Sequence[TargetStage]:
        from . import stages

        return (
            TargetStage(
                "emit", 5, "loop nests to MLIR: scf, memref, vectors", stages.emit_kernels, stages.emitted_text
            ),
            TargetStage(
                "assemble",
                6,
                "MLIR to LLVM to object code, in worker processes",
                stages.assemble_kernels,
                stages.sizes_text,
            ),
        )

    def start(self, workers: int) -> None:
        """Start the processes that compile kernels, so that their imports overlap with other work."""
        from .pool import start_workers

        start_workers(workers)

    def memo(self, description: CpuDescription) -> Any:
        """What earlier compilations for this machine found; see `memo.KernelMemo`."""
        from .memo import KernelMemo

        return KernelMemo(description)

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        """What `tilewright doctor` asks."""
        from .checks import checks

        return checks()

    def toolchain(self) -> str:
        """The versions of all that turns nests into code."""
        from .assemble import toolchain

        return toolchain()

    def tuning(self) -> Any:
        """See `tilewright.targets.base.Tuning`."""
        from . import tuning

        return tuning

    def machine_name(self) -> str:
        """See `tilewright.schedule.ceilings.Measurable`."""
        from . import ceilings

        return ceilings.machine_name()

    def measure_ceilings(self, threads: int) -> Any:
        """See `tilewright.schedule.ceilings.Measurable`."""
        from . import ceilings

        return ceilings.measure(threads)

    def link(self, program: Program, objects: dict[str, bytes], description: CpuDescription) -> dict[str, bytes]:
        """All objects of a package: the kernels and the code that calls them in order."""
        from .program import assemble_program

        return assemble_program(program, objects, description)

    def enter(self, state: Any, path: Any) -> None:
        """Continue from what was dumped after `emit`."""
        from . import stages

        stages.enter(state, path)

    def check(self, description: dict[str, Any]) -> None:
        from .host import CpuDescription, check_runs_here

        check_runs_here(CpuDescription.from_json(description))

    def load(self, package: Package, threads: int) -> CpuRunner:
        from .device import CpuRunner

        return CpuRunner(package, threads)

    def load_with_states(self, package: Package, threads: int, states: StateBuffers) -> CpuRunner:
        """See `tilewright.targets.base.StateKeeper`."""
        from .device import CpuRunner

        return CpuRunner(package, threads, states=states)


TARGET = CpuTarget()
