"""Loops over the rows of a task as one, each some rows behind the one before (`Schedule.stagger`):

for i: max of row i          for t in range(n + 4):
for i: exp of row i     ->       if t < n:           max of row t
for i: sum of row i              if 0 <= t - 2 < n:  exp of row t - 2
                                 if 0 <= t - 4 < n:  sum of row t - 4
"""

from __future__ import annotations

from ...schedule.legality import LAG, iterations_cross
from ...schedule.nest import Alloc, For, Nest, Seq, Stmt, writes
from .emit_expr import ExprEmitter


class StaggeredEmitter(ExprEmitter):
    """Emission of loops with lags."""

    nest: Nest

    def staggered(self, s: Stmt) -> bool:
        """Emit a statement if it is nothing but loops with lags, and their buffers in memory."""
        loops, allocs = [], []
        todo = [s]
        while todo:
            x = todo.pop()
            if isinstance(x, Alloc) and x.buffer.scope == "local":
                allocs.append(x)
                todo.append(x.body)
            elif isinstance(x, Seq):
                todo += x.stmts[::-1]
            elif isinstance(x, For) and x.note(LAG) is not None and x.note("uncached") is None:
                loops.append(x)
            else:
                return False
        if len(loops) < 2 or any(self.written_slots(f.body, {f.var}) for f in loops):
            return False
        if iterations_cross(loops, self.buffers, self.ranges):
            return False
        self._allocated(allocs, loops)
        return True

    def _allocated(self, allocs: list[Alloc], loops: list[For]) -> None:
        if allocs:
            self.alloc(allocs[0], lambda _: self._allocated(allocs[1:], loops))
        else:
            self._as_one(loops)

    def _as_one(self, loops: list[For]) -> None:
        rows, zero, var = self.index(loops[0].extent).ssa, self.const(0, "index"), self.fresh()
        most = self.const(max(f.note(LAG) for f in loops), "index")
        end = self.op(f"arith.addi {rows}, {most} : index")
        for f in loops:
            self.forget(writes(f.body))
        self.line(f"scf.for {var} = {zero} to {end} step {self.const(1, 'index')} {{")
        with self.scope():
            for f in loops:
                row = self.op(f"arith.subi {var}, {self.const(f.note(LAG), 'index')} : index")
                # below 0 is beyond the end, too, without its sign
                runs = self.op(f"arith.cmpi ult, {row}, {rows} : index")
                self.line(f"scf.if {runs} {{")
                with self.scope(), self.bind(f.var, row):
                    self.ask_ahead(f)
                    self.stmt(f.body)
                self.line("}")
        self.line("}")
        for f in loops:
            self.forget(writes(f.body))

    # ---- the parts of `emit.Emitter` ----

    def stmt(self, s: Stmt) -> None:
        raise NotImplementedError

    def alloc(self, s: Alloc, body) -> None:
        raise NotImplementedError

    def ask_ahead(self, s: For) -> None:
        raise NotImplementedError

    def written_slots(self, s: Stmt, bound: set[str]) -> dict:
        raise NotImplementedError
