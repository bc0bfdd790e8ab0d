"""Target ``amdgpu``: kernels as a code object (``.hsaco``) that other programs load through HIP or HSA; it is not run
here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...support.errors import UsageError
from ..base import TargetStage
from ..elsewhere import Elsewhere
from ..kernels_alone import KernelsAlone

if TYPE_CHECKING:
    from ...program.package import Package
    from ...schedule.nest import Nest
    from .description import AmdDescription

#: the GPU that code is made for where none is named
DEFAULT = "gfx90a"


class AmdTarget(KernelsAlone):
    """See `tilewright.targets.base.Target`. `gfx`: AMD's name of a GPU's instructions."""

    doc = "AMD GPUs: code objects, which do not run here; -o folder/ writes them; amdgpu:gfx942 names another one"
    #: see `tilewright.targets.base.OfMachines`
    machine_parameter = "gfx"
    #: see `tilewright.targets.base.Exporter`
    settings: Mapping[str, tuple[tuple[str, ...], str]] = {}

    def __init__(self, gfx: str = DEFAULT) -> None:
        self.gfx = gfx
        self.name = "amdgpu" if gfx == DEFAULT else f"amdgpu:{gfx}"

    def configured(self, parameters: Mapping[str, str]) -> AmdTarget:
        """See `tilewright.targets.base.Configurable`."""
        from .description import MACHINES

        if unknown := set(parameters) - {"gfx"}:
            raise UsageError(f"amdgpu has no parameter {sorted(unknown)[0]!r}", hint="parameters: gfx")
        gfx = parameters.get("gfx", DEFAULT)
        if gfx not in MACHINES:
            raise UsageError(f"there is no GPU {gfx!r}", hint=f"gfx is one of {', '.join(MACHINES)}")
        return AmdTarget(gfx)

    def describe(self) -> AmdDescription:
        from .description import MACHINES

        return MACHINES[self.gfx]

    def stages(self) -> Sequence[TargetStage]:
        from ..gpu.llvm_stages import emitted_text
        from . import stages

        return (
            TargetStage("emit", 5, "loop nests to LLVM IR", stages.emit_kernels, emitted_text),
            TargetStage("assemble", 6, "LLVM IR to objects", stages.assemble_kernels, stages.launches_text),
        )

    def forms(self) -> Mapping[str, Callable[[Nest, Any], str]]:
        """See `tilewright.targets.base.Showing`."""
        from . import stages

        return {"ll": stages.llvm_text, "s": stages.assembly_text}

    def load(self, package: Package, threads: int) -> Elsewhere:
        return Elsewhere(self.name, "export it with Executable.export, and load its code object with HIP or HSA")

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        """The code object, model.json and weights.bin (`targets/gpu/files.py`)."""
        from .code_object import exported

        return exported(package)


TARGET = AmdTarget()
