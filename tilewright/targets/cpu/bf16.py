"""Dot products of bf16 pairs: one instruction where the processor has it (AVX-512 BF16), plain arithmetic elsewhere.

    acc[l] + dot2(a, b[l], c, d[l])   ->   llvm.x86.avx512bf16.dpbf16ps(acc, [a c a c ...], [b0 d0 b1 d1 ...])

The instruction takes 16 lanes of pairs. Its rounding is its own: it adds the two products one after the other, rounds
to nearest even whatever the mode says, and takes denormals for zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...schedule.machine import PairProduct, Rate
from ...schedule.nest import Store
from ...tensor.expr import Const, Expr, Load, Op, linear
from .tables import TableEmitter
from .values import Value

if TYPE_CHECKING:
    from .host import CpuDescription

#: lanes of sums -> the intrinsic
INTRINSICS = {n: f"llvm.x86.avx512bf16.dpbf16ps.{32 * n}" for n in (4, 8, 16)}
FEATURE = "avx512bf16"
#: the one that schedules are made for
PAIRS = PairProduct("dpbf16ps", "bf16", 16, Rate(6, 2))


def pair_product(description: CpuDescription) -> PairProduct | None:
    """That of a processor, if it has one."""
    return PAIRS if FEATURE in description.features and description.vector_bytes >= 4 * PAIRS.lanes else None


class DotEmitter(TableEmitter):
    """Emission of ``dot2``."""

    #: parameters that are padded to whole tiles
    packed: frozenset[str] = frozenset()

    def apply(self, e: Op, args: list[Value]) -> Value:
        if e.op != "dot2":
            return super().apply(e, args)
        a, b, c, d = (self.elementwise("arith.extf", [x], "f32") for x in args)
        products = [self.elementwise("arith.mulf", [*pair], "f32") for pair in ((a, b), (c, d))]
        return self.elementwise("arith.addf", products, "f32")

    def dot_update(self, acc: Expr, dot: Expr) -> Value | None:
        """``acc + dot2(...)`` in one instruction; None if it is something else or there is no instruction for it."""
        if not (isinstance(dot, Op) and dot.op == "dot2") or self.vector is None:
            return None
        width = self.vector.width
        if width not in INTRINSICS or FEATURE not in self.features:
            return None
        a, b, c, d = dot.args
        first, second = self.pairs(a, c), self.pairs(b, d)
        start = self.as_vector(self.expr(acc))
        types = f"({start.type}, {first.type}, {second.type}) -> {start.type}"
        names = f"{start.ssa}, {first.ssa}, {second.ssa}"
        return self.op_value(f'llvm.call_intrinsic "{INTRINSICS[width]}"({names}) : {types}', start)

    def pairs(self, x: Expr, y: Expr) -> Value:
        """The vector [x0 y0 x1 y1 ...] of two operands."""
        assert self.vector is not None
        width = 2 * self.vector.width
        if isinstance(x, Load) and isinstance(y, Load) and self.buffers[x.buffer].scope != "register":
            stride = self.lane_stride(x.buffer, x.indices)
            if self.neighbours(x, y) and stride == 0:
                return self.broadcast_pair(x, width)
            if self.neighbours(x, y) and stride == 2 and (self.vector.mask is None or x.buffer in self.packed):
                base = self.address(self.buffers[x.buffer], x.indices, lane0=True).ssa
                return self.vector_of(x, base, width)
        return self.interleaved(self.expr(x), self.expr(y))

    def write_pairs(self, s: Store, values: list[Value]) -> bool:
        """Write two vectors whose elements lie side by side, interleaved; False for any other store."""
        if len(s.targets) != 2 or self.vector is None or self.vector.mask is not None:
            return False
        x, y = (Load(t.buffer, t.indices, "bf16") for t in s.targets)
        buffer = self.buffers[x.buffer]
        if buffer.dtype != "bf16" or buffer.scope == "register" or self.lane_stride(x.buffer, x.indices) != 2:
            return False
        if not self.neighbours(x, y):
            return False
        pairs = self.interleaved(*values)
        base = self.address(buffer, x.indices, lane0=True).ssa
        self.line(f"vector.store {pairs.ssa}, {self.memory[x.buffer]}[{base}] : {self.memref(buffer)}, {pairs.type}")
        self.forget({x.buffer})
        return True

    def interleaved(self, even: Value, odd: Value) -> Value:
        """[even0 odd0 even1 odd1 ...]"""
        even, odd = self.as_vector(even), self.as_vector(odd)
        result = Value("", "bf16", 2 * even.width)
        text = f"vector.interleave {even.ssa}, {odd.ssa} : {even.type} -> {result.type}"
        return self.op_value(text, result)

    def neighbours(self, x: Load, y: Load) -> bool:
        """Whether y is the element behind x."""
        if x.buffer != y.buffer:
            return False
        b = self.buffers[x.buffer]
        terms, constant = linear(self.flat(b, y.indices) + self.flat(b, x.indices) * Const(-1, "index"))
        return not terms and constant == 1

    def vector_of(self, x: Load, base: str, width: int) -> Value:
        buffer = self.buffers[x.buffer]
        shape = Value("", "bf16", width)
        text = f"vector.load {self.memory[x.buffer]}[{base}] : {self.memref(buffer)}, {shape.type}"
        return self.remember(buffer, text, shape)

    def broadcast_pair(self, x: Load, width: int) -> Value:
        pair = self.vector_of(x, self.address(self.buffers[x.buffer], x.indices).ssa, 2)
        word = self.op(f"vector.bitcast {pair.ssa} : vector<2xbf16> to vector<1xi32>")
        lanes = self.op(f"vector.broadcast {word} : vector<1xi32> to vector<{width // 2}xi32>")
        return Value(
            self.op(f"vector.bitcast {lanes} : vector<{width // 2}xi32> to vector<{width}xbf16>"), "bf16", width
        )
