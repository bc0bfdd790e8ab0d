"""Horizontal reductions of several vectors at once: the lanes of all rows are added in one tree.

    for r in unroll(16):
        y[r] = 0
        for l in vector(14, lanes=16):
            y[r] = addf(y[r], x[r * 14 + l])

Taken literally, each row would be added up by itself: four shuffles and four additions that wait for each other.
Instead the vectors of two rows become one that has half of the sums of each, with a blend, a shuffle and an addition;
so do two of those, until there is one vector with the sum of row r in lane r. Sixteen rows take 15 additions. Rows of
half a vector or less that lie one after the other are loaded together. The order of the additions is always the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...schedule.nest import For, Seq, Stmt, Store
from ...support.sizes import is_open
from ...tensor.expr import COMBINERS, Const, Expr, Load, Op, Target, Var, linear, neutral, variables, walk
from .accumulate import combine, is_summand, without_nan
from .part import Part
from .values import Value, Vector, accumulated, power_of_two

#: fewer rows are faster by themselves
LEAST_ROWS = 4


@dataclass(frozen=True)
class Rows:
    """``for r in unroll(count): t[..] = start; t[..] = op(t[..], summand) for l in vector(columns)``, in vectors of
    `width` lanes. Row r begins at lane r % `together` * `apart` of vector r // `together`."""

    target: Target
    start: Const | None
    op: str
    summand: Expr
    lane: str
    count: int
    columns: int
    width: int
    together: int = 1

    @property
    def apart(self) -> int:
        return self.width // self.together


