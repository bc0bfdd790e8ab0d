"""Fused attention with an online softmax (FlashAttention): scores stay within a thread block.

Many queries are tiled: a block takes a tile of them and iterates over the keys, with scalar arithmetic in each thread
(`attention_tiles`), or, where the machine has tensor cores, by instructions of warps (`attention_warps`) or warpgroups
(`attention_warpgroups`). With few queries the threads of a block divide the keys among them (`attention_keys`).
"""

from __future__ import annotations

from dataclasses import astuple

from ....support.sizes import is_open, less
from ....tensor.kernel import Kernel
from ...machine import Machine
from ...nest import Stmt
from ...schedule import Schedule
from ..custom.attention import Reader, Shape, shape_of
from ..custom.custom_kernel import joined
from . import attention_keys, attention_tiles, attention_warpgroups, attention_warps
from .attention_operands import Operands
from .tactics import operator_rule
from .thread_binding import fits_axis

NAME = "block_attention"
PRIORITY = 7
#: its operator and its relatives
ATTENTIONS = ("attention", "attention_parts", "paged_attention", "paged_attention_parts")
#: rows (queries of the heads that share keys) up to which keys are shared out
FEW_ROWS = 8
#: the same where instructions of warps would take a tile of them
SOME_ROWS = 4


def write(s: Schedule, machine: Machine) -> Stmt | str:
    shape = shape_of(s.kernel)
    if is_open(shape.heads, shape.group, shape.depth, shape.width):
        return "how many heads it has, or how large they are, is known at run time only"
    sizes = (shape.batch, shape.heads, shape.queries, shape.keys, shape.depth, shape.width)
    if not all(less(0, n) for n in sizes) or shape.dtype != "f32":
        return f"it may have no elements, or computes in {shape.dtype}"
    grid = (("grid.x", shape.queries * shape.group), ("grid.y", shape.heads * shape.parts), ("grid.z", shape.batch))
    if not all(fits_axis(machine, a, n) for a, n in grid):
        return "it has more heads or batches than a grid has blocks"
    made = _nest(shape, Reader(s.kernel), machine, s)
    if isinstance(made, str):
        return made
    nests, s.plan = made
    return _first_that_copies(s.kernel, nests, machine)


apply = operator_rule(NAME, write, ATTENTIONS, "it is no attention", join=False)


def _first_that_copies(kernel: Kernel, nests: list[Stmt], machine: Machine) -> Stmt | str:
    """The first nest whose copies can be what they are, with the other stages of the kernel in it; or why these cannot
    be."""
    buffers = {b.name: b for b in (*kernel.params, *kernel.temporaries)}
    for nest in nests:
        body = joined(kernel, nest)
        if isinstance(body, str) or attention_warps.can_copy(body, buffers, machine):
            return body
    raise AssertionError("the last nest has no asynchronous copies")


def _nest(shape: Shape, read: Reader, machine: Machine, s: Schedule) -> tuple[list[Stmt], str] | str:
    """The loop nest, and in words what it does; or why there is none. Where it has copies, several: by an engine of the
    machine, asynchronous ones, ordinary ones."""
    together = Operands.of(shape, read, together=True)
    few = SOME_ROWS if attention_warps.plans(together, machine) else FEW_ROWS
    if s.sample_choice("share_keys", (True, False), together.rows <= few):
        found = attention_keys.shares(together, machine)
        if not found:
            return "the threads of no block have room for its queries"
        best = min(found, key=lambda t: attention_keys.cost(attention_keys.with_warps(t, machine), together, machine))
        share = attention_keys.KeySplit(*s.sample_choice("share", [t.numbers for t in found], best.numbers))
        by_warps = attention_keys.with_warps(share, machine)
        if by_warps != share and s.sample_choice("warps", (True, False), True):
            share = by_warps
        return [attention_keys.Shared(together, share, machine).nest()], str(share)
    o = together if shape.queries < attention_tiles.ROWS[-1] else Operands.of(shape, read, together=False)
    groups, warps = attention_warpgroups.plans(o, machine), attention_warps.plans(o, machine)
    forms = [*(["groups"] if groups else []), *(["warps"] if warps else []), "threads"]
    form = s.sample_choice("form", forms, forms[0])
    if form != "threads":
        return _matrices(form, groups if form == "groups" else warps, o, machine, s)
    tiles = attention_tiles.tiles(shape, o.rows, machine)
    if not tiles:
        return "no tile fits the machine"
    fastest = min(tiles, key=lambda t: attention_tiles.cost(t, o, machine))
    numbers = s.sample_choice("tile", [attention_tiles.numbers(t) for t in tiles], attention_tiles.numbers(fastest))
    tile = attention_tiles.AttentionTile(*numbers)
    return [attention_tiles.Tiled(o, tile, machine).nest()], str(tile)


def _matrices(
    form: str, plans: list[attention_warps.WarpAttentionPlan], o: Operands, machine: Machine, s: Schedule
) -> tuple[list[Stmt], str]:
    """The nests on matrices that warps, or groups of them, hold in parts."""
    plan = attention_warps.WarpAttentionPlan(
        *s.sample_choice("matrices", [astuple(p) for p in plans], astuple(plans[0]))
    )
    own = attention_warps.instructions(o, machine)
    writer = attention_warps.WarpAttentionWriter
    if form == "groups":
        own = attention_warpgroups.instructions(o, plan.keys, machine)
        writer = attention_warpgroups.WarpgroupAttentionWriter
    assert own is not None
    ways = [*(["bulk"] if form == "groups" and machine.bulk is not None else []), "async", "plain"]
    nests = [writer(o, plan, own, machine, way).nest() for way in ways]
    words = f"{plan.teams} {form} of {own.scores.rows} queries each by {plan.keys} keys, on matrices held in parts"
    return nests, words
