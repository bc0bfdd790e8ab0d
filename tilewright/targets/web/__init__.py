"""Target ``web``: a static site whose kernels are WGSL for WebGPU. `tilewright compile` adds the modules of the target
``wasm``, for browsers that have no WebGPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..cross_compiled import CrossCompiledRunner
from ..gpu.target import TextTarget

if TYPE_CHECKING:
    from ...codegen.clike.dialect import Dialect
    from ...program.package import Package


class WebTarget(TextTarget):
    """See `tilewright.targets.base.Target`."""

    name, form = "web", "wgsl"
    doc = "WebGPU, for browsers, with WebAssembly where there is none; -o site/ writes a static site"
    #: name of a setting -> (choices, what it does); the first choice is the default
    settings: Mapping[str, tuple[tuple[str, ...], str]] = {
        "fallback": (("wasm", "no"), "WebAssembly beside WebGPU, for browsers without it (needs wasm-ld)"),
        "page": (("yes", "no"), "an example page beside the model and its runner"),
    }
    #: see `tilewright.targets.base.Joining`
    joined = ("wasm",)

    def dialect(self) -> Dialect:
        from ...codegen.clike.wgsl import WGSL

        return WGSL

    def load(self, package: Package, threads: int) -> CrossCompiledRunner:
        return CrossCompiledRunner(
            self.name, "export it with Executable.export; target='vulkan' runs such kernels here"
        )

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        return self.join({self.name: package}, settings)

    def join(self, packages: Mapping[str, Package], settings: Mapping[str, str]) -> dict[str, bytes]:
        """The files of a site for this target's package and those of `joined` that there are."""
        from .files import site

        return site(packages[self.name], packages.get("wasm"), settings)


TARGET = WebTarget()
