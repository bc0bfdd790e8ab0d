"""Mixed-radix indices: regions of quotients and remainders, readers that are reindexed to what they read, and kernels
around window partitions, whose executed work is counted."""

from __future__ import annotations

import random
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tilewright.lang import te
from tilewright.schedule.region import span, unknown
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.tensor.analysis import reindex
from tilewright.tensor.expr import Buffer, Const, Load, Op, Target, Var, minimum, simplify
from tilewright.tensor.kernel import Stage
from tilewright.tensor.reshape import reshape_index

sys.path.insert(0, str(Path(__file__).parents[2] / "fuzz"))
import random_chains as chains
from random_chains import Chain, kernels_of, pinned

OPERATIONS = {
    "addi": lambda a, b: a + b,
    "muli": lambda a, b: a * b,
    "floordivsi": lambda a, b: a // b,
    "remsi": lambda a, b: a % b,
    "minsi": min,
    "maxsi": max,
}


def value(e, of):
    if isinstance(e, Const):
        return e.value
    return of[e.name] if isinstance(e, Var) else OPERATIONS[e.op](*[value(x, of) for x in e.args])


def random_index(rng: random.Random, names: list[str], depth: int):
    if depth == 0 or rng.random() < 0.3:
        e = Const(rng.choice([0, 0, 1, 5]), "index")
        for v in rng.sample(names, rng.randint(1, len(names))):
            e = e + Var(v) * rng.choice([1, 2, 3, 4, 6, 7, 8, 12, 16, 56])
        return e
    e = random_index(rng, names, depth - 1)
    n = rng.choice([2, 3, 4, 6, 7, 8, 12])
    return rng.choice(
        [lambda: e // n, lambda: e % n, lambda: minimum(e, n), lambda: e * 3 + Var(names[0]), lambda: e]
    )()


def test_spans_hold_every_value_and_few_others():
    rng = random.Random(7)
    excess = []
    for _ in range(1500):
        extents = {v: rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 16]) for v in "opij"}
        ranges = {v: (0, n - 1) for v, n in extents.items()}
        e = random_index(rng, list("opij"), 2)
        found = span(simplify(e, ranges), {v: Const(extents[v], "index") for v in "ij"}, ranges)
        assert found is not None, e
        widest = 1
        for o, p in product(range(extents["o"]), range(extents["p"])):
            pairs = product(range(extents["i"]), range(extents["j"]))
            seen = [value(e, {"o": o, "p": p, "i": i, "j": j}) for i, j in pairs]
            base = value(found[0], {"o": o, "p": p})
            assert base <= min(seen) and max(seen) < base + found[1], (str(e), str(found[0]), found[1])
            widest = max(widest, max(seen) - min(seen) + 1)
        excess.append(found[1] / widest)
    assert np.mean(excess) < 1.1


