"""Target ``wasm``: a model as WebAssembly in the files of a web page, which run in any browser and in Node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..by_llvm import ByLlvm

if TYPE_CHECKING:
    from ...program.package import Package
    from ...program.states import StateBuffers
    from .description import WasmDescription
    from .run_here import WasmRunner


class WasmTarget(ByLlvm):
    """See `tilewright.targets.base.Target`. `relaxed`: for browsers with relaxed vectors."""

    package = __name__

    keeps_states = True
    settings: Mapping[str, tuple[tuple[str, ...], str]] = {
        "threads": (("yes", "no"), "a second module that runs on several threads, where a page may"),
        "page": (("yes", "no"), "an example page beside the model and its runner"),
    }

    def __init__(self, relaxed: bool = False) -> None:
        self.relaxed = relaxed
        self.name = "wasm:relaxed=yes" if relaxed else "wasm"
        self.doc = "WebAssembly with 128-bit vectors, for browsers; -o site/ writes a static site"

    def configured(self, parameters: Mapping[str, str]) -> WasmTarget:
        """``relaxed=yes``: multiply-adds by relaxed vectors."""
        from ...support.errors import UsageError

        for name, value in parameters.items():
            if name != "relaxed" or value not in ("yes", "no"):
                raise UsageError(f"target wasm has no parameter {name}={value}", hint="wasm:relaxed=yes")
        return WasmTarget(parameters.get("relaxed") == "yes")

    def describe(self) -> WasmDescription:
        from .description import described

        return described(self.relaxed)

    def load(self, package: Package, threads: int, states: StateBuffers | None = None) -> WasmRunner:
        from ...program.states import StateBuffers
        from .run_here import WasmRunner

        return WasmRunner(package, threads, states or StateBuffers(package.program.states))

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        from .files import site

        return site(package, settings)


TARGET = WasmTarget()
