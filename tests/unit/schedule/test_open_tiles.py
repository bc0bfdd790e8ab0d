"""The last tile of rows whose number is known at run time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from support.open_nests import ROWS, SEQ, WIDE8, computes, product, rows_by_columns

from tilewright.lang import te
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.nest import For, Nest, Stmt, exprs, transform, walk_stmts
from tilewright.schedule.open_nest import nest_at
from tilewright.schedule.open_tiles import row_by_row
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.text import parse_nest
from tilewright.support import sizes
from tilewright.support.sizes import Size, Sizes, Undecided, is_open
from tilewright.tensor.expr import Buffer, Const, loads, variables
from tilewright.tensor.kernel import Kernel


@pytest.fixture
def known() -> Iterator[Sizes]:
    with sizes.open_sizes([ROWS, SEQ, WIDE8]) as found:
        assert found is not None
        found.numbers.near = False  # as where nests are made
        yield found


def sums(rows: Size) -> Kernel:
    """y = x @ w, in one block."""
    x, w, r = te.placeholder((rows, 10), "x"), te.placeholder((10, 16), "w"), te.reduce_axis(10, "k")
    return te.kernel(te.compute((rows, 16), lambda i, j: te.sum(x[i, r] * w[r, j], r), "y"))


def laid_out(nest: Nest) -> list[For]:
    """Laid-out loops with so many iterations as is known at run time."""
    return [
        s
        for s in walk_stmts(nest.body)
        if isinstance(s, For) and s.kind == "unroll" and (s.trip is None or is_open(s.trip))
    ]


@pytest.mark.parametrize("tile", [2, 6, 8])
@pytest.mark.parametrize("registers", [False, True], ids=["in memory", "in registers"])
def test_register_tiles(known, tile, registers):
    kernel = sums(known.symbols[0])
    s = Schedule(kernel)
    copy = s.cache_write("y", scope="register") if registers else None
    ro, ri = s.split("i_y", tile)
    s.reorder(ro, "k", ri, "j_y")
    if copy is not None:
        s.reverse_compute_at(copy, ro)
        row, column = s.loops(copy)[-2:]
        s.unroll(row)
        s.vectorize(column)
    s.vectorize("j_y")
    s.unroll(ri)
    nest = s.nest()
    assert laid_out(nest)
    assert not laid_out(finish(nest))
    computes(nest, kernel)


def test_rows_of_an_elementwise_tile(known):
    kernel = rows_by_columns(known, 32)
    s = Schedule(kernel)
    _, i = s.split("i_y", 4)
    s.vectorize(s.split("j_y", 16)[1])
    s.unroll(i)
    assert not laid_out(finish(s.nest()))
    computes(s.nest(), kernel)


def test_a_nest_without_open_tiles_stays(known):
    body = Schedule(product(4, 5, 6)).nest().body
    assert row_by_row(body) is body


def tile_of(text: str, rows: Size) -> Nest:
    """A nest whose laid-out loops have so many iterations as there are rows."""

    def opened(s: Stmt) -> Stmt:
        return replace(s, extent=Const(rows, "index")) if isinstance(s, For) and s.kind == "unroll" else s

    nest = parse_nest(text.strip())
    return replace(nest, body=transform(nest.body, opened))


SUMS = """
def k(x: f32[6, 64], y: out(f32[6])):
    acc = register(f32[6])
    for i in unroll(6):
        s0: acc[i] = f32(0.0)
    for k in serial(64):
        for i in unroll(6):
            s1: acc[i] = addf(acc[i], x[i, k])
    for i in unroll(6):
        s2: y[i] = acc[i]
"""


def test_the_example_of_the_file(known):
    nest = tile_of(SUMS, known.symbols[0])
    made = replace(nest, body=row_by_row(nest.body))
    assert laid_out(nest) and not laid_out(made)
    for rows in (1, 2, 5, 6):
        at = nest_at(made, {"rows": rows, "seq": 1, "wide": 8})
        x = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)
        y = interpret_nest(replace(at, params=shortened(at, rows)), {"x": x[:rows]})["y"]
        np.testing.assert_allclose(y, x[:rows].sum(1), rtol=1e-5)


FOUND = """
def k(at: i64[64], x: f32[6, 64], y: out(f32[6])):
    acc = register(f32[6])
    for i in unroll(6):
        s0: acc[i] = f32(0.0)
    for k in serial(64):
        for i in unroll(6):
            s1: acc[i] = addf(acc[i], x[i, index_cast[index](at[k])])
    for i in unroll(6):
        s2: y[i] = acc[i]
"""


def test_what_rows_read_at_places_found_in_memory(known):
    made = row_by_row(tile_of(FOUND, known.symbols[0]).body)
    read = {e.buffer for s in walk_stmts(made) for x in exprs(s) for e in loads(x)}
    assert read == {"at", "x", "acc"}
    assert not {v for s in walk_stmts(made) for e in exprs(s) for v in variables(e) if v.startswith("%")}


def shortened(nest: Nest, rows: int) -> tuple[Buffer, ...]:
    return tuple(Buffer(p.name, (rows, *p.shape[1:]), p.dtype, p.scope) for p in nest.params)


@pytest.mark.parametrize(
    "changed, to, reason",
    [
        ("s2: y[i] = acc[i]", "s2: y[i] = acc[0]", "reads acc of others"),
        ("s1: acc[i] = addf(acc[i], x[i, k])", "s1: acc[0] = addf(acc[0], x[i, k])", "rows of a tile share acc"),
        ("for i in unroll(6):\n        s2: y[i] = acc[i]", "s2: y[0] = f32(1.0)", "belongs to no row"),
    ],
)
def test_rows_that_need_each_other_are_refused(known, changed, to, reason):
    text = SUMS.replace(changed, to)
    assert text != SUMS
    with pytest.raises(Undecided, match=reason):
        row_by_row(tile_of(text, known.symbols[0] % 6).body)
