"""Manual scheduling for an accelerator: compiles a kernel that a user scheduled with primitives, and times its
program."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...codegen.kernel_info import pack_array
from ...schedule.nest import For, Nest, Stmt, transform, walk_stmts
from ...schedule.region import all_ranges
from ...schedule.schedule import Schedule
from ...support.dtypes import NUMPY
from ...support.errors import CompileError, InputError, UsageError
from .binary import ChipProgram, Formats
from .describe import Chip
from .emit import emit
from .functional import Functional
from .layouts import TilePlan
from .plan import Planned
from .race_check import check_order
from .tiles import CHIP, DIM
from .timing import ProgramTiming, simulate


@dataclass(frozen=True)
class ByHand(TilePlan):
    """In the place of a plan: tiles are as the schedule says."""

    def __str__(self) -> str:
        return "scheduled by hand"


@dataclass(frozen=True)
class HandMade:
    """A kernel as it was scheduled: its nest, its program, and how long that takes."""

    formats: Formats
    nest: Nest
    program: ChipProgram
    timing: ProgramTiming

    @property
    def cycles(self) -> int:
        return self.timing.cycles

    def __str__(self) -> str:
        """The program as the assembler reads it."""
        return self.formats.text(self.program)

    def __call__(self, *arrays: object) -> np.ndarray:
        """The result for one array for each input, from the simulator; InputError if there are more or fewer."""
        inputs = [p for p in self.nest.params if p.name not in self.nest.outputs]
        if len(arrays) != len(inputs):
            names = ", ".join(p.name for p in inputs)
            raise InputError(f"the kernel takes {len(inputs)} arrays ({names}), not {len(arrays)}", stage="run")
        given = {p.name: np.asarray(a) for p, a in zip(inputs, arrays, strict=True)}
        packs = self.nest.packs
        memory = [
            np.zeros(p.shape, NUMPY[p.dtype])
            if p.name in self.nest.outputs
            else np.ascontiguousarray(pack_array(given[p.name], packs[p.name]) if p.name in packs else given[p.name])
            for p in self.nest.params
        ]
        Functional(self.formats).run(self.program, memory)
        return memory[[p.name for p in self.nest.params].index(self.nest.outputs[0])]


def by_hand(schedule: Schedule) -> HandMade:
    """The program of a schedule for a chip, ``Schedule(kernel, chip)``, and its time.

    UsageError if its target is no chip; CompileError if loops that were an instruction have changed since, for what the
    chip cannot do, and where its memories are too small. docs/chips/schedules.md writes three schedules of a layer.
    """
    chip = schedule.machine()
    if not isinstance(chip, Chip):
        raise UsageError("the schedule is for no chip", stage="emit", hint="Schedule(kernel, Systolic32())")
    formats = Formats(chip)
    nest = checked(schedule.nest(), chip)
    program = emit(nest, formats)
    check_order(formats, program)
    return HandMade(formats, nest, program, simulate(formats, program))


def planned(schedule: Schedule) -> Planned:
    """The same in the form that the planner gives."""
    made = by_hand(schedule)
    return Planned(ByHand(), made.nest, made.program, made.timing)


def checked(nest: Nest, chip: Chip) -> Nest:
    """The nest; CompileError unless loops that are noted to be an instruction are that."""
    buffers, ranges = nest.buffers(), all_ranges(nest.body)
    for f in walk_stmts(nest.body):
        if isinstance(f, For) and (said := f.note(CHIP)) is not None:
            name = str(said).split()[0]
            again = chip.tensorized(_without_notes(f), name, buffers, ranges)
            if again != f:
                why = again if isinstance(again, str) else "its operands or loops have changed"
                raise CompileError(
                    f"loop {f.var} is no {name} any more: {why}",
                    stage="emit",
                    operator=nest.name,
                    hint="tensorize after all other steps",
                )
    return nest


def _without_notes(f: For) -> For:
    def visit(s: Stmt) -> Stmt:
        if not isinstance(s, For):
            return s
        return replace(s, notes=tuple(n for n in s.notes if n[0] not in (CHIP, DIM)))

    made = transform(f, visit)
    assert isinstance(made, For)
    return made


__all__ = ["ByHand", "HandMade", "by_hand", "checked", "planned"]
