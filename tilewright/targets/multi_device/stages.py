"""Pipeline stages of several devices: each target compiles its own kernels as it does alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...tensor.devices import devices_of
from ..base import Target, TargetStage

#: what a compilation has of each kernel, by symbol
TABLES = ("kernels", "schedules", "nests", "emitted", "infos", "objects", "stats", "names")


def part(state: Any, member: Target, device: str) -> Any:
    """The state of a compilation as one target sees it, with its kernels only; `add` brings back what is made of
    it."""
    placed = devices_of(state.module)
    tables = {t: {n: v for n, v in getattr(state, t).items() if placed.get(n) == device} for t in TABLES}
    return replace(
        state,
        target=member,
        description=member.describe(),
        device=device,
        tuned=None,
        external_schedules=None if state.external_schedules is None else state.external_schedules.on(member),
        **tables,
    )


def add(state: Any, own: Any) -> None:
    """What was made of one device's kernels, into the tables of all."""
    for t in TABLES:
        getattr(state, t).update(getattr(own, t))


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
                yield device, part(state, member, device), stage


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


__all__ = ["TABLES", "add", "part", "stages"]
