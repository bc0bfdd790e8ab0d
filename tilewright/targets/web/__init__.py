"""The browser: a static site whose kernels are WGSL for WebGPU. `tilewright compile` puts the modules of the target
wasm beside them, for browsers that have no WebGPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..base import TargetStage
from ..elsewhere import Elsewhere
from ..gpu.describe import GpuDescription

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.program import Program


class WebTarget:
    """See `tilewright.targets.base.Target`."""

    name = "web"
    doc = "WebGPU, for browsers, with WebAssembly where there is none; -o site/ writes a static site"
    #: name of a setting -> (choices, what it does); the first choice is the default
    settings: Mapping[str, tuple[tuple[str, ...], str]] = {
        "fallback": (("wasm", "no"), "WebAssembly beside WebGPU, for browsers without it (needs wasm-ld)"),
        "page": (("yes", "no"), "an example page beside the model and its runner"),
    }
    #: see `tilewright.targets.base.Joining`
    joined = ("wasm",)

    def describe(self) -> GpuDescription:
        return GpuDescription()

    def stages(self) -> Sequence[TargetStage]:
        from ...codegen.clike.wgsl import WGSL
        from ..gpu.stages import stages

        return stages(WGSL)

    def link(self, program: Program, objects: dict[str, bytes], description: Any) -> dict[str, bytes]:
        return {s: objects[s] for s in program.symbols}

    def check(self, description: dict[str, Any]) -> None:
        """A package may be loaded anywhere: to look at it, to export it."""

    def load(self, package: Package, threads: int) -> Any:
        return Elsewhere(self.name, "export it with Executable.export; target='vulkan' runs such kernels here")

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        return self.join({self.name: package}, settings)

    def join(self, packages: Mapping[str, Package], settings: Mapping[str, str]) -> dict[str, bytes]:
        """The files of a site for this target's package and those of `joined` that there are."""
        from .files import site

        return site(packages[self.name], packages.get("wasm"), settings)


TARGET = WebTarget()
