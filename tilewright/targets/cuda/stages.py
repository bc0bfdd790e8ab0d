"""The part of the pipeline that is this target's: loop nests to LLVM IR to PTX with how it is launched."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from ...codegen.kernel_info import kernel_info
from ...codegen.llvm.machine import LlvmMachine
from ...codegen.nvptx.assemble import ptx, shared_at_launch
from ...codegen.nvptx.emitter import Emitted, emit
from ...support.errors import UsageError

ALONE = "all of its work is done by one thread: no loop is bound to grid, block, warp or lane"


@dataclass(frozen=True)
class Launched:
    """A kernel as a package has it: PTX, blocks, threads of a block, bytes of shared memory beside those that the PTX
    declares."""

    ptx: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        found = json.loads(data)
        return cls(found["ptx"], tuple(found["grid"]), tuple(found["block"]), found["shared"])


def launched(emitted: Emitted, llvm: LlvmMachine) -> Launched:
    """The code of a kernel for a GPU."""
    launch = emitted.launch
    return Launched(ptx(emitted, llvm), launch.grid, launch.block, shared_at_launch(emitted))


def emit_kernels(state: Any) -> None:
    """Nests -> LLVM IR, with what the program needs to know of each kernel."""
    if not state.kernels:
        raise UsageError("this target continues from the levels before scheduling only", stage="emit")
    for name, nest in state.nests.items():
        made = emit(nest, state.description)
        unmet = (ALONE,) if made.launch.threads == 1 and made.launch.grid == (1, 1, 1) else ()
        state.emitted[name] = made.text
        state.infos[name] = replace(kernel_info(nest, 0, unmet), parallel=False, pieces=False)
        state.objects[name] = json.dumps(asdict(made)).encode()  # until it is assembled


def emitted_text(state: Any) -> str:
    return "\n".join(state.emitted.values())


def assemble_kernels(state: Any) -> None:
    """LLVM IR -> PTX."""
    for name, data in state.objects.items():
        state.objects[name] = launched(Emitted.from_json(json.loads(data)), state.description.llvm).to_bytes()


def ptx_text(state: Any) -> str:
    return "\n".join(Launched.from_bytes(data).ptx for data in state.objects.values())
