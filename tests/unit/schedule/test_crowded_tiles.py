"""Where the sums of a tile leave few registers, one step of the reduction is laid out at a time (`schedule.planner`):
LLVM lets two overlap, and then keeps sums in memory."""

from __future__ import annotations

import pytest
from support.products import convolution

from tilewright.schedule.nest import For, walk_stmts
from tilewright.schedule.rules import schedule
from tilewright.targets.cpu.description import CpuDescription

#: 32 registers of 64 bytes
MACHINE = CpuDescription(
    "x86_64-unknown-linux-gnu", "x86-64-v4", ("avx2", "avx512f", "fma"), 64, 32, l1_bytes=32 << 10, l2_bytes=1 << 20
)


def laid_out(kernel, tile):
    """How many steps of the reduction a tile of such a size lays out."""
    chosen = schedule(kernel, MACHINE, decisions={"tile": tile, "halves": False, "cut": False}).schedule
    loops = [s for s in walk_stmts(chosen.nest().body) if isinstance(s, For) and s.kind == "unroll"]
    return {s.trip for s in loops if s.var.startswith("rc")} or {1}


@pytest.mark.parametrize(
    ("sizes", "tile", "steps"),
    [
        ((40, 40, 408, 80, 5, 1), (14, 1, 2), 1),
        ((28, 28, 384, 64, 5, 1), (14, 1, 2), 1),
        ((28, 28, 384, 64, 5, 1), (7, 2, 2), 1),
        ((18, 18, 400, 80, 5, 1), (9, 1, 3), 2),
        ((28, 28, 384, 64, 5, 1), (7, 1, 2), 2),
    ],
)
def test_steps(sizes, tile, steps):
    assert laid_out(convolution(*sizes), tile) == {steps}
