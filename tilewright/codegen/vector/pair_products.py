"""Products of pairs of bf16: one instruction where the machine has it, plain arithmetic elsewhere.

    acc[l] + dot2(a, b[l], c, d[l])   ->   INTRINSIC(acc, [a c a c ...], [b0 d0 b1 d1 ...])

The rounding of the instruction is its own (see `targets.cpu.bf16`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...schedule.nest import Stmt, Store
from ...tensor.expr import Expr, Load, Op, Target
from .expressions import Handler
from .part import Part
from .values import Value, accumulated


class PairProducts(Part):
    """``dot2``, and stores of two vectors whose elements are pairs."""

    takes = (Store,)

    @property
    def operations(self) -> Mapping[str, Handler]:
        return {"dot2": self._plain}

    def _plain(self, e: Op, emit: Callable[[Expr], Value]) -> Value:
        args = [emit(x) for x in e.args]
        a, b, c, d = (self.text.elementwise("arith.extf", [x], "f32") for x in args)
        products = [self.text.elementwise("arith.mulf", [*pair], "f32") for pair in ((a, b), (c, d))]
        return self.text.elementwise("arith.addf", products, "f32")

    def improves(self, t: Target) -> bool:
        v = t.value
        return isinstance(v, Op) and v.op == "addf" and any(isinstance(x, Op) and x.op == "dot2" for x in v.args)

    def value(self, t: Target) -> Value | None:
        """``acc + dot2(...)`` in one instruction."""
        vector = self.text.vector
        name = self.core.machine.pair_products.get(vector.width) if vector else None
        for acc, dot in accumulated(t) if name else ():
            if isinstance(dot, Op) and dot.op == "dot2" and not self.at.invariant(t):
                a, b, c, d = dot.args
                first, second = self._pairs(a, c), self._pairs(b, d)
                start = self.text.as_vector(self.core.expr(acc))
                types = f"({start.type}, {first.type}, {second.type}) -> {start.type}"
                names = f"{start.ssa}, {first.ssa}, {second.ssa}"
                return self.text.op_value(f'llvm.call_intrinsic "{name}"({names}) : {types}', start)
        return None

    def _pairs(self, x: Expr, y: Expr) -> Value:
        """The vector [x0 y0 x1 y1 ...] of two operands."""
        vector = self.text.vector
        assert vector is not None
        if isinstance(x, Load) and isinstance(y, Load) and self.buffers[x.buffer].scope != "register":
            stride = self.at.lane_stride(x.buffer, x.indices)
            if self.at.neighbours(x, y) and stride == 0:
                return self._same_pair(x, 2 * vector.width)
            if self.at.neighbours(x, y) and stride == 2 and (vector.mask is None or x.buffer in self.core.nest.packs):
                buffer = self.buffers[x.buffer]
                base = self.at.address(buffer, x.indices, lane0=True).ssa
                return self.text.read(buffer, base, Value("", "bf16", 2 * vector.width))
        return self._interleaved(self.core.expr(x), self.core.expr(y))

    def wants(self, s: Stmt) -> bool:
        return isinstance(s, Store) and len(s.targets) == 2

    def emit(self, s: Stmt) -> bool:
        assert isinstance(s, Store)
        if self.text.vector is None or self.text.vector.mask is not None:
            return False
        x, y = (Load(t.buffer, t.indices, "bf16") for t in s.targets)
        buffer = self.buffers[x.buffer]
        if buffer.dtype != "bf16" or buffer.scope == "register" or self.at.lane_stride(x.buffer, x.indices) != 2:
            return False
        if not self.at.neighbours(x, y):
            return False
        pairs = self._interleaved(*(self.core.value(t) for t in s.targets))
        self.text.write(buffer, self.at.address(buffer, x.indices, lane0=True).ssa, pairs)
        self.text.forget({x.buffer})
        return True

    def _interleaved(self, even: Value, odd: Value) -> Value:
        """[even0 odd0 even1 odd1 ...]"""
        even, odd = self.text.as_vector(even), self.text.as_vector(odd)
        result = Value("", "bf16", 2 * even.width)
        return self.text.op_value(f"vector.interleave {even.ssa}, {odd.ssa} : {even.type} -> {result.type}", result)

    def _same_pair(self, x: Load, width: int) -> Value:
        """A pair in all lanes."""
        buffer, text = self.buffers[x.buffer], self.text
        pair = text.read(buffer, self.at.address(buffer, x.indices).ssa, Value("", "bf16", 2))
        one = text.op(f"vector.bitcast {pair.ssa} : vector<2xbf16> to vector<1xi32>")
        lanes = text.op(f"vector.broadcast {one} : vector<1xi32> to vector<{width // 2}xi32>")
        result = Value("", "bf16", width)
        return text.op_value(f"vector.bitcast {lanes} : vector<{width // 2}xi32> to {result.type}", result)
