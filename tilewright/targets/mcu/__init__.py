"""Microcontroller targets: object files by LLVM, a C header, and simulated boards in QEMU. See `machines`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..base import Emulated
from ..by_llvm import ByLlvm
from .machines import MACHINES, McuDescription

if TYPE_CHECKING:
    import numpy as np

    from ...program.package import Package


class McuTarget(ByLlvm):
    """See `tilewright.targets.base.Target`."""

    package = __name__
    settings: Mapping[str, tuple[tuple[str, ...], str]] = {}
    elsewhere = "simulate it: --emulate, or Executable.emulate; or export it for a board with Executable.export"

    def __init__(self, machine: McuDescription) -> None:
        self.machine = machine
        self.name, self.doc = machine.name, machine.doc

    def describe(self) -> McuDescription:
        return self.machine

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        from .library import files

        return files(package, self.machine)

    def emulate(self, package: Package, runs: Sequence[Sequence[np.ndarray]]) -> Emulated:
        from .emulate import emulate

        return emulate(package, self.machine, runs)


TARGETS = [McuTarget(m) for m in MACHINES]
