"""What rules for sums of products share: the kernel around a sum, and the way from there to a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...tensor.kernel import Kernel, Stage
from ..decisions import Decisions
from ..machine import Machine
from ..rules.elementwise.elementwise import schedule_border
from ..schedule import Schedule, ScheduleError
from .apply import apply
from .plan import Plan
from .product import Product


def schedule_sum(
    kernel: Kernel,
    machine: Machine,
    decisions: Decisions,
    plan: Callable[[Schedule, Stage], tuple[Plan, Product] | str],
    instead: str,
) -> Schedule | str:
    """The schedule of a kernel around a sum by a plan for it, or why there is none.

    A plan is made before it is known whether each step is legal (rows of an odd form, a border that is in the way): if
    one is not and the yes-or-no decision `instead` was taken, it is not taken."""
    anchor = only_sum(kernel)
    if isinstance(anchor, str):
        return anchor
    s, last, borders = open_sum(kernel, anchor, decisions)
    try:
        found = plan(s, anchor)
        if isinstance(found, str):
            return found
        apply(*found, s, anchor, last, machine)
    except ScheduleError:
        if instead not in s.decisions or not s.decisions[instead].chosen:
            raise
        return schedule_sum(kernel, machine, {**(decisions or {}), instead: False}, plan, instead)
    for b in borders:
        schedule_border(s, b.name, machine)
    return s


def only_sum(kernel: Kernel) -> Stage | str:
    """The stage of a kernel that sums, if it is the only one and has iterations; else why it is not for these rules."""
    anchors = [s for s in kernel.stages if s.targets[0].init is not None]
    if len(anchors) != 1 or len(anchors[0].targets) != 1 or kernel.opaque:
        return "not a single reduction"
    return "a loop without iterations" if 0 in anchors[0].extents.values() else anchors[0]


def open_sum(kernel: Kernel, anchor: Stage, decisions: Decisions) -> tuple[Schedule, str, Sequence[Stage]]:
    """The schedule of a kernel around a sum with all that comes before computed where it is read, the block of what
    follows (see `join_readers`), and the borders of a padded result. ScheduleError if it cannot be."""
    at, s = kernel.stages.index(anchor), Schedule(kernel, decisions=decisions)
    for p in kernel.stages[:at]:
        s.inline(p.name)
    later = kernel.stages[at + 1 :]
    return s, join_readers(s, anchor, [x for x in later if x.reads]), [x for x in later if not x.reads]


def join_readers(s: Schedule, anchor: Stage, after: Sequence[Stage]) -> str:
    """Make one block of what follows a sum, with the sum's own loops; returns its name. ScheduleError if it cannot be.

    Without readers, or if the sum is itself a result, the block copies the sum out of its accumulators.
    """
    for e in after[:-1]:
        s.inline(e.name)
    if after and after[-1].buffer in s.kernel.outputs and anchor.buffer not in s.kernel.outputs:
        s.reindex(after[-1].name, anchor.name)
        return after[-1].name
    return s.cache_write(anchor.name)


__all__ = ["join_readers", "only_sum", "open_sum", "schedule_sum"]
