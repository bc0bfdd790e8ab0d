"""What the tuner, and `Schedule.source`, ask of this target: kernels built one by one, and the texts of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata

from ... import __version__
from ...codegen.kernel_info import kernel_info
from ...codegen.nvptx.assemble import ptx
from ...codegen.nvptx.emitter import emit
from ...schedule.nest import Nest
from ...support.errors import TilewrightError
from ..base import Built
from .description import CudaDescription
from .stages import launched


def build(
    nests: Mapping[str, Nest], description: CudaDescription, *, workers: int | None, timeout: float
) -> dict[str, Built | str]:
    """Objects of finished nests by symbol, or the reason why there is none."""
    results: dict[str, Built | str] = {}
    for symbol, nest in nests.items():
        try:
            made = launched(emit(replace(nest, name=symbol), description), description.llvm)
            info = replace(kernel_info(nest, 0), parallel=False, pieces=False)
            results[symbol] = Built(made.to_bytes(), info)
        except TilewrightError as e:
            results[symbol] = e.message
    return results


def measured_on(description: CudaDescription) -> tuple[str, str]:
    """What times depend on: the GPU, and the versions of what makes the code."""
    return description.sm, f"tilewright {__version__}, llvmlite {metadata.version('llvmlite')}"


def forms() -> dict[str, Callable[[Nest, CudaDescription], str]]:
    """The texts that a nest can be shown as, by name."""
    return {"ll": _ll, "ptx": _ptx}


def _ll(nest: Nest, description: CudaDescription) -> str:
    return emit(nest, description).text


def _ptx(nest: Nest, description: CudaDescription) -> str:
    return ptx(emit(nest, description), description.llvm)
