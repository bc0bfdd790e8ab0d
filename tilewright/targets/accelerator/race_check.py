"""Race detector for accelerator programs: checks that an instruction's waits order all conflicting accesses of two
engines.

What an engine has finished when an instruction begins is known from what it waits for, from what the engine's
instructions before waited for, and from what all of those waited for in turn (vector clocks, Fidge 1988, Mattern 1989).
Everything else may still be under way.
"""

from __future__ import annotations

import numpy as np

from ...support.errors import UsageError
from .binary import ChipProgram, Formats, Issue
from .dependences import MemoryRange, accesses
from .functional import in_order


def check_order(formats: Formats, program: ChipProgram) -> None:
    """UsageError for the first instruction that may meet another one at the same words.

    Memory of the host is not looked at: no engine reads there what a kernel writes.
    """
    engines = formats.engines
    number = {e: n for n, e in enumerate(engines)}
    shape = {m.name: (len(engines), m.words) for m in formats.listing.memories.values()}
    wrote = {name: np.zeros(s, np.int64) for name, s in shape.items()}
    read = {name: np.zeros(s, np.int64) for name, s in shape.items()}
    clocks: list[list[np.ndarray]] = [[] for _ in engines]  # what was finished as each instruction began
    for issue in in_order(formats, program):
        me = number[issue.form.engine]
        own = clocks[me]
        clock = own[-1] if own else np.zeros(len(engines), np.int64)
        if issue.waits:
            clock = clock.copy()
        for e, n in issue.waits.items():
            if n:
                np.maximum(clock, clocks[number[e]][n - 1], out=clock)
                clock[number[e]] = max(clock[number[e]], n)
        own.append(clock)
        touched = list(accesses(formats, issue))
        for a in touched:
            for table in (wrote, read) if a.written else (wrote,):
                before = table[a.memory][:, a.low : a.high].max(axis=1, initial=0)
                before[me] = 0
                if (before > clock).any():
                    other = int(np.argmax(before > clock))
                    raise _meeting(formats, program, a, issue, engines[other], int(before[other]))
        for a in touched:
            (wrote if a.written else read)[a.memory][me, a.low : a.high] = len(own)


def _meeting(formats: Formats, program: ChipProgram, a: MemoryRange, issue: Issue, engine: str, n: int) -> UsageError:
    other = formats.line(program.streams[engine][n - 1])
    return UsageError(
        f"two engines may meet at words {a.low} to {a.high - 1} of {a.memory}: it does not wait for {other!r}",
        stage="verify",
        operator=formats.line(issue),
        hint=f"let it wait for the first {n} instructions of {engine}",
    )
