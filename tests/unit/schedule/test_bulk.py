"""Bulk copies in nests: what the engine of a machine takes and what it refuses, races, and loops whose copies have a thread
of their own."""

# ruff: noqa: E501 (nests as text)
from __future__ import annotations

import numpy as np
import pytest

from tilewright.codegen.nvptx.rings import Rings
from tilewright.lang import te
from tilewright.schedule.concurrency import illegal, verify
from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import NestError, interpret_nest
from tilewright.schedule.machine import Axis, BulkCopy, Machine, Memory
from tilewright.schedule.nest import AsyncCopy, Barrier, Nest, Seq, Wait, walk_stmts
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.schedule.text import format_nest, parse_nest
from tilewright.support.errors import CompileError


class Gpu(Machine):
    axes = (
        Axis("grid", 1 << 31, dims=("x", "y")),
        Axis("warp", 16, inside="grid", barriers=("block",)),
        Axis("lane", 32, inside="warp", barriers=("block",)),
    )
    memories = Memory("register"), Memory("shared", 48 << 10, shared_by=("warp", "lane"))
    bulk = BulkCopy("tensor")


class Plain(Gpu):
    bulk = None


GPU = Gpu()
#: rows of x come three steps ahead
RING = """
def k(x: f32[16, 32], y: out(f32[16, 32])):
    t = shared(f32[3, 32])
    for p in serial(2):
        with bulk_copy(full):
            for q in serial(32):
                s0: t[p, q] = x[p, q]
    for i in serial(16):
        barrier(block)
        with bulk_copy(full):
            if i + 2 < 16:
                for q in serial(32):
                    s1: t[(i + 2) % 3, q] = x[i + 2, q]
        wait(full, pending=2)
        for l in lane(32):
            s2: y[i, l] = t[i % 3, 31 - l]
"""
X = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)


def nest(old: str = "", new: str = "") -> Nest:
    assert old in RING
    return parse_nest(RING.strip().replace(old, new), GPU)


def reason(n: Nest, machine: Machine = GPU) -> str:
    return illegal(n.body, n.buffers(), lambda: machine) or ""


def test_copies_run_ahead_of_their_use():
    made = nest()
    assert parse_nest(format_nest(made), GPU) == made and not reason(made)
    for n in (made, finish(made)):
        assert np.array_equal(interpret_nest(n, {"x": X}, GPU)["y"], X[:, ::-1])


@pytest.mark.parametrize(
    "old, new, why",
    [
        ("        wait(full, pending=2)\n", "", "nothing waits for async_copy(full)"),
        ("pending=2", "pending=3", "may touch t while copy full"),
        ("        barrier(block)\n", "", "bulk_copy(full) may overwrite elements of t that block s2 uses"),
    ],
)
def test_waits_and_barriers_that_are_missing(old, new, why):
    assert why in reason(nest(old, new))
    with pytest.raises(NestError):
        interpret_nest(nest(old, new), {"x": X}, GPU)


def test_a_unit_writes_where_the_engine_does():
    text = "        barrier(block)\n"
    made = nest(text, f"{text}        s3: t[(i + 2) % 3, 0] = f32(0.0)\n")
    assert "bulk_copy(full) may overwrite elements of t that block s3 uses" in reason(made)


def box(shape: str, sides: str, value: str, loops: str = "for r in serial(8):\n for q in serial(8):", place: str = "r, q", dtype: str = "f32") -> str:  # fmt: skip
    """Why a copy of a box is refused."""
    lines = [f"def k(x: {dtype}[{shape}], y: out({dtype}[{shape}])):", f" t = shared({dtype}[{sides}])"]
    lines += [" for i in grid.x(2):", "  with bulk_copy(full):"]
    depth = 3
    for line in loops.splitlines():
        lines.append(" " * depth + line.strip())
        depth += 1
    lines.append(" " * depth + f"s: t[{place}] = {value}")
    lines += ["  wait(full)", "  y[(" + "), (".join("0" for _ in shape.split(",")) + f")] = {dtype}(0.0)"]
    made = parse_nest("\n".join(lines), GPU)
    return verify(made.body, made.buffers(), GPU) or ""


