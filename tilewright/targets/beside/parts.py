"""Partitions a program between a host and a coprocessor: consecutive calls of the host become one native function.

Calls of the host between two of the other processor become one native function: a program of their own, whose last
output is the arena.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby

from ...program.program import COPY, BufferRef, Call, Program, TensorInfo
from ..base import Target


@dataclass(frozen=True)
class CallSegment:
    """Consecutive calls of the host, as a program of their own, or one call of the coprocessor: number `first`."""

    calls: tuple[Call, ...]
    program: Program | None
    first: int


def parts(program: Program, taken: Set[str]) -> Iterator[CallSegment]:
    """The calls of a program in order, cut where the coprocessor begins and ends; `taken` are its symbols."""
    for other, run in groupby(enumerate(program.calls), key=lambda c: c[1].symbol in taken):
        numbered = tuple(run)
        if other:
            yield from (CallSegment((c,), None, n) for n, c in numbered)
        else:
            calls = tuple(c for _, c in numbered)
            yield CallSegment(calls, of_host(program, calls), numbered[0][0])


def of_host(program: Program, calls: Sequence[Call]) -> Program:
    """A program of some of the calls: the arena comes as one more output."""
    arena = TensorInfo("arena", (program.arena_size,), "ui8")
    last = len(program.outputs)

    def ref(r: BufferRef) -> BufferRef:
        return replace(r, space="output", index=last) if r.space == "arena" else r

    moved = tuple(
        replace(c, args=tuple(map(ref, c.args)), scratch=None if c.scratch is None else ref(c.scratch)) for c in calls
    )
    return replace(program, outputs=(*program.outputs, arena), calls=moved, arena_size=0, arena_bound=0)


def link(
    program: Program, objects: dict[str, bytes], taken: Set[str], host: Target, machine: object
) -> dict[str, bytes]:
    """The objects of the symbols `taken`, and the host's of each part; `machine` is the host's description."""
    linked = {s: objects[s] for s in program.symbols if s in taken}
    for n, part in enumerate(parts(program, taken)):
        if part.program is not None:
            own = {c.symbol: objects[c.symbol] for c in part.calls if c.symbol != COPY}
            made = host.link(part.program, own, machine)
            linked |= {f"part{n}/{name}": data for name, data in made.items()}
    return linked
