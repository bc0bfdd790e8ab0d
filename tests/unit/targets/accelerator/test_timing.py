"""Cycles counted by hand, and that what instructions wait for suffices whatever the latencies."""

import random
from dataclasses import replace

import numpy as np
import pytest
from support.chip_kernels import arguments, close, compiled, conv, float_matmul, inputs, matmul, reference
from support.small_chip import small

from tilewright.support.errors import UsageError
from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.describe import HOST, Listing
from tilewright.targets.accelerator.functional import Functional
from tilewright.targets.accelerator.match import select
from tilewright.targets.accelerator.plan import plans
from tilewright.targets.accelerator.timing import QUEUE, simulate
from tilewright.targets.chips.outer4 import Outer4
from tilewright.targets.chips.systolic32 import Systolic32

FORMATS = Formats(small())


def timed(*lines):
    return simulate(FORMATS, FORMATS.parse("\n".join([".program hand arguments=4096", *lines])))


def test_copies_overlap_their_latency():
    """1 to set up, a cycle for each of 4 runs of 16 bytes, and 10 until the last byte is there."""
    t = timed("load: copy count=4 run=16 stride=1", "load: copy count=4 run=16 stride=1 at=8")
    assert (t.engines["load"].began, t.engines["load"].left) == ([0, 5], [5, 10])
    assert t.engines["load"].finished == [15, 20] and t.cycles == 20
    assert t.engines["load"].busy == 10 and t.utilization("load") == 0.5
    assert t.moved[HOST] == t.moved["rows"] == 128


def test_a_run_is_whole_pieces():
    assert timed("load: copy count=3 run=20 stride=2").cycles == 1 + 3 * 2 + 10


def test_engines_wait():
    t = timed("load: copy count=4 run=16 stride=1", "alu: add m=4 n=4 wait(load=1)", "store: copy run=16 wait(alu=1)")
    add, store = t.engines["alu"], t.engines["store"]
    assert (add.began, add.left, add.finished) == ([15], [19], [20])
    assert (store.began, store.finished) == ([20], [27]) and t.cycles == 27
    assert add.stalls == {"load": 15} and store.stalls == {"alu": 20}


def test_engines_run_beside_each_other():
    assert timed("load: copy run=16", "alu: add m=16 n=4").cycles == max(2 + 10, 16 + 1)


def test_parts_of_a_pipeline():
    """(4, m) cycles: while rows of the first stream, the second is in the first part, and stays until that is free."""
    t = timed("mul: mma m=10 n=4 k=4", "mul: mma m=2 n=4 k=4").engines["mul"]
    assert t.began == [0, 4]
    assert t.left == [14, 16] and t.finished == [17, 19]
    assert t.busy == 12


def test_the_queue():
    """Two may be under way: the third begins when the first is finished."""
    t = timed(*["mul: mma m=1 n=4 k=4"] * 3).engines["mul"]
    assert t.began == [0, 4, 8] and t.finished == [8, 12, 16]
    t = timed(*["alu: add m=1 n=4"] * 3, *["load: copy run=16"] * 6).engines
    assert t["alu"].began == [0, 1, 2]
    assert t["load"].began == [0, 2, 4, 6, 12, 14]  # four at a time, each 2 and 10 cycles
    assert t["load"].stalls == {QUEUE: 4}


def test_results_come_in_order():
    t = timed("load: copy count=4 run=16 stride=1", "load: copy run=16").engines["load"]
    assert t.finished == [15, 17]


@pytest.mark.parametrize(
    "lines",
    [
        ["alu: add m=1 n=4 wait(mul=1)", "mul: mma m=1 n=4 k=4 wait(alu=1)"],
        ["alu: add m=1 n=4 wait(load=2)", "load: copy run=16"],
    ],
)
def test_deadlock(lines):
    program = FORMATS.parse("\n".join([".program hand arguments=4096", *lines]))
    with pytest.raises(UsageError, match="the engines of hand wait for each other: alu: add"):
        simulate(FORMATS, program)
    with pytest.raises(UsageError, match="the engines of hand wait for each other: alu: add"):
        Functional(FORMATS).run(program, [np.zeros(4096, np.uint8)])


def test_outside_of_a_memory():
    program = FORMATS.parse(".program hand arguments=16\nload: copy count=2 run=16 stride=1 host_stride=16")
    with pytest.raises(UsageError, match="outside of a memory") as raised:
        Functional(FORMATS).run(program, [np.zeros(16, np.uint8)])
    assert raised.value.hint == "bytes 0 to 32 of 16"


# ---- waits suffice ----


def run_in_any_order(formats, program, given, seed):
    """Engines run at random speeds: what an instruction reads is read when it begins, what it writes is there when it
    is finished, and others come in between wherever no wait forbids it. An engine itself does one after the other."""
    rng, real = random.Random(seed), Functional(formats)
    real.arguments = [a.reshape(-1).view(np.uint8) for a in given]
    done, busy = dict.fromkeys(formats.engines, 0), {}
    while True:
        ready = [*busy]
        for e in formats.engines:
            left = program.streams[e][done[e] :]
            if e not in busy and left and all(done[o] >= n for o, n in left[0].waits.items()):
                ready.append(e)
        if not ready:
            break
        e = rng.choice(ready)
        if e not in busy:
            issue = program.streams[e][done[e]]
            apart = Functional(formats)
            apart.memory = {n: a.copy() for n, a in real.memory.items()}
            apart.arguments = [a.copy() for a in real.arguments]
            apart.step(issue)
            busy[e] = (issue, apart)
            continue
        issue, apart = busy.pop(e)
        for there, here in zip(written(apart, issue), written(real, issue), strict=True):
            here[...] = there
        done[e] += 1
    assert all(done[e] == len(program.streams[e]) for e in formats.engines)


def written(f, issue):
    if issue.form.meaning is not None:
        return [f.operand(issue, o) for o in issue.form.meaning.outputs]
    _, target = f.formats.routes(issue.form.engine)[issue["route"]]
    return [f.box(issue, target, reads=False)]


SMALL = {"weight_kb": 2, "activation_kb": 2, "accumulator_kb": 4}


@pytest.mark.parametrize(
    ("kernel", "chip"),
    [
        (conv(8, 7, 5, 9, pad=1), Systolic32(array=4, **SMALL)),
        (matmul(30, 21, 17), Systolic32(array=8, **SMALL)),
        (float_matmul(9, 8, 9, relu=True), Outer4(scratch_kb=1)),
    ],
    ids=["conv", "matmul", "floats"],
)
def test_waits_suffice(kernel, chip):
    arrays = inputs(kernel)
    want, listing = reference(kernel, arrays), Listing.of(chip)
    found = plans(select(kernel, listing), listing)
    for n, (plan, _) in enumerate([found[0], found[len(found) // 2], found[-1]]):
        nest, formats, program = compiled(kernel, listing, plan)
        for seed in range(3):
            given, result = arguments(nest, arrays)
            run_in_any_order(formats, program, given, 10 * n + seed)
            assert close(result, want), str(plan)


def test_without_waits_it_would_be_seen():
    """The test above finds a missing wait."""
    kernel, chip = matmul(30, 21, 17), Systolic32(array=8, **SMALL)
    arrays = inputs(kernel)
    nest, formats, program = compiled(kernel, Listing.of(chip))
    broken = replace(program, streams={e: tuple(replace(i, waits={}) for i in s) for e, s in program.streams.items()})
    given, result = arguments(nest, arrays)
    run_in_any_order(formats, broken, given, 0)
    assert not close(result, reference(kernel, arrays))
