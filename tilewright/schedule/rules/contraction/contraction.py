"""Sums of products in f32 (matmul, convolution, depthwise) and other reductions whose results are contiguous (pooling,
sums over outer dimensions): a tile of sums in registers, operands streamed past it. See `schedule.planner`."""

from __future__ import annotations

from ....tensor.kernel import Kernel, Stage
from ...decisions import Decisions
from ...machine import Machine
from ...planner.choose import choose
from ...planner.plan import Plan
from ...planner.product import Product, product_of
from ...planner.prologue import schedule_sum
from ...schedule import Schedule

NAME = "contraction"
PRIORITY = 21


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    def plan(s: Schedule, anchor: Stage) -> tuple[Plan, Product] | str:
        product = product_of(s, anchor, machine)
        return product if isinstance(product, str) else choose(product, machine, s.sample_choice)

    # vectors of two rows cannot always be shown to stay clear of a border
    return schedule_sum(kernel, machine, decisions, plan, "halves")
