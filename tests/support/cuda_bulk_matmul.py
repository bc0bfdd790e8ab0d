"""A matrix product for `sm_90a`, written as a nest: the copy engine brings tiles several steps ahead, groups of four
warps multiply them, and a further group does nothing else than begin the copies."""

from __future__ import annotations

from tilewright.schedule.nest import Nest
from tilewright.schedule.text import parse_nest
from tilewright.targets.cuda.description import SM_90A

#: numbers of a row of a tile: 128 bytes
DEPTH = 64

TEXT = """
def matmul(a: {dtype}[{m}, {k}], b: {dtype}[{n}, {k}], c: out(f32[{m}, {n}])):
    for i in grid.y({down}):
        for j in grid.x({across}):
            tile_a = shared({dtype}[{stages}, {rows}, 64])
            tile_b = shared({dtype}[{stages}, {columns}, 64])
            for p in serial({ahead}):
                with bulk_copy(a_full):
                    for m0 in serial({rows}):
                        for k0 in serial(64):
                            first_a: tile_a[p, m0, xori(k0 // 8, m0 % 8) * 8 + k0 % 8] = {a_first}
                with bulk_copy(b_full):
                    for n0 in serial({columns}):
                        for k1 in serial(64):
                            first_b: tile_b[p, n0, xori(k1 // 8, n0 % 8) * 8 + k1 % 8] = {b_first}
            total = sums(f32[{rows}, {columns}])
            for g0 in group({groups}):
                for r0 in serial(64):
                    for q0 in serial({columns}):
                        zero: total[g0 * 64 + r0, q0] = f32(0.0)
            for step in serial({steps}{notes}):
                barrier(block)
                with bulk_copy(a_full):
                    if step + {ahead} < {steps}:
                        for m1 in serial({rows}):
                            for k2 in serial(64):
                                next_a: tile_a[(step + {ahead}) % {stages}, m1, xori(k2 // 8, m1 % 8) * 8 + k2 % 8] = {a_next}
                with bulk_copy(b_full):
                    if step + {ahead} < {steps}:
                        for n1 in serial({columns}):
                            for k3 in serial(64):
                                next_b: tile_b[(step + {ahead}) % {stages}, n1, xori(k3 // 8, n1 % 8) * 8 + k3 % 8] = {b_next}
                wait(a_full, pending={ahead})
                wait(b_full, pending={ahead})
                for g in group({groups}):
                    for part in unroll(4):
                        for r in serial(64):
                            for q in serial({columns}):
                                for e in serial(16, notes={{'warp': 'wgmma_{dtype}_n{columns}'}}):
                                    s0: total[g * 64 + r, q] = addf(total[g * 64 + r, q], mulf(extf[f32](tile_a[step % {stages}, g * 64 + r, xori(part * 2 + e // 8, r % 8) * 8 + e % 8]), extf[f32](tile_b[step % {stages}, q, xori(part * 2 + e // 8, q % 8) * 8 + e % 8])))
            for g2 in group({groups}):
                for r2 in serial(64):
                    for q2 in serial({columns}):
                        if andi(i * {rows} + g2 * 64 + r2 < {m}, j * {columns} + q2 < {n}):
                            s1: c[i * {rows} + g2 * 64 + r2, j * {columns} + q2] = total[g2 * 64 + r2, q2]
"""  # noqa: E501 (a nest as it is printed)


def bulk_matmul(
    m: int, n: int, k: int, *, columns: int = 128, groups: int = 2, stages: int = 4, dtype: str = "bf16",
    producer: bool = True,
) -> Nest:  # fmt: skip
    """c = a times b transposed, of any sizes where rows are multiples of 16 bytes; a block has 64 rows for a group."""
    rows, steps = 64 * groups, -(-k // DEPTH)
    ahead = min(stages - 1, steps)

    def of(name: str, row: str, size: int, deep: str) -> str:
        return f"guard(andi({row} < {size}, {deep} < {k}), {name}[{row}, {deep}], {dtype}(0.0))"

    brought = {
        f"{name}_{which}": of(name, f"{tile} * {count} + {var}{at}", size, f"{turn} * 64 + k{2 * at + (name == 'b')}")
        for at, which, turn in ((0, "first", "p"), (1, "next", f"(step + {ahead})"))
        for name, tile, count, var, size in (("a", "i", rows, "m", m), ("b", "j", columns, "n", n))
    }
    sizes = {"m": m, "n": n, "k": k, "down": -(-m // rows), "across": -(-n // columns), "steps": steps}
    tiles = {"rows": rows, "columns": columns, "groups": groups, "stages": ahead + 1, "ahead": ahead}
    notes = ", notes={'producer': True}" if producer else ""
    return parse_nest(TEXT.strip().format(dtype=dtype, notes=notes, **sizes, **tiles, **brought), SM_90A)