class RowSums(Part):
    """Takes such loops."""

    takes = (For,)

    def wants(self, s: Stmt) -> bool:
        return isinstance(s, For) and s.kind == "unroll" and self._row_sums(s) is not None

    def emit(self, s: Stmt) -> bool:
        if self.text.vector:
            return False
        assert isinstance(s, For)
        found = self._row_sums(s)
        assert found is not None
        vectors = [self._row_vector(found, s.var, i) for i in range(found.count // found.together)]
        total, t = self._lanes_added(found, vectors), found.target
        mask = self._first_lanes(found.count, found.width)
        with self.text.lanes(Vector(s.var, found.width, mask, found.count)):
            start = Load(t.buffer, t.indices, total.dtype) if found.start is None else found.start
            if start != neutral(found.op, total.dtype):
                before = self.text.as_vector(self.core.expr(start))
                total = combine(self.text, found.op, total, before, total.dtype)
            self.core.write(t, total)
        return True

    def _first_lanes(self, count: int, width: int) -> str | None:
        return None if count == width else self.text.first_lanes(count, width)

    def _row_vector(self, r: Rows, row: str, i: int) -> Value:
        """Vector i: some rows beside each other, the lanes between them neutral."""
        active = r.together * r.columns
        vector = Vector(r.lane, r.width, self._first_lanes(active, r.width), active)
        with self.text.lanes(vector), self.text.bind(row, i * r.together):
            v = self.text.as_vector(self.core.expr(r.summand))
        there = [j % r.apart < r.columns for j in range(r.width)]
        if r.together == 1 and isinstance(r.summand, Load) and neutral(r.op, v.dtype).value == 0:
            return v  # lanes that are not read are zero
        if r.together > 1:
            places = [j // r.apart * r.columns + j % r.apart if there[j] else 0 for j in range(r.width)]
            v = self.text.shuffle(v, v, places)
        if not all(there):
            fill = self.text.const(neutral(r.op, v.dtype).value, v.dtype, r.width)
            bits = ", ".join(str(b).lower() for b in there)
            mask = self.text.op(f"arith.constant dense<[{bits}]> : vector<{r.width}xi1>")
            v = self.text.select(mask, v, fill)
        return without_nan(self.text, r.op, v)

    def _lanes_added(self, r: Rows, vectors: list[Value]) -> Value:
        """One vector with the sums, that of row r in lane r; other lanes hold anything."""
        size = power_of_two(len(vectors))
        vectors = vectors + vectors[:1] * (size - len(vectors))
        step = r.apart // 2
        while step:
            if step >= size:  # there are fewer vectors than lanes to tell them apart
                other = [j ^ step for j in range(r.width)]
                vectors = [combine(self.text, r.op, self.text.shuffle(v, v, other), v, v.dtype) for v in vectors]
            else:
                vectors = [
                    self._half_of_each(r, a, b, step) for a, b in zip(vectors[:step], vectors[step:], strict=True)
                ]
            step //= 2
        (total,) = vectors
        if r.together == 1:
            return total
        places = [j % r.together * r.apart + j // r.together for j in range(r.width)]
        return self.text.shuffle(total, total, places)

    def _half_of_each(self, r: Rows, a: Value, b: Value, step: int) -> Value:
        """Half of the sums of a where the lane has the bit `step` not, of b where it has."""
        width = r.width
        own = [j if not j & step else width + j for j in range(width)]
        other = [j + step if not j & step else width + j - step for j in range(width)]
        return combine(self.text, r.op, self.text.shuffle(a, b, own), self.text.shuffle(a, b, other), a.dtype)

    # ---- the form ----

    def _row_sums(self, s: For) -> Rows | None:
        start, lane = s.body.stmts if isinstance(s.body, Seq) and len(s.body.stmts) == 2 else (None, s.body)
        if not (isinstance(lane, For) and lane.kind == "vector" and isinstance(lane.body, Store)):
            return None
        if s.trip is None or lane.trip is None or is_open(s.trip, lane.trip) or len(lane.body.targets) != 1:
            return None
        (t,) = lane.body.targets
        if not LEAST_ROWS <= s.trip <= self.core.machine.lanes or self.buffers[t.buffer].scope == "register":
            return None
        if self._along(t.buffer, t.indices, s.var, lane.var) != (1, 0):
            return None
        width = max(lane.lanes, power_of_two(max(s.trip, lane.trip)))
        value, first = t.value, self._start_of(start, t)
        if (start is not None and first is None) or not isinstance(value, Op):
            return None
        for _, other in accumulated(t):
            if value.op not in COMBINERS or value.dtype == "i1" or not is_summand(other, t, {lane.var}):
                return None
            kept = [x for x in walk(other) if isinstance(x, Load) and self.buffers[x.buffer].scope == "register"]
            if width != lane.lanes and kept:
                return None  # vectors that are there are of that width
            return self._packed(Rows(t, first, value.op, other, lane.var, s.trip, lane.trip, width), s.var)
        return None

    def _along(self, buffer: str, indices: tuple[Expr, ...], row: str, lane: str) -> tuple[int, int] | None:
        """How far an access moves with the next row and the next lane; None if that is not always the same."""
        terms = linear(self.at.flat(self.buffers[buffer], indices))[0]
        steps = {t.name: c for t, c in terms.items() if isinstance(t, Var)}
        if any({row, lane} & variables(t) for t in terms if not isinstance(t, Var)):
            return None
        return steps.get(row, 0), steps.get(lane, 0)

    def _start_of(self, start: Stmt | None, t: Target) -> Const | None:
        """The constant that a statement sets the sum to."""
        if not isinstance(start, Store) or len(start.targets) != 1:
            return None
        (first,) = start.targets
        same = first.buffer == t.buffer and first.indices == t.indices
        return first.value if same and isinstance(first.value, Const) else None

    def _packed(self, r: Rows, row: str) -> Rows:
        """The same with several rows in a vector, if they are short and lie one after the other."""
        together = r.width // power_of_two(r.columns)
        if together < 2 or r.count % together:
            return r
        parts = [x for x in walk(r.summand) if isinstance(x, (Load, Var))]
        loads = [x for x in parts if isinstance(x, Load)]
        inside = {id(y) for x in loads for i in x.indices for y in walk(i)}
        if any(isinstance(x, Var) and id(x) not in inside and x.name in (row, r.lane) for x in parts):
            return r
        for x in loads:
            on = self._along(x.buffer, x.indices, row, r.lane)
            if self.buffers[x.buffer].scope == "register" or on not in ((r.columns, 1), (0, 0)):
                return r
        return replace(r, together=together)
