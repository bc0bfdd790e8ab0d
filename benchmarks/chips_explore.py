"""Designs of a chip over quantized networks: which are on the front, and what exploring them takes.

    python benchmarks/chips_explore.py digits8.onnx resnet8.onnx resnet18.onnx --jobs 2

Every combination of the array's size, the memory of activations and the width of the bus is one design. Cycles, energy
and area are simulated or estimated: they are the same on every machine. Seconds are this machine's; the database is a
fresh one.
"""

from __future__ import annotations

import json
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from bench import HERE, grid, machine, write

from tilewright.targets.accelerator.designs import Exploration
from tilewright.tune.explore import explore
from tilewright.tune.explore import vary as varied

VARY = ("array=8..64", "activation_kb=32,64,128", "bus=8..64")


def processor_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def table(found: Exploration) -> list[str]:
    rows = [[*found.varied, *found.models, "relative", "energy", "area", "use", "bottleneck", "on the front"]]
    for design, front in sorted(zip(found.measured, found.front, strict=True), key=lambda x: x[0].seconds):
        name, part = design.bottleneck
        rows.append(
            [
                *(str(design.parameters[v]) for v in found.varied),
                *(f"{1e6 * m.seconds:,.1f} us" for m in design.models),
                f"{design.seconds / found.best:.2f}",
                f"{design.energy / 1e6:,.0f} uJ",
                f"{design.area:.2f} mm2",
                f"{design.use:.1%}",
                f"{name} {part:.0%}",
                "yes" if front else "",
            ]
        )
    return grid(rows)


def markdown(report: dict[str, Any], found: Exploration) -> str:
    points = len(found.measured) * len(found.models)
    return "\n".join(
        [
            f"{found.chip}, {len(found.designs)} designs by {len(found.models)} networks, the fastest first: the part "
            "of the chip by its timing simulator, the rest at the host's rate that its description says. As planned, "
            "not tuned.",
            "",
            *table(found),
            "",
            f"{sum(found.front)} designs are on the front, {len(found.refused)} were refused. With {report['jobs']} "
            f"processes it took {report['seconds']:.0f} s, and {report['processor']:.0f} s of processor time, "
            f"{report['processor'] / max(points, 1):.1f} s a network on a design. The machine had other work meanwhile "
            "where the two differ by more than the number of processes says.",
            "",
        ]
    )


def main(
    models: Annotated[list[str], typer.Argument(help="Quantized models.")],
    chip: Annotated[str, typer.Option(help="The chip.")] = "systolic32",
    vary: Annotated[list[str] | None, typer.Option(help="Parameters with their values.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes.")] = 2,
    name: Annotated[str, typer.Option(help="Name of the result files.")] = "chips_explore",
    results: Annotated[Path, typer.Option(help="Folder of the result files.")] = HERE / "results",
) -> None:
    """Explore designs of a chip and say what that takes."""

    def watch(done: int, count: int, what: str) -> None:
        print(f"{done}/{count} {what}", flush=True)

    begin, before = time.perf_counter(), processor_seconds()
    with TemporaryDirectory() as folder:
        database = Path(folder) / "designs.sqlite"
        found = explore(chip, models, varied(vary or VARY), jobs=jobs, database=database, watch=watch)
    report: dict[str, Any] = {
        "machine": machine(),
        "chip": found.chip,
        "varied": vary or VARY,
        "jobs": jobs,
        "seconds": time.perf_counter() - begin,
        "processor": processor_seconds() - before,
        "designs": [
            {
                "parameters": dict(d.parameters),
                "area": d.area,
                "refused": d.refused,
                "models": dict(zip(found.models, (m.to_json() for m in d.models), strict=False)),
            }
            for d in found.designs
        ],
    }
    write(results / f"{name}.json", json.dumps(report, indent=1) + "\n")
    write(results / f"{name}.md", markdown(report, found))


if __name__ == "__main__":
    typer.run(main)
