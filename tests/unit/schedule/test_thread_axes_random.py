"""Random primitives for machines with threads: what is accepted keeps the result and has no race, or it is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
from support.machines import ACCELERATOR, GPU
from support.primitive_cases import CHAIN, DENSE, MATRIX, SUM, kernel

from tilewright.schedule.finish import finish
from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.machine import Machine, axis_names, barriers
from tilewright.schedule.nest import reads, stores
from tilewright.schedule.schedule import Schedule, ScheduleError
from tilewright.schedule.text import format_nest, parse_nest

KERNELS = {"chain": CHAIN, "dense": DENSE, "matrix": MATRIX, "sum": SUM}
MACHINES = {"gpu": GPU, "accelerator": ACCELERATOR}
STEPS = ("bind", "bind", "bind", "barrier", "barrier", "cache_read", "set_scope", "split", "pipeline", "compute_at")


def step(s: Schedule, machine: Machine, rng: random.Random) -> None:
    """One primitive with arguments that exist."""
    name, loop, block = rng.choice(STEPS), rng.choice(s.loops()), rng.choice([x.block for x in stores(s.body)])
    scope = rng.choice([m.name for m in machine.memories])
    if name == "bind":
        s.bind(loop, rng.choice([n for n in axis_names(machine) if n != "thread"]))
    elif name == "barrier":
        s.barrier(block, rng.choice(barriers(machine)))
    elif name == "cache_read":
        buffer = rng.choice(sorted(reads(s.store(block))) or ["y"])
        s.cache_read(block, buffer, rng.choice([None, loop]), scope=scope, asynchronous=rng.random() < 0.5)
    elif name == "set_scope":
        s.set_scope(rng.choice([*s.temporaries, "y"]), scope)
    elif name == "split":
        s.split(loop, rng.choice([2, 3, 4]))
    else:
        s.pipeline(loop, block) if name == "pipeline" else s.compute_at(block, loop)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("text", KERNELS)
@pytest.mark.parametrize("seed", range(4))
def test_accepted_schedules_have_no_races(text, machine, seed):
    rng, numbers = random.Random(f"{text} {machine} {seed}"), np.random.default_rng(seed)
    k, m = kernel(KERNELS[text]), MACHINES[machine]
    arrays = {b.name: numbers.standard_normal(b.shape).astype(np.float32) for b in k.inputs}
    want = interpret_nest(Schedule(k).nest(), arrays)
    s = Schedule(k, m)
    for t in s.temporaries:
        s.set_scope(t, m.memories[0].name if machine == "accelerator" else rng.choice(["local", "shared"]))
    for _ in range(24):
        try:
            step(s, m, rng)
        except ScheduleError as e:
            assert len(e.message) > 10
    for nest in (s.nest(), finish(s.nest())):
        assert parse_nest(format_nest(nest), m) == nest
        got = interpret_nest(nest, arrays, m)
        for name in want:
            np.testing.assert_allclose(got[name], want[name], rtol=2e-5, atol=2e-5, err_msg=str(nest))
    assert Schedule.replay(k, str(s.trace), m).nest() == s.nest()