@pytest.mark.parametrize(
    "arguments, why",
    [
        (("16, 8", "8, 8", "x[i * 8 + r, q]"), ""),
        (("16, 8", "8, 8", "negf(x[i * 8 + r, q])"), "it computes"),
        (("600, 8", "300, 8", "x[i * 300 + r, q]", "for r in serial(300):\n for q in serial(8):"), "a side of the box has 300 elements, the engine takes 256"),
        (("16, 8", "8, 6", "x[i * 8 + r, q]", "for r in serial(8):\n for q in serial(6):"), "a row of the box has 24 bytes, no multiple of 16"),
        (("16, 9", "8, 8", "x[i * 8 + r, q]"), "a step along dimension 0 of x is 36 bytes, no multiple of 16"),
        (("1, 2, 2, 2, 16, 8", "8, 8", "x[0, i, 0, 0, r, q]"), "x has 6 dimensions, the engine takes 1 to 5"),
        (("16, 8", "8, 8", "x[i * 8 + q, r]"), "rows of 32 bytes do not lie one after the other"),
        (("16, 8", "8, 8", "x[2 * r, q]"), "loop r does not run along one dimension of x"),
        (("16, 8", "2, 8, 8", "x[i * 8 + r, q]", "for r in serial(8):\n for q in serial(8):", "i, r, q"), ""),
        (("16, 8", "2, 9, 8", "x[i * 8 + r, q]", "for r in serial(8):\n for q in serial(8):", "i, r, q"), "it does not go to multiples of 128 bytes of t"),
        (("16, 8", "8, 8", "x[i * 8 + r, q]", "for r in serial(8):\n for q in serial(8):", "r, xori(q // 4, r % 2) * 4 + q % 4"), "rows of 32 bytes do not lie one after the other"),
        (("16, 32", "8, 32", "x[i * 8 + r, q]", "for r in serial(8):\n for q in serial(32):", "r, xori(q // 4, r % 8) * 4 + q % 4"), ""),
        (("16, 64", "8, 64", "x[i * 8 + r, q]", "for r in serial(8):\n for q in serial(64):", "r, xori(q // 4, r % 16) * 4 + q % 4"), "swizzled by pieces of 16 bytes, in rows of 128 bytes at most"),
        (("12, 8", "8, 8", "guard(i * 8 + r < 12, x[i * 8 + r, q], f32(0.0))"), ""),
        (("12, 8", "8, 8", "guard(i * 8 + r < 11, x[i * 8 + r, q], f32(0.0))"), "a guard leaves out elements of x that there are"),
        (("12, 8", "8, 8", "guard(i * 8 + r < 12, x[i * 8 + r, q], f32(1.0))"), "it computes guard"),
        (("16, 8", "8, 8", "x[i * 8 + r, q]", "for r in serial(8):\n for q in lane(8):"), "loop q on lane"),
        (("16, 8", "8, 8", "y[i * 8 + r, q]"), "reads what the nest writes"),
    ],
)  # fmt: skip
def test_what_the_engine_copies(arguments, why):
    said = box(*arguments)
    assert (why in said) if why else not said


def test_where_bulk_copies_stand():
    made = nest("    for i in serial(16):\n        barrier(block)", "    for i in warp(16):")
    assert "bulk_copy(full) is begun in loop i on warp: that is done for all threads at once" in reason(made)
    made = nest(
        "        wait(full, pending=2)\n        for l in lane(32):\n",
        "        for l in lane(32):\n            wait(full, pending=2)\n",
    )
    assert "bulk_copy(full) is waited for in loop l on lane" in reason(made)
    assert "the machine has no engine for bulk copies" in reason(nest(), Plain())
    with pytest.raises(NestError, match="has no engine for bulk copies"):
        interpret_nest(nest(), {"x": X}, Plain())
    made = parse_nest(RING.strip().replace("bulk_copy", "async_copy", 1), GPU)
    assert "full is the name of bulk copies and of other ones" in reason(made)


# ---- primitives ------------------------------------------------------------------------------------------------------

ROWS = """
def k(x: f32[16, 32], y: out(f32[32])):
    for i in serial(32):
        for k in serial(16):
            s0: y[i] = reduce(addf(y[i], x[k, i]), init=f32(0.0), over=(k,))
"""


def ring(machine: Machine = GPU) -> Schedule:
    s = Schedule(te.from_nest(ROWS), machine)
    last = s.cache_write("s0", scope="register")
    s.reorder("k", "i")
    copy = s.cache_read("s0", "x", "k", scope="shared", asynchronous=True)
    s.bulk(copy)
    s.barrier(copy, "block")
    s.pipeline("k", copy, stages=3)
    s.bind(s.loops(last)[-1], "lane")
    s.bind("i", "lane")
    return s


def test_a_loop_with_a_producer_means_the_same():
    s = ring()
    s.specialize("k")
    made = s.nest()
    assert "notes={'producer': True}" in str(made) and parse_nest(str(made), GPU) == made
    assert np.allclose(interpret_nest(made, {"x": X}, GPU)["y"], X.sum(axis=0), atol=1e-5)
    assert Schedule.replay(te.from_nest(ROWS), str(s.trace), GPU).nest() == made


