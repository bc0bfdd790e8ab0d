"""Attention with an online softmax, by blocks of units: no scores leave a block.

Many queries go by tiles (`attention_tiles`): a block takes a tile of them and goes along the keys. Few queries have their
keys shared out among the units of a block (`attention_keys`).
"""

from __future__ import annotations

from dataclasses import astuple

from ....support.sizes import is_open
from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine
from ...nest import Stmt, seq
from ...schedule import Schedule
from ..custom.attention import Reader, Shape, shape_of
from ..custom.opaque import joined
from . import attention_keys, attention_tiles, attention_warps
from .attention_operands import Operands
from .units import fits_axis, has_blocks

NAME = "block_attention"
PRIORITY = 7
#: rows (queries of the heads that share keys) up to which keys are shared out
FEW_ROWS = 8


def apply(kernel: Kernel, machine: Machine, decisions: Decisions = None) -> Schedule | str:
    if not has_blocks(machine):
        return "the machine has no grid of blocks"
    if kernel.opaque is None or kernel.opaque.mnemonic != "attention":
        return "it is no attention"
    shape = shape_of(kernel)
    sizes = (shape.batch, shape.heads, shape.queries, shape.keys, shape.depth, shape.width)
    if any(map(is_open, sizes)):
        return "its sizes are open"
    if 0 in sizes or shape.dtype != "f32":
        return f"it has no elements, or computes in {shape.dtype}"
    grid = (("grid.x", shape.queries * shape.group), ("grid.y", shape.heads), ("grid.z", shape.batch))
    if not all(fits_axis(machine, a, n) for a, n in grid):
        return "it has more heads or batches than a grid has blocks"
    asking = Schedule(kernel, machine, body=seq(), decisions=decisions)
    made = _nest(shape, Reader(kernel), machine, asking)
    if isinstance(made, str):
        return made
    for nest in made[0]:
        body = joined(kernel, nest)
        if isinstance(body, str):
            return body
        if attention_warps.plain_copies(body, {b.name: b for b in (*kernel.params, *kernel.temporaries)}):
            break
    s = Schedule(kernel, machine, body=body, decisions=decisions)
    s.decisions.update(asking.decisions)
    s.temporaries.clear()
    s.plan = made[1]
    return s


def _nest(shape: Shape, read: Reader, machine: Machine, s: Schedule) -> tuple[list[Stmt], str] | str:
    """The loop nest, and in words what it does; or why there is none. If its copies are asynchronous, then also the one
    where they are not."""
    together = Operands(shape, read, together=True)
    if s.sample_choice("share_keys", (True, False), together.rows <= FEW_ROWS):
        found = attention_keys.shares(together, machine)
        if not found:
            return "the units of no block have room for its queries"
        best = min(found, key=lambda t: attention_keys.cost(t, together, machine))
        share = attention_keys.Share(*s.sample_choice("share", [t.numbers for t in found], best.numbers))
        return [attention_keys.Shared(together, share, machine).nest()], str(share)
    o = together if shape.queries < attention_tiles.ROWS[-1] else Operands(shape, read, together=False)
    warps = attention_warps.plans(o, machine)
    if warps and s.sample_choice("matrices", (True, False), True):
        plan = attention_warps.Plan(*s.sample_choice("warps", [astuple(w) for w in warps], astuple(warps[0])))
        writers = [attention_warps.Writer(o, plan, machine, asynchronous=a) for a in (True, False)]
        return [w.nest() for w in writers], str(plan)
    tiles = attention_tiles.tiles(shape, o.rows, machine)
    if not tiles:
        return "no tile fits the machine"
    fastest = min(tiles, key=lambda t: attention_tiles.cost(t, o, machine))
    numbers = s.sample_choice("tile", [attention_tiles.numbers(t) for t in tiles], attention_tiles.numbers(fastest))
    tile = attention_tiles.Tile(*numbers)
    return [attention_tiles.Tiled(o, tile, machine).nest()], str(tile)
