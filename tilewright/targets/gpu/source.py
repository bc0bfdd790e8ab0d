"""Base of GPU targets that only export source (HIP, Metal), for a compiler and a runtime of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .target import TextTarget

if TYPE_CHECKING:
    from ...program.package import Package


class SourceTarget(TextTarget):
    """See `tilewright.targets.base.Target`. Files of kernels end in the name of the target."""

    settings: Mapping[str, tuple[tuple[str, ...], str]] = {}
    elsewhere = "export it with Executable.export, and compile its kernels where they are to run"

    def export(self, package: Package, settings: Mapping[str, str]) -> dict[str, bytes]:
        """A file for each kernel, model.json and weights.bin (`targets/gpu/files.py`)."""
        from .files import files
        from .kernels import GpuKernel

        made: dict[str, bytes] = {}
        told: dict[str, dict[str, Any]] = {}
        for symbol in package.program.symbols:
            kernel = GpuKernel.unpack(package.objects[symbol])
            file = f"{symbol}.{self.form}"
            made[file] = kernel.text.encode()
            told[symbol] = {"file": file, "name": kernel.name, "grid": kernel.launch.grid, "block": kernel.launch.block}
        return {**made, **files(package, told)}
