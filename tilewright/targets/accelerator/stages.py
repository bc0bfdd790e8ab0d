"""The part of the pipeline that is a chip's: kernels to plans, nests and programs; the host does the rest as ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass, replace
from functools import cached_property
from typing import Any

from ...codegen.kernel_info import kernel_info
from ...schedule.machine import Machine
from ...schedule.nest import Nest
from ...schedule.rules import Scheduled
from ...schedule.schedule import Schedule
from ...tensor.kernel import Kernel
from ..base import Target, TargetStage
from .binary import ChipProgram
from .partition import Partitioner, nameless
from .plan import Planned


@dataclass(frozen=True)
class OnChip(Scheduled):
    """A kernel of a chip: its plan, nest, program and time; `tuned`: why a tuned plan is not used, None if there is
    none, nothing if it is."""

    planned: Planned | None = None
    tuned: str | None = None

    @cached_property
    def nest(self) -> Nest:  # type: ignore[override]
        assert self.planned is not None
        return self.planned.nest


def beside(description: Machine) -> Machine:
    """A host's description that keeps 8-bit numbers signed, whatever its own instructions want."""
    kind = type(description)
    signed: Any = make_dataclass(kind.__name__, [], bases=(kind,), frozen=True, namespace={"activations": "i8"})
    return signed.from_json(description.to_json())


def on_chip(partitioner: Partitioner, kernel: Kernel) -> OnChip:
    made = partitioner.scheduled(kernel)
    chip = partitioner.formats.chip
    schedule = Schedule(kernel, chip)
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
    *before, last = host.stages()
    stages = [replace(s, run=_of_host(s.run, host), show=_shown(s, host)) for s in before]

    def run(state: Any) -> None:
        last.run(host_part(state, host))
        assemble_chip(state)

    def show(state: Any) -> str:
        return last.show(host_part(state, host)) + chip_text(state)

    return (*stages, replace(last, doc=f"{last.doc}; the chip's programs", run=run, show=show))


def _shown(stage: TargetStage, host: Target) -> Callable[[Any], str]:
    def show(state: Any) -> str:
        text = stage.show(host_part(state, host))
        return f"{text}\n{dialect_text(state)}" if stage.level == 5 else text

    return show


def _of_host(run: Callable[[Any], Any], host: Target) -> Callable[[Any], Any]:
    return lambda state: run(host_part(state, host))


def host_part(state: Any, host: Target) -> Any:
    """The state of a compilation without the chip's kernels; what is made of the others goes into the same tables."""
    own = [n for n, s in state.schedules.items() if not isinstance(s, OnChip)]
    tables = {t: {n: getattr(state, t)[n] for n in own} for t in ("kernels", "schedules", "nests")}
    return replace(state, target=host, description=host.describe(), **tables)


def assemble_chip(state: Any) -> None:
    """The chip's kernels: programs, and what calls of them need to know."""
    formats = state.target.formats
    for name, made in state.schedules.items():
        if isinstance(made, OnChip):
            assert made.planned is not None
            state.objects[name] = formats.assemble(made.planned.program)
            # copies may run ahead of what is stored: results never share memory with operands
            state.infos[name] = replace(kernel_info(made.nest, scratch=0), parallel=False, inplace=())


def programs_of(state: Any) -> list[ChipProgram]:
    """The programs of the chip's kernels: they are made with their plans, whose time decides."""
    made = (s.planned for s in state.schedules.values() if isinstance(s, OnChip))
    return [p.program for p in made if p is not None]


def emit_chip(state: Any) -> None:
    """Verify the chip's programs as its dialect."""
    from .dialect import ChipDialect, verify

    verify(ChipDialect(state.target.formats).module(*programs_of(state)))


def dialect_text(state: Any) -> str:
    """The chip's kernels in its dialect."""
    from .dialect import ChipDialect

    return str(ChipDialect(state.target.formats).module(*programs_of(state)))


def chip_text(state: Any) -> str:
    """The chip's programs as the assembler reads them."""
    return "\n".join(map(state.target.formats.text, programs_of(state)))
