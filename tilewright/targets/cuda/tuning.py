"""Builds single kernels for CUDA, as the tuner and `Schedule.source` need them: PTX to run, and the texts of each
level."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ... import __version__
from ...codegen.kernel_info import kernel_info
from ...codegen.llvm.pool import Compiled, compile_each
from ...codegen.nvptx.emitter import emit
from ...schedule.nest import Nest
from ...support.discovery import installed_version
from ...support.errors import CompileError, TilewrightError
from ..base import Built
from .description import CudaDescription
from .stages import CudaKernel, job


def build(
    nests: Mapping[str, Nest], description: CudaDescription, *, workers: int | None, timeout: float
) -> dict[str, Built | str]:
    """Objects of finished nests by symbol, or the reason why there is none; LLVM runs in the pool's processes."""
    results: dict[str, Built | str] = {}
    jobs, infos = [], {}
    for symbol, nest in nests.items():
        try:
            jobs.append(job(symbol, emit(replace(nest, name=symbol), description)))
            infos[symbol] = replace(kernel_info(nest, 0), parallel=False, pieces=False)
        except TilewrightError as e:
            results[symbol] = e.message
    for symbol, made in compile_each(jobs, description.llvm, workers=workers, timeout=timeout).items():
        results[symbol] = Built(made.data, infos[symbol]) if isinstance(made, Compiled) else made
    return {symbol: results[symbol] for symbol in nests}


def measured_on(description: CudaDescription) -> tuple[str, str]:
    """What times depend on: the GPU, and the versions of what makes the code."""
    return description.sm, f"tilewright {__version__}, llvmlite {installed_version('llvmlite')}"


def forms() -> dict[str, Callable[[Nest, CudaDescription], str]]:
    """The texts that a nest can be shown as, by name."""
    return {"ll": _ll, "ptx": _ptx}


def _ll(nest: Nest, description: CudaDescription) -> str:
    return emit(nest, description).text


def _ptx(nest: Nest, description: CudaDescription) -> str:
    return launched(nest, description).ptx


def launched(nest: Nest, description: CudaDescription) -> CudaKernel:
    """A kernel as the driver takes it, of a finished nest."""
    (made,) = compile_each([job(nest.name, emit(nest, description))], description.llvm, workers=1).values()
    if isinstance(made, str):
        raise CompileError(f"kernel {nest.name} cannot be compiled: {made}", stage="assemble")
    return CudaKernel.from_bytes(made.data)
