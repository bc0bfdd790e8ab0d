"""The states of a compilation: which input is a buffer that lives between calls, and which output is its next value.

They are an option of the compilation and no part of the IR: down to the kernels a model with states is the same as one
without. `build_program` makes them buffers.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from ..ir.graph import Graph
from ..support.errors import UnsupportedError, UsageError
from ..support.options import Options
from ..targets.base import StateKeeper, Target, targets


def check_target(options: Options, target: Target) -> None:
    """An error if this compilation can have no states: UnsupportedError by its target, UsageError by its options."""
    if not options.states:
        return
    if not isinstance(target, StateKeeper):
        able = ", ".join(name for name, t in sorted(targets().items()) if isinstance(t, StateKeeper))
        raise UnsupportedError(
            f"target {target.name!r} has no states: its programs keep nothing between calls",
            stage="import",
            hint=f"compile without states and give each output back as the input of the next call; with states: {able}",
        )
    if options.precision == "auto":
        raise UsageError(
            "precision 'auto' compares single calls, and the error of a state grows from call to call",
            hint="name a precision",
        )


def find_states(graph: Graph, states: Mapping[str, str] | None) -> dict[int, int]:
    """Position of an input -> position of the output that is its next value; UsageError if they do not fit."""
    inputs, outputs = graph.inputs(), graph.outputs()
    found: dict[int, int] = {}
    for name, following in (states or {}).items():
        i = _position("input", name, [n for n, _ in inputs])
        o = _position("output", following, [n for n, _ in outputs])
        before, after = inputs[i][1], outputs[o][1]
        if (before.dims, before.dtype) != (after.dims, after.dtype):
            raise UsageError(
                f"input {name!r} is {before}, and output {following!r}, the next value of this state, is {after}",
                stage="import",
                hint="a state keeps its shape and dtype; a cache that grows needs one buffer of its full length, "
                "which the model writes at a position",
            )
        if o in found.values():
            raise UsageError(f"output {following!r} is the next value of two states", stage="import")
        found[i] = o
    return dict(sorted(found.items()))


def _position(kind: str, name: object, known: Iterable[str]) -> int:
    names = list(known)
    if name in names:
        return names.index(str(name))
    near = difflib.get_close_matches(str(name), names, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UsageError(
        f"states: the model has no {kind} {name!r}",
        stage="import",
        hint=f"{hint}its {kind}s: {', '.join(names) or 'none'}",
    )
