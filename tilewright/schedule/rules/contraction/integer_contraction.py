"""Sums of products of 8-bit numbers, for machines with an instruction for them (`machine.DotProduct`).

As `contraction`: a tile of sums in registers, operands streamed past it. The reduction advances by the `depth` of the
instruction, along numbers that are neighbours in the operand of the rows (the channels of a channels-last image, or a
row of a window); constant weights are packed to match, [columns][reduction][columns of the tile][depth], so that the
loop reads them front to back.

    for rows, columns of tiles:
      for k in K / 4:
        for r in 13: for v in 2: for l in vector(16): for q in unroll(4, notes={'dot': ...}):
          acc[r, v, l] += x[r, k, q] * w[k, v, l, q]
"""

from __future__ import annotations

from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...machine import Machine
from ...planner.choose import choose_grouped
from ...planner.grouped import byte_factors, find_grouped
from ...planner.instructions import dots
from ...planner.plan import Plan
from ...planner.product import Product
from ...planner.prologue import schedule_sum
from ...schedule import Schedule

NAME = "integer-contraction"
PRIORITY = 16
#: neighbours of the reduction that vectors need at least
MIN_RUN = 3


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if not machine.dot_products:
        return "the machine has no instruction for sums of products of bytes"
    if not kernel.holds("i8"):  # before producers are inlined
        return "not a sum of products of bytes"

    def plan(s: Schedule, anchor: Stage) -> tuple[Plan, Product] | str:
        factors = byte_factors(s, anchor)
        if factors is None:
            return "not a sum of products of bytes"
        (first, x), (second, w) = factors
        dot = next((d for d in machine.dot_products if d.signs == (first, second)), None)
        if dot is None:
            return "the machine's instructions multiply bytes of other signedness"
        found = find_grouped(s, anchor, (x, w), constant=True)
        if isinstance(found, str):
            return found
        if dot.lanes and anchor.extents[found.runs[-1]] < MIN_RUN:
            return "its runs of neighbours are too short"
        product = found.product(s, anchor, found.runs[-1], dots(dot, machine))
        return choose_grouped(product, machine, s.sample_choice), product

    return schedule_sum(kernel, machine, decisions, plan, "")
