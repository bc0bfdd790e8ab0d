"""Random layers and random programs on the RTL of systolic32, against the simulators: results bit for bit, and cycles.

    python tests/fuzz/systolic_rtl.py --array 32 --layers 100 --programs 50

Needs Verilator and a C++ compiler. Ends with 1 where results differ, or cycles by more than 1%.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from support import rtl
from support.chip_layers import layer_arguments, random_layer
from support.systolic_programs import RandomProgram

from tilewright.support.errors import CompileError
from tilewright.targets.accelerator.binary import ChipProgram
from tilewright.targets.accelerator.functional import Functional
from tilewright.targets.accelerator.match import select
from tilewright.targets.accelerator.plan import best
from tilewright.targets.accelerator.timing import simulate
from tilewright.targets.chips.systolic32 import Systolic32

MOST_DIFFERENT_CYCLES = 0.01


class Agreement:
    """What was compared, and what differed."""

    def __init__(self, chip: rtl.Rtl) -> None:
        self.chip = chip
        self.compared = self.equal = self.same_cycles = self.cycles = 0
        self.worst = 0.0

    def compare(self, name: str, program: ChipProgram, arguments: list[np.ndarray]) -> None:
        want, got = [a.copy() for a in arguments], [a.copy() for a in arguments]
        Functional(self.chip.formats).run(program, want)
        expected = simulate(self.chip.formats, program).cycles
        cycles, _ = self.chip.run(program, got)
        equal = all(np.array_equal(w, g) for w, g in zip(want, got, strict=True))
        self.compared += 1
        self.equal += equal
        self.same_cycles += cycles == expected
        self.cycles += cycles
        self.worst = max(self.worst, abs(cycles / expected - 1))
        print(f"{name}: {cycles} cycles, simulator {expected}{'' if equal else ', RESULTS DIFFER'}", flush=True)

    def good(self, what: str) -> bool:
        print(
            f"{self.compared} {what}: {self.equal} with equal results, {self.same_cycles} with equal cycles"
            f" (at most {self.worst:.2%} apart), {self.cycles} cycles"
        )
        return self.equal == self.compared and self.worst <= MOST_DIFFERENT_CYCLES


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--array", type=int, default=32, help="rows and columns of the array")
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--programs", type=int, default=50)
    parser.add_argument("--folder", type=Path, default=Path("out/rtl"), help="where the RTL is built")
    given = parser.parse_args()
    if rtl.MISSING:
        print(f"this needs {rtl.MISSING}")
        return 1
    n = given.array
    description = Systolic32(array=n, bus=min(16, n))
    print(f"building {description} ...", flush=True)
    chip = rtl.build(description, given.folder / f"systolic{n}")

    layers, programs, seed = Agreement(chip), Agreement(chip), 0
    while layers.compared < given.layers:
        rng = np.random.default_rng(seed)
        seed += 1
        name, kernel = random_layer(rng, largest=3 * n)
        try:
            found = best(select(kernel, chip.formats.listing), chip.formats)
        except CompileError as e:
            print(f"{name}: {e.message}")
            continue
        layers.compare(name, found.program, layer_arguments(kernel, found.nest, rng))
    for seed in range(given.programs):
        random = RandomProgram(chip.formats, np.random.default_rng(seed), length=200)
        programs.compare(f"program {seed}", random.program, random.arguments)
    return 0 if layers.good("random layers") & programs.good("random programs") else 1


if __name__ == "__main__":
    sys.exit(main())
