"""Mixtures of experts (`ops/experts.py`): a counting sort, and products in which the weights of an expert are read once
for all of its rows.

Weights are laid out as ``w[expert][tile of columns][k][vector][lane]``. Tiles of columns are divided among threads, so
that each has the same part of every expert, whoever the rows go to:

    for tile: for expert: for rows, a few at once: for k: acc[row, columns] += x[row, k] * w[k, columns]
"""

from __future__ import annotations

from ....support.dtypes import wide
from ....tensor.expr import Buffer, Const, Expr, Load, Op, Var, minimum
from ....tensor.kernel import Kernel
from ...machine import Machine, lanes
from ...nest import Alloc, For, If, Pack, Stmt, loop, seq, store
from .. import Choose, Direct, direct
from .nests import Access, add, index, loops, mul, variables

#: vectors of columns in a tile at most
VECTORS = 4


def position(buffer: str, i: tuple[Expr, ...], most: Expr | int, dtype: str = "i32") -> Expr:
    """An integer as a position from 0 to `most`."""
    at = Op("index_cast", (Load(buffer, i, dtype),), "index")
    return minimum(Op("maxsi", (at, index(0)), "index"), most)


@direct("expert_order")
def expert_order(kernel: Kernel, machine: Machine) -> Stmt:
    """The loop nest of ``tw.expert_order``, which one thread runs: there are few pairs."""
    a = Access(kernel)
    experts, (rows, places, starts), count = a.operand(0), a.opaque.results, a.opaque.attributes["count"]
    shape, pair, e = a.shape(experts), variables("p", a.shape(experts)), Var("e")
    expert, one = position(experts, pair, count - 1, a.dtype(experts)), Const(1, "i32")

    def following(i: Expr) -> Load:
        return Load("next", (i,), "i32")

    here = following(expert)
    place = Op("index_cast", (here,), "index")
    body = seq(
        loop("e", count + 1, store("next", (e,), Const(0, "i32"), "zero")),
        loops("p", shape, store("next", (expert + 1,), plus(following(expert + 1), one), "count")),
        loop(
            "e",
            count,
            store("next", (e + 1,), plus(following(e), following(e + 1)), "sum"),
        ),
        loop("e", count + 1, store(starts, (e,), following(e), "starts")),
        loops(
            "p",
            shape,
            seq(
                store(places, pair, here, "place"),
                store(rows, (place,), Op("index_cast", (pair[0],), "i32"), "row"),
                store("next", (expert,), plus(here, one), "next"),
            ),
        ),
    )
    return Alloc(Buffer("next", (count + 1,), "i32", "local"), body)


def plus(x: Expr, y: Expr) -> Expr:
    return Op("addi", (x, y), "i32")


@direct("expert_matmul", writes_once=True, reuses=True)
def expert_matmul(kernel: Kernel, machine: Machine, choose: Choose) -> Stmt | Direct:
    """The loop nest of ``tw.expert_matmul``."""
    a = Access(kernel)
    x, weights, starts, out = a.operand(0), a.operand(1), a.operand(2), a.opaque.results[0]
    rows = a.opaque.operands[3] if len(a.opaque.operands) > 3 else None
    experts, columns, depth = a.shape(weights)
    count, most = a.shape(out)[0], a.shape(x)[0] - 1
    if columns == 0:
        return seq()
    dtype = wide(a.dtype(out))
    w = min(lanes(machine, dtype), 1 << max(columns - 1, 0).bit_length())
    vectors = -(-columns // w)
    v = choose("vectors", tuple(range(1, min(VECTORS, vectors) + 1)), min(VECTORS, vectors))
    room = max((machine.vector_registers - v - 1) // v, 1)
    height = choose("rows", tuple(range(1, room + 1)), min(room, machine.aligned_rows, VECTORS))
    tile, e, k, lane = Var("nt"), Var("e"), Var("k"), Var("c") * w + Var("l")
    n = tile * (v * w) + lane

    packs = (Pack(weights, ((), (v, w), ()), (0, 1, 4, 2, 3)),) if weights in kernel.constants else ()

    def over(body: Stmt, *, whole: bool = True) -> Stmt:
        """`body` for the columns of a tile; all lanes, or only those that there are."""
        left = vectors - tile * v
        some = index(v) if vectors % v == 0 else minimum(v, left)
        last = minimum(w, columns - (tile * v + Var("c")) * w)
        all_lanes = (whole and packs) or columns % w == 0  # what is laid out anew has zeros behind its end
        return For("c", some, For("l", index(w) if all_lanes else last, body, "vector", w), "unroll")

    def rows_at(first: Expr, many: int) -> Stmt:
        """The products of so many rows."""
        row = first + Var("r")
        at = (Var("r"), lane)
        source = row if rows is None else position(rows, (row,), most)
        now = Load("acc", at, dtype)
        product = mul(a.read(x, (source, k)), Load("weight", (lane,), dtype))

        def each(body: Stmt) -> Stmt:
            return loop("r", many, body, "unroll")

        step = seq(
            over(store("weight", (lane,), a.read(weights, (e, n, k)), "weight")),
            each(over(store("acc", at, add(now, product), "sum"))),
        )
        body = seq(
            each(over(store("acc", at, Const(0.0, dtype), "clear"))),
            loop("k", depth, Alloc(Buffer("weight", (v * w,), dtype, "register"), step)),
            each(over(a.write(out, (row, n), now, "out"), whole=False)),
        )
        return Alloc(Buffer("acc", (many, v * w), dtype, "register"), body)

    first = position(starts, (e,), count)
    many = Op("maxsi", (position(starts, (e + 1,), count) - first, index(0)), "index")
    rest = many % height
    parts: list[Stmt] = [loop("m", many // height, rows_at(first + Var("m") * height, height))]
    for h in range(1, height):  # those that are left, all at once too
        parts.append(If(Op("cmpi.eq", (rest, index(h)), "i1"), rows_at(first + (many - rest), h)))
    nest = loop("nt", -(-vectors // v), loop("e", experts, seq(*parts)), "thread")
    return Direct(nest, packs)


__all__ = ["expert_matmul", "expert_order"]
