"""Software prefetch of packed operands: in a model they come from beyond the second-level cache, and hardware
prefetching stops at every page."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ...support.sizes import is_open
from ...tensor.expr import Const, Expr, Var
from .choose import NEXT_PANEL
from .steps import Sum


def prefetch_panels(
    x: Sum, at: str, panels: int, passes: int, repeated: bool, pieces: Sequence[str], rows: Sequence[str]
) -> None:
    """While the rows pass over one packed panel, ask for the next: a share of it in every step of the reduction; or ask
    for what comes so many numbers later.

    `passes` is how often each of the panels is walked; with `repeated` all come again. With `pieces`, the outermost
    loops of the reduction, the loops `rows` pass over one piece of the panel after another, and the next piece is asked
    for."""
    s, size = x.s, x.product.instruction.factor_bytes
    loops = [v for v in s.loops(x.block) if v not in (at, *pieces, *rows) and s.loop(v).kind == "serial"]
    buffer = max((s.params[b] for b in s.packs), key=lambda b: b.size)
    panel = buffer.size // panels
    piece, steps = panel // prod(s.extent(v) for v in pieces), prod(s.extent(v) for v in loops)
    walks = 1 if x.plan.prefetch != NEXT_PANEL else prod(s.extent(v) for v in rows) if rows else passes
    if is_open(walks):  # every pass asks for the whole panel: there may be only one
        walks = 1
    lines, each = -(-piece * size // x.machine.line_bytes), x.machine.line_bytes // size
    share = -(-lines // (steps * walks))  # cache lines a step
    position = iterations(x, [*rows, *loops])
    if not rows and walks > 1:
        position = (Var(at) % passes) * steps + position
    number = Var(at) // passes if passes > 1 else Var(at)
    number = number % panels if repeated else number
    first = number * panel + (piece if x.plan.prefetch == NEXT_PANEL else x.plan.prefetch) + position * (share * each)
    if pieces:
        first = first + iterations(x, pieces) * piece
    s.prefetch(loops[-1], buffer.name, [first + line * each for line in range(share)])


def prefetch_blocks(x: Sum, at: str, panels: int, blocks: Sequence[str]) -> None:
    """While the rows pass over one block of a panel, ask for the next: a share of it in every step of the reduction.
    Where there are more steps than cache lines, two (or four, ...) of them ask for the same line: what lies behind
    comes later."""
    s, line = x.s, x.machine.line_bytes
    loops = [v for v in s.loops(x.block) if v != at and s.loop(v).kind == "serial" and v not in blocks]
    (buffer,) = (s.params[b] for b in s.packs)
    known = [v for v in loops if not is_open(s.extent(v))]  # each pass of unknown number asks for the whole block
    count, steps = prod(s.extent(v) for v in blocks), prod(s.extent(v) for v in known)
    piece, step, together = buffer.size // panels // count, iterations(x, known), 1
    lines = piece * 4 // line
    while steps // (2 * together) >= lines:
        together *= 2
    share = 1 if together > 1 else -(-lines // steps)
    step = step // together if together > 1 else step * share
    first = (Var(at) % panels * count + iterations(x, blocks) + 1) * piece
    s.prefetch(loops[-1], buffer.name, [first + (step + i) * (line // 4) for i in range(share)])


def iterations(x: Sum, loops: Sequence[str]) -> Expr:
    """The number of iterations of nested loops that are over."""
    step: Expr = Const(0, "index")
    for v in loops:
        step = step * x.s.extent(v) + Var(v)
    return step


__all__ = ["prefetch_blocks", "prefetch_panels"]
