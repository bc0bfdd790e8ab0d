"""The memory plan of programs with open dimensions, and what such a program says of its sizes."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from tilewright.driver.open_program import open_plan
from tilewright.ir.types import Type
from tilewright.program.barriers import barriers
from tilewright.program.open_plan import plan_open
from tilewright.program.open_sizes import SizeTable
from tilewright.program.plan import CallEffects, StorageValue
from tilewright.program.program import BufferRef, Call, Program, TensorInfo
from tilewright.support import sizes
from tilewright.support.errors import InputError
from tilewright.support.sizes import Dim

BATCH, SEQ = Dim("batch", 1, 64), Dim("seq", 8, 512, 8)


def test_values_of_one_expression_are_planned_in_units_of_it():
    with sizes.open_sizes([BATCH, SEQ]) as known:
        batch, seq = known.symbols
        values = [
            StorageValue(4 * batch, home=("input", 0)),
            *[StorageValue(256 * batch * (i + 1)) for i in range(4)],
            StorageValue(4 * seq),
        ]
        plan, places = plan_open(values, [CallEffects((i,), (i + 1,)) for i in range(5)], [5])
        assert places.arena == 1792 * batch  # the third and the fourth live at one time
        assert plan.refs[0].space == "input" and plan.refs[5].space == "output"


def test_other_expressions_lie_behind_each_other():
    with sizes.open_sizes([BATCH, SEQ]) as known:
        batch, seq = known.symbols
        values = [
            StorageValue(4, home=("input", 0)),
            StorageValue(64 * batch),
            StorageValue(64 * seq),
            StorageValue(128),
            StorageValue(4),
        ]
        steps = [CallEffects((0,), (1, 2, 3)), CallEffects((1, 2, 3), (4,))]
        plan, places = plan_open(values, steps, [4])
        assert {places.starts[plan.refs[i].slot] for i in (1, 2, 3)} == {0, 64 * batch, 64 * batch + 64 * seq}
        assert places.arena == 64 * batch + 64 * seq + 128


def test_values_without_bytes_at_typical_sizes_have_places_of_their_own():
    """Rows behind the 100th: typically there are none, but where they begin and who waits for them is for all sizes."""
    n = Dim("n", 1, 300)
    with sizes.open_sizes([n]) as known:
        rest = sizes.larger(known.symbols[0] - 100, 0)
        values = [
            StorageValue(4, home=("input", 0)),
            *[StorageValue(64 * rest) for _ in range(2)],
            StorageValue(8 * known.symbols[0]),
        ]
        values += [StorageValue(4)]
        steps = [
            CallEffects((0,), (1,)),
            CallEffects((0,), (2,)),
            CallEffects((1, 2), (3,)),
            CallEffects((1, 2, 3), (4,)),
        ]
        plan, made = open_plan(*plan_open(values, steps, [4]), [Type((1,), "f32")], [Type((1,), "f32")])
    assert n.typical < 100 and [r.nbytes for r in plan.refs[1:3]] == [0, 0]
    table, arena = made.table({"n": 200})
    begins = [table[made.start(plan.refs[v].slot)] for v in (1, 2, 3)]
    ends = [b + size for b, size in zip(begins, (6400, 6400, 1600), strict=True)]
    assert max(ends) <= arena
    assert all(ends[a] <= begins[b] or ends[b] <= begins[a] for a, b in ((0, 1), (0, 2), (1, 2)))
    calls = [Call("k", tuple(plan.refs[v] for v in (*s.reads, *s.writes)), (len(s.reads),)) for s in steps]
    assert barriers(calls)[2:] == [True, True]
    x, y = (TensorInfo(name, (1,), "f32") for name in "xy")
    program = Program((x,), (y,), (), tuple(calls), arena, open=made)
    assert Program.from_json(json.loads(json.dumps(program.to_json()))) == program
    lost = replace(program, calls=(replace(calls[3], args=(BufferRef("arena", 0, 0, 4), *calls[3].args[1:])),))
    with pytest.raises(ValueError, match="has no place"):
        lost.check()


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed):
    """Values that live at the same time share no bytes, at any sizes."""
    rng = random.Random(seed)
    with sizes.open_sizes([BATCH, SEQ]) as known:
        batch, seq = known.symbols
        choices = [4 * batch, 256 * batch, 4 * seq, 4 * batch * seq, 64, 1024, 4 * (batch + seq)]
        values = [StorageValue(4 * batch, home=("input", 0))]
        steps: list[CallEffects] = []
        owner = {0: 0}
        for _ in range(rng.randint(3, 14)):
            reads = tuple(rng.sample(range(len(values)), min(len(values), rng.randint(1, 3))))
            new = len(values)
            operand = values[reads[0]]
            inplace = ((0, 0),) if rng.random() < 0.4 else ()
            values.append(StorageValue(operand.nbytes if inplace else rng.choice(choices)))
            owner[new] = new
            steps.append(CallEffects(reads, (new,), inplace))
            if rng.random() < 0.2:
                values.append(StorageValue(values[new].nbytes, view_of=new))
                owner[new + 1] = new
        returned = [len(values) - 1]
        plan, places = plan_open(values, steps, returned)
        for at in ({"batch": 1, "seq": 8}, {"batch": 7, "seq": 24}, {"batch": 64, "seq": 512}):
            _check(values, steps, owner, plan, places, at)


def _check(values, steps, owner, plan, places, at):
    first, last, shares = {}, {}, set()
    for n, s in enumerate(steps):
        for v in (*s.reads, *s.writes):
            first.setdefault(owner[v], n)
            last[owner[v]] = n
        shares |= {frozenset((owner[s.writes[w]], owner[s.reads[r]])) for w, r in s.inplace}
    own = sorted({owner[v] for v in range(len(values))})
    spans = {}
    for v in own:
        ref = plan.refs[v]
        if ref.space == "arena" and v in first:
            begin = sizes.value_at(places.starts[ref.slot], at)
            spans[v] = begin, begin + sizes.value_at(values[v].nbytes, at)
            assert begin % 64 == 0 and spans[v][1] <= sizes.value_at(places.arena, at)
    for i, a in enumerate(own):
        for b in own[i + 1 :]:
            if a in spans and b in spans and spans[a][0] < spans[b][1] and spans[b][0] < spans[a][1]:
                apart = last[a] < first[b] or last[b] < first[a]
                in_place = any(frozenset((a, b)) == s for s in shares) and last[a] == first[b]
                assert apart or in_place or _one_storage(plan, a, b), (a, b, plan.refs[a])


def _one_storage(plan, a, b):
    """Whether two values were merged, one in the other's place."""
    return plan.refs[a].slot == plan.refs[b].slot


