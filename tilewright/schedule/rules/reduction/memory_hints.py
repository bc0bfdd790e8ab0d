"""Software prefetch and non-temporal stores of row kernels.

While the stage over a task's rows runs that computes most (exponentials, or else the last sums), each step asks for as
much of the next task's rows: the processor's own prefetching loses its way at the end of a row, and stops at the end of
a page. Beside exponentials there is also time to ask for the lines that the result of this task goes to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from ....support.dtypes import NUMPY
from ....tensor.analysis import flat
from ....tensor.expr import Const, Expr, Op, Var, simplify, substitute, variables, walk
from ...machine import Machine
from ...nest import For
from ...schedule import Schedule
from ..common import load_strides, store_stride

#: stands for the number of a row within its task
ROW = "row of a task"
#: what takes so long that memory can be waited for meanwhile
FUNCTIONS = frozenset({"exp", "log", "tanh", "erf", "sin", "cos", "powf", "log1p", "expm1"})
#: steps of a row from which each asks for its share; else all is asked for at the beginning of a row
MIN_STEPS = 8


def item(dtype: str) -> int:
    """Bytes of an element."""
    return NUMPY[dtype].itemsize


@dataclass
class FarRows:
    """The parameters that a kernel reads row by row, each with the flat index at which a row begins, as an expression
    of the loop over tasks `at` and of `ROW`; `length` elements a row. `results`: the same for what the last block
    writes."""

    at: str
    starts: dict[str, Expr]
    length: int
    results: dict[str, Expr] = field(default_factory=dict)

    @staticmethod
    def of(s: Schedule, blocks: list[str], at: str) -> FarRows:
        """Those of blocks whose loops are not yet split: tasks, (rows of a task,) elements of a row."""
        found: dict[str, Expr] = {}
        lengths = set()
        for b in blocks:
            inner = [v for v in s.loops(b) if v != at]
            if not 1 <= len(inner) <= 2:
                continue
            for x, stride in load_strides(s, s.store(b), inner[-1]):
                start = _start(s, x.buffer, x.indices, inner)
                if x.buffer in s.params and stride == 1 and at in variables(start):
                    found[x.buffer] = start
                    lengths.add(s.extent_or_zero(inner[-1]))
        if len(lengths) != 1:
            return FarRows(at, {}, max(lengths, default=0))
        (length,), inner = lengths, [v for v in s.loops(blocks[-1]) if v != at]
        store = s.store(blocks[-1])
        written = len(inner) <= 2 and inner and s.extent_or_zero(inner[-1]) == length and not store.reduction
        targets = [t for t in store.targets if written and store_stride(s, store, inner[-1]) == 1]
        return FarRows(at, found, length, {t.buffer: _start(s, t.buffer, t.indices, inner) for t in targets})

    def prefetch(self, s: Schedule, blocks: list[str], machine: Machine) -> None:
        """Ask for the rows of the next task in the block before the last that computes most."""
        far = sum(b.size * item(b.dtype) for b in s.params.values()) > machine.l2_bytes
        sums = [b for b in blocks[:-1] if s.stages[b].targets[0].init is not None]
        if not (self.starts and sums and far and s.sample_choice("prefetch", (True, False), True)):
            return
        most = max(prod(s.stages[b].extents.values()) for b in blocks)  # not what is one number a row
        long = [b for b in blocks[:-1] if has_function(s, b) and prod(s.stages[b].extents.values()) == most]
        path = [s.loop(v) for v in s.loops((long or sums)[-1])]
        serial = [f for f in path if f.kind == "serial" and f.var != self.at]
        together = any(ROW in variables(start) for start in self.starts.values())
        if not 1 <= len(serial) <= 1 + together:
            return
        trip = serial[-1].trip or 0 if len(serial) == 1 + together else 0
        if trip < (MIN_STEPS if together else 2):
            trip = 0  # at the beginning of a row
            if not together:
                return
        # a last, partial step is laid out by itself and asks for nothing
        step = -(-self.length // max(trip - 1, 1)) if trip else self.length
        over, row = serial[-1 if trip else 0].var, Var(serial[0].var)
        asked = {b: substitute(x, {self.at: Var(self.at) + 1, ROW: row}) for b, x in self.starts.items()}
        near = sum(self.rows(serial, together) * self.length * item(s.buffer(b).dtype) for b in asked)
        if long and bool(s.sample_choice("prefetch_result", (True, False), True)):
            asked |= {b: substitute(x, {ROW: row}) for b, x in self.results.items() if not _past(s, b, machine)}
        for buffer, start in asked.items():
            first = start + Var(over) * step if trip else start
            elements = machine.line_bytes // item(s.buffer(buffer).dtype)
            s.prefetch(over, buffer, [first + i for i in range(0, step, elements)])
        if near <= machine.l1_bytes // 2:
            s.annotate(over, "near", True)

    def rows(self, serial: list[For], together: bool) -> int:
        """Rows of a task, if that is constant."""
        return serial[0].trip or 1 if together else 1


def _start(s: Schedule, buffer: str, indices: tuple[Expr, ...], inner: list[str]) -> Expr:
    """The flat index at which a row begins that the loops `inner`, (rows and) elements of a row, walk over."""
    values = {inner[-1]: Const(0, "index"), **({inner[0]: Var(ROW)} if len(inner) == 2 else {})}
    return simplify(substitute(flat(s.buffer(buffer), indices), values), {})


def has_function(s: Schedule, block: str) -> bool:
    """Whether a block takes exponentials or the like."""
    return any(x.op in FUNCTIONS for t in s.store(block).targets for x in walk(t.value) if isinstance(x, Op))


def keeps_functions(s: Schedule, blocks: list[str], rows: list[str]) -> bool:
    """Whether exponentials or the like of whole rows are kept between the blocks of a kernel."""
    kept = [b for b in blocks[:-1] if s.store(b).targets[0].init is None and len(s.loops(b)) > len(rows)]
    return any(has_function(s, b) for b in kept)


def _past(s: Schedule, buffer: str, machine: Machine) -> bool:
    """Whether the caches cannot hold a result."""
    result = s.buffer(buffer)
    return buffer not in s.params or result.size * item(result.dtype) >= machine.l3_bytes


def past_caches(s: Schedule, block: str, at: str, machine: Machine) -> None:
    """Write a result that the caches cannot hold past them: a cache would first read what is overwritten."""
    result = s.store(block).targets[0].buffer
    if result not in s.params or not _past(s, result, machine):
        return
    serial = [v for v in s.loops(block) if s.loop(v).kind == "serial" and s.extent_or_zero(v) > 1 and v != at]
    if serial and bool(s.sample_choice("uncached", (True, False), True)):
        s.annotate(serial[0], "uncached", True)
