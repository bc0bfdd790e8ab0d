"""Microcontroller targets: object files by LLVM, a C header, and simulated boards in QEMU. See `machines`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..base import Emulated, TargetStage
from ..elsewhere import Elsewhere
from .machines import MACHINES, McuDescription

if TYPE_CHECKING:
    import numpy as np

    from ...program.package import Package
    from ...program.program import Program


class McuTarget:
    """See `tilewright.targets.base.Target`."""

    settings: Mapping[str, tuple[tuple[str, ...], str]] = {}

    def __init__(self, machine: McuDescription) -> None:
        self.machine = machine
        self.name, self.doc = machine.name, machine.doc

    def describe(self) -> McuDescription:
        return self.machine

    def stages(self) -> Sequence[TargetStage]:
        from ...codegen.llvm.stages import emitted_text, sizes_text
        from . import stages

        return (
            TargetStage("emit", 5, "loop nests to MLIR: scf, memref, vectors", stages.emit_kernels, emitted_text),
            TargetStage("assemble", 6, "MLIR to LLVM to object code", stages.assemble_kernels, sizes_text),
        )

    def enter(self, state: Any, path: Any) -> None:
        """Continue from what was dumped after `emit`."""
        from ...codegen.llvm.stages import enter

        enter(state, path)

    def link(self, program: Program, objects: dict[str, bytes], description: McuDescription) -> dict[str, bytes]:
        """The kernels that are called; `export` and `emulate` add the rest."""
        return {s: objects[s] for s in program.symbols}

    def check(self, description: dict[str, Any]) -> None:
        """A package may be loaded anywhere: to look at it, to export it, to emulate it."""

    def load(self, package: Package, threads: int) -> Elsewhere:
        return Elsewhere(
            self.name,
            "simulate it: --emulate, or Executable.emulate; or export it for a board with Executable.export",
        )

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        from .library import files

        return files(package, self.machine)

    def emulate(self, package: Package, runs: Sequence[Sequence[np.ndarray]]) -> Emulated:
        from .emulate import emulate

        return emulate(package, self.machine, runs)


TARGETS = [McuTarget(m) for m in MACHINES]
