"""Sums of several vectors to one element: the vectors are added to each other first, their lanes once at the end.

    for o in unroll(4):
        for l in vector(16):
            t[0] = addf(t[0], r[o * 16 + l])

Taken literally, the lanes of four vectors would be added four times, one after the other, and each takes as long as
four or five additions in a row. The order of the additions is another one, and always the same.
"""

from __future__ import annotations

from ...schedule.nest import For, Store
from ...tensor.expr import COMBINERS, Expr, Load, Op, variables, walk
from .emit_expr import ExprEmitter
from .values import Value, Vector


class ReduceEmitter(ExprEmitter):
    """Emission of such loops."""

    def sum_of_vectors(self, s: For) -> bool:
        """Emit an unrolled loop of this form; False if it is another."""
        lane, other = s.body, self._summand(s)
        if other is None:
            return False
        assert isinstance(lane, For) and isinstance(lane.body, Store) and s.trip is not None and lane.trip is not None
        (target,) = lane.body.targets
        assert isinstance(target.value, Op)
        op, dtype = target.value.op, target.value.dtype
        self.vector = Vector(lane.var, lane.trip, None)
        total: Value | None = None
        for i in range(s.trip):
            with self.bind(s.var, i):
                vector = self.as_vector(self.expr(other))
            total = self.without_nan(op, vector) if total is None else self.combine(op, vector, total, dtype)
        assert total is not None
        with self.no_vector():
            start = self.expr(Load(target.buffer, target.indices, dtype))
        result = self.horizontal(op, total, start)
        self.vector = None
        self.write(target, result)
        return True

    def _summand(self, s: For) -> Expr | None:
        """What is added up by ``for o in unroll: for l in vector: t[..] = op(t[..], summand)``."""
        lane = s.body
        if not (isinstance(lane, For) and lane.kind == "vector" and isinstance(lane.body, Store)) or self.vector:
            return None
        whole = lane.trip is not None and lane.trip == (lane.lanes or lane.trip) and not lane.trip & (lane.trip - 1)
        if not whole or s.trip is None or s.trip < 2 or len(lane.body.targets) != 1:
            return None
        (t,) = lane.body.targets
        if {s.var, lane.var} & set().union(*map(variables, t.indices), set()) or not isinstance(t.value, Op):
            return None
        if t.value.op not in COMBINERS or len(t.value.args) != 2 or t.value.dtype == "i1":
            return None
        for acc, other in (t.value.args, t.value.args[::-1]):
            if isinstance(acc, Load) and acc.buffer == t.buffer and acc.indices == t.indices:
                reads = {x.buffer for x in walk(other) if isinstance(x, Load)}
                plain = all(not isinstance(x, Op) or x.op != "guard" for x in walk(other))
                used = variables(other)
                return other if t.buffer not in reads and plain and {s.var, lane.var} <= used else None
        return None
