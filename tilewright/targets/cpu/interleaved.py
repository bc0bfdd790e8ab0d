"""Stores whose lanes lie between each other's: vectors are shuffled so that whole ones are written.

    for i in vector(16):
        y[i * 3] = a[i]                   # as tensors that are stacked along their last dimension
        y[i * 3 + 1] = b[i]
        y[i * 3 + 2] = c[i]

Scattered, every element would be written by itself.
"""

from __future__ import annotations

from ...schedule.nest import Seq, Stmt, Store
from ...tensor.expr import Load, Target, linear, walk
from .emit_expr import ExprEmitter
from .values import Value

#: so many stores may lie between each other
MOST = 4


class InterleaveEmitter(ExprEmitter):
    """Emission of the body of a vectorized loop that is of this form."""

    def target_value(self, t: Target) -> Value:
        """What a store writes: the part of `emit.Emitter`."""
        raise NotImplementedError

    def stores_between(self, body: Stmt) -> bool:
        """Emit a body of this form; False if it is another."""
        targets = self._turns(body)
        if not targets:
            return False
        assert self.vector is not None and self.vector.count is not None
        buffer, width, n = self.buffers[targets[0].buffer], self.vector.width, len(targets)
        rows = [self.as_vector(self.to_storage(self.target_value(t))) for t in targets]
        first = self.flat(buffer, targets[0].indices)
        for j in range(n):
            count = min(n * self.vector.count - j * width, width)
            if count > 0:
                value = self._taking_turns(rows, [j * width + i for i in range(width)])
                with self.bind(self.vector.var, 0):
                    base = self.index(first + j * width).ssa
                self._write_run(f"{self.memory[buffer.name]}[{base}]", self.memref(buffer), value, count)
        self.forget({buffer.name})
        return True

    def _turns(self, body: Stmt) -> list[Target]:
        """The targets in the order of what they write; none if that is not one run of neighbours."""
        stores = body.stmts if isinstance(body, Seq) else ()
        if not 2 <= len(stores) <= MOST or self.vector is None or not self.vector.count or self.vector.width < 4:
            return []
        found: dict[int, Target] = {}
        forms = []
        for s in stores:
            if not isinstance(s, Store) or len(s.targets) != 1:
                return []
            (t,) = s.targets
            buffer = self.buffers[t.buffer]
            if buffer.scope == "register" or self.lane_stride(t.buffer, t.indices) != len(stores):
                return []
            terms, constant = linear(self.flat(buffer, t.indices))
            forms.append((t.buffer, terms))
            found[constant] = t
        written = forms[0][0]
        reads = any(isinstance(x, Load) and x.buffer == written for t in found.values() for x in walk(t.value))
        run = sorted(found) == list(range(min(found), min(found) + len(stores)))
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
            kind = f"{found.type}, {rows[row].type}"
            text = f"vector.shuffle {found.ssa}, {rows[row].ssa} [{', '.join(map(str, mask))}] : {kind}"
            found = self.op_value(text, found)
        return found

    def _write_run(self, where: str, kind: str, value: Value, count: int) -> None:
        """Write the first `count` lanes."""
        if count == value.width:
            self.line(f"vector.store {value.ssa}, {where} : {kind}, {value.type}")
        elif count == 1:  # as in `emit.Emitter.write_memory`: never a masked store of one byte
            one = self.op(f"vector.extract {value.ssa}[0] : {value.dtype} from {value.type}")
            self.line(f"memref.store {one}, {where} : {kind}")
        else:
            mask = self.op(f"vector.constant_mask [{count}] : vector<{value.width}xi1>")
            kinds = f"{kind}, vector<{value.width}xi1>, {value.type}"
            self.line(f"vector.maskedstore {where}, {mask}, {value.ssa} : {kinds}")
