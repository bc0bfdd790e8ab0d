"""Target ``web``: a static site whose kernels are WGSL for WebGPU. `tilewright compile` adds the modules of the target
``wasm``, for browsers that have no WebGPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..gpu.target import TextTarget

if TYPE_CHECKING:
    from ...codegen.clike.dialect import Dialect
    from ...program.package import Package


class WebTarget(TextTarget):
    """See `tilewright.targets.base.Target`."""

    name, form = "web", "wgsl"
    doc = "WebGPU, for browsers, with WebAssembly where there is none; -o site/ writes a static site"
    settings: Mapping[str, tuple[tuple[str, ...], str]] = {
        "fallback": (("wasm", "no"), "WebAssembly beside WebGPU, for browsers without it (needs wasm-ld)"),
        "page": (("yes", "no"), "an example page beside the model and its runner"),
    }
    joined = ("wasm",)
    elsewhere = "export it with Executable.export; target='vulkan' runs such kernels here"

    def dialect(self) -> Dialect:
        from ...codegen.clike.wgsl import WGSL

        return WGSL

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        return self.join(package, settings, {})

    def join(self, package: Package, settings: Mapping[str, str], others: Mapping[str, Package]) -> dict[str, bytes]:
        from .files import site

        return site(package, others.get("wasm"), settings)


TARGET = WebTarget()
