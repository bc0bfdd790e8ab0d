"""Emits dp4a-like intrinsics, four byte products added to an i32, for loops with the note ``dot``
(`schedule.primitives.tensorize`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...schedule.machine import DotProduct
from ...schedule.nest import For
from ...support.errors import CompileError
from ...tensor.expr import Load
from ..gpu.byte_products import NOTE, byte_product
from ..gpu_llvm.builder import GpuLlvmValue
from ..gpu_llvm.memory import GpuLlvmMemory, Lanes

#: the machine's instruction, signs of the factors, and x, w and the sum as ``i32 name`` -> intrinsic and arguments
Intrinsic = Callable[[str, str, list[str]], tuple[str, list[str]]]


class Dot4Emitter:
    """`known` are the machine's instructions by name."""

    def __init__(self, memory: GpuLlvmMemory, known: Mapping[str, DotProduct], intrinsic: Intrinsic) -> None:
        self.memory, self.text, self.known, self.intrinsic = memory, memory.text, known, intrinsic

    def takes(self, s: For) -> bool:
        return s.note(NOTE) is not None

    def emit(self, s: For) -> None:
        dot, p = self.known.get(s.note(NOTE)), byte_product(s)
        if dot is None or p is None or s.trip != dot.depth:
            raise self.refuse(s, f"it is no {s.note(NOTE)} of bytes from memory")
        words = [f"i32 {self.word(s, x)}" for x in p.factors]
        with self.memory.at_lane(Lanes(s.var, 1), 0):
            before = self.memory.load(p.acc)
            name, args = self.intrinsic(dot.name, p.signs, [*words, before.typed])
            self.memory.store(p.target, GpuLlvmValue(self.text.call(name, "i32", args, pure=True), "i32"))

    def word(self, s: For, x: Load) -> str:
        """Four neighbouring bytes."""
        b, lanes = self.memory.buffers[x.buffer], Lanes(s.var, s.trip or 0)
        if self.memory.run(b, x.indices, lanes) != 4 or b.scope == "register":
            raise self.refuse(s, f"the bytes of {b.name} do not lie side by side at a multiple of four")
        with self.memory.at_lane(lanes, 0):
            return self.text.result(f"load i32, {self.memory.address(b, x.indices)}, align 4")

    def refuse(self, s: For, why: str) -> CompileError:
        return CompileError(f"loop {s.var} is no product of bytes: {why}", stage="emit", operator=self.memory.operator)
