"""Fused row-wise reductions with the elementwise work around them (softmax, layer norm, mean, argmax): a row by the
threads of a block or of a warp.

Threads go along a row with coalesced accesses, or, where rows are contiguous with each other, across rows; partial sums
are combined in shared memory. All stages are one kernel, and the row stays in registers or shared memory between them
where it fits. `row_values` reads a kernel as rows, `row_mapping` chooses, `row_nest` writes.
"""

from __future__ import annotations

from ...machine import Machine
from ...nest import Stmt
from ...schedule import Schedule
from .row_mapping import choose, reads
from .row_nest import RowWriter
from .row_values import RowwiseKernel
from .tactics import loops_rule, not_whole

NAME = "block_rows"
PRIORITY = 6


def write(s: Schedule, machine: Machine) -> Stmt | str:
    rows = RowwiseKernel.of(s.kernel)
    if isinstance(rows, str):
        return rows
    needs = reads(rows)
    team = choose(s, rows, needs, machine)
    if isinstance(team, str):
        return team
    s.plan = str(team)
    return RowWriter(s, rows, needs.keeps, team).nest()


apply = loops_rule(NAME, write, not_whole, lambda s: None)
