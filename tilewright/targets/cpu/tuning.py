"""What the tuner needs of the CPU target: kernels compiled one by one, each with its own error, and the key of a
measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ... import __version__
from ...codegen.clike import printer as clike
from ...codegen.clike.c99 import C99
from ...codegen.kernel_info import kernel_info
from ...codegen.llvm.assemble import assembly, mlir_to_llvm, optimized_llvm
from ...codegen.llvm.machine import code_key
from ...codegen.llvm.pool import Compiled, Job, compile_each
from ...schedule.nest import Nest
from ...support.discovery import installed_version
from ...support.errors import CompileError, TilewrightError
from ..base import Built
from .description import CpuDescription
from .emit import emit


def build(
    nests: Mapping[str, Nest], description: CpuDescription, *, workers: int | None, timeout: float
) -> dict[str, Built | str]:
    """Objects of finished nests by symbol, or the reason why there is none; LLVM runs in the pool's processes."""
    results: dict[str, Built | str] = {}
    jobs, infos = [], {}
    for symbol, nest in nests.items():
        try:
            emitted = emit(replace(nest, name=symbol), description)
            infos[symbol] = kernel_info(nest, emitted.scratch, emitted.refused)
            jobs.append(Job(symbol, emitted.text))
        except TilewrightError as e:
            results[symbol] = e.message
    for symbol, made in compile_each(jobs, description, workers=workers, timeout=timeout).items():
        results[symbol] = Built(made.data, infos[symbol]) if isinstance(made, Compiled) else made
    return {symbol: results[symbol] for symbol in nests}


def forms() -> dict[str, Callable[[Nest, CpuDescription], str]]:
    """The texts that a nest can be shown as, by name."""
    return {"mlir": _mlir, "ll": _ll, "asm": _asm, "c": _c}


def _mlir(nest: Nest, description: CpuDescription) -> str:
    return emit(nest, description).text


def _checked(nest: Nest, description: CpuDescription) -> str:
    """LLVM IR of a kernel that has been compiled once in a worker process: what LLVM cannot take does not end this
    one."""
    (made,) = compile_each([Job(nest.name, _mlir(nest, description))], description, workers=1).values()
    if isinstance(made, str):
        raise CompileError(f"kernel {nest.name} cannot be compiled: {made}", stage="assemble")
    return mlir_to_llvm(_mlir(nest, description), nest.name, description.index_bits, description.vector_bytes)


def _ll(nest: Nest, description: CpuDescription) -> str:
    return optimized_llvm(_checked(nest, description), description)


def _asm(nest: Nest, description: CpuDescription) -> str:
    return assembly(_checked(nest, description), description)


def _c(nest: Nest, description: CpuDescription) -> str:
    return clike.emit(nest, C99).text(C99)


def measured_on(description: CpuDescription) -> tuple[str, str]:
    """What times depend on: the processor, and the versions of what makes the code."""
    caches = f"{description.l1_bytes}/{description.l2_bytes}/{description.l3_bytes}"
    versions = ", ".join(f"{n} {installed_version(n)}" for n in ("torch-mlir", "llvmlite"))
    return f"{code_key(description)}|{caches}", f"tilewright {__version__}, {versions}"
