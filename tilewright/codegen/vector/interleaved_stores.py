"""Interleaved stores: vectors are shuffled so that whole ones are written.

    for i in vector(16):
        y[i * 3] = a[i]                   # as tensors that are stacked along their last dimension
        y[i * 3 + 1] = b[i]
        y[i * 3 + 2] = c[i]

Scattered, every element would be written by itself.
"""

from __future__ import annotations

from ...schedule.nest import Seq, Stmt, Store
from ...tensor.expr import Target, loads
from .part import Part
from .values import Value

#: so many stores may lie between each other
MOST_STORES = 4


class InterleavedStores(Part):
    """Takes such stores in a vectorized loop."""

    takes = (Seq,)

    def wants(self, s: Stmt) -> bool:
        stores = s.stmts if isinstance(s, Seq) else ()
        return 2 <= len(stores) <= MOST_STORES and all(isinstance(x, Store) and len(x.targets) == 1 for x in stores)

    def emit(self, s: Stmt) -> bool:
        assert isinstance(s, Seq)
        targets = self._turns(s)
        if not targets:
            return False
        assert self.text.vector is not None and self.text.vector.active is not None
        buffer, width, n = self.buffers[targets[0].buffer], self.text.vector.width, len(targets)
        rows = [self.text.as_vector(self.text.to_storage(self.core.value(t))) for t in targets]
        first = self.at.flat(buffer, targets[0].indices)
        for j in range(n):
            count = min(n * self.text.vector.active - j * width, width)
            if count > 0:
                value = self._taking_turns(rows, [j * width + i for i in range(width)])
                with self.text.bind(self.text.vector.var, 0):
                    base = self.at.index(first + j * width).ssa
                self.text.write_first(buffer, base, value, count)
        self.text.forget({buffer.name})
        return True

    def _turns(self, body: Seq) -> list[Target]:
        """The targets in the order of what they write; none if that is not one run of neighbours."""
        if self.text.vector is None or not self.text.vector.active or self.text.vector.width < 4:
            return []
        found: dict[int, Target] = {}
        forms = []
        for s in body.stmts:
            assert isinstance(s, Store)
            (t,) = s.targets
            buffer = self.buffers[t.buffer]
            if buffer.scope == "register" or self.at.lane_stride(t.buffer, t.indices) != len(body.stmts):
                return []
            place = self.at.located(buffer, t.indices)
            forms.append((t.buffer, place.terms))
            found[place.constant] = t
        written = forms[0][0]
        reads = any(x.buffer == written for t in found.values() for x in loads(t.value))
        run = sorted(found) == list(range(min(found), min(found) + len(body.stmts)))
        return [found[c] for c in sorted(found)] if run and not reads and all(f == forms[0] for f in forms) else []

    def _taking_turns(self, rows: list[Value], places: list[int]) -> Value:
        """The elements at some places of a run in which rows take turns."""
        n, width = len(rows), len(places)
        found = rows[0]
        for row in range(1, n):
            mask = []
            for lane, p in enumerate(places):
                before = p // n if row == 1 else lane  # after the first shuffle what is there is in its place
                mask.append(width + p // n if p % n == row else before)
            found = self.text.shuffle(found, rows[row], mask)
        return found
