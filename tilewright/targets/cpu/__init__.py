"""The CPU this process runs on, and others like it: vector code through MLIR and LLVM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..base import Check
from ..by_llvm import ByLlvm

if TYPE_CHECKING:
    from types import ModuleType

    from ...codegen.llvm.memo import KernelMemo
    from ...program.package import Package
    from ...program.program import Program
    from ...program.states import StateBuffers
    from ...schedule.ceilings import Ceilings
    from .description import CpuDescription
    from .device import CpuRunner


#: what takes a kernel at level 3 all the way in a worker process
MAKER = "tilewright.targets.cpu.make:make_kernel"


class CpuTarget(ByLlvm):
    """See `tilewright.targets.base.Target`."""

    package = __name__
    name = "cpu"
    doc = "this machine's processor: AVX-512, AVX2 or NEON by the features found at run time"
    keeps_states = takes_sizes = True
    shares = "host"

    def describe(self) -> CpuDescription:
        from .description import host

        return host()

    def start(self, workers: int) -> None:
        """Start the processes that compile kernels, so that their imports overlap with other work."""
        from ...codegen.llvm.pool import start_workers

        start_workers(workers, ahead=MAKER.partition(":")[0])

    def memo(self, description: CpuDescription) -> KernelMemo:
        """What earlier compilations for this machine found; see `KernelMemo`."""
        from ...codegen.llvm.memo import KernelMemo

        return KernelMemo(description, MAKER)

    def checks(self) -> Mapping[str, Callable[[], Check]]:
        from .checks import checks

        return checks()

    def toolchain(self) -> str:
        from ...codegen.llvm.assemble import toolchain
        from ..instructions import SOURCES

        return toolchain(SOURCES)

    def tuning(self) -> ModuleType:
        from . import tuning

        return tuning

    def machine_name(self) -> str:
        from . import ceilings

        return ceilings.machine_name()

    def measure_ceilings(self, threads: int) -> Ceilings:
        from . import ceilings

        return ceilings.measure(threads)

    def link(self, program: Program, objects: dict[str, bytes], description: CpuDescription) -> dict[str, bytes]:
        """All objects of a package: the kernels and the code that calls them in order."""
        from .program import assemble_program

        return assemble_program(program, objects, description)

    def check(self, description: dict[str, Any]) -> None:
        from .description import CpuDescription, check_runs_here

        check_runs_here(CpuDescription.from_json(description))

    def load(self, package: Package, threads: int, states: StateBuffers | None = None) -> CpuRunner:
        from .device import CpuRunner

        return CpuRunner(package, threads, states=states)


TARGET = CpuTarget()
