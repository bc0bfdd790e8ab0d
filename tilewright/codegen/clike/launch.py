"""Launch sizes of a printed kernel: the numbers of work-groups and of their work-items, along x, y and z."""

from __future__ import annotations

from dataclasses import replace

from ...schedule.nest import THREAD, Barrier, For, Nest, walk_stmts
from ...support.sizes import smaller
from ..gpu.open_launch import Launch
from ..gpu.open_sizes import axis_extents

#: threads of a block, and the most blocks, of kernels whose loops distribute their iterations
SHARING_BLOCK, SHARING_GRID = 64, 4096
#: scratch memory of all threads of a kernel, as far as there may be fewer threads
SCRATCH_BYTES = 64 << 20


def launch_of(nest: Nest) -> Launch:
    """As many threads on each axis as the longest loop on it has iterations; blocks may be sizes.

    >>> from tilewright.schedule.text import parse_nest
    >>> launch_of(parse_nest("def f(p0: f32[200], p1: out(f32[200])):\\n  for i in thread(200):\\n    p1[i] = p0[i]"))
    Launch(grid=(4, 1, 1), block=(64, 1, 1))
    """
    most = axis_extents(nest, _trips)
    if THREAD in most:
        return Launch((smaller(-(-most[THREAD] // SHARING_BLOCK), SHARING_GRID), 1, 1), (SHARING_BLOCK, 1, 1))
    (i, j, k), (x, y, z) = ([most.get(f"{name}.{d}", 1) for d in "xyz"] for name in ("block", "grid"))
    return Launch((x, y, z), (i, j, k))


def limited(launch: Launch, nest: Nest, nbytes: int) -> Launch:
    """As many threads as have room for scratch memory, of `nbytes` for each: of kernels that distribute iterations."""
    if not nbytes or not any(isinstance(s, For) and s.kind == THREAD for s in walk_stmts(nest.body)):
        return launch
    most = max(SCRATCH_BYTES // (nbytes * launch.threads), 1)
    return replace(launch, grid=(smaller(launch.grid[0], most), 1, 1))


def _trips(s: For) -> int:
    """The iterations of a loop, or what is known to be more."""
    return s.trip if s.trip is not None else SHARING_BLOCK * SHARING_GRID


def may_skip(s: For) -> bool:
    """Whether some threads of the loop's axis may leave it out: there is no barrier in it at which they all meet.
    (Blocks of a grid do not meet at those of their threads.)"""
    axis = s.kind.partition(".")[0]
    return not any(isinstance(x, Barrier) and x.scope == axis for x in walk_stmts(s.body))
