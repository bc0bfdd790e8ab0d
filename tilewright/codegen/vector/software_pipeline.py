"""Software pipelining of loops over rows (`Schedule.stagger`): they run as one loop, each some rows behind the one
before:

for i: max of row i          for t in range(n + 4):
for i: exp of row i     ->       if t < n:           max of row t
for i: sum of row i              if 0 <= t - 2 < n:  exp of row t - 2
                                 if 0 <= t - 4 < n:  sum of row t - 4
"""

from __future__ import annotations

from ...schedule.legality import LAG, iterations_cross
from ...schedule.nest import Alloc, For, Seq, Stmt, writes
from .part import Core, Part


class SoftwarePipeline(Part):
    """Takes statements that are nothing but loops with lags, and their buffers in memory."""

    takes = (Seq, Alloc, For)

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self._apart: dict[int, str] = {}  # why loops run one after the other

    def wants(self, s: Stmt) -> bool:
        return s.note(LAG) is not None if isinstance(s, For) else len(self._loops(s)[1]) > 1

    def emit(self, s: Stmt) -> bool:
        if isinstance(s, For):
            self.core.refuse(s, LAG, self._apart.get(id(s), "it does not stand among such loops only"))
            return False
        allocs, loops = self._loops(s)
        why = "it carries sums in registers" * any(self.core.registers.written(f.body) for f in loops)
        if why or iterations_cross(loops, self.buffers, self.at.ranges):
            self._apart.update((id(f), why or "an iteration needs what another one does") for f in loops)
            return False
        self._allocated(allocs, loops)
        return True

    def _loops(self, s: Stmt) -> tuple[list[Alloc], list[For]]:
        """The buffers and the loops of a statement that is nothing but loops with lags; none of any other."""
        loops, allocs = list[For](), list[Alloc]()
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
                return [], []
        return allocs, loops

    def _allocated(self, allocs: list[Alloc], loops: list[For]) -> None:
        if allocs:
            self.core.alloc(allocs[0], lambda _: self._allocated(allocs[1:], loops))
        else:
            self._as_one(loops)

    def _as_one(self, loops: list[For]) -> None:
        rows, zero, var = self.at.index(loops[0].extent).ssa, self.text.const(0, "index"), self.text.fresh()
        most = self.text.const(max(f.note(LAG) for f in loops), "index")
        end = self.text.op(f"arith.addi {rows}, {most} : index")
        for f in loops:
            self.text.forget(writes(f.body))
        self.text.line(f"scf.for {var} = {zero} to {end} step {self.text.const(1, 'index')} {{")
        with self.text.scope():
            for f in loops:
                row = self.text.op(f"arith.subi {var}, {self.text.const(f.note(LAG), 'index')} : index")
                # below 0 is beyond the end, too, without its sign
                runs = self.text.op(f"arith.cmpi ult, {row}, {rows} : index")
                self.text.line(f"scf.if {runs} {{")
                with self.text.scope(), self.text.bind(f.var, row):
                    self.core.prefetch(f)
                    self.core.stmt(f.body)
                self.text.line("}")
        self.text.line("}")
        for f in loops:
            self.text.forget(writes(f.body))
