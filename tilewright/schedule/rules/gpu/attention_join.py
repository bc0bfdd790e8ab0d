"""The combine step of split-KV attention (flash-decoding, `ops/attention_parts.py`): each thread merges the partial
results of one element."""

from __future__ import annotations

from ....support.sizes import is_open
from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine
from ...nest import seq
from ...schedule import Schedule
from ..custom.attention_parts import Join
from ..custom.opaque import joined
from .units import block_sizes, has_blocks, spread_out

NAME = "attention_join"
PRIORITY = 7


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if not has_blocks(machine):
        return "the machine has no grid of blocks"
    if kernel.opaque is None or kernel.opaque.mnemonic != "attention_join":
        return "it joins no parts of an attention"
    made = Join(kernel)
    if any(map(is_open, made.shape)) or not made.count:
        return "its sizes are open, or it has no elements"
    asking = Schedule(kernel, machine, body=seq(), decisions=decisions)
    sizes, usual = block_sizes(machine)
    threads = asking.sample_choice("units", sizes, min(usual, 128))
    body = joined(kernel, spread_out(made.count, threads, "element", machine, made.element))
    if isinstance(body, str):
        return body
    s = Schedule(kernel, machine, body=body, decisions=decisions)
    s.decisions.update(asking.decisions)
    s.temporaries.clear()
    s.plan = f"{made.parts} parts, an element on each of {threads} threads"
    return s
