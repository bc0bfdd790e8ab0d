"""Machine record of WebAssembly with 128-bit SIMD, for schedules and for LLVM.

Indices have 64 bits in kernels although pointers have 32: such code is as fast (measured with V8, a product of
matrices), and kernels may mix vectors with 64-bit numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from ...schedule.machine import Axis
from ..processor import Processor

#: what every engine with 128-bit vectors has, and atomics, which a module for one thread does not use
FEATURES = ("simd128", "bulk-memory", "atomics", "mutable-globals", "sign-ext", "nontrapping-fptoint")
#: multiply-adds rounded once or twice, as the processor does it best; not in all browsers
RELAXED = "relaxed-simd"


@dataclass(frozen=True)
class WasmDescription(Processor):
    """An engine of WebAssembly. `cores` is what schedules divide work for; a page takes as many as there are."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (Axis("thread"), Axis("lanes", kind="vector"))

    @property
    def relaxed(self) -> bool:
        return RELAXED in self.features

    def define(self, llvm_ir: str) -> str:
        """See `tilewright.codegen.llvm.machine.LlvmMachine`. There is no fused multiply-add: LLVM would call one of the
        C library for every number. Addresses only grow from the beginning of a buffer; said so, constants move into the
        offsets of loads and stores."""
        text = super().define(llvm_ir)
        if self.relaxed:
            text = text.replace("@llvm.fma.v4f32(", "@llvm.wasm.relaxed.madd.v4f32(")
        text = text.replace("@llvm.fma.", "@llvm.fmuladd.")
        return re.sub(r"= getelementptr (?:inbounds )?(?:nuw )?(?=[^(])", "= getelementptr inbounds nuw ", text)

    def sources(self) -> tuple[Path, ...]:
        """See `tilewright.codegen.llvm.machine.LlvmMachine`."""
        return (*super().sources(), Path(__file__))


PLAIN = WasmDescription("wasm32-unknown-unknown", "mvp", FEATURES, cores=4, reloc="static")


def described(relaxed: bool) -> WasmDescription:
    """The engines of all browsers, or of those with relaxed vectors."""
    return replace(PLAIN, features=(*FEATURES, RELAXED)) if relaxed else PLAIN
