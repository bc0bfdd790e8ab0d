"""The states of a compilation: which input is a buffer that lives between calls, and which output is its next value.

They are an option of the compilation and no part of the IR: down to the kernels a model with states is the same as one
without. `build_program` makes them buffers.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..graph.reserve_states import reserve_states
from ..ir.graph import Graph
from ..ir.types import Type
from ..program.program import Growth
from ..support.errors import UnsupportedError, UsageError
from ..support.formulas import formula
from ..support.options import Options
from ..support.sizes import current, is_open
from ..targets.base import Target, able


def check_target(options: Options, target: Target) -> None:
    """An error if this compilation can have no states: UnsupportedError by its target, UsageError by its options."""
    if not options.states:
        return
    if not target.keeps_states:
        raise UnsupportedError(
            f"target {target.name!r} has no states: its programs keep nothing between calls",
            stage="import",
            hint="compile without states and give each output back as the input of the next call; with states: "
            + able(lambda t: t.keeps_states),
        )
    if options.precision == "auto":
        raise UsageError(
            "precision 'auto' compares single calls, and the error of a state grows from call to call",
            hint="name a precision",
        )


@dataclass(frozen=True)
class Found:
    """A state of a graph: its name, the positions of the input that reads it and of the output that is its next value.
    One of several entries may have only one of them."""

    name: str
    input: int | None
    output: int | None


def find_growing(graph: Graph, states: Mapping[str, str | tuple[str, ...]] | None) -> dict[str, Growth]:
    """The states that grow by name, if dimensions are open: their inputs and outputs in the graph become buffers for
    their largest value. UsageError or UnsupportedError for one that cannot."""
    if current() is None or not states:
        return {}
    inputs, outputs = graph.inputs(), graph.outputs()
    names = [n for n, _ in inputs]
    found = find_states(graph, states, forms=False)
    pairs = {s.input: s.output for s in found}
    both = {i: o for i, o in pairs.items() if i is not None and o is not None}
    for s in found:
        t = inputs[s.input][1] if s.input is not None else outputs[s.output or 0][1]
        if None in (s.input, s.output) and is_open(*t.dims):
            raise UnsupportedError(
                f"an entry {'writes' if s.input is None else 'reads'} state {s.name!r} only, which is {t}: one "
                "that grows is read and written by every entry that has it",
                stage="import",
                hint="let a prompt append to the cache too, which is empty then",
            )
    return {
        names[i]: Growth(r.axis, r.before.name, str(formula(r.after))) for i, r in reserve_states(graph, both).items()
    }


def find_states(graph: Graph, states: Mapping[str, str | tuple[str, ...]] | None, forms: bool = True) -> list[Found]:
    """The states in the order of the inputs, then those that are only written; UsageError if they do not fit.

    ``(output,)`` in place of the output's name is for one of several entries, which need not have both, or either.
    Without `forms` the shapes of inputs and outputs may differ.
    """
    inputs, outputs = graph.inputs(), graph.outputs()
    names = [n for n, _ in inputs], [n for n, _ in outputs]
    found: list[Found] = []
    for name, following in (states or {}).items():
        shared = isinstance(following, tuple)
        following = following[0] if isinstance(following, tuple) else following
        i = None if shared and name not in names[0] else _position("input", name, names[0])
        o = None if shared and following not in names[1] else _position("output", following, names[1])
        if i is None and o is None:
            continue
        if i is not None and o is not None and forms:
            _check_form(name, inputs[i][1], following, outputs[o][1])
        if o is not None and o in (s.output for s in found):
            raise UsageError(f"output {following!r} is the next value of two states", stage="import")
        found.append(Found(name, i, o))
    return sorted(found, key=lambda s: len(inputs) if s.input is None else s.input)


def _check_form(name: str, before: Type, following: str, after: Type) -> None:
    if (before.dims, before.dtype) != (after.dims, after.dtype):
        raise UsageError(
            f"input {name!r} is {before}, and output {following!r}, the next value of this state, is {after}",
            stage="import",
            hint="a state keeps its shape and dtype; a cache that grows needs an open dimension (past:0..1024), or "
            "one buffer of its full length, which the model writes at a position",
        )


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
