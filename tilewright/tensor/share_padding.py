"""Level 3: shares padding: a tensor that is padded for one reader is stored padded only.

    %y = ...;  %p = tensor.pad %y;  conv(%p);  add(%y, ...)
    ->  %y = ...;  %p = tensor.pad %y;  conv(%p);  add(inside of %p, ...)

Then whatever makes %y can write into the inside of %p (see fuse.py), and no pass over memory is left for the padding.
Readers see the inside through a copy that fusion inlines.
"""

from __future__ import annotations

from torch_mlir import ir

from ..ir.builder import Builder, Tensor
from ..ir.context import use
from ..ir.graph import Graph
from ..ir.types import type_of


def share_padding(graph: Graph) -> int:
    """Redirect the other readers of padded tensors, in place; returns how many."""
    moved = 0
    with use():
        for op in graph.operations():
            if op.name == "tensor.pad" and _made_by_compute(op.operands[0]):
                moved += _redirect(op)
    return moved


def _made_by_compute(v: ir.Value) -> bool:
    return not isinstance(v.owner, ir.Block) and v.owner.operation.name == "linalg.generic"


def _redirect(pad: ir.Operation) -> int:
    source = pad.operands[0]
    users = [u.owner.operation for u in source.uses if u.owner.operation != pad]
    if not users or not all(u.name == "linalg.generic" for u in users):
        return 0
    # the padded tensor must exist before its new readers
    pad.move_after(source.owner.operation)
    fill = pad.regions[0].blocks[0].operations[0].operands[0].owner
    if not isinstance(fill, ir.Block) and fill.operation.parent == pad.parent:
        fill.operation.move_before(pad)
    t = type_of(source)
    low = list(ir.DenseI64ArrayAttr(pad.attributes["static_low"]))
    for user in dict.fromkeys(users):
        with ir.InsertionPoint(user), user.location:
            inside = Builder("slice").slice(Tensor(pad.results[0], type_of(pad.results[0])), low, t.dims, [1] * t.rank)
        for i, v in enumerate(user.operands):
            if v == source:
                user.operands[i] = inside.value
    return len(users)
