"""Which results of a kernel may take the place of an operand: those that read each element just where they write it."""

from __future__ import annotations

from ..tensor.analysis import flat
from ..tensor.expr import Load, linear, walk
from .nest import Nest, Store, exprs, stores


def inplace_pairs(nest: Nest) -> list[tuple[str, str]]:
    """(output, input) pairs of parameters of one dtype and size that may share memory.

    Every read of the input must be in a statement that writes the output, at the same flat position, and no other
    statement may write the output (a reduction's start would overwrite what its sum still has to read, and a sum reads
    twice); then, whatever the order of the iterations, no element is read after it was overwritten.
    """
    params = {p.name: p for p in nest.params}
    everything = stores(nest.body)
    pairs = []
    for o in nest.outputs:
        writers = [s for s in everything if any(t.buffer == o for t in s.targets)]
        for i in params:
            if (
                i in nest.outputs
                or i in nest.packs
                or params[i].dtype != params[o].dtype
                or params[i].size != params[o].size
            ):
                continue
            if writers and all(_same_place(s, o, i, params) for s in everything) and _written_once(writers, o, i):
                pairs.append((o, i))
    return pairs


def _same_place(s: Store, output: str, given: str, params: dict) -> bool:
    """Whether a statement reads `given` only at the positions where it writes `output`."""
    found = _loads(s, given)
    if not found:
        return True
    if len(s.targets) != 1 or s.targets[0].buffer != output:
        return False
    position = linear(flat(params[output], s.targets[0].indices))
    return all(linear(flat(params[given], x.indices)) == position for x in found)


def _written_once(writers: list[Store], output: str, given: str) -> bool:
    """Whether no statement overwrites an element of `given` that a later one, or itself again, reads."""
    if not any(_loads(s, given) for s in writers):
        return True
    return all(_loads(s, given) and not _loads(s, output) for s in writers)


def _loads(s: Store, buffer: str) -> list[Load]:
    return [x for e in exprs(s) for x in walk(e) if isinstance(x, Load) and x.buffer == buffer]