OPEN = SizeTable(
    (BATCH, SEQ),
    (("d0", "d1", 4), ("d0",)),
    (("(d0*8*(d1//8))", 2), ()),
    (0, "64*d0"),
    "64*d0 + 4*d0*d1",
    ("4*d0",),
)


def test_the_table_of_a_call():
    table, arena = OPEN.table({"batch": 20, "seq": 16})
    assert table == [20, 16, 0, 1280, 80, 1]
    assert arena == 1280 + 1280
    assert OPEN.shapes({"batch": 20, "seq": 16}) == [(320, 2), ()]
    assert OPEN.start(1) == 3 and OPEN.copy(0) == 4 and OPEN.is_large == 5


def test_what_a_package_holds_comes_back():
    assert SizeTable.from_json(json.loads(json.dumps(OPEN.to_json()))) == OPEN


@pytest.mark.parametrize("part", ["inputs", "outputs", "starts", "copies"])
def test_a_damaged_package_is_found_out_when_it_is_read(part):
    data = json.loads(json.dumps(OPEN.to_json()))
    hostile = "__import__('os').getcwd()"
    data[part] = [[hostile]] if part in ("inputs", "outputs") else [hostile] * len(data[part])
    with pytest.raises(ValueError, match="no formula"):
        SizeTable.from_json(data)


@pytest.mark.parametrize(
    "shapes, message",
    [
        ([(2, 8), (2,)], r"input 'a' has shape \(2, 8\), the model takes \[batch, "),
        ([(2, 8, 5), (2,)], r"input 'a' has shape \(2, 8, 5\)"),
        ([(2, 8, 4), (3,)], "dimension 0 of input 'b' .* is 3, but batch is 2 in 'a'"),
        ([(65, 8, 4), (65,)], "batch is 65 in input 'a', it has to be 1 to 64"),
        ([(0, 8, 4), (0,)], "batch is 0 in input 'a', it has to be 1 to 64"),
        ([(2, 12, 4), (2,)], "seq is 12 in input 'a', it has to be 8 to 512 and a multiple of 8"),
        ([(2, 520, 4), (2,)], "seq is 520 in input 'a', it has to be 8 to 512 and a multiple of 8"),
    ],
)
def test_shapes_that_do_not_fit(shapes, message):
    with pytest.raises(InputError, match=message):
        OPEN.sizes(shapes, ["a", "b"])


def test_shapes_that_fit():
    assert OPEN.sizes([(2, 16, 4), (2,)], ["a", "b"]) == {"batch": 2, "seq": 16}
