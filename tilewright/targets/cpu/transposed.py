"""Tiles that are read along one loop and written along the other: transposed in registers.

    for a in unroll(16):
        for b in vector(16):
            y[a, b] = x[b, a]

Read one by one, the lanes of x would be gathered, sixteen elements from sixteen lines for every a. Instead the sixteen
rows of x are loaded as they lie, and log2(16) rounds of two-vector shuffles make them columns: in the round of step s,
vectors i and i + s exchange the elements whose position has that bit set. A tile with fewer rows or columns is read and
written with masks; rows of half a vector or less share one.
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
        self.columns = {str(x): self._columns(x, s) for x in found}
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
        """The loads of ``for a in unroll(n): for b in vector(m): store`` with steps 1 along a and more along b.

        Neither n nor m may exceed the lanes of a vector; with fewer than four there is nothing to win."""
        lane = s.body
        if not (isinstance(lane, For) and lane.kind == "vector" and isinstance(lane.body, Store)):
            return []
        if s.trip is None or lane.trip is None or lane.trip < 2 or not 4 <= s.trip <= _lanes(lane):
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
        jumps = any(lane in variables(t) for t in others)  # rows in no regular distance, as of fused loops
        return (
            steps.get(across) == 1
            and (jumps or steps.get(lane, 0) not in (0, 1))
            and not any(across in variables(t) for t in others)
        )

    def _columns(self, x: Load, s: For) -> list[Value]:
        """The tile of a load: vector a has the elements (a, b) for all lanes b.

        Of a partial tile only what is there is read; the other rows and lanes hold anything."""
        lane = s.body
        assert isinstance(lane, For) and s.trip is not None and lane.trip is not None
        width, size = _lanes(lane), 1 << (s.trip - 1).bit_length()
        steps = {str(t): c for t, c in linear(self.flat(self.buffers[x.buffer], x.indices))[0].items()}
        if s.trip == size < width == lane.trip and steps.get(lane.var) == size:
            return self._side_by_side(x, s, lane, width)
        mask = None if s.trip == width else self.op(f"vector.constant_mask [{s.trip}] : vector<{width}xi1>")
        rows: list[Value] = []
        self.vector = Vector(s.var, width, mask)
        for b in range(lane.trip):
            with self.bind(lane.var, b):
                rows.append(super().load(x))
        self.vector = None
        rows += rows[:1] * (width - lane.trip)
        while len(rows) > size:  # rows of half a vector or less: several become one
            free = width * size // len(rows)
            both = [j if j < free else width + j - free if j < 2 * free else 0 for j in range(width)]
            rows = [self._shuffle(rows[i], rows[i + size], both) for i in range(len(rows)) if not i & size]
        return self._exchanged(rows, width)

    def _side_by_side(self, x: Load, s: For, lane: For, width: int) -> list[Value]:
        """The columns of rows that are vectors together."""
        assert s.trip is not None
        whole: list[Value] = []
        each = width // s.trip
        self.vector = Vector(s.var, width, None)
        for b in range(0, width, each):
            with self.bind(lane.var, b):
                whole.append(super().load(x))
        self.vector = None
        place = [(b % each) * s.trip + b // each for b in range(width)]
        return [self._shuffle(v, v, place) for v in self._exchanged(whole, width)]

    def _exchanged(self, rows: list[Value], width: int) -> list[Value]:
        """n vectors of `width` lanes, transposed in squares of n by n."""
        rows, step = list(rows), 1
        while step < len(rows):
            low = [j if not j & step else width + j - step for j in range(width)]
            high = [j + step if not j & step else width + j for j in range(width)]
            for i in range(len(rows)):
                if not i & step:
                    pair = rows[i], rows[i + step]
                    rows[i], rows[i + step] = (self._shuffle(*pair, mask) for mask in (low, high))
            step *= 2
        return rows

    def _shuffle(self, a: Value, b: Value, mask: list[int]) -> Value:
        kind = f"{a.type}, {b.type}"
        return self.op_value(f"vector.shuffle {a.ssa}, {b.ssa} [{', '.join(map(str, mask))}] : {kind}", a)


def _lanes(loop: For) -> int:
    """The lanes of a vectorized loop with a known number of iterations."""
    assert loop.trip is not None
    return loop.lanes or 1 << (loop.trip - 1).bit_length()
