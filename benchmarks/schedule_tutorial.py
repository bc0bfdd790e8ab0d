"""The speed of every step of docs/schedule_tutorial.md beside the peak of one core, measured on the spot.

    python benchmarks/schedule_tutorial.py [--rounds 5] [--demand 0.9]

The page is run several times; each step counts with its best round, as does the peak: a loop of multiply-adds on
registers that nothing holds up. With --demand the exit code is 1 if the last step stays below that part of the peak.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import sys
from pathlib import Path

import numpy as np

from tilewright.driver.kernels import BuiltKernel
from tilewright.schedule.text import parse_nest
from tilewright.targets.base import find

PAGE = Path(__file__).resolve().parents[1] / "docs" / "schedule_tutorial.md"
TASKS, STEPS, SUMS = 64, 1024, 24
PEAK = f"""
def peak(x: f32[{{lanes}}], y: out(f32[{TASKS}, {SUMS}, {{lanes}}])):
    for t in thread({TASKS}):
        acc = register(f32[{SUMS}, {{lanes}}])
        for r in unroll({SUMS}):
            for l in vector({{lanes}}, lanes={{lanes}}):
                acc[r, l] = x[l]
        for k in serial({STEPS}):
            for r1 in unroll({SUMS}):
                for l1 in vector({{lanes}}, lanes={{lanes}}):
                    acc[r1, l1] = fma(x[l1], x[l1], acc[r1, l1])
        for r2 in unroll({SUMS}):
            for l2 in vector({{lanes}}, lanes={{lanes}}):
                y[t, r2, l2] = acc[r2, l2]
"""


def peak_kernel() -> tuple[BuiltKernel, int]:
    """A kernel that does nothing but multiply-adds, and its floating-point operations."""
    target = find("cpu")
    lanes = target.describe().vector_bytes // 4
    return BuiltKernel(parse_nest(PEAK.format(lanes=lanes)), target, 1), 2 * SUMS * lanes * STEPS * TASKS


def run_page() -> list[float]:
    """GFLOP/s of every step, in order."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    namespace: dict = {"__name__": "tutorial"}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), namespace)
    return namespace["speeds"]


def titles() -> list[str]:
    return re.findall(r"^## \d+\. (.*)$", PAGE.read_text(encoding="utf-8"), re.M)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--demand", type=float, default=0.0, help="fail if the last step is below this part of the peak"
    )
    args = parser.parse_args()
    kernel, flops = peak_kernel()
    half = np.full(kernel.nest.params[0].shape, 0.5, np.float32)
    best, peak = [0.0] * len(titles()), 0.0
    for _ in range(args.rounds):
        peak = max(peak, flops / kernel.time(half, seconds=0.1) / 1e9)
        best = [max(a, b) for a, b in zip(best, run_page(), strict=True)]
    print("| step | GFLOP/s | of the peak |\n|---|---|---|")
    for number, (title, speed) in enumerate(zip(titles(), best, strict=True), 1):
        print(f"| {number}. {title} | {speed:.1f} | {speed / peak:.0%} |")
    print(f"| measured peak | {peak:.1f} | |")
    return int(best[-1] < args.demand * peak)


if __name__ == "__main__":
    sys.exit(main())
