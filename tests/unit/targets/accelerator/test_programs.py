"""Random kernels with random plans: nest, program, binary and text say the same, and what is computed is right.

A longer run: ``PYTHONPATH=.:tests python tests/unit/targets/accelerator/test_programs.py FIRST LAST``.
"""

import random
import sys
from math import prod

import numpy as np
import pytest
from support import chip_kernels
from support.chip_kernels import close, computed, inputs, packed, reference

from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.text import parse_nest
from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.describe import Listing
from tilewright.targets.accelerator.emit import emit
from tilewright.targets.accelerator.layouts import TilePlan
from tilewright.targets.accelerator.match import select
from tilewright.targets.accelerator.plan import plans
from tilewright.targets.accelerator.tiles import TiledNest
from tilewright.targets.accelerator.timing import simulate
from tilewright.targets.chips.outer4 import Outer4
from tilewright.targets.chips.systolic32 import Systolic32

#: iterations of a kernel up to which its nest is interpreted too
INTERPRETED = 30_000


def drawn(seed):
    """(kernel, sizes, chip) of a case."""
    rng = random.Random(seed)
    kind = rng.choice(
        ["conv", "conv", "depthwise", "matmul", "matmul", "softmax", "add_relu", "float_matmul", "float_matmul"]
    )
    if kind in ("conv", "depthwise", "matmul"):
        chip = Systolic32(array=rng.choice([4, 8, 32]))
        n, scalar, even = chip.array, rng.random() < 0.2, rng.random() < 0.5
        if kind == "matmul":
            rows, depth = rng.choice([1, rng.randint(1, 60)]), rng.choice([1, n, 3 * n, rng.randint(1, 100)])
            return kind, (rows, depth, rng.choice([1, n, 2 * n, rng.randint(1, 80)]), scalar, even), chip
        kh, kw = rng.choice([1, 2, 3, 5]), rng.choice([1, 2, 3, 5])
        h, w = rng.randint(kh, 9), rng.randint(kw, 9)
        if kind == "depthwise":
            return kind, (h, w, rng.choice([1, n, n + 3, rng.randint(1, 70)]), kh, kw, rng.choice([1, 2]), even), chip
        c, o = rng.choice([1, 3, 4, n, n + 3, rng.randint(1, 40)]), rng.choice([1, 3, n, n + 5, rng.randint(1, 50)])
        return kind, (h, w, c, o, kh, kw, rng.choice([1, 1, 2, 3]), rng.choice([0, 0, 1, 2]), scalar, even), chip
    m, n = rng.randint(1, 30), rng.randint(1, 50)
    if kind == "float_matmul":
        return (
            kind,
            (m, n, rng.randint(1, 25), *rng.choices([True, False]), rng.choice(["f32", "bf16"]), rng.random() < 0.4),
            Outer4(),
        )
    return kind, (m, n, *([rng.random() < 0.5] if kind == "add_relu" else [])), Outer4()


def chosen(found, seed):
    """A plan: the first, the last, or another."""
    rng = random.Random(seed)
    return found[rng.choice([0, len(found) - 1, rng.randrange(len(found)), rng.randrange(len(found))])][0]


def tried(seed):
    """Nothing if all is right."""
    kind, sizes, chip = drawn(seed)
    kernel, listing = getattr(chip_kernels, kind)(*sizes), Listing.of(chip)
    selection = select(kernel, listing)
    plan = chosen(plans(selection, listing), seed)
    said = f"{seed}: {kind}{sizes} on {chip}, {plan}"
    nest = TiledNest(selection, listing, plan).build()
    assert parse_nest(str(nest), chip) == nest, said
    arrays = inputs(kernel, seed)
    want = reference(kernel, arrays)
    if prod(selection.extents[v] for v in {*selection.loops, *selection.steps[0].sums}) <= INTERPRETED:
        got = interpret_nest(nest, packed(nest, arrays), chip)[kernel.outputs[0]]
        assert close(got, want), f"nest of {said}"
    formats = Formats(chip)
    program = emit(nest, formats)
    assert formats.disassemble(formats.assemble(program)) == program, said
    assert formats.parse(formats.text(program)) == program, said
    assert close(computed(nest, formats, program, arrays), want), f"program of {said}"
    timing = simulate(formats, program)
    assert timing.cycles >= max(e.busy for e in timing.engines.values()), said


@pytest.mark.parametrize("first", range(0, 40, 8))
def test_random(first):
    for seed in range(first, first + 8):
        tried(seed)


@pytest.mark.parametrize(
    ("depth", "runs"), [(2051, [(7, 9376)]), (2053, [(1, 65504), (1, 192)])], ids=["equal parts", "a rest"]
)
def test_runs_longer_than_an_instruction_can_say(depth, runs):
    """More than 65535 bytes of weights lie one after the other: copies of whole words."""
    chip = Systolic32(weight_kb=256, activation_kb=256)
    kernel, listing = chip_kernels.matmul(3, depth, 32), Listing.of(chip)
    nest = TiledNest(select(kernel, listing), listing, TilePlan(slots=1)).build()
    formats, arrays = Formats(chip), inputs(kernel)
    program = emit(nest, formats)
    weights = [(i.values["count"][-1], i["run"]) for i in program.streams["load"] if i["route"] == 0]
    assert weights == runs
    assert close(computed(nest, formats, program, arrays), reference(kernel, arrays))


def test_plans_of_all_kinds():
    """Many plans of two small kernels, from the best to the worst."""
    for kernel, chip in (
        (chip_kernels.conv(5, 6, 3, 5, pad=1), Systolic32(array=4)),
        (chip_kernels.softmax(5, 7), Outer4()),
    ):
        listing, formats, arrays = Listing.of(chip), Formats(chip), inputs(kernel)
        selection, want = select(kernel, listing), reference(kernel, arrays)
        found = plans(selection, listing)
        for plan, estimate in [*found[:: len(found) // 20 + 1], found[-1]]:
            nest = TiledNest(selection, listing, plan).build()
            assert close(computed(nest, formats, emit(nest, formats), arrays), want), str(plan)
            assert np.isfinite(estimate.cycles) and estimate.cycles > 0


if __name__ == "__main__":
    for case in range(*map(int, sys.argv[1:3])):
        tried(case)
    print("all right")
