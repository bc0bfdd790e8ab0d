"""Sums of several rows, each across the lanes of a vector: the lanes of all rows are added at once.

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

from ...schedule.nest import For, Seq, Store
from ...tensor.expr import COMBINERS, Const, Expr, Load, Op, Target, Var, linear, neutral, variables, walk
from .emit_expr import ExprEmitter
from .values import Value, Vector

#: fewer rows are faster by themselves
FEWEST = 4


@dataclass(frozen=True)
class RowSums:
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


class RowReduceEmitter(ExprEmitter):
    """Emission of such loops."""

    def sums_of_rows(self, s: For) -> bool:
        """Emit an unrolled loop of this form; False if it is another."""
        found = self._row_sums(s)
        if found is None:
            return False
        vectors = [self._row_vector(found, s.var, i) for i in range(found.count // found.together)]
        total = self._lanes_added(found, vectors)
        mask = self._first_lanes(found.count, found.width)
        self.vector = Vector(s.var, found.width, mask, False, found.count)
        t = found.target
        if found.start is None:
            total = self.combine(found.op, total, self.as_vector(self.expr(Load(t.buffer, t.indices, total.dtype))),
                                 total.dtype)  # fmt: skip
        elif found.start != neutral(found.op, total.dtype):
            total = self.combine(found.op, total, self.as_vector(self.expr(found.start)), total.dtype)
        self.write(t, total)
        self.vector = None
        return True

    def _first_lanes(self, count: int, width: int) -> str | None:
        return None if count == width else self.op(f"vector.constant_mask [{count}] : vector<{width}xi1>")

    def _row_vector(self, r: RowSums, row: str, i: int) -> Value:
        """Vector i: some rows beside each other, the lanes between them neutral."""
        active = r.together * r.columns
        self.vector = Vector(r.lane, r.width, self._first_lanes(active, r.width), active == 1, active)
        with self.bind(row, i * r.together):
            v = self.as_vector(self.expr(r.summand))
        self.vector = None
        there = [j % r.apart < r.columns for j in range(r.width)]
        if r.together == 1 and isinstance(r.summand, Load) and neutral(r.op, v.dtype).value == 0:
            return v  # lanes that are not read are zero
        if r.together > 1:
            places = [j // r.apart * r.columns + j % r.apart if there[j] else 0 for j in range(r.width)]
            v = self._shuffled(v, v, places)
        if not all(there):
            fill = self.const(neutral(r.op, v.dtype).value, v.dtype, r.width)
            bits = ", ".join(str(b).lower() for b in there)
            mask = self.op(f"arith.constant dense<[{bits}]> : vector<{r.width}xi1>")
            v = self.op_value(f"arith.select {mask}, {v.ssa}, {fill} : vector<{r.width}xi1>, {v.type}", v)
        return self.without_nan(r.op, v)

    def _lanes_added(self, r: RowSums, vectors: list[Value]) -> Value:
        """One vector with the sums, that of row r in lane r; other lanes hold anything."""
        size = 1 << (len(vectors) - 1).bit_length()
        vectors = vectors + vectors[:1] * (size - len(vectors))
        step = r.apart // 2
        while step:
            if step >= size:  # there are fewer vectors than lanes to tell them apart
                other = [j ^ step for j in range(r.width)]
                vectors = [self.combine(r.op, self._shuffled(v, v, other), v, v.dtype) for v in vectors]
            else:
                vectors = [
                    self._half_of_each(r, a, b, step) for a, b in zip(vectors[:step], vectors[step:], strict=True)
                ]
            step //= 2
        (total,) = vectors
        if r.together == 1:
            return total
        places = [j % r.together * r.apart + j // r.together for j in range(r.width)]
        return self._shuffled(total, total, places)

    def _half_of_each(self, r: RowSums, a: Value, b: Value, step: int) -> Value:
        """Half of the sums of a where the lane has the bit `step` not, of b where it has."""
        width = r.width
        own = [j if not j & step else width + j for j in range(width)]
        other = [j + step if not j & step else width + j - step for j in range(width)]
        return self.combine(r.op, self._shuffled(a, b, own), self._shuffled(a, b, other), a.dtype)

    def _shuffled(self, a: Value, b: Value, places: list[int]) -> Value:
        return self.op_value(f"vector.shuffle {a.ssa}, {b.ssa} [{', '.join(map(str, places))}] : {a.type}, {b.type}", a)

    # ---- the form ----

    def _row_sums(self, s: For) -> RowSums | None:
        start, lane = s.body.stmts if isinstance(s.body, Seq) and len(s.body.stmts) == 2 else (None, s.body)
        if self.vector or not (isinstance(lane, For) and lane.kind == "vector" and isinstance(lane.body, Store)):
            return None
        if s.trip is None or lane.trip is None or len(lane.body.targets) != 1:
            return None
        (t,) = lane.body.targets
        if not FEWEST <= s.trip <= self.lanes or not self._sums_are_neighbours(t, s.var, lane.var):
            return None
        width = max(lane.lanes, 1 << (max(s.trip, lane.trip) - 1).bit_length())
        value, first = t.value, self._start_of(start, t)
        if (start is not None and first is None) or not isinstance(value, Op) or len(value.args) != 2:
            return None
        for acc, other in (value.args, value.args[::-1]):
            if isinstance(acc, Load) and acc.buffer == t.buffer and acc.indices == t.indices:
                if value.op not in COMBINERS or value.dtype == "i1" or not self._plain(other, t.buffer, lane.var):
                    return None
                if width != lane.lanes and self._in_registers(other):
                    return None  # vectors that are there are of that width
                found = RowSums(t, first, value.op, other, lane.var, s.trip, lane.trip, width)
                return self._packed(found, s.var)
        return None

    def _in_registers(self, e: Expr) -> bool:
        return any(isinstance(x, Load) and self.buffers[x.buffer].scope == "register" for x in walk(e))

    def _sums_are_neighbours(self, t: Target, row: str, lane: str) -> bool:
        """Whether neighbouring rows have neighbouring sums in memory."""
        buffer = self.buffers[t.buffer]
        if buffer.scope == "register":
            return False
        return self._along(buffer.name, t.indices, row, lane) == (1, 0)

    def _along(self, buffer: str, indices: tuple[Expr, ...], row: str, lane: str) -> tuple[int, int] | None:
        """How far an access moves with the next row and the next lane; None if that is not always the same."""
        terms = linear(self.flat(self.buffers[buffer], indices))[0]
        steps = {t.name: c for t, c in terms.items() if isinstance(t, Var)}
        if any({row, lane} & variables(t) for t in terms if not isinstance(t, Var)):
            return None
        return steps.get(row, 0), steps.get(lane, 0)

    def _start_of(self, start, t: Target) -> Const | None:
        """The constant that a statement sets the sum to."""
        if not isinstance(start, Store) or len(start.targets) != 1:
            return None
        (first,) = start.targets
        same = first.buffer == t.buffer and first.indices == t.indices
        return first.value if same and isinstance(first.value, Const) else None

    def _plain(self, summand: Expr, own: str, lane: str) -> bool:
        parts = list(walk(summand))
        reads = {x.buffer for x in parts if isinstance(x, Load)}
        guards = any(isinstance(x, Op) and x.op == "guard" for x in parts)
        return own not in reads and not guards and lane in variables(summand)

    def _packed(self, r: RowSums, row: str) -> RowSums:
        """The same with several rows in a vector, if they are short and lie one after the other."""
        together = r.width // (1 << (r.columns - 1).bit_length())
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
