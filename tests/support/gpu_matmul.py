"""A matrix product for the GPU-like record: tiles in shared memory, brought by copies that run ahead."""

from __future__ import annotations

from support.machines import GPU
from tilewright.lang import te
from tilewright.schedule.schedule import Schedule

TEXT = """
def matmul(a: f32[{m}, {k}], b: f32[{k}, {n}], c: out(f32[{m}, {n}])):
    for i in serial({m}):
        for j in serial({n}):
            for k in serial({k}):
                s0: c[i, j] = reduce(addf(c[i, j], mulf(a[i, k], b[k, j])), init=f32(0.0), over=(k,))
"""


def tiled_matmul(m: int, n: int, k: int, tile: int, depth: int, stages: int = 2) -> Schedule:
    """Each block has a tile of results, each of its threads one of them; `depth` of the sum at once."""
    s = Schedule(te.from_nest(TEXT.format(m=m, n=n, k=k)), GPU)
    write = s.cache_write("s0", scope="register")
    i, row = s.split("i", tile)
    j, column = s.split("j", tile)
    step, inner = s.split("k", depth)
    s.reorder(i, j, step, row, column, inner)
    last = s.reverse_compute_at(write, j)
    copies = [s.cache_read("s0", x, step, scope="shared", asynchronous=True) for x in ("a", "b")]
    first = s.pipeline(step, *copies, stages=stages)
    s.barrier(copies[1], "block")
    s.barrier("s0", "block")
    s.bind(i, "grid.y")
    s.bind(j, "grid.x")
    for block in (*copies, *first):
        for v, axis in zip(s.loops(block)[-2:], ("block.y", "block.x"), strict=True):
            s.bind(v, axis)
    for v, axis in zip((*last, row, column), ("block.y", "block.x") * 2, strict=True):
        s.bind(v, axis)
    return s
