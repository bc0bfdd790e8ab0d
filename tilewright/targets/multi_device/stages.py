"""Pipeline stages of several devices, and of a host with a coprocessor: each compiles its own kernels as it does
alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...schedule.rules import Scheduled
from ...tensor.devices import devices_of
from ..base import Target, TargetStage
from ..compile_state import add, part


def on_device(state: Any, member: Target, device: str) -> Any:
    """The state of a compilation with the kernels of one device."""
    placed = devices_of(state.module)
    external_schedules = None if state.external_schedules is None else state.external_schedules.on(member)
    return part(
        state,
        member,
        lambda n: placed.get(n) == device,
        device=device,
        tuned=None,
        external_schedules=external_schedules,
    )


def stages(members: Sequence[tuple[str, Target]]) -> tuple[TargetStage, ...]:
    """Code emission and the stages after it: targets whose drivers compile source have nothing to do there."""
    doc = f"each device's own: {', '.join(name for name, _ in members)}"
    return tuple(
        TargetStage(name, level, f"{what}, {doc}", _run(members, level), _show(members, level))
        for name, level, what in (("emit", 5, "loop nests to code"), ("assemble", 6, "code to objects"))
    )


def _parts(state: Any, members: Sequence[tuple[str, Target]], level: int) -> Iterator[tuple[str, Any, TargetStage]]:
    for device, member in members:
        for stage in member.stages():
            if stage.level == level:
                yield device, on_device(state, member, device), stage


def _run(members: Sequence[tuple[str, Target]], level: int) -> Callable[[Any], None]:
    def run(state: Any) -> None:
        for _, own, stage in _parts(state, members, level):
            stage.run(own)
            add(state, own)

    return run


def _show(members: Sequence[tuple[str, Target]], level: int) -> Callable[[Any], str]:
    def show(state: Any) -> str:
        return "".join(f"// ---- {d} ----\n{stage.show(own)}\n" for d, own, stage in _parts(state, members, level))

    return show


# ---- a host and a coprocessor --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Taken(Scheduled):
    """A kernel that the coprocessor runs; `tuned`: why a tuned plan is not used, None if there is none, nothing if
    it is."""

    tuned: str | None = None


def with_other(
    host: Target, assemble: Callable[[Any], None], doc: str, shown: dict[int, Callable[[Any], str]]
) -> tuple[TargetStage, ...]:
    """The host's stages, on its own kernels; in the last one `assemble` makes the coprocessor's objects too.
    `shown`: the text of those kernels at a level, behind the host's."""

    def of_host(state: Any) -> Any:
        return part(state, host, lambda n: not isinstance(state.schedules.get(n), Taken))

    def made(stage: TargetStage, last: bool) -> TargetStage:
        def run(state: Any) -> None:
            own = of_host(state)
            stage.run(own)
            add(state, own)
            if last:
                assemble(state)

        def show(state: Any) -> str:
            text = stage.show(of_host(state))
            more = shown[stage.level](state) if stage.level in shown else ""
            return f"{text}\n{more}" if more else text

        return replace(stage, doc=f"{stage.doc}; {doc}" if last else stage.doc, run=run, show=show)

    every = host.stages()
    return tuple(made(s, s is every[-1]) for s in every)


__all__ = ["Taken", "on_device", "stages", "with_other"]
