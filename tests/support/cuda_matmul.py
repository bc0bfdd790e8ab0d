"""A matrix product for an NVIDIA GPU, scheduled by hand in steps: each keeps what the one before it gained."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.lang import te
from tilewright.schedule.machine import Machine
from tilewright.schedule.schedule import Schedule
from tilewright.targets.cuda.description import SM_80, SM_90A

F32 = """
def matmul(a: f32[{m}, {k}], b: f32[{k}, {n}], c: out(f32[{m}, {n}])):
    for i in serial({m}):
        for j in serial({n}):
            for k in serial({k}):
                s0: c[i, j] = reduce(addf(c[i, j], mulf(a[i, k], b[k, j])), init=f32(0.0), over=(k,))
"""
HALF = F32.replace("mulf(a[i, k], b[k, j])", "mulf(extf[f32](a[i, k]), extf[f32](b[k, j]))")


def half(dtype: str) -> str:
    """The text of a product of 16-bit floats, summed up in f32."""
    return HALF.replace("a: f32", f"a: {dtype}").replace("b: f32", f"b: {dtype}")


def naive(m: int, n: int, k: int, machine: Machine = SM_80) -> Schedule:
    """A thread makes one result, and reads a row and a column from global memory."""
    s = Schedule(te.from_nest(F32.format(m=m, n=n, k=k)), machine)
    s.cache_write("s0", scope="register")
    i, row = s.split("i", 16)
    j, column = s.split("j", 16)
    s.reorder(i, j, row, column, "k")
    last = s.reverse_compute_at("s0_w", j)
    bind(s, {i: "grid.y", j: "grid.x"})
    bind(s, dict(zip((*last, row, column), ("block.y", "block.x") * 2, strict=True)))
    return s


def shared_tiles(m: int, n: int, k: int, machine: Machine = SM_80) -> Schedule:
    """A block brings tiles of 16 x 16 into shared memory, which its threads read 16 times."""
    s = Schedule(te.from_nest(F32.format(m=m, n=n, k=k)), machine)
    s.cache_write("s0", scope="register")
    i, row = s.split("i", 16)
    j, column = s.split("j", 16)
    step, inner = s.split("k", 16)
    s.reorder(i, j, step, row, column, inner)
    last = s.reverse_compute_at("s0_w", j)
    copies = [s.cache_read("s0", x, step, scope="shared") for x in ("a", "b")]
    s.barrier(copies[1], "block")
    s.barrier("s0", "block")
    bind(s, {i: "grid.y", j: "grid.x"})
    for block in copies:
        bind(s, dict(zip(s.loops(block)[-2:], ("block.y", "block.x"), strict=True)))
    bind(s, dict(zip((*last, row, column), ("block.y", "block.x") * 2, strict=True)))
    s.unroll(inner)
    return s


def register_tiles(
    m: int, n: int, k: int, machine: Machine = SM_80, *, stages: int = 1, tile: int = 64, depth: int = 16
) -> Schedule:
    """A thread makes 4 x 4 results: of each 8 numbers that it reads from shared memory, four in one access, it makes 16
    products. With several `stages` tiles are brought by copies that run ahead."""
    s = Schedule(te.from_nest(F32.format(m=m, n=n, k=k)), machine)
    s.cache_write("s0", scope="register")
    side = tile // 4
    i, rows = s.split("i", tile)
    row, r = s.split(rows, 4)
    j, columns = s.split("j", tile)
    column, c = s.split(columns, 4)
    step, inner = s.split("k", depth)
    s.reorder(i, j, step, row, column, inner, r, c)
    last = s.reverse_compute_at("s0_w", j)
    copies = [s.cache_read("s0", x, step, scope="shared", asynchronous=stages > 1) for x in ("a", "b")]
    s.barrier(copies[1], "block")
    s.barrier("s0", "block")
    held = [s.cache_read("s0", x, inner, scope="register") for x in ("a_c", "b_c")]
    copies += s.pipeline(step, *copies, stages=stages) if stages > 1 else []
    bind(s, {i: "grid.y", j: "grid.x"})
    for block in copies:
        spread(s, block, 4, {"block.y": side, "block.x": side})
    row_loop, column_loop = last
    (y, r2), (x, c2) = s.split(row_loop, 4), s.split(column_loop, 4)
    s.reorder(y, x, r2, c2)
    bind(s, dict(zip((y, x, row, column), ("block.y", "block.x") * 2, strict=True)))
    for loop in (inner, r, c, r2, s.loops(held[0])[-1]):
        s.unroll(loop)
    for loop in (s.loops(held[1])[-1], c2):
        s.vectorize(loop)
    return s


def async_stages(m: int, n: int, k: int, machine: Machine = SM_80, *, tile: int = 64, depth: int = 16) -> Schedule:
    """The same with three tiles of each factor, of which two are under way."""
    return register_tiles(m, n, k, machine, stages=3, tile=tile, depth=depth)


def tensor_cores(
    m: int, n: int, k: int, machine: Machine = SM_80, *, dtype: str = "bf16", stages: int = 3,
    tile: tuple[int, int] = (64, 64), warps: tuple[int, int] = (2, 2), depth: int = 32, swizzled: bool = True,
    bulk: bool = False,
) -> Schedule:  # fmt: skip
    """Warps multiply blocks of 16 x 8 x 16; a block has `tile` results, its warps equal parts. With `bulk` an engine of
    the GPU copies, and one more warp begins that."""
    s = Schedule(te.from_nest(half(dtype).format(m=m, n=n, k=k)), machine)
    s.cache_write("s0", scope="fragment")
    part = tile[0] // warps[0], tile[1] // warps[1]
    i, rows = s.split("i", tile[0])
    y, rows = s.split(rows, part[0])
    mt, mi = s.split(rows, 16)
    j, columns = s.split("j", tile[1])
    x, columns = s.split(columns, part[1])
    nt, ni = s.split(columns, 8)
    step, inner = s.split("k", depth)
    ks, ki = s.split(inner, 16)
    s.reorder(i, j, step, y, x, ks, mt, nt, mi, ni, ki)
    last = s.reverse_compute_at("s0_w", j)
    copies = [s.cache_read("s0", f, step, scope="shared", asynchronous=True) for f in ("a", "b")]
    s.barrier(copies[1], "block")
    if bulk:
        for block in copies:
            s.bulk(block)
    else:
        s.barrier("s0", "block")
    held = [s.cache_read("s0", f, ks, scope="fragment") for f in ("a_c", "b_c")]
    copies += s.pipeline(step, *copies, stages=stages)
    warp = s.fuse(y, x)
    bind(s, {i: "grid.y", j: "grid.x"})
    for block in held:
        s.tensorize(s.loops(block)[-2], "ldmatrix")
    s.tensorize(mi, f"mma_{dtype}")
    s.unroll(mt)
    s.unroll(nt)
    for block in () if bulk else copies:
        spread(s, block, 8, {"warp": warps[0] * warps[1], "lane": 32})
    (y2, r), (x2, c) = s.split(last[0], part[0]), s.split(last[1], part[1])
    s.reorder(y2, x2, r, c)
    bind(s, {s.fuse(y2, x2): "warp", warp: "warp"})
    if swizzled:
        s.swizzle("a_c", 8, max(64 // depth, 1))
        s.swizzle("b_c", 8, max(64 // tile[1], 1))
    if bulk:
        s.specialize(step)
    return s


def warp_groups(
    m: int, n: int, k: int, machine: Machine = SM_90A, *, columns: int = 64, stages: int = 2, groups: int = 1
) -> Schedule:
    """Four warps multiply 64 rows by `columns` in one instruction, which reads both factors from shared memory; rows of
    b are the columns of the product."""
    text = half("bf16").format(m=m, n=n, k=k).replace("b[k, j]", "b[j, k]")
    s = Schedule(te.from_nest(text.replace(f"b: bf16[{k}, {n}]", f"b: bf16[{n}, {k}]")), machine)
    s.cache_write("s0", scope="sums")
    i, rows = s.split("i", 64 * groups)
    team, mi = s.split(rows, 64)
    j, ni = s.split("j", columns)
    step, inner = s.split("k", 64)
    ks, ki = s.split(inner, 16)
    s.reorder(i, j, step, team, ks, mi, ni, ki)
    last = s.reverse_compute_at("s0_w", j)
    copies = [s.cache_read("s0", f, step, scope="shared", asynchronous=True) for f in ("a", "b")]
    s.barrier(copies[1], "block")
    s.barrier("s0", "block")
    copies += s.pipeline(step, *copies, stages=stages)
    bind(s, {i: "grid.y", j: "grid.x"})
    s.tensorize(mi, f"wgmma_bf16_n{columns}")
    s.unroll(ks)
    for block in copies:
        spread(s, block, 8, {"group": groups, "member": 128})
    y, _ = s.split(last[0], 64)
    bind(s, {y: "group", team: "group"})
    s.swizzle("a_c", 8)
    s.swizzle("b_c", 8)
    return s


def bulk_groups(
    m: int, n: int, k: int, machine: Machine = SM_90A, *, columns: int = 64, stages: int = 3, groups: int = 2,
    specialized: bool = True,
) -> Schedule:  # fmt: skip
    """The same with copies by the engine of the GPU, begun by a group of warps that does nothing else (`specialized`),
    or by one thread."""
    text = half("bf16").format(m=m, n=n, k=k).replace("b[k, j]", "b[j, k]")
    s = Schedule(te.from_nest(text.replace(f"b: bf16[{k}, {n}]", f"b: bf16[{n}, {k}]")), machine)
    s.cache_write("s0", scope="sums")
    i, rows = s.split("i", 64 * groups)
    team, mi = s.split(rows, 64)
    j, ni = s.split("j", columns)
    step, inner = s.split("k", 64)
    ks, ki = s.split(inner, 16)
    s.reorder(i, j, step, team, ks, mi, ni, ki)
    last = s.reverse_compute_at("s0_w", j)
    copies = [s.cache_read("s0", f, step, scope="shared") for f in ("a", "b")]
    for block in copies:
        s.bulk(block)
    s.barrier(copies[1], "block")
    s.pipeline(step, *copies, stages=stages)
    bind(s, {i: "grid.y", j: "grid.x"})
    s.tensorize(mi, f"wgmma_bf16_n{columns}")
    s.unroll(ks)
    y, _ = s.split(last[0], 64)
    bind(s, {y: "group", team: "group"})
    s.swizzle("a_c", 8)
    s.swizzle("b_c", 8)
    if specialized:
        s.specialize(step)
    return s


def bind(s: Schedule, axes: dict[str, str]) -> None:
    for loop, axis in axes.items():
        s.bind(loop, axis)


def spread(s: Schedule, block: str, vector: int, axes: dict[str, int]) -> None:
    """Let the threads of a block, so many along each axis, copy a tile together, `vector` neighbours at once."""
    row, column = s.loops(block)[-2:]
    column, inner = s.split(column, vector)
    s.vectorize(inner)
    loop = s.fuse(row, column)
    outer, count = axes.values()
    _, loop = s.split(loop, outer * count)
    first, second = s.split(loop, count)
    bind(s, dict(zip((first, second), axes, strict=True)))


STEPS: dict[str, Callable[..., Schedule]] = {
    f.__name__: f for f in (naive, shared_tiles, register_tiles, async_stages, tensor_cores)
}
