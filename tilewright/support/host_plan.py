"""How a model runs in parts, as data: bodies of nodes, native programs, and what runs between these.

Front ends and the pass `graph/cut.py` make it, the runtime (`runtime/staged.py`) follows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: how a name gets its entry: ["out", i], ["in", name], ["const", i], ["none"], ["list", ...],
#: ["part", buffer, count, axis] (the first `count` positions)
Tree = list[Any]


@dataclass(frozen=True)
class BodyInfo:
    """A body: a list of nodes with inputs and outputs (a graph, a branch, a loop body). `outputs` may be undeclared
    in type: ("", None)."""

    id: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: int
    types: tuple[tuple[str, tuple[int, ...] | None], ...] = ()


@dataclass(frozen=True)
class Action:
    """A node that runs between native parts: `kind` is an operator of `host`, or if, loop, scan, call, fold."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    bodies: tuple[str, ...] = ()
    node: int = -1


@dataclass
class SubgraphPlan:
    """How a `Source` imports a subgraph for the shapes at hand. `graph` (level 2) is what is compiled, None if there is
    nothing to compute natively; `actions` run on the host after it; `todo` is left to the following subgraph.
    `learned`: inputs on whose values the plan depends.
    """

    graph: Any
    feeds: tuple[str, ...] = ()
    results: dict[str, Tree] = field(default_factory=dict)
    constants: list[np.ndarray] = field(default_factory=list)
    actions: tuple[Action, ...] = ()
    todo: tuple[int, ...] = ()
    frozen: frozenset[str] = frozenset()
    learned: frozenset[str] = frozenset()


__all__ = ["Action", "BodyInfo", "SubgraphPlan", "Tree"]
