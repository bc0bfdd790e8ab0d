"""What plans leave open: whatever is decided, the program computes the kernel."""

import random

import pytest
from support import chip_kernels
from support.chip_kernels import close, computed, inputs, packed, reference

from tilewright.schedule.interpret import interpret_nest
from tilewright.schedule.text import parse_nest
from tilewright.support.errors import CompileError
from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.choices import Choices
from tilewright.targets.accelerator.costs import Costs
from tilewright.targets.accelerator.describe import Listing
from tilewright.targets.accelerator.emit import emit
from tilewright.targets.accelerator.layouts import TilePlan
from tilewright.targets.accelerator.match import select
from tilewright.targets.accelerator.plan import best, planned, plans
from tilewright.targets.accelerator.race_check import check_order
from tilewright.targets.accelerator.tiles import TiledNest
from tilewright.targets.chips.outer4 import Outer4
from tilewright.targets.chips.systolic32 import Systolic32

KERNELS = {
    "few channels": (chip_kernels.conv(7, 6, 3, 5, pad=1), Systolic32(array=8)),
    "stride": (chip_kernels.conv(12, 9, 3, 11, 7, 3, 2), Systolic32(array=8)),
    "one channel": (chip_kernels.conv(9, 9, 1, 9, 5, 5, 2), Systolic32(array=8)),
    "product": (chip_kernels.matmul(7, 9, 10), Systolic32(array=4)),
    "floats": (chip_kernels.float_matmul(6, 10, 9, relu=True), Outer4()),
    "elements": (chip_kernels.add_relu(5, 9, True), Outer4()),
}


def right(selection, formats, plan, arrays, want):
    """Whether nest and program of a plan compute the kernel; None if there is no program."""
    nest = TiledNest(selection, formats.listing, plan).build()
    assert parse_nest(str(nest), formats.chip) == nest, plan
    try:
        program = emit(nest, formats)
    except CompileError as e:
        assert "do not" in e.message or "nothing before" in e.message, plan
        return None
    check_order(formats, program)
    got = interpret_nest(nest, packed(nest, arrays), formats.chip)[selection.kernel.outputs[0]]
    return close(got, want) and close(computed(nest, formats, program, arrays), want)


@pytest.mark.parametrize("name", KERNELS)
def test_whatever_is_decided(name):
    kernel, chip = KERNELS[name]
    formats, arrays = Formats(chip), inputs(kernel)
    selection, want = select(kernel, formats.listing), reference(kernel, arrays)
    choices = Choices(selection, formats.listing, plans(selection, formats.listing)[0][0])
    rng, seen = random.Random(1), []
    for _ in range(60):
        chosen = choices.chosen({n: rng.choice(c) for n, c in choices.candidates.items()})
        if chosen is None or str(chosen.plan) in seen or len(seen) == 8:
            continue
        again = choices.chosen(chosen.decisions)
        assert again is not None and again.plan == chosen.plan and chosen.estimate.cycles > 0
        assert right(selection, formats, chosen.plan, arrays, want) is not False, str(chosen.plan)
        seen.append(str(chosen.plan))
    assert len(seen) > 3


def test_the_default_leads_to_itself():
    for kernel, chip in KERNELS.values():
        listing = Listing.of(chip)
        selection = select(kernel, listing)
        for plan, estimate in plans(selection, listing)[:40]:
            chosen = Choices(selection, listing, plan).chosen({})
            assert chosen is not None and str(chosen.plan) == str(plan) and chosen.estimate == estimate


def test_decisions_that_are_none():
    kernel, chip = KERNELS["product"]
    listing = Listing.of(chip)
    selection = select(kernel, listing)
    choices = Choices(selection, listing, plans(selection, listing)[0][0])
    odd = {"tile0": 12345, "order": [0, 0, 1], "slots_weights": 9, "first": "x", "nothing": 1}
    chosen, plain = choices.chosen(odd), choices.chosen({})
    assert chosen is not None and plain is not None and chosen.plan == plain.plan
    assert choices.chosen({"order": [2, 1, 0]}) is not None  # lists, as JSON has them


