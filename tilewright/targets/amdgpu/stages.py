"""Pipeline stages of the target ``amdgpu``: loop nests to LLVM IR, and to object files with their launch parameters."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...codegen.amdgpu.assemble import amd_assembly, amd_object
from ...codegen.amdgpu.emitter import GpuLlvmKernel, emit
from ...codegen.llvm.machine import LlvmMachine
from ...codegen.llvm.pool import compile_each
from ...schedule.nest import Nest
from ...support.errors import CompileError
from ..gpu import llvm_stages
from .description import AmdDescription

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

    from ..compile_state import CompilationState

MAKE = f"{__name__}:make"


@dataclass(frozen=True)
class AmdgpuKernel:
    """A kernel as a package has it: its name in the object, blocks, threads of a block, bytes of LDS, which the object
    declares, and the object."""

    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    code: bytes

    def to_json(self) -> dict[str, object]:
        """All but the object."""
        return {"name": self.name, "grid": self.grid, "block": self.block, "lds_bytes": self.shared}

    def to_bytes(self) -> bytes:
        """A line of JSON, and the object behind it."""
        facts = [self.name, self.grid, self.block, self.shared]
        return json.dumps(facts).encode() + b"\n" + self.code

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        head, _, code = data.partition(b"\n")
        name, grid, block, shared = json.loads(head)
        return cls(name, tuple(grid), tuple(block), shared, code)


Made = tuple[AmdgpuKernel, bytes, dict[str, object]]


def make(text: str, machine: LlvmMachine) -> Made:
    """What a process does that makes an object; see `codegen.llvm.pool.Job`."""
    return _made(text, machine, amd_object)


def show(text: str, machine: LlvmMachine) -> Made:
    """The same with assembler text in place of the object."""
    return _made(text, machine, lambda emitted, machine: amd_assembly(emitted, machine).encode())


def _made(text: str, machine: LlvmMachine, code: Callable[[GpuLlvmKernel, LlvmMachine], bytes]) -> Made:
    start = time.perf_counter()
    emitted = GpuLlvmKernel.from_json(json.loads(text))
    launch = emitted.launch
    shared = sum(emitted.shared.values())
    made = AmdgpuKernel(emitted.name, launch.grid, launch.block, shared, code(emitted, machine))
    data = made.to_bytes()
    return made, data, {"llvm_seconds": time.perf_counter() - start, "bytes": len(data)}


def emit_kernels(state: CompilationState) -> None:
    """Nests -> LLVM IR."""
    llvm_stages.emit_kernels(state, emit)


def assemble_kernels(state: CompilationState) -> None:
    """LLVM IR -> objects."""
    llvm_stages.assemble_kernels(state, MAKE)


def launches_text(state: CompilationState) -> str:
    """How each kernel is launched, and the size of its object."""
    kernels = (AmdgpuKernel.from_bytes(data) for data in state.objects.values())
    return "\n".join(f"{k.name}: {json.dumps(k.to_json())}, {len(k.code)} bytes" for k in kernels)


def llvm_text(nest: Nest, description: AmdDescription) -> str:
    return emit(nest, description).text


def assembly_text(nest: Nest, description: AmdDescription) -> str:
    job = llvm_stages.job(nest.name, emit(nest, description), f"{__name__}:show")
    (made,) = compile_each([job], description.llvm, workers=1).values()
    if isinstance(made, str):
        raise CompileError(f"kernel {nest.name} cannot be compiled: {made}", stage="assemble")
    return AmdgpuKernel.from_bytes(made.data).code.decode()
