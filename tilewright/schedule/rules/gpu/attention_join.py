"""The combine step of split-KV attention (flash-decoding, `ops/attention_parts.py`): each thread merges the partial
results of one element."""

from __future__ import annotations

from ....support.sizes import lowest
from ...machine import Machine
from ...nest import Stmt
from ...schedule import Schedule
from ..custom.attention_parts import Join
from .tactics import operator_rule
from .thread_binding import block_sizes, spread_out

NAME = "attention_join"
PRIORITY = 7


def write(s: Schedule, machine: Machine) -> Stmt | str:
    made = Join(s.kernel)
    if not lowest(made.count):
        return "it may have no elements"
    sizes, usual = block_sizes(machine)
    threads = s.sample_choice("threads", sizes, min(usual, 128))
    s.plan = f"{made.parts} parts, an element on each of {threads} threads"
    return spread_out(made.count, threads, "element", machine, made.element)


apply = operator_rule(NAME, write, ("attention_join",), "it joins no parts of an attention")
