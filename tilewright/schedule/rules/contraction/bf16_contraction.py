"""Sums of products of bf16 with f32 sums, for machines that multiply pairs (`machine.PairProduct`).

As `contraction`: a tile of sums in registers, operands streamed past it. The reduction runs in pairs: in memory the two
elements of a pair must be neighbours. The operand that moves along the rows of the tile has them so (its last dimension
is the reduction); a constant operand is packed so, [k / 2][n][2]; another one is interleaved as it is read.
"""

from __future__ import annotations

from ....tensor.expr import Load
from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...machine import Machine
from ...planner.choose import choose_grouped
from ...planner.grouped import find_grouped
from ...planner.instructions import pairs
from ...planner.plan import Plan
from ...planner.product import Product
from ...planner.prologue import schedule_sum
from ...primitives.dots import product_of_halves
from ...schedule import Schedule

NAME = "bf16-contraction"
PRIORITY = 17


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if machine.pairs is None:
        return "the machine has no instruction for pairs of bf16"
    if not kernel.holds("bf16"):  # before producers are inlined
        return "not a sum of products of bf16"
    instruction = pairs(machine.pairs, machine)

    def plan(s: Schedule, anchor: Stage) -> tuple[Plan, Product] | str:
        halves = product_of_halves(s.store(anchor.name).targets[0])
        if halves is None:
            return "not a sum of products of bf16"
        a, b = halves
        assert isinstance(a, Load) and isinstance(b, Load)
        found = find_grouped(s, anchor, (a, b), constant=False)
        if isinstance(found, str):
            return found
        runs = [k for k in found.runs if anchor.extents[k] % 2 == 0]
        if not runs:
            return "no loop of the reduction has pairs of neighbours in the operand along the rows"
        product = found.product(s, anchor, runs[-1], instruction)
        return choose_grouped(product, machine, s.sample_choice), product

    return schedule_sum(kernel, machine, decisions, plan, "")
