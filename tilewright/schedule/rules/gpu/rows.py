"""Fused row-wise reductions with the elementwise work around them (softmax, layer norm, mean, argmax): a row by the
threads of a block or of a warp.

Threads go along a row with coalesced accesses, or, where rows are contiguous with each other, across rows; partial sums
are combined in shared memory. All stages are one kernel, and the row stays in registers or shared memory between them
where it fits. `row_values` reads a kernel as rows, `row_team` chooses, `row_nest` writes.
"""

from __future__ import annotations

from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine
from ...schedule import Schedule
from .row_nest import RowWriter
from .row_team import choose, reads
from .row_values import RowwiseKernel
from .units import has_blocks

NAME = "block_rows"
PRIORITY = 6


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if not has_blocks(machine):
        return "the machine has no grid of blocks"
    if kernel.opaque or kernel.one_thread:
        return "an operator with a loop nest of its own, or a part of a kernel"
    rows = RowwiseKernel.of(kernel)
    if isinstance(rows, str):
        return rows
    s = Schedule(kernel, machine, decisions=decisions)
    needs = reads(rows)
    team = choose(s, rows, needs, machine)
    if isinstance(team, str):
        return team
    s.body = RowWriter(s, rows, needs.keeps, team).nest()
    s.temporaries.clear()
    s.plan = str(team)
    return s
