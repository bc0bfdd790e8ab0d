"""Calls that are not worth dividing where sizes are small: what becomes of each, and of the barriers between them.

A kernel of few elements is over before another thread could have done half of it, and waiting for all threads costs
more. Consecutive small calls (a *run*) are therefore done by one thread, or each thread does all of them for itself,
with results in memory of its own: then nobody waits for what others would have made, only for what they read.

    product | norm, round | product        # |: a barrier; two threads
    product | norm, round   product        # each thread norms and rounds for itself

Results that the caller gets, and states, are made once: a run with one of these is thread 0's. Nothing changes for one
thread, or where sizes are large: the memory plan is the same, and it is decided in every run of a program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ..support.formulas import evaluate
from .offsets import place_groups
from .open_sizes import Formula
from .program import ALIGN, BufferRef, Call, Program, align_up
from .storage import AliasSet

#: a run of calls that each thread does for itself is at most so many times as long as a small call
_RUN = 4
#: a call that is small at the smallest sizes is looked at if it is at most so much at typical ones
_TYPICAL = 4

#: what is known of a call: how often its statements run; of each of its results the bytes, and the most that these are
Effort = tuple[Formula, tuple[tuple[Formula, int], ...]]


@dataclass(frozen=True)
class _Source:
    """The call, and which of its results, that an argument is read from."""

    call: int
    result: int


def with_small_calls(program: Program, efforts: Sequence[Effort | None], most: int) -> Program:
    """The program with what becomes of its calls where sizes are small. `efforts`: None for calls that are never small;
    `most`: the most statements that a small call runs."""
    if program.devices or most <= 0:
        return program
    sizes = program.open
    dims = sizes.dims if sizes else ()
    low, typical = [d.low for d in dims], [d.typical for d in dims]

    def small(number: int) -> bool:
        call, effort = program.calls[number], efforts[number]
        if effort is None or call.scratch is not None or (sizes is None and call.parallel):
            return False  # a kernel that divides its work at known sizes has enough of it
        try:
            lowest = max(evaluate(_amounts(effort), low))
        except ValueError:  # a formula that is too long
            return False
        return lowest <= most and _value(effort[0], typical) <= _TYPICAL * most

    found = [small(i) for i in range(len(program.calls))]
    if not any(found):
        return program
    sources, apart = _sources(program.calls)
    readers: dict[int, set[int]] = {}
    for (reader, _), source in sources.items():
        readers.setdefault(source.call, set()).add(reader)
    modes = [""] * len(program.calls)
    for run in reversed([[*g] for is_small, g in groupby(range(len(found)), found.__getitem__) if is_small]):
        wanted = any(
            modes[r] == "each" or (not found[r] and program.calls[r].parallel)
            for i in run for r in readers.get(i, ()) if r not in run
        )  # fmt: skip
        total = sum(_value(e[0], low) for i in run if (e := efforts[i]) is not None)
        private = all(i not in apart and _own(program.calls[i]) for i in run) and total <= _RUN * most
        for i in run:
            modes[i] = "each" if wanted and private else "alone"
    calls = [replace(c, small=m) if m == "each" or c.parallel else c for c, m in zip(program.calls, modes, strict=True)]
    taken = [efforts[i] for i, c in enumerate(calls) if c.small]
    if not any(taken):
        return program
    calls, own_size = _placed(calls, efforts, sources, most)
    if sizes is not None:
        amounts = {f for e in taken if e is not None for f in _amounts(e)}
        sizes = replace(sizes, small=tuple(sorted(amounts, key=str)), most=most)
    return replace(program, calls=tuple(calls), own_size=own_size, open=sizes)


def _amounts(effort: Effort) -> tuple[Formula, ...]:
    """What is at most so much where sizes are small; of bytes an eighth, as a statement writes at most so many."""
    return (effort[0], *(f"{b}//8" for b, _ in effort[1]))


def _value(f: Formula, sizes: Sequence[int]) -> int:
    return evaluate((f,), sizes)[0]


def _own(call: Call) -> bool:
    """Whether a call makes nothing but values of the arena."""
    return all(call.args[w].space == "arena" for w in call.writes)


def _sources(calls: Sequence[Call]) -> tuple[dict[tuple[int, int], _Source], set[int]]:
    """(call, argument) that is read -> where it was made; and the calls of whose results others are read in part or
    together with those of others."""
    found: dict[tuple[int, int], _Source] = {}
    apart: set[int] = set()
    written: list[tuple[BufferRef, _Source]] = []  # the last one first
    for number, call in enumerate(calls):
        for position, ref in enumerate(call.args):
            if position in call.writes or ref.space != "arena" or ref.empty:
                continue
            met: set[int] = set()
            for made, source in written:
                if not ref.overlaps(made):
                    continue
                if (made.offset, made.slot) == (ref.offset, ref.slot) and ref.nbytes <= made.nbytes and not met:
                    found[number, position] = source
                    break
                met.add(source.call)
                if _within(ref, made):
                    break
            apart |= met
        for w, position in enumerate(call.writes):
            ref = call.args[position]
            if ref.space == "arena":
                written = [(ref, _Source(number, w)), *[x for x in written if not _within(x[0], ref)]]
    return found, apart


def _within(a: BufferRef, b: BufferRef) -> bool:
    return bool(a.nbytes) and b.offset <= a.offset and a.offset + a.nbytes <= b.offset + b.nbytes


def _placed(
    calls: Sequence[Call], efforts: Sequence[Effort | None], sources: Mapping[tuple[int, int], _Source], most: int
) -> tuple[list[Call], int]:
    """The calls with the places of results that each thread makes, and the bytes of all."""
    lives: dict[_Source, AliasSet] = {}
    for number, call in enumerate(calls):
        effort = efforts[number]
        if call.small == "each" and effort is not None:
            for w, (_, highest) in enumerate(effort[1]):
                lives[_Source(number, w)] = AliasSet(min(highest, 8 * (most + 1)), None, 0)
                lives[_Source(number, w)].touch(number)
    for (reader, _), source in sources.items():
        if source in lives:
            lives[source].touch(reader)
    size, _ = place_groups(list(lives.values()), len(calls), ALIGN, False)
    placed = []
    for number, call in enumerate(calls):
        own = [lives[_Source(number, w)] for w in range(len(call.writes))] if call.small == "each" else []
        placed.append(replace(call, own=tuple(BufferRef("own", 0, g.offset, g.nbytes) for g in own)))
    return placed, align_up(size)


def own_arguments(calls: Sequence[Call]) -> dict[tuple[int, int], BufferRef]:
    """(call, argument) -> where each thread has it for itself, where sizes are small."""
    found = {(n, p): own for n, c in enumerate(calls) for p, own in zip(c.writes, c.own, strict=bool(c.own))}
    if found:
        for place, source in _sources(calls)[0].items():
            maker = calls[source.call]
            if maker.own:
                found[place] = maker.own[source.result]
    return found


__all__ = ["Effort", "own_arguments", "with_small_calls"]
