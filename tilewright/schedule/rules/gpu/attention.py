"""Attention with an online softmax, by blocks of units: no scores leave a block.

Many queries go by tiles (`attention_tiles`): a block takes a tile of them and goes along the keys. Few queries have their
keys shared out among the units of a block (`attention_keys`).
"""

from __future__ import annotations

from ....support.sizes import is_open
from ....tensor.kernel import Kernel
from ...decisions import Decisions
from ...machine import Machine
from ...nest import Stmt, seq
from ...schedule import Schedule
from ..custom.attention import Reader, Shape, shape_of
from ..custom.opaque import joined
from . import attention_keys, attention_tiles
from .attention_operands import Operands
from .units import has_blocks

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
    asking = Schedule(kernel, machine, body=seq(), decisions=decisions)
    made = _nest(shape, Reader(kernel), machine, asking)
    body = joined(kernel, made[0]) if not isinstance(made, str) else made
    if isinstance(body, str):
        return body
    s = Schedule(kernel, machine, body=body, decisions=decisions)
    s.decisions.update(asking.decisions)
    s.temporaries.clear()
    s.plan = made[1]
    return s


def _nest(shape: Shape, read: Reader, machine: Machine, s: Schedule) -> tuple[Stmt, str] | str:
    """The loop nest, and in words what it does; or why there is none."""
    together = Operands(shape, read, together=True)
    if s.sample_choice("share_keys", (True, False), together.rows <= FEW_ROWS):
        found = attention_keys.shares(together, machine)
        if not found:
            return "the units of no block have room for its queries"
        best = min(found, key=lambda t: attention_keys.cost(t, together, machine))
        share = attention_keys.Share(*s.sample_choice("share", [t.numbers for t in found], best.numbers))
        return attention_keys.Shared(together, share, machine).nest(), str(share)
    o = together if shape.queries < attention_tiles.ROWS[-1] else Operands(shape, read, together=False)
    tiles = attention_tiles.tiles(shape, o.rows, machine)
    if not tiles:
        return "no tile fits the machine"
    fastest = min(tiles, key=lambda t: attention_tiles.cost(t, o, machine))
    numbers = s.sample_choice("tile", [attention_tiles.numbers(t) for t in tiles], attention_tiles.numbers(fastest))
    tile = attention_tiles.Tile(*numbers)
    return attention_tiles.Tiled(o, tile, machine).nest(), str(tile)
