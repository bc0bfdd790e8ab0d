"""Warp specialization: loops whose bulk copies (`bulk`) a producer of its own begins, while the other warps or
warpgroups, the consumers, do all else in them.

The loop has a note, and keeps its meaning. Its steps, which begin the copies, are its own iterations or those of a loop
within it:

    for tile in serial(4, notes={'producer': True}):
        sums = 0
        for step in serial(64):
            barrier(block)
            begin copies for a later step, which may be one of the next tile
            wait for the copies of this step; use them
        write the sums
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ..support.errors import CompileError
from ..tensor.expr import Buffer
from .bulk import said
from .machine import Machine
from .nest import Alloc, AsyncCopy, Barrier, For, Seq, Stmt, Wait, reads, walk_stmts, writes

#: the note of such a loop
PRODUCER = "producer"
Refuse = Callable[[str], CompileError]


@dataclass(frozen=True)
class Produced:
    """A loop whose bulk copies one more thread begins: the loop of its steps (itself, or one within it), the copies
    that a step begins, and what else a step does."""

    loop: For
    steps: For
    copies: tuple[AsyncCopy, ...]
    rest: tuple[Stmt, ...]


def parts(s: Stmt) -> Iterator[Stmt]:
    """The statements that run one after the other in a body, those in which a buffer lives taken apart."""
    if isinstance(s, Seq):
        for x in s.stmts:
            yield from parts(x)
    elif isinstance(s, Alloc):
        yield from parts(s.body)
    else:
        yield s


def begins_copies(s: Stmt) -> bool:
    return any(isinstance(x, AsyncCopy) for x in walk_stmts(s))


def read_producer(f: For, buffers: Mapping[str, Buffer], memory: str) -> Produced:
    """The parts of such a loop; CompileError if threads that begin copies cannot be other ones than those that use
    them.

    A step begins with a barrier: nobody uses any more what its copies overwrite. That is all that the others need it
    for: they write no memory that they share in a step. Around the loop of the steps they may: what is copied is not
    used there, and barriers there are for them alone.
    """

    def refuse(why: str) -> CompileError:
        return CompileError(f"loop {f.var} cannot have a producer: {why}", stage="schedule")

    steps = f
    while not any(isinstance(x, AsyncCopy) for x in parts(steps.body)):
        inner = [x for x in parts(steps.body) if begins_copies(x)]
        if not inner:
            raise refuse("it begins no bulk copies, or other ones too")
        if len(inner) > 1 or not isinstance(inner[0], For):
            raise refuse("it begins copies in several places, or under a condition")
        _check_loop(steps, refuse)
        steps = inner[0]
    _check_loop(steps, refuse)
    found = _step(f, steps, refuse)
    _check_step(found, buffers, memory, refuse)
    _check_around(found, buffers, refuse)
    return found


def _check_loop(f: For, refuse: Refuse) -> None:
    if f.kind != "serial" or not f.trip:
        raise refuse(f"{'it' if f.note(PRODUCER) else f'loop {f.var}'} is not serial with a constant extent")


def _step(f: For, steps: For, refuse: Refuse) -> Produced:
    stmts = steps.body.stmts if isinstance(steps.body, Seq) else (steps.body,)
    if not isinstance(stmts[0], Barrier):
        raise refuse("it does not begin with a barrier")
    if any(isinstance(s, Alloc) for s in stmts):
        raise refuse("buffers live for one iteration: let its copies run ahead (pipeline)")
    copies = tuple(s for s in stmts if isinstance(s, AsyncCopy))
    if any(not s.bulk for s in copies):
        raise refuse("it begins no bulk copies, or other ones too")
    return Produced(f, steps, copies, tuple(s for s in stmts[1:] if not isinstance(s, AsyncCopy)))


def _check_step(p: Produced, buffers: Mapping[str, Buffer], memory: str, refuse: Refuse) -> None:
    for s in p.rest:
        if any(isinstance(x, (Barrier, AsyncCopy)) for x in walk_stmts(s)):
            raise refuse("there is another barrier or copy in it")
        if any(isinstance(x, Wait) for x in walk_stmts(s)) and not isinstance(s, Wait):
            raise refuse("a wait is in an inner loop")
        if shared := [n for n in writes(s) if n in buffers and buffers[n].scope in ("param", memory)]:
            raise refuse(f"threads write {shared[0]}, which others see")


def _check_around(p: Produced, buffers: Mapping[str, Buffer], refuse: Refuse) -> None:
    """What stands around the loop of the steps."""
    copied = frozenset[str]().union(*(writes(c) for c in p.copies))
    s: Stmt = p.loop
    while s is not p.steps:
        assert isinstance(s, For)
        inside = next(x for x in parts(s.body) if begins_copies(x))
        for x in (x for x in parts(s.body) if x is not inside):
            if any(isinstance(y, Wait) for y in walk_stmts(x)):
                raise refuse("a wait is outside of the loop that begins the copies")
            if used := copied & (reads(x) | writes(x)):
                raise refuse(f"{min(used)} is used outside of the loop that copies to it")
        s = inside
    again = [n for n in writes(p.loop) & reads(p.loop) if n in buffers and buffers[n].scope == "param"]
    if p.loop is not p.steps and again:
        raise refuse(f"it reads {min(again)}, which it writes")


def not_produced(f: For, buffers: Mapping[str, Buffer], machine: Machine) -> str:
    """Why a loop cannot have a producer."""
    if machine.bulk is None:
        return f"loop {f.var}: the machine has no engine for bulk copies"
    memory = machine.bulk.memory
    return said(lambda: read_producer(f, buffers, memory))


__all__ = ["PRODUCER", "Produced", "begins_copies", "not_produced", "parts", "read_producer"]
