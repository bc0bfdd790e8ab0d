"""Elides copies of an input to the output (loops with the note `COPIES`) where both are the same memory."""

from __future__ import annotations

from ...schedule.inplace import COPIES
from ...schedule.nest import For, Stmt, writes
from .part import Part


class InPlaceCopies(Part):
    """Takes such loops."""

    takes = (For,)
    _inside = False

    def wants(self, s: Stmt) -> bool:
        return isinstance(s, For) and s.note(COPIES) is not None

    def emit(self, s: Stmt) -> bool:
        if self._inside:
            return False
        assert isinstance(s, For)
        source, (output,) = s.note(COPIES), writes(s)
        a, b = (self.text.start(self.buffers[n]) for n in (source, output))
        self.text.line(f"scf.if {self.text.op(f'arith.cmpi ne, {a}, {b} : index')} {{")
        self._inside = True
        with self.text.scope():
            self.core.stmt(s)
        self._inside = False
        self.text.line("}")
        return True
