"""Bases of targets: those that keep kernels apart in a package, and those whose kernels become objects by LLVM."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .base import TargetStage

if TYPE_CHECKING:
    from pathlib import Path

    from ..program.program import Program


class KernelsAlone:
    """A part of a target: packages have the kernels that are called, and what runs or exports them adds the rest.

    A package may be loaded anywhere: to look at it, to export it.
    """

    def link(self, program: Program, objects: dict[str, bytes], description: object) -> dict[str, bytes]:
        """See `tilewright.targets.base.Target`."""
        return {s: objects[s] for s in program.symbols}

    def check(self, description: dict[str, Any]) -> None:
        """See `tilewright.targets.base.Target`."""


class ByLlvm:
    """A part of a target: nests become MLIR, and that objects. The module ``stages`` of its `package` says how, with
    `emit_kernels` and `assemble_kernels`."""

    package: str

    def stages(self) -> Sequence[TargetStage]:
        """See `tilewright.targets.base.Target`."""
        from ..codegen.llvm.stages import emitted_text, sizes_text

        own, doc = import_module(f"{self.package}.stages"), "MLIR to LLVM to object code, in worker processes"
        return (
            TargetStage("emit", 5, "loop nests to MLIR: scf, memref, vectors", own.emit_kernels, emitted_text),
            TargetStage("assemble", 6, doc, own.assemble_kernels, sizes_text),
        )

    def enter(self, state: object, path: Path) -> None:
        """Continue from what was dumped after `emit`."""
        from ..codegen.llvm.stages import enter

        enter(state, path)


__all__ = ["ByLlvm", "KernelsAlone"]
