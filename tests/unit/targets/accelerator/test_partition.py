"""Which beginning of a group a chip runs."""

from types import SimpleNamespace

import pytest

from tilewright.targets.accelerator.binary import Formats
from tilewright.targets.accelerator.partition import KernelPlacement, Partitioner
from tilewright.targets.chips.systolic32 import CHIP

#: elements of the results of a product, a requantization, a transposition
ELEMENTS = [64 * 64] * 3


def alone(nodes):
    """What stands for a kernel: as many results as operations."""
    buffers = {str(n): SimpleNamespace(size=ELEMENTS[n]) for n in nodes}
    return SimpleNamespace(name=str(list(nodes)), temporaries=(), outputs=tuple(buffers), buffer=buffers.__getitem__)


@pytest.mark.parametrize(
    ("cycles", "host", "taken"),
    [
        ([None, 753, 10_828], True, [0, 1]),  # the host moves 4,096 numbers in the time of 2,048 cycles
        ([None, 753, 1_000], True, [0, 1, 2]),
        ([700, 753, None], True, [0, 1]),
        ([None, 753, 10_828], False, [0, 1, 2]),  # nobody else would do it
        ([None, None, None], True, ()),
    ],
)
def test_the_beginning_is_taken_with_which_a_group_is_done_first(cycles, host, taken, monkeypatch):
    made = Partitioner(Formats(CHIP()), host)

    def judged(kernel):
        found = cycles[len(kernel.outputs) - 1]
        why = "no instruction" if found is None else f"{found} cycles"
        return KernelPlacement(kernel, found is not None, why, (found or 0) / made.formats.chip.clock)

    monkeypatch.setattr(made, "judged", judged)
    assert list(made.claim([0, 1, 2], alone)) == list(taken)
    if len(taken) == 2 and cycles[2]:
        assert made.report[0].why == "753 cycles, with what follows 10828 cycles: left to the host"
