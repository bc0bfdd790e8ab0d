"""Base of targets whose kernels become objects by LLVM."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .base import Target, TargetStage


class ByLlvm(Target):
    """A target whose nests become MLIR, and that objects. The module ``stages`` of its `package` says how, with
    `emit_kernels` and `assemble_kernels`."""

    package: str

    def stages(self) -> Sequence[TargetStage]:
        from ..codegen.llvm.stages import emitted_text, sizes_text

        own, doc = import_module(f"{self.package}.stages"), "MLIR to LLVM to object code, in worker processes"
        return (
            TargetStage("emit", 5, "loop nests to MLIR: scf, memref, vectors", own.emit_kernels, emitted_text),
            TargetStage("assemble", 6, doc, own.assemble_kernels, sizes_text),
        )

    def enter(self, state: Any, path: Any) -> None:
        from ..codegen.llvm.stages import enter

        enter(state, path)


__all__ = ["ByLlvm"]
