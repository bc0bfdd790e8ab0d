"""Warp shuffles: an array with one element for each lane (`schedule.shuffles`) is a register of each lane, which other
lanes read by a shuffle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from ...schedule.machine import Axis
from ...support.errors import CompileError
from ...tensor.expr import Buffer, Const, Expr, Op, Var
from ..gpu.open_launch import BYTES
from .builder import GpuLlvmValue, llvm_type, storage
from .memory import GpuLlvmMemory

#: ``i32 name`` of a word, and of the source lane, or of the distance of lanes that exchange words -> the other's word
Shuffle = Callable[[str, "str | int"], str]
_WORD = 32


class Exchange:
    """`axes` are the arrays that lanes hold, by name; `inside` has the variables of loops around by their axes."""

    def __init__(
        self, memory: GpuLlvmMemory, axes: Mapping[str, Axis], inside: Mapping[str, str], shuffle: Shuffle
    ) -> None:
        self.memory, self.text, self.at = memory, memory.text, memory.at
        self.axes, self.inside, self.shuffle = axes, inside, shuffle

    def owns(self, buffer: str) -> bool:
        return buffer in self.axes

    def begin(self, b: Buffer) -> None:
        """A register for each of a lane's elements."""
        space = self.memory.own.removeprefix("ptr").lstrip()
        name = self.text.stack(storage(b.dtype), max(prod(b.shape[:-1]), 1), BYTES[b.dtype], space)
        self.memory.pointers[b.name] = (name, self.memory.own)
        self.memory.special[b.name] = self.address
        self.memory.asked[b.name] = self.read

    def address(self, b: Buffer, indices: tuple[Expr, ...]) -> str:
        """``pointer-type name`` of what the lane holds of a row of the array."""
        row = Buffer(b.name, b.shape[:-1], b.dtype, b.scope)
        varying, constant = self.at.place(row, indices[:-1])
        if not isinstance(varying, Const):
            raise CompileError(
                f"lanes hold {b.name} in registers, and which of them is used is not known: {varying}",
                stage="emit", operator=self.memory.operator, hint="unroll the loops that select it",
            )  # fmt: skip
        pointer, kind = self.memory.pointers[b.name]
        place = self.text.op(f"getelementptr {storage(b.dtype)}, {kind} {pointer}, i32 {constant + varying.value}")
        return f"{kind} {place}"

    def read(self, b: Buffer, indices: tuple[Expr, ...], own: GpuLlvmValue) -> GpuLlvmValue:
        """An element, of which the lane has its `own`: that, or what another lane has."""
        index = self.at.known(indices[-1])
        lane = Var(self.inside[self.axes[b.name].name])
        if index == lane:
            return own
        apart = index.args[1] if isinstance(index, Op) and index.op == "xori" and index.args[0] == lane else None
        asked = apart.value if isinstance(apart, Const) else f"i32 {self.at.index(index)}"
        return self.value([self.shuffle(w, asked) for w in self.words(own)], own.dtype)

    # ---- words of 32 bits

    def words(self, v: GpuLlvmValue) -> list[str]:
        """A value as ``i32 name``, one or two of them."""
        bits, op = 8 * BYTES[v.dtype], self.text.op
        kind = f"i{1 if v.dtype == 'i1' else bits}"
        whole = v.ssa if llvm_type(v.dtype) == kind else op(f"bitcast {v.typed} to {kind}")
        if bits <= _WORD:
            return [f"i32 {whole if kind == 'i32' else op(f'zext {kind} {whole} to i32')}"]
        upper = op(f"lshr {kind} {whole}, {_WORD}")
        return [f"i32 {op(f'trunc {kind} {x} to i32')}" for x in (whole, upper)]

    def value(self, words: list[str], dtype: str) -> GpuLlvmValue:
        bits, op = 8 * BYTES[dtype], self.text.op
        kind = f"i{1 if dtype == 'i1' else bits}"
        whole = words[0]
        if bits > _WORD:
            low, high = (op(f"zext i32 {w} to {kind}") for w in words)
            whole = op(f"or {kind} {low}, {op(f'shl {kind} {high}, {_WORD}')}")
        elif kind != "i32":
            whole = op(f"trunc i32 {whole} to {kind}")
        return GpuLlvmValue(
            whole if llvm_type(dtype) == kind else op(f"bitcast {kind} {whole} to {llvm_type(dtype)}"), dtype
        )


__all__ = ["Exchange", "Shuffle"]
