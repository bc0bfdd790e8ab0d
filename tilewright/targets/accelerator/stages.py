"""Pipeline stages of accelerator targets: kernels to tiling plans, loop nests and programs; the host's stages do the
rest."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass, replace
from functools import cached_property
from typing import Any

from ...codegen.kernel_info import kernel_info
from ...schedule.machine import Machine
from ...schedule.nest import Nest
from ...schedule.schedule import Schedule
from ...schedule.trace import replay
from ...support.errors import TilewrightError
from ...tensor.kernel import Kernel
from ..base import Target, TargetStage
from ..beside.stages import Taken, with_other
from ..state import CompilationState
from .binary import ChipProgram
from .by_hand import planned
from .describe import Chip
from .partition import Partitioner, nameless
from .plan import Planned


@dataclass(frozen=True)
class OnChip(Taken):
    """A kernel of a chip: its plan, nest, program and time."""

    planned: Planned | None = None

    @cached_property
    def nest(self) -> Nest:
        assert self.planned is not None
        return self.planned.nest


def beside(description: Machine, chip: Chip) -> Machine:
    """A host's description that keeps 8-bit numbers signed, multiplies them and finds exact halves as the chip does,
    whatever its own instructions want."""
    kind = type(description)
    said = {"activations": Chip.activations, "halves": Chip.halves, "byte_factors": chip.byte_factors}
    changed: Any = make_dataclass(kind.__name__, [], bases=(kind,), frozen=True, namespace=said)
    return changed.from_json(description.to_json())


def on_chip(partitioner: Partitioner, kernel: Kernel, trace: str | None) -> OnChip:
    """A kernel as it was planned, or as a trace says."""
    chip = partitioner.formats.chip
    schedule = Schedule(kernel, chip)
    try:
        made = partitioner.scheduled(kernel) if trace is None else planned(replay(schedule, trace))
    except TilewrightError as e:
        e.operator = f"kernel {kernel.name}"
        raise
    schedule.plan = f"{made.plan}; {made.timing.cycles} cycles"
    return OnChip(schedule, chip.name, (), planned=made, tuned=partitioner.tuned.get(nameless(kernel)))


def alone() -> tuple[TargetStage, ...]:
    """The stages of a chip without a host."""
    return (
        TargetStage("emit", 5, "loop nests to the chip's dialect", emit_chip, dialect_text),
        TargetStage("assemble", 6, "the chip's programs", assemble_chip, chip_text),
    )


def with_chip(host: Target) -> tuple[TargetStage, ...]:
    """The host's stages, on its own kernels; the chip's dialect is shown beside its level 5, and in the last stage the
    chip's programs are assembled too."""
    return with_other(host, assemble_chip, "the chip's programs", {5: dialect_text, 6: chip_text})


def assemble_chip(state: CompilationState) -> None:
    """The chip's kernels: programs, and what calls of them need to know."""
    formats = state.target.formats
    for name, made in state.schedules.items():
        if isinstance(made, OnChip):
            assert made.planned is not None
            state.objects[name] = formats.assemble(made.planned.program)
            # copies may run ahead of what is stored: results never share memory with operands
            state.infos[name] = replace(kernel_info(made.nest, scratch=0), parallel=False, inplace=())


def programs_of(state: CompilationState) -> list[ChipProgram]:
    """The programs of the chip's kernels: they are made with their plans, whose time decides."""
    made = (s.planned for s in state.schedules.values() if isinstance(s, OnChip))
    return [p.program for p in made if p is not None]


def emit_chip(state: CompilationState) -> None:
    """Verify the chip's programs as its dialect."""
    from .dialect import ChipDialect, verify

    verify(ChipDialect(state.target.formats).module(*programs_of(state)))


def dialect_text(state: CompilationState) -> str:
    """The chip's kernels in its dialect."""
    from .dialect import ChipDialect

    return str(ChipDialect(state.target.formats).module(*programs_of(state)))


def chip_text(state: CompilationState) -> str:
    """The chip's programs as the assembler reads them."""
    return "\n".join(map(state.target.formats.text, programs_of(state)))
