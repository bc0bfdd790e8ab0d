"""Removes warp barriers (``bar.warp.sync``) that order only registers: shuffles synchronize the lanes themselves.

A barrier orders what the lanes do to memory before it and behind it. Where that is nothing, in all that lies between it
and the last barrier that stays, or between it and the next one, it may be left out.
"""

from __future__ import annotations

from collections import Counter

from ...schedule.machine import Machine
from ...schedule.nest import AsyncCopy, Barrier, Nest, Seq, Stmt, Wait, reads, walk_stmts, writes


def needless_barriers(nest: Nest, scope: str, machine: Machine) -> frozenset[int]:
    """The barriers of a scope (their `id`) that may be left out."""
    of_registers = {m.name for m in machine.memories if m.held_by or not m.shared_by}
    buffers, body = nest.buffers(), nest.body
    seen = {n for n, b in buffers.items() if b.scope != "param" and b.scope not in of_registers}
    seen |= set(nest.outputs) & reads(body)
    everything = list(walk_stmts(body))
    if not (reads(body) | writes(body)) & seen and not any(isinstance(s, (AsyncCopy, Wait)) for s in everything):
        return frozenset(id(s) for s in everything if isinstance(s, Barrier) and s.scope == scope)
    found = Counter(i for s in everything if isinstance(s, Seq) for i in _of_sequence(s, scope, seen))
    places = Counter(id(s) for s in everything)
    return frozenset(i for i, n in found.items() if n == places[i])  # a statement may stand in several places


def _of_sequence(s: Seq, scope: str, seen: set[str]) -> list[int]:
    found: list[int] = []
    before = True  # whether memory has been touched since a barrier that stays; at the head nobody knows
    for i, x in enumerate(s.stmts):
        if not isinstance(x, Barrier):
            before = before or _touches(x, seen)
            continue
        behind, more = _phase(s.stmts[i + 1 :], seen)
        if x.scope == scope and (not before or (more and not behind)):
            found.append(id(x))
        else:
            before = False
    return found


def _phase(following: tuple[Stmt, ...], seen: set[str]) -> tuple[bool, bool]:
    """Whether memory is touched up to the next barrier, and whether there is one."""
    for i, x in enumerate(following):
        if isinstance(x, Barrier):
            return any(_touches(y, seen) for y in following[:i]), True
    return any(_touches(y, seen) for y in following), False


def _touches(s: Stmt, seen: set[str]) -> bool:
    """Whether a barrier may be there for it: memory that lanes share, barriers and copies inside."""
    inside = any(isinstance(x, (Barrier, AsyncCopy, Wait)) for x in walk_stmts(s))
    return inside or bool((reads(s) | writes(s)) & seen)


__all__ = ["needless_barriers"]
