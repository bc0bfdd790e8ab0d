"""What row kernels read from far memory is asked for ahead of time, and large results go past the caches.

While the last sums over a task's rows run, each step asks for as much of the next task's rows: the processor's own
prefetching loses its way at the end of a row, and stops at the end of a page.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...dtypes import NUMPY
from ...tensor.analysis import flat
from ...tensor.expr import Const, Expr, Var, simplify, substitute, variables
from ..machine import Machine
from ..schedule import Schedule
from .common import load_strides

LINE = 64
#: stands for the number of a row within its task
ROW = "row of a task"


def item(dtype: str) -> int:
    """Bytes of an element."""
    return NUMPY[dtype].itemsize


@dataclass
class FarRows:
    """The parameters that a kernel reads row by row, each with the flat index at which a row begins, as an expression
    of the loop over tasks `at` and of `ROW`; `length` elements a row."""

    at: str
    starts: dict[str, Expr]
    length: int

    @staticmethod
    def of(s: Schedule, blocks: list[str], at: str) -> FarRows:
        """Those of blocks whose loops are not yet split: tasks, (rows of a task,) elements of a row."""
        found: dict[str, Expr] = {}
        lengths = set()
        for b in blocks:
            inner = [v for v in s.loops(b) if v != at]
            if not 1 <= len(inner) <= 2:
                continue
            values = {inner[-1]: Const(0, "index"), **({inner[0]: Var(ROW)} if len(inner) == 2 else {})}
            for x, stride in load_strides(s, s.store(b), inner[-1]):
                start = simplify(substitute(flat(s.buffer(x.buffer), x.indices), values), {})
                if x.buffer in s.params and stride == 1 and at in variables(start):
                    found[x.buffer] = start
                    lengths.add(s.extent_or_zero(inner[-1]))
        return FarRows(at, found if len(lengths) == 1 else {}, max(lengths, default=0))

    def prefetch(self, s: Schedule, blocks: list[str], machine: Machine) -> None:
        """Ask for the rows of the next task in the last block before the one that writes the result."""
        far = sum(b.size * item(b.dtype) for b in s.params.values()) > machine.l2_bytes
        sums = [b for b in blocks[:-1] if s.stages[b].targets[0].init is not None]
        if not (self.starts and sums and far and s.sample_choice("prefetch", (True, False), True)):
            return
        path = [s.loop(v) for v in s.loops(sums[-1])]
        serial = [f for f in path if f.kind == "serial" and f.var != self.at]
        if not 1 <= len(serial) <= 2 or not serial[-1].trip:
            return
        rows = serial[0].trip if len(serial) == 2 else 1
        step = -(-self.length // serial[-1].trip)
        near = sum((rows or 1) * self.length * item(s.buffer(b).dtype) for b in self.starts) <= machine.l1_bytes // 2
        values = {self.at: Var(self.at) + 1, ROW: Var(serial[0].var)}
        for buffer, start in self.starts.items():
            first = substitute(start, values) + Var(serial[-1].var) * step
            elements = LINE // item(s.buffer(buffer).dtype)
            s.prefetch(serial[-1].var, buffer, [first + i for i in range(0, step, elements)])
        if near:
            s.annotate(serial[-1].var, "near", True)


def past_caches(s: Schedule, block: str, at: str, machine: Machine) -> None:
    """Write a result that the caches cannot hold past them: a cache would first read what is overwritten."""
    result = s.buffer(s.store(block).targets[0].buffer)
    if result.name not in s.params or result.size * item(result.dtype) < getattr(machine, "l3_bytes", 1 << 62):
        return
    serial = [v for v in s.loops(block) if s.loop(v).kind == "serial" and s.extent_or_zero(v) > 1 and v != at]
    if serial and s.sample_choice("uncached", (True, False), True):
        s.annotate(serial[0], "uncached", True)
