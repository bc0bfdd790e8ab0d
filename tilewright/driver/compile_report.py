"""What a compilation leaves in the package for `Executable.explain`: levels, kernels, notes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..schedule.facts import about
from ..tensor.devices import devices_of
from .compile_state import Stage, State
from .kernel_errors import precision_notes


def report(state: State, stages: Sequence[Stage]) -> dict[str, Any]:
    """Levels, kernels and notes for `Executable.explain`."""
    levels = []
    for stage in stages:
        if stage.name in state.journal.seconds:
            seconds = round(state.journal.seconds[stage.name], 4)
            levels.append({"stage": stage.name, "level": stage.level, "text": stage.doc, "seconds": seconds})
    kernels = [*_kernel_reports(state), *(known.report for known in state.recalled.values())]
    notes = [*precision_notes(state), *state.journal.notes]
    if state.target.coprocessor is not None:
        notes += state.target.coprocessor.notes()
    if state.tuned is not None:
        notes += state.tuned.notes()
        notes += [f"tuned {r.speedup:.2f}x: {layer.described(w)}" for layer, (w, r) in state.tuned.algorithms.items()]
    precision = state.options.precision
    told = {"model": state.name, "precision": precision, "levels": levels, "kernels": kernels, "notes": notes}
    return told if state.options.threads is None else {**told, "threads": state.options.threads}


def _kernel_reports(state: State) -> Iterator[dict[str, Any]]:
    placed = {} if state.placement is None else devices_of(state.module)
    for name, scheduled in state.schedules.items():
        known = state.infos[name].with_unmet(about(state.kernels[name], scheduled, state.stats.get(name, {})))
        if state.placement is not None:
            known |= {"device": placed[name], "why": state.placement.of(name)}
        _remember(state, name, known)
        result = state.tuned.used.get(name) if state.tuned is not None else None
        yield (
            {**known, "schedule": f"tuned {result.speedup:.2f}x: {_choices(result.decisions)}"}
            if result is not None
            else known
        )


def _remember(state: State, name: str, known: dict[str, object]) -> None:
    """Leave a kernel that was scheduled in the default way to later compilations."""
    if name in state.unknown:
        text = state.unknown[name]
        state.memo.remember(text, str(state.nests[name]), state.emitted[name], state.infos[name], known)


def _choices(decisions: Mapping[str, object]) -> str:
    """Decisions on one line.

    >>> _choices({"tile": [4, 1], "unroll": 2})
    'tile=4x1 unroll=2'
    """
    return " ".join(f"{n}={'x'.join(map(str, v)) if isinstance(v, (list, tuple)) else v}" for n, v in decisions.items())
