"""Sectors that warps move and turns that shared memory takes, beside those that were counted by hand."""

from __future__ import annotations

import pytest

from tilewright.schedule.coalescing import scattered, together
from tilewright.schedule.machine import Machine
from tilewright.schedule.parse import parse_nest
from tilewright.targets.cuda.description import SM_90A
from tilewright.targets.gpu.describe import GpuDescription

READS = {
    "x[u]": (4, 4),  # 32 numbers in a row
    "x[u * 64]": (32, 4),
    "x[u * 2]": (8, 4),
    "x[0]": (1, 1),
    "x[u // 8 * 100]": (4, 1),
    "guard(cmpi.slt(u, index(8)), x[u * 8], f32(0.0))": (8, 1),
}


@pytest.mark.parametrize(("read", "expected"), READS.items(), ids=READS)
def test_sectors_of_a_warp(read, expected):
    nest = parse_nest(
        f"def f(x: f32[4096], y: out(f32[32])):\n    for u in block.x(32):\n        y[u] = {read}\n", SM_90A
    )
    found = {t.buffer: (t.moved, t.least) for t in together(nest, SM_90A)}
    assert found == {"x": expected, "y": (4, 4)}


def test_what_a_unit_walks_through_is_brought_once_and_written_again_and_again():
    text = """
def f(x: f32[32, 8], y: out(f32[32, 8])):
    for u in block.x(32):
        for i in serial(8):
            y[u, i] = x[u, i]
"""
    read, written = together(parse_nest(text, SM_90A), SM_90A)
    assert (read.times, read.moved, read.least) == (8, 4, 4)
    assert (written.moved, written.least, written.needless) == (32, 4, 8 * 28)


@pytest.mark.parametrize(("pitch", "turns"), [(32, 32), (33, 1), (34, 2), (40, 8)])
def test_columns_of_shared_memory(pitch, turns):
    text = f"""
def f(x: f32[32], y: out(f32[32])):
    s = shared(f32[32, {pitch}])
    for u in block.x(32):
        s[u, 0] = x[u]
    barrier(block)
    for v in block.x(32):
        y[v] = s[v, 0]
"""
    own = [t for t in together(parse_nest(text, SM_90A), SM_90A) if t.shared]
    assert [(t.writes, t.moved, t.least) for t in own] == [(True, turns, 1), (False, turns, 1)]


def test_long_accesses_take_a_turn_for_each_part_of_the_warp():
    text = """
def f(x: f32[128], y: out(f32[128])):
    s = shared(f32[128])
    for u in block.x(32):
        for l in vector(4):
            s[u * 4 + l] = x[u * 4 + l]
"""
    read, written = together(parse_nest(text, SM_90A), SM_90A)
    assert (read.moved, read.least, written.moved, written.least) == (16, 16, 4, 4)


def test_lanes_of_warps_and_threads_of_processors():
    for loops in ("for w in warp(2):\n        for u in lane(32):\n            y[w * 32 + u] = x[(w * 32 + u) * 8]",
                  "for u in thread(64):\n        y[u] = x[u * 8]"):  # fmt: skip
        nest = parse_nest(f"def f(x: f32[512], y: out(f32[64])):\n    {loops}\n", SM_90A)
        assert [(t.times, t.moved, t.least) for t in together(nest, SM_90A)] == [(2, 32, 4), (2, 4, 4)]


def test_places_that_data_decide_are_left_out():
    nest = parse_nest(
        "def f(p: i32[32], x: f32[64], y: out(f32[32])):\n    for u in block.x(32):\n"
        "        y[u] = x[index_cast[index](p[u])]\n", SM_90A,
    )  # fmt: skip
    assert [t.buffer for t in together(nest, SM_90A)] == ["p", "y"]


def test_much_is_told():
    text = """
def f(x: f32[{n}, 64], y: out(f32[{n}])):
    for b in grid.x({n} // 32):
        for u in block.x(32):
            y[b * 32 + u] = x[b * 32 + u, 0]
"""
    few, many = (parse_nest(text.replace("{n} // 32", str(n // 32)).format(n=n), SM_90A) for n in (64, 1 << 18))
    assert scattered(few, SM_90A) == []
    (said,) = scattered(many, GpuDescription())
    assert said == ("neighbouring threads touch memory that lies apart: 4.5 times what would do, most where x is read")
    assert scattered(many, Machine()) == []