def test_an_index_that_data_decide_is_unknown():
    i = Var("i")
    data = Op("index_cast", (Load("p", (i,), "i32"),), "index")
    inner, ranges = {"i": Const(4, "index")}, {"i": (0, 3)}
    assert unknown([(i // 2, i % 2)], inner, ranges) is None
    assert unknown([(i, data)], inner, ranges) is data


def views(rng: random.Random, size: int):
    """A random chain of reshapes and transposes: its last shape, and the index of an element in the first."""
    shapes = [factors(rng, size)]
    steps = []
    for _ in range(rng.randint(1, 3)):
        order = list(range(len(shapes[-1])))
        rng.shuffle(order)
        steps.append((order, factors(rng, size)))
        shapes.append(steps[-1][1])
    return shapes, steps


def factors(rng: random.Random, size: int) -> tuple[int, ...]:
    found = []
    while size > 1:
        n = rng.choice([d for d in range(2, size + 1) if size % d == 0])
        found.append(n)
        size //= n
    return tuple(found) or (1,)


def test_readers_behind_reshapes_and_transposes_are_reindexed():
    rng, joined = random.Random(3), 0
    for _ in range(150):
        size = rng.choice([12, 24, 36, 48, 60, 64, 84])
        shapes, steps = views(rng, size)
        dims = tuple((f"v{d}", n) for d, n in enumerate(shapes[-1]) if n != 1)
        index = tuple(Var(f"v{d}") if n != 1 else Const(0, "index") for d, n in enumerate(shapes[-1]))
        place = index
        for (order, new), old in zip(reversed(steps), reversed(shapes[:-1]), strict=True):
            turned = tuple(old[d] for d in order)
            inner = reshape_index(place, new, turned)
            place = tuple(inner[order.index(d)] for d in range(len(old)))
        stage = Stage("s", dims, (Target("y", index, Load("x", place, "f32")),))
        new = reindex(stage, Buffer("x", shapes[0], "f32"))
        if new is None:
            continue
        joined += 1
        data = np.arange(size).reshape(shapes[0])
        want, got = data, np.full(shapes[-1], -1)
        for order, shape in steps:
            want = want.transpose(order).reshape(shape)
        for at in product(*[range(n) for _, n in new.dims]):
            of = {v: x for (v, _), x in zip(new.dims, at, strict=True)}
            read = new.targets[0].value
            got[tuple(value(e, of) for e in new.targets[0].indices)] = data[tuple(value(e, of) for e in read.indices)]
        np.testing.assert_array_equal(got, want)
    assert joined > 100


def chain(*shape: int) -> Chain:
    return Chain(random.Random(0), shape, inputs={"x": shape})


def view(c: Chain, *shape: int) -> None:
    c.op("Reshape", shape, c.numbers(shape))


def turn(c: Chain, *order: int) -> None:
    c.op("Transpose", [c.shape[d] for d in order], perm=list(order))


def window_reverse(rng: random.Random) -> Chain:
    """A product of windows, put back into the image, with what was there before."""
    rank = rng.choice([1, 2, 2, 3])
    counts = [rng.choice([1, 2, 3, 4, 8]) for _ in range(rank)]
    sides = [rng.choice([2, 4, 7, 8, 12]) if rank < 3 else rng.choice([2, 3, 4]) for _ in range(rank)]
    n, k = rng.choice([24, 32, 48, 64, 96, 100]), rng.choice([16, 64, 96])
    batch, pixels, windows = rng.choice([1, 2]), int(np.prod(sides)), int(np.prod(counts))
    c = chain(*rng.choice([(batch * windows, pixels, k), (batch, *counts, *sides, k)]))
    c.op("MatMul", (*c.shape[:-1], n), c.weight(k, n))
    c.op("Add", c.shape, c.weight(n))
    view(c, batch, *counts, *sides, n)
    turn(c, 0, *[d for i in range(rank) for d in (1 + i, 1 + rank + i)], 1 + 2 * rank)
    image = [a * b for a, b in zip(counts, sides, strict=True)]
    view(c, *rng.choice([(batch, windows * pixels, n), (batch, *image, n), (batch * windows * pixels, n)]))
    c.inputs["r"] = c.shape
    c.op("Add", c.shape, "r")
    return c


def window_partition(rng: random.Random) -> Chain:
    """Normalized pixels, cut into windows."""
    rank = rng.choice([1, 2, 2, 3])
    counts = [rng.choice([1, 2, 3, 4, 8]) for _ in range(rank)]
    sides = [rng.choice([2, 4, 7, 8, 12]) if rank < 3 else rng.choice([2, 3, 4]) for _ in range(rank)]
    n, batch = rng.choice([24, 32, 48, 64, 96, 100]), rng.choice([1, 2])
    image = [a * b for a, b in zip(counts, sides, strict=True)]
    c = chain(*rng.choice([(batch, int(np.prod(image)), n), (batch, *image, n)]))
    rng.choice([chains.layer_norm, chains.rms_norm])(c)
    view(c, batch, *[m for pair in zip(counts, sides, strict=True) for m in pair], n)
    turn(c, 0, *[1 + 2 * i for i in range(rank)], *[2 + 2 * i for i in range(rank)], 1 + 2 * rank)
    view(c, batch * int(np.prod(counts)), int(np.prod(sides)), n)
    return c


@pytest.mark.parametrize(("make", "rule"), [(window_reverse, "contraction"), (window_partition, "rows")])
def test_windows_cost_no_work_at_any_size(make, rule):
    """Swin, DaViT, Hiera, NesT; several sizes of windows, images and volumes."""
    rng = random.Random(15)
    for i in range(24):
        (found,) = kernels_of(make(rng).model(), pinned(("avx2", "avx512")[i % 2]))
        assert found.rule == rule and found.ratio < 1.3, found.text


@pytest.mark.parametrize("make", [window_reverse, window_partition])
def test_windows_are_right(make):
    rng = random.Random(16)
    for _ in range(2):
        c = make(rng)
        assert not chains.wrong(c, c.model())


GATHER = """
def k(x: f32[8, 64], p: i32[8, 64], y: out(f32[8, 64])):
    t = local(f32[8, 64])
    for i in serial(8):
        for j in serial(64):
            s0: t[i, j] = exp(x[i, j])
    for m in serial(8):
        for n in serial(64):
            s1: y[m, n] = t[min(max(index_cast[index](p[m, n]), 0), 7), n]
"""


def test_what_data_decide_is_not_computed_again_in_each_iteration():
    s = Schedule(te.from_nest(GATHER))
    before = str(s)
    with pytest.raises(ScheduleError, match="which part of t one iteration of m reads is not known"):
        s.compute_at("s0", "m")
    assert str(s) == before
