"""Square tiles that are read along one loop and written along the other: transposed in registers.

    for a in unroll(16):
        for b in vector(16):
            y[a, b] = x[b, a]

Read one by one, the lanes of x would be gathered, sixteen elements from sixteen lines for every a. Instead the sixteen
rows of x are loaded as they lie, and log2(16) rounds of two-vector shuffles make them columns: in the round of step s,
vectors i and i + s exchange the elements whose position has that bit set.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...schedule.nest import For, Store
from ...tensor.expr import Load, Op, linear, variables, walk
from .emit_expr import ExprEmitter, Value, Vector


class TransposeEmitter(ExprEmitter):
    """Emission of such tiles. `columns` has, for the loads of the tile at hand (by their text), one vector an a."""

    columns: dict[str, list[Value]]
    _across: str

    @contextmanager
    def transposing(self, s: For) -> Iterator[None]:
        """Inside: the loads of an unrolled loop that can be read as whole tiles are."""
        found = self._tile_loads(s)
        if not found:
            yield
            return
        saved = getattr(self, "columns", {}), getattr(self, "_across", "")
        lane = s.body
        assert isinstance(lane, For) and s.trip is not None
        self.columns = {str(x): self._columns(x, s.var, lane.var, s.trip) for x in found}
        self._across = s.var
        yield
        self.columns, self._across = saved

    def load(self, e: Load) -> Value:
        if self.vector is not None:
            tile = getattr(self, "columns", {}).get(str(e))
            if tile is not None:
                a = self.env[self._across]
                assert isinstance(a, int)
                return tile[a]
        return super().load(e)

    def _tile_loads(self, s: For) -> list[Load]:
        """The loads of ``for a in unroll(w): for b in vector(w): store`` with steps 1 along a and more along b."""
        lane = s.body
        if not (isinstance(lane, For) and lane.kind == "vector" and isinstance(lane.body, Store)):
            return []
        if (
            s.trip is None
            or s.trip < 4
            or s.trip & (s.trip - 1)
            or lane.trip != s.trip
            or lane.lanes not in (0, s.trip)
        ):
            return []
        targets = lane.body.targets
        values = [x for t in targets for x in walk(t.value)]
        if any(isinstance(x, Op) and x.op == "guard" for x in values):
            return []
        written = {t.buffer for t in targets}
        loads = {str(x): x for x in values if isinstance(x, Load)}
        return [x for x in loads.values() if x.buffer not in written and self._crosses(x, s.var, lane.var)]

    def _crosses(self, x: Load, across: str, lane: str) -> bool:
        buffer = self.buffers[x.buffer]
        if buffer.scope == "register" or buffer.dtype == "i1":
            return False
        terms, _ = linear(self.flat(buffer, x.indices))
        steps = {str(t): c for t, c in terms.items()}
        others = [t for t in terms if str(t) not in (across, lane)]
        return (
            steps.get(across) == 1
            and steps.get(lane, 0) not in (0, 1)
            and not any({across, lane} & variables(t) for t in others)
        )

    def _columns(self, x: Load, across: str, lane: str, width: int) -> list[Value]:
        """The tile of a load: vector a has the elements (a, b) for all lanes b."""
        rows: list[Value] = []
        self.vector = Vector(across, width, None)
        for b in range(width):
            with self.bind(lane, b):
                rows.append(super().load(x))
        self.vector = None
        step = 1
        while step < width:
            low = [j if not j & step else width + j - step for j in range(width)]
            high = [j + step if not j & step else width + j for j in range(width)]
            for i in range(width):
                if not i & step:
                    pair = rows[i], rows[i + step]
                    rows[i], rows[i + step] = (self._shuffle(*pair, mask) for mask in (low, high))
            step *= 2
        return rows

    def _shuffle(self, a: Value, b: Value, mask: list[int]) -> Value:
        kind = f"{a.type}, {b.type}"
        return self.op_value(f"vector.shuffle {a.ssa}, {b.ssa} [{', '.join(map(str, mask))}] : {kind}", a)
