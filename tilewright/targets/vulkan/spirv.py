"""Pipeline stages that make SPIR-V: loop nests to MLIR's `spirv` dialect, and to binaries."""

from __future__ import annotations

import base64
from dataclasses import replace

from ...codegen.spirv.binary import binary
from ...codegen.spirv.emitter import emit
from ...codegen.spirv.memory import PIECES
from ...schedule.machine import Machine
from ...schedule.nest import Nest
from ..base import TargetStage
from ..compile_state import CompilationState
from ..gpu.kernels import GpuKernel
from ..gpu.stages import emit_kernels, emitted_text


def stages() -> tuple[TargetStage, ...]:
    return (
        TargetStage("emit", 5, "loop nests to MLIR: spirv", _emit, emitted_text),
        TargetStage("assemble", 6, "MLIR to SPIR-V", _assemble, _sizes),
    )


def text(nest: Nest, description: Machine) -> str:
    """The module of a nest."""
    return emit(nest, description).text


def built(nest: Nest, description: Machine) -> GpuKernel:
    """A kernel as devices take it."""
    return _assembled(_kernel(nest, description))


def _kernel(nest: Nest, description: Machine) -> GpuKernel:
    """With the module as its text."""
    made = emit(nest, description)
    written = (*(p.name in nest.outputs for p in nest.params), False)  # at open sizes the last one is their table
    writes = tuple(w for w, count in zip(written, made.pieces, strict=False) for _ in range(count))
    return GpuKernel(nest.name, made.text, made.launch, writes, made.scratch, made.pieces, PIECES.bytes, open=made.open)


def _assembled(kernel: GpuKernel) -> GpuKernel:
    others = tuple((pairs, _assembled(k)) for pairs, k in kernel.in_place)
    return replace(kernel, text=base64.b64encode(binary(kernel.text)).decode(), binary=True, in_place=others)


def _emit(state: CompilationState) -> None:
    emit_kernels(state, lambda nest, constants: _kernel(nest, state.description))


def _assemble(state: CompilationState) -> None:
    for name, data in state.objects.items():
        state.objects[name] = _assembled(GpuKernel.unpack(data)).pack()


def _sizes(state: CompilationState) -> str:
    kernels = (GpuKernel.unpack(data) for data in state.objects.values())
    return "\n".join(f"{k.name}: {len(k.code)} bytes of SPIR-V" for k in kernels)
