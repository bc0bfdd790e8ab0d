"""Sums of several vectors to one element: the vectors are added to each other first, their lanes once at the end.

    for o in unroll(4):
        for l in vector(16):
            t[0] = addf(t[0], r[o * 16 + l])

Taken literally, the lanes of four vectors would be added four times, one after the other, and each takes as long as
four or five additions in a row. The order of the additions is another one, and always the same.
"""

from __future__ import annotations

from ...schedule.nest import For, Stmt, Store
from ...tensor.expr import COMBINERS, Expr, Load, Op, variables
from .accumulate import across, combine, is_summand, without_nan
from .part import Part
from .values import Value, Vector, accumulated


class VectorSums(Part):
    """Takes such loops."""

    takes = (For,)

    def wants(self, s: Stmt) -> bool:
        return isinstance(s, For) and s.kind == "unroll" and self._summand(s) is not None

    def emit(self, s: Stmt) -> bool:
        if self.text.vector:
            return False
        assert isinstance(s, For) and s.trip is not None
        other, lane = self._summand(s), s.body
        assert other is not None
        assert isinstance(lane, For) and isinstance(lane.body, Store) and lane.trip is not None
        (target,) = lane.body.targets
        assert isinstance(target.value, Op)
        op, dtype = target.value.op, target.value.dtype
        total: Value | None = None
        with self.text.lanes(Vector(lane.var, lane.trip, None)):
            for i in range(s.trip):
                with self.text.bind(s.var, i):
                    v = self.text.as_vector(self.core.expr(other))
                total = without_nan(self.text, op, v) if total is None else combine(self.text, op, v, total, dtype)
            assert total is not None
            with self.text.lanes(None):
                start = self.core.expr(Load(target.buffer, target.indices, dtype))
            result = across(self.text, op, total, start)
        self.core.write(target, result)
        return True

    def _summand(self, s: For) -> Expr | None:
        """What is added up by ``for o in unroll: for l in vector: t[..] = op(t[..], summand)``."""
        lane = s.body
        if not (isinstance(lane, For) and lane.kind == "vector" and isinstance(lane.body, Store)):
            return None
        whole = lane.trip is not None and lane.trip == (lane.lanes or lane.trip) and not lane.trip & (lane.trip - 1)
        if not whole or s.trip is None or s.trip < 2 or len(lane.body.targets) != 1:
            return None
        (t,) = lane.body.targets
        if {s.var, lane.var} & set().union(*map(variables, t.indices), set()) or not isinstance(t.value, Op):
            return None
        if t.value.op not in COMBINERS or t.value.dtype == "i1":
            return None
        for _, other in accumulated(t):
            return other if is_summand(other, t, {s.var, lane.var}) else None
        return None
