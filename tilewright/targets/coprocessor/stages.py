"""Pipeline stages of a host with a coprocessor: the host's own stages, which see only the host's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...schedule.rules import Scheduled
from ..base import Target, TargetStage


@dataclass(frozen=True)
class Taken(Scheduled):
    """A kernel that the coprocessor runs; `tuned`: why a tuned plan is not used, None if there is none, nothing if
    it is."""

    tuned: str | None = None


def with_other(
    host: Target, assemble: Callable[[Any], None], doc: str, shown: Mapping[int, Callable[[Any], str]]
) -> tuple[TargetStage, ...]:
    """The host's stages, on its own kernels; in the last one `assemble` makes the coprocessor's objects too.
    `shown`: the text of those kernels at a level, behind the host's."""
    *before, last = host.stages()
    stages = [replace(s, run=_of_host(s.run, host), show=_shown(s, host, shown)) for s in before]

    def run(state: Any) -> None:
        last.run(host_part(state, host))
        assemble(state)

    return (*stages, replace(last, doc=f"{last.doc}; {doc}", run=run, show=_shown(last, host, shown)))


def _shown(stage: TargetStage, host: Target, shown: Mapping[int, Callable[[Any], str]]) -> Callable[[Any], str]:
    def show(state: Any) -> str:
        text = stage.show(host_part(state, host))
        more = shown[stage.level](state) if stage.level in shown else ""
        return f"{text}\n{more}" if more else text

    return show


def _of_host(run: Callable[[Any], Any], host: Target) -> Callable[[Any], Any]:
    return lambda state: run(host_part(state, host))


def host_part(state: Any, host: Target) -> Any:
    """The state of a compilation without the coprocessor's kernels; it shares the tables of results."""
    own = [n for n, s in state.schedules.items() if not isinstance(s, Taken)]
    tables = {t: {n: getattr(state, t)[n] for n in own} for t in ("kernels", "schedules", "nests")}
    return replace(state, target=host, description=host.describe(), **tables)