def moved(program, formats, target):
    """Bytes that come to a memory."""
    found = 0
    for issue in program.streams["load"]:
        if formats.routes("load")[issue["route"]][1] == target:
            count = 1
            for c in issue.values["count"]:
                count *= c
            found += count * issue["run"]
    return found


def test_what_stays():
    """The order of the loops over tiles says whether weights, inputs or results stay on the chip."""
    chip = Systolic32(array=4)
    kernel, formats = chip_kernels.matmul(16, 16, 16), Formats(chip)
    s = select(kernel, formats.listing)
    i, o, r = (*s.loops, *s.steps[0].sums)
    tiles = {i: 8, o: 4, r: 8}
    once = 16 * 16
    for order, x, w in (
        ((i, o, r), 4 * once, 2 * once),  # results stay: operands come for each of them
        ((o, r, i), 4 * once, once),  # weights stay
        ((i, r, o), once, 2 * once),  # inputs stay
        ((r, i, o), once, 2 * once),
    ):
        made = planned(s, formats, TilePlan(tiles, order))
        came = moved(made.program, formats, "activations"), moved(made.program, formats, "weights")
        assert came == (x, w), order
        arrays = inputs(kernel)
        assert close(computed(made.nest, formats, made.program, arrays), reference(kernel, arrays))


def test_sums_that_wait_need_room():
    chip = Systolic32(array=4)
    kernel, formats = chip_kernels.matmul(16, 16, 16), Formats(chip)
    s = select(kernel, formats.listing)
    i, o, r = (*s.loops, *s.steps[0].sums)
    sizes = {}
    for order in ((i, o, r), (r, i, o)):
        t = TiledNest(s, formats.listing, TilePlan({i: 8, o: 4, r: 8}, order))
        t.prepare()
        sizes[order] = t.buffers[s.steps[0].output.buffer].size
    assert sizes[r, i, o] == 16 * 16 and sizes[i, o, r] == 2 * 8 * 4


def test_slots_by_memory_and_what_comes_first():
    chip = Systolic32(array=4)
    kernel, formats = chip_kernels.matmul(16, 16, 16), Formats(chip)
    s = select(kernel, formats.listing)
    i, o, r = (*s.loops, *s.steps[0].sums)
    plan = TilePlan({i: 4, o: 4, r: 8}, (i, o, r), depth={"weights": 3, "activations": 1}, first=("p1",))
    made = planned(s, formats, plan)
    slots = {b.scope: b.shape[0] for b in made.nest.buffers().values() if b.scope != "param"}
    assert slots["weights"] == 3 and slots["activations"] == 1 and slots["outputs"] == 2
    came = [formats.routes("load")[x["route"]][1] for x in made.program.streams["load"]]
    assert came.index("weights") < came.index("activations")
    assert "2 slots, 3 in weights, 1 in activations; first p1" in str(plan)


def test_joined_taps_fill_the_array():
    """Three channels under a window of 7 x 7: rows of 21 in an array of 32 are joined, three in two instructions."""
    kernel, formats = chip_kernels.conv(20, 20, 3, 96, 7, 7), Formats(Systolic32())
    s = select(kernel, formats.listing)
    found = best(s, formats)
    alone = best_without(s, formats)
    assert found.plan.joined and found.timing.cycles < 0.85 * alone.timing.cycles
    arrays = inputs(kernel)
    assert close(computed(found.nest, formats, found.program, arrays), reference(kernel, arrays))


def best_without(s, formats):
    """The best plan that joins no taps, and keeps no operands either."""
    plan = next(p for p, _ in plans(s, formats.listing) if not (p.joined or p.kept or p.depth))
    return planned(s, formats, plan)


def test_layouts_are_shared_by_plans():
    """What lies on the chip is the same whether a plan is looked at alone or after others."""
    for kernel, chip in KERNELS.values():
        listing = Listing.of(chip)
        selection = select(kernel, listing)
        costs = Costs(selection, listing)
        for plan, estimate in plans(selection, listing)[::7][:20]:
            shared, alone = costs.tiles.planned(plan), TiledNest(selection, listing, plan)
            shared.prepare()
            alone.prepare()
            assert shared.buffers == alone.buffers
            assert costs.of_tile(shared).estimate(plan) == estimate
