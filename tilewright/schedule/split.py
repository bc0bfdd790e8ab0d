"""Fused kernels that no rule schedules well, as two kernels that do.

What lies between the parts is then written and read once, which is far less than to compute it again for each reader,
or to do without vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch_mlir import ir

from ..ir.context import use
from ..ir.graph import Graph
from ..support.dtypes import NUMPY
from ..support.sizes import typically
from ..tensor.divide import divisions
from ..tensor.read import read_kernel
from .machine import Machine
from .rules import Scheduled, schedule

#: a kernel in two parts must be expected to take at most this part of its time
WORTH = 0.8
#: parts that are scheduled to find the cuts of one kernel, at most: cuts of cuts are many
MOST_PARTS = 16


@dataclass(frozen=True)
class Divided:
    """What a kernel is to be replaced by: a module (text) whose @main calls the parts, see `tensor.divide`; `why`
    tells what goes too far in it as one."""

    module: str
    why: str = ""

    def to_json(self) -> dict[str, str]:
        return {"module": self.module, "why": self.why}


def split(
    function: ir.OpView, made: Scheduled, machine: Machine, parts: dict[str, Scheduled] | None = None
) -> Divided | None:
    """The parts that a kernel (its function on tensors) is better cut into, if the best schedule of the whole goes too
    far; None where it does not, or no cut is expected to be faster. Parts may be cut again.

    `parts`: the schedules of parts, by their text; those of a compilation are scheduled once, also where they are cut
    again or become kernels."""
    if not made.problems:
        return None
    with typically():  # what is faster
        _, best = _best(function, made, machine, {}, {} if parts is None else parts)
    if best is None:
        return None
    why = f"{made.rule}: {'; '.join(made.problems)}"
    return Divided(best.module.operation.get_asm(use_local_scope=True), why)


def _best(
    function: ir.OpView, made: Scheduled, machine: Machine, known: dict[str, float], parts: dict[str, Scheduled]
) -> tuple[float, Graph | None]:
    """What a kernel is expected to take in cycles, and the cut that makes it so, None for one kernel. `known`: the
    cycles of parts, by their text."""
    assert made.executed is not None  # an operator with a loop nest of its own has no problems
    least, best = made.executed.cycles * WORTH, None
    for graph in divisions(function) if made.problems else ():
        if len(known) >= MOST_PARTS:
            break
        cycles = 0.0
        for f in graph.functions():
            if cycles < least:  # else this division has lost already
                cycles += _part(f, machine, known, parts)
        if cycles < least:
            least, best = cycles, graph
    return (made.executed.cycles, None) if best is None else (least, best)


def _part(function: ir.OpView, machine: Machine, known: dict[str, float], parts: dict[str, Scheduled]) -> float:
    """What a part is expected to take, with what it writes for others."""
    text = function.operation.get_asm(use_local_scope=True)
    if text not in known:
        if text not in parts:
            with use():
                kernel = read_kernel(function)
            parts[text] = schedule(kernel, machine)
        made = parts[text]
        kernel = made.schedule.kernel
        results = [kernel.buffer(n) for n in kernel.outputs]
        between = max(b.size * NUMPY[b.dtype].itemsize for b in results) / machine.far.bytes_per_cycle
        known[text] = (made.executed.cycles if made.executed else 0.0) + between  # one of `MOST_PARTS` from here on
        known[text] = _best(function, made, machine, known, parts)[0] + between
    return known[text]


__all__ = ["Divided", "split"]
