"""In-place variants of kernels that write a state which they read, for dialects whose parameters may not alias.

Dialects rely on it that no two parameters are the same memory, and WebGPU binds none over another. So such a call has
a kernel of its own, with one parameter for both, which stands beside the other in the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from torch_mlir import ir

from ...schedule.inplace import inplace_pairs
from ...schedule.nest import Nest
from ...tensor.analysis import source_of
from ..compile_state import CompilationState
from .kernels import Pairs

#: pairs of one kernel, for all sets of which there are kernels
MOST = 3


def read_states(state: CompilationState) -> dict[str, set[int]]:
    """Which operands of kernels are states in some call, by position."""
    names = set(state.options.states or ())
    given = zip(state.module.block.arguments, state.module.inputs(), strict=True)
    kept = [a for a, (name, _) in given if name in names]
    found: dict[str, set[int]] = {}
    for op in state.module.operations() if kept else ():
        if op.name == "func.call":
            symbol = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            mine = {i for i, v in enumerate(op.operands) if source_of(v) in kept}
            found.setdefault(symbol, set()).update(mine)
    return found


def pairs_of(nest: Nest, states: set[int]) -> Pairs:
    """(output, input) by position: what may share memory, where the input is a state in some call."""
    positions = {p.name: i for i, p in enumerate(nest.params)}
    found = ((positions[o], positions[i]) for o, i in inplace_pairs(nest))
    return tuple(p for p in found if p[1] in states)[:MOST]


def subsets(pairs: Pairs) -> Iterator[Pairs]:
    """All sets of pairs that calls may have, but for none."""
    for n in range(1, len(pairs) + 1):
        for some in combinations(pairs, n):
            if len({i for _, i in some}) == n:
                yield some


__all__ = ["pairs_of", "read_states", "subsets"]
