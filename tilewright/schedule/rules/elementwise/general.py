"""The last rule: plain loops, one block after another, on one thread unless the kernel has a single block. Always
applies."""

from __future__ import annotations

import contextlib

from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine
from ...nest import Store, walk_stmts
from ...schedule import Schedule, ScheduleError
from ..common import inline_producers

NAME = "general"
PRIORITY = 1000


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if kernel.opaque:
        return f"tw.{kernel.opaque.mnemonic} is no plain loops"
    s = Schedule(kernel, decisions=decisions)
    inline_producers(s)
    blocks = [x.block for x in walk_stmts(s.body) if isinstance(x, Store)]
    if len(blocks) == 1 and s.loops(blocks[0]):
        with contextlib.suppress(ScheduleError):
            s.parallel(s.loops(blocks[0])[0])
    return s