def test_loops_that_have_no_producer():
    s = Schedule(te.from_nest(ROWS), GPU)
    for loop in ("i", "k"):
        with pytest.raises(ScheduleError, match="it begins no bulk copies"):
            s.specialize(loop)
    text = str(ring().nest()).replace("for k in serial(16):", "for k in serial(16, notes={'producer': True}):")
    assert not reason(parse_nest(text, GPU))
    waits = "            wait(x_c_t, pending=2)"
    if waits not in text:
        waits = next(line for line in text.splitlines() if "wait(" in line)
    for more, why in (
        ("barrier(block)", "there is another barrier or copy in it"),
        ("y[0] = f32(0.0)", "threads write y, which others see"),
    ):
        changed = text.replace(waits, f"{waits}\n{waits[: len(waits) - len(waits.lstrip())]}{more}")
        assert why in reason(parse_nest(changed, GPU))


#: sums of the rows of x, each of 8 of them; copies run ahead from one sum into the next
TURNS = """
def k(x: f32[16, 32], y: out(f32[2, 32])):
    t = shared(f32[3, 32])
    r = register(f32[32])
    for p in serial(2):
        with bulk_copy(full):
            for q in serial(32):
                s0: t[p, q] = x[p, q]
    for o in serial(2, notes={'producer': True}):
        for l0 in lane(32):
            s1: r[l0] = f32(0.0)
        for i in serial(8):
            barrier(block)
            with bulk_copy(full):
                if o * 8 + i + 2 < 16:
                    for q1 in serial(32):
                        s2: t[(o * 8 + i + 2) % 3, q1] = x[o * 8 + i + 2, q1]
            wait(full, pending=2)
            for l in lane(32):
                s3: r[l] = addf(r[l], t[(o * 8 + i) % 3, l])
        for l1 in lane(32):
            s4: y[o, l1] = r[l1]
"""


def test_a_producer_runs_ahead_into_the_next_turn():
    made = parse_nest(TURNS.strip(), GPU)
    assert not reason(made)
    found = interpret_nest(made, {"x": X}, GPU)["y"]
    assert np.allclose(found, X.reshape(2, 8, 32).sum(axis=1), atol=1e-5)
    once = parse_nest(TURNS.strip().replace("serial(8)", "serial(1)").replace("* 8", "* 1"), GPU)
    assert "for i in serial(1)" in str(finish(once)) and not reason(finish(once))  # the steps stay a loop
    write, steps = "        for l1 in lane(32):\n", "        for i in serial(8):\n"
    for old, new, why in (
        ("= r[l1]", "= t[0, l1]", "t is used outside of the loop that copies to it"),
        ("= r[l1]", "= addf(r[l1], y[0, l1])", "it reads y, which it writes"),
        (write, f"        wait(full)\n{write}", "a wait is outside of the loop that begins the copies"),
        (steps, f"        with bulk_copy(more):\n            for e in serial(32):\n                s5: t[0, e] = x[0, e]\n        wait(more)\n{steps}", "begin with a barrier"),
        ("for o in serial(2,", "for o in unroll(2,", "it is not serial with a constant extent"),
    ):  # fmt: skip
        assert old in TURNS
        assert why in reason(parse_nest(TURNS.strip().replace(old, new), GPU)), why


def test_a_machine_without_an_engine_refuses_the_primitive():
    with pytest.raises(ScheduleError, match="has no engine for bulk copies"):
        ring(Plain())


# ---- rings of barriers -----------------------------------------------------------------------------------------------


def rings(n: Nest) -> Rings:
    return Rings.of(n.body, "k")


def test_groups_have_barriers_in_turns():
    made = nest()
    found = rings(made)
    assert found.size == {"full": 3}
    waits = [s for s in walk_stmts(made.body) if isinstance(s, Wait)]
    copies = [s for s in walk_stmts(made.body) if isinstance(s, AsyncCopy)]
    assert [str(found.number[id(s)]) for s in (*copies, *waits)] == ["p", "(i + 2)", "i"]
    assert found.count == {id(waits[0]): 1}


def test_rings_that_cannot_be():
    with pytest.raises(CompileError, match="no barrier shows that all have waited") as e:
        rings(parse_nest(RING.strip().replace("16", "64").replace("        barrier(block)\n", ""), GPU))
    assert "s.barrier" in (e.value.hint or "")
    with pytest.raises(CompileError, match="ends 0 groups of copies at one time and 1 at another"):
        rings(nest("pending=2", "pending=4"))
    copy = next(s for s in walk_stmts(nest().body) if isinstance(s, AsyncCopy))
    alone = Seq((copy, Wait("full"), Barrier("block"), copy, Wait("full")))
    assert Rings.of(alone, "k").size == {"full": 1}  # a barrier that has been waited for serves again


def test_a_group_that_copies_nothing_is_one_too():
    """With fewer steps than stages the copies of the loop have nothing to do; waits count them."""
    text = str(finish(parse_nest(RING.strip().replace("16", "2"), GPU)))
    assert text.count("bulk_copy(full)") == 2
    assert np.array_equal(interpret_nest(parse_nest(text, GPU), {"x": X[:2]}, GPU)["y"], X[:2, ::-1])
    assert rings(finish(parse_nest(text, GPU))).size == {"full": 3}
