"""What the tuner asks of the CPU: kernels built one by one whatever happens to the others, and what a measurement
depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import metadata

from ... import __version__
from ...codegen.kernel_info import kernel_info
from ...schedule.machine import lanes
from ...schedule.nest import Nest
from ...support.errors import CompileError, TilewrightError
from ..base import Built
from .assemble import assembly, mlir_to_llvm, optimized_llvm
from .emit import emit
from .host import CpuDescription
from .pool import Compiled, Job, compile_each


def build(
    nests: Mapping[str, Nest], description: CpuDescription, *, workers: int | None, timeout: float
) -> dict[str, Built | str]:
    """Objects of finished nests by symbol, or the reason why there is none; LLVM runs in the pool's processes."""
    results: dict[str, Built | str] = {}
    jobs, infos = [], {}
    for symbol, nest in nests.items():
        try:
            text, scratch = emit(replace(nest, name=symbol), lanes(description), description.features)
            infos[symbol] = kernel_info(nest, scratch)
            jobs.append(Job(symbol, text))
        except TilewrightError as e:
            results[symbol] = e.message
    for symbol, made in compile_each(jobs, description, workers=workers, timeout=timeout).items():
        results[symbol] = Built(made.data, infos[symbol]) if isinstance(made, Compiled) else made
    return {symbol: results[symbol] for symbol in nests}


def forms() -> dict[str, Callable[[Nest, CpuDescription], str]]:
    """The texts that a nest can be shown as, by name."""
    return {"mlir": _mlir, "ll": _ll, "asm": _asm, "c": _c}


def _mlir(nest: Nest, description: CpuDescription) -> str:
    return emit(nest, lanes(description), description.features)[0]


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
    from ..c.emit import emit as emit_c

    return emit_c(nest).text("", aliased=False)


def measured_on(description: CpuDescription) -> tuple[str, str]:
    """What times depend on: the processor, and the versions of what makes the code."""
    caches = f"{description.l1_bytes}/{description.l2_bytes}/{description.l3_bytes}"
    versions = ", ".join(f"{n} {metadata.version(n)}" for n in ("torch-mlir", "llvmlite"))
    return f"{description.features_key()}|{caches}", f"tilewright {__version__}, {versions}"
