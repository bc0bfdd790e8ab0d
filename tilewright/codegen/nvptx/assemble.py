"""Level 5 -> 6: compiles the LLVM IR of a kernel to PTX, which the driver or ``ptxas`` translates for a GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..gpu.open_launch import BYTES
from ..gpu_llvm import assemble
from ..gpu_llvm.builder import storage
from ..llvm.machine import LlvmMachine
from .emitter import NvptxKernel

if TYPE_CHECKING:
    import llvmlite.binding as llvm

#: what a kernel may declare; more is set at launch
STATIC_SHARED_BYTES = 48 << 10
#: what no array in shared memory needs more of
_ALIGN_BYTES = 1024
_SHARED = re.compile(r"^(@[\w.]+) = internal addrspace\(3\) global (\[\d+ x \w+\]) undef, align (\d+)\n", re.M)
_DYNAMIC = "@tilewright_shared"


def shared_at_launch(emitted: NvptxKernel) -> int:
    """Bytes of shared memory that a launch must give, 0 if the kernel declares all of it."""
    total = 0
    for size in emitted.shared.values():
        total = -(-total // _ALIGN_BYTES) * _ALIGN_BYTES + size
    return total if total > STATIC_SHARED_BYTES else 0


def optimized(emitted: NvptxKernel, machine: LlvmMachine) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """LLVM's module after optimization, and what makes code of it."""
    text = emitted.text if not shared_at_launch(emitted) else with_dynamic_shared(emitted.text)
    return assemble.optimized(text, machine)


def ptx(emitted: NvptxKernel, machine: LlvmMachine) -> str:
    """The PTX of a kernel for a GPU; CompileError if LLVM does not accept it."""
    module, maker = optimized(emitted, machine)
    return str(maker.emit_assembly(module))


def with_dynamic_shared(text: str) -> str:
    """The arrays in shared memory as parts of one whose size is set at launch.

    >>> text = "@k.a = internal addrspace(3) global [3 x float] undef, align 16\\n; @k.a"
    >>> print(with_dynamic_shared(text))
    @tilewright_shared = external addrspace(3) global [0 x i8], align 1024
    ; getelementptr (i8, ptr addrspace(3) @tilewright_shared, i32 0)
    """
    sizes = {storage(d): n for d, n in BYTES.items()}
    offset, places = 0, {}
    for name, kind, align in _SHARED.findall(text):
        count, element = kind[1:-1].split(" x ")
        offset = -(-offset // int(align)) * int(align)
        places[name] = offset
        offset += int(count) * sizes[element]
    text = _SHARED.sub("", text)
    for name, at in places.items():
        place = f"getelementptr (i8, ptr addrspace(3) {_DYNAMIC}, i32 {at})"
        text = re.sub(rf"{re.escape(name)}(?![\w.])", place, text)
    return f"{_DYNAMIC} = external addrspace(3) global [0 x i8], align 1024\n{text}"
