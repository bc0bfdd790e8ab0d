"""Reductions: combines two values, and reduces the lanes of a vector to a scalar. And updates of accumulators outside
of the loops of `vector_sums` and `row_sums`."""

from __future__ import annotations

from ...support.errors import CompileError
from ...tensor.expr import Expr, Load, Op, Target, neutral, variables, walk
from .builder import Builder
from .part import Part
from .values import Value, accumulated

#: reductions that leave NaN out, and the comparison that does: `x > acc ? x : acc` is one instruction
LARGER = {"maxnumf": "cmpf.ogt", "minnumf": "cmpf.olt"}
#: those that NaN spreads through. Which of two zeros is larger stays open in a reduction: three instructions on x86, of
#: which two wait for the accumulator, instead of six that all do
SPREADING = ("maximumf", "minimumf")
_UPDATES = (*LARGER, *SPREADING, "addf")


def combine(text: Builder, op: str, x: Value, acc: Value, dtype: str) -> Value:
    """One step of a reduction; `acc` has no NaN if the operation leaves them out, as it began with a number."""
    if op in SPREADING:  # LLVM tests the first operand for NaN: the one that does not wait
        return text.elementwise(f"arith.{op}", [x, acc], dtype, " fastmath<nsz>")
    if op not in LARGER:
        return text.elementwise(f"arith.{op}", [acc, x], dtype)
    ahead = text.compare(Op(LARGER[op], (), "i1"), [x, acc])
    return text.elementwise("arith.select", [ahead, x, acc], dtype)


def without_nan(text: Builder, op: str, x: Value) -> Value:
    """The first element of a reduction: what it leaves out becomes its neutral element."""
    if op not in LARGER:
        return x
    fill = Value(text.const(neutral(op, x.dtype).value, x.dtype, x.width), x.dtype, x.width)
    return combine(text, op, x, fill, x.dtype)


def across(text: Builder, op: str, lanes: Value, start: Value) -> Value:
    """Combine all lanes into one value, starting from `start`; lanes masked off count as neutral."""
    assert text.vector is not None
    if text.vector.mask:
        fill = text.const(neutral(op, lanes.dtype).value, lanes.dtype, lanes.width)
        lanes = text.select(text.vector.mask, lanes, fill)
    lanes = without_nan(text, op, lanes)
    # halves are added pairwise: fewer roundings in a row, and a fixed order
    while lanes.width > 2:
        half = Value("", lanes.dtype, lanes.width // 2)
        a, b = (
            text.op_value(
                f"vector.extract_strided_slice {lanes.ssa} "
                f"{{offsets = [{o}], sizes = [{half.width}], strides = [1]}} : {lanes.type} to {half.type}",
                half,
            )
            for o in (0, half.width)
        )
        lanes = combine(text, op, a, b, lanes.dtype)
    last = [text.lane(lanes, i) for i in range(lanes.width)]
    both = combine(text, op, last[0], last[1], lanes.dtype) if len(last) == 2 else last[0]
    return combine(text, op, both, start, lanes.dtype)


def is_summand(e: Expr, t: Target, loops: set[str]) -> bool:
    """Whether an expression moves with some loops, and may be emitted ahead of what a target writes."""
    parts = list(walk(e))
    reads = {x.buffer for x in parts if isinstance(x, Load)}
    guards = any(isinstance(x, Op) and x.op == "guard" for x in parts)
    return t.buffer not in reads and not guards and loops <= variables(e)


class Updates(Part):
    """``x[i] = op(x[i], value)`` in one instruction, or for all lanes at once."""

    def value(self, t: Target) -> Value | None:
        if self.at.invariant(t):
            return self._across_lanes(t)
        v = t.value
        for acc, other in accumulated(t) if isinstance(v, Op) and v.op in _UPDATES else ():
            assert isinstance(v, Op)
            if v.op in LARGER or v.op in SPREADING:
                return combine(self.text, v.op, self.core.expr(other), self.core.expr(acc), v.dtype)
            if v.op == "addf" and v.dtype in ("f32", "f64") and isinstance(other, Op) and other.op == "mulf":
                args = [self.core.expr(a) for a in (*other.args, acc)]
                return self.text.elementwise("math.fma", args, v.dtype)  # in one rounding
        return None

    def _across_lanes(self, t: Target) -> Value:
        """A horizontal reduction, or what is the same in all lanes."""
        v = t.value
        for acc, other in accumulated(t):
            assert isinstance(v, Op)
            lanes = self.text.as_vector(self.core.expr(other))
            with self.text.lanes(None):
                start = self.core.expr(acc)
            return across(self.text, v.op, lanes, start)
        if not self.at.depends_on_lane(v):
            with self.text.lanes(None):
                return self.core.expr(v)
        assert self.text.vector is not None
        why = f"lanes of {self.text.vector.var} write the same element of {t.buffer}"
        raise CompileError(why, stage="emit", operator=self.core.nest.name)
