"""Tensors without elements: a kernel with no results does nothing, an empty sum is plain loops."""

from __future__ import annotations

from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine
from ...nest import Stmt, seq
from ...schedule import Schedule
from .. import tactic
from . import general

NAME = "empty"
PRIORITY = 0


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if all(kernel.buffer(name).size == 0 for name in kernel.outputs):
        s = Schedule(kernel, machine, decisions=decisions)
        s.tactic(NAME)
        return s
    if kernel.opaque is None and any(n == 0 for s in kernel.stages for _, n in s.dims):
        return general.apply(kernel, machine, decisions)
    return "no tensor of it is empty"


def write(s: Schedule, machine: Machine) -> Stmt | str:
    return "it has results" if any(s.params[name].size for name in s.kernel.outputs) else seq()


tactic(NAME, write)
