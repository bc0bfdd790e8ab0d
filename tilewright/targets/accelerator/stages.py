"""Pipeline stages of accelerator targets: kernels to tiling plans, loop nests and programs; the host's stages do the
rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, make_dataclass, replace
from functools import cached_property
from typing import Any

from ...codegen.kernel_info import kernel_info
from ...schedule.machine import Machine
from ...schedule.nest import Nest
from ...schedule.schedule import Schedule
from ...schedule.trace import replay
from ...support.errors import TilewrightError, UnsupportedError
from ...tensor.kernel import Kernel
from ..base import Coprocessor, Target, TargetStage
from ..compile_state import CompilationState
from ..multi_device.stages import Taken, with_other
from .binary import ChipProgram, Formats
from .describe import Chip
from .identity import design_of, version
from .manual_schedule import planned
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


def host_machine(description: Machine, chip: Chip) -> Machine:
    """A host's description that keeps 8-bit numbers signed, multiplies them and finds exact halves as the chip does,
    whatever its own instructions want."""
    kind = type(description)
    said = {"activations": Chip.activations, "halves": Chip.halves, "byte_factors": chip.byte_factors}
    changed: Any = make_dataclass(kind.__name__, [], bases=(kind,), frozen=True, namespace=said)
    return changed.from_json(description.to_json())


class ChipKernels(Partitioner, Coprocessor):
    """The kernels of one chip, which is called `name`, alone or beside a host."""

    def __init__(self, formats: Formats, name: str, host: Target | None) -> None:
        super().__init__(formats, host is not None)
        self.name, self.host = name, host

    def claims(self, groups: Sequence[Sequence[int]], alone: Callable[[Sequence[int]], Kernel]) -> list[Sequence[int]]:
        """The operations that the chip runs, a list for each kernel. A chip alone has to run all of them: an
        UnsupportedError lists what it cannot."""
        taken = super().claims(groups, alone)
        left = [p for p in self.report if not p.on_chip]
        if self.host is None and (left or sum(map(len, taken)) != sum(map(len, groups))):
            why = "; ".join(f"{p.kernel.name}: {p.why}" for p in left[:4]) or "parts of kernels are left"
            raise UnsupportedError(
                f"{self.name} cannot run all of the model: {why}",
                stage="fuse",
                hint=f"target='cpu+{self.name}' leaves that to the processor",
            )
        return taken

    def schedule(self, kernel: Kernel, trace: str | None) -> OnChip:
        """A kernel as it was planned, or as a trace says."""
        chip = self.formats.chip
        schedule = Schedule(kernel, chip)
        try:
            made = self.scheduled(kernel) if trace is None else planned(replay(schedule, trace))
        except TilewrightError as e:
            e.operator = f"kernel {kernel.name}"
            raise
        schedule.plan = f"{made.plan}; {made.timing.cycles} cycles"
        return OnChip(schedule, chip.name, (), planned=made, tuned=self.tuned.get(nameless(kernel)))

    def notes(self) -> list[str]:
        """A sentence for each kernel of the last model: where it runs, and why."""
        chip, host = self.formats.chip.name, self.host.name if self.host is not None else ""
        return [f"{p.kernel.name} runs on {chip if p.on_chip else host}: {p.why}" for p in self.report]

    def tuned_on(self) -> tuple[str, str, str]:
        return type(self.formats.chip).name, design_of(self.formats.chip), version()


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
    formats = state.target.coprocessor.formats
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

    verify(ChipDialect(state.target.coprocessor.formats).module(*programs_of(state)))


def dialect_text(state: CompilationState) -> str:
    """The chip's kernels in its dialect."""
    from .dialect import ChipDialect

    return str(ChipDialect(state.target.coprocessor.formats).module(*programs_of(state)))


def chip_text(state: CompilationState) -> str:
    """The chip's programs as the assembler reads them."""
    return "\n".join(map(state.target.coprocessor.formats.text, programs_of(state)))
